//! Coding of what is sent: groups of frames, and the repairs from which a lost one of them is computed.
//!
//! *Problem.* A frame of video is several datagrams. A copy saves the one datagram that it is of; within the same
//! bytes a sum of all of them saves whichever is lost. Where single packets are lost, as a radio does, repairs do for a
//! quarter of the bytes what copies of everything do.
//!
//! *How.* Frames that leave one after the other on a path, without copies and by the policy's wish, are a *group*. It
//! ends when nothing has left for [`PAUSE`], after [`LONGEST`], with [`MOST_IN_GROUP`] frames, or with a frame on
//! another path. Then the policy is asked how many repairs there are, and where. Of a group of one the repair is a
//! copy. A frame of a group whose answer is overdue is not sent again while its repairs make up for it.
//!
//! *Source.* The code is that of the repairs of streams (docs/decisions/coding.md). *Differs:* cells are
//! the datagrams of whole frames, so that nothing needs a grid, and a repair is forgotten when it is lost.

use std::collections::VecDeque;

use marline_policy::{Group, PathId, Repairs};
use marline_time::{Duration, Instant};
use marline_wire::repair_code::coefficient;

use crate::frame::{LEN_BYTES, MOST_IN_GROUP, Repair, add_part};

/// A group ends when nothing has left for so long, and when it is so old.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(5);
/// Groups remembered after their end.
const MOST_REMEMBERED: usize = 64;

/// Groups of what is sent.
#[derive(Debug, Default)]
pub(super) struct Coding {
    open: Option<Coded>,
    /// Those that have ended and of which nobody was asked yet.
    ended: VecDeque<Coded>,
    leaving: Option<Leaving>,
    remembered: VecDeque<Remembered>,
    spare: Vec<Vec<u8>>,
}

/// A group of frames.
#[derive(Debug)]
pub(super) struct Coded {
    pub(super) on: PathId,
    /// Of the largest datagram.
    pub(super) flow: u64,
    pub(super) deadline: Instant,
    numbers: Vec<u64>,
    parts: Vec<Vec<u8>>,
    started_at: Instant,
    last_at: Instant,
}

/// A group whose repairs leave.
#[derive(Debug)]
struct Leaving {
    group: Coded,
    repairs: Repairs,
    sent: Vec<u64>,
}

/// A group that has ended: what it can do without.
#[derive(Debug)]
struct Remembered {
    on: PathId,
    numbers: Vec<u64>,
    /// Numbers of its repairs.
    repairs: Vec<u64>,
    missed: Vec<u64>,
}

impl Coded {
    pub(super) fn view(&self) -> Group {
        Group { frames: self.numbers.len() as u8, on: self.on }
    }

    /// The number of its only frame.
    pub(super) fn only(&self) -> Option<u64> {
        (self.numbers.len() == 1).then(|| self.numbers[0])
    }

    pub(super) fn longest(&self) -> usize {
        self.parts.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Bytes of the item of one of its repairs.
    pub(super) fn repair_bytes(&self) -> usize {
        Repair::overhead(&self.numbers) + self.longest()
    }

    /// Appends the repair of this row.
    pub(super) fn write(&self, row: u8, body: &mut Vec<u8>) {
        let mut sum = vec![0; LEN_BYTES + self.longest()];
        for (cell, part) in self.parts.iter().enumerate() {
            add_part(&mut sum, part, coefficient(row, cell as u64));
        }
        Repair::new(row, &self.numbers, &sum).write(body);
    }

    fn ends_at(&self) -> Instant {
        (self.last_at + PAUSE).min(self.started_at + LONGEST)
    }
}

impl Coding {
    /// A frame with these datagrams has left on a path, to be repaired with those before and after it.
    pub(super) fn on_sent(
        &mut self,
        number: u64,
        part: &[u8],
        (flow, on, deadline): (u64, PathId, Instant),
        now: Instant,
    ) {
        self.end_if(|open| open.on != on || open.ends_at() <= now);
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(part);
        let open = self.open.get_or_insert_with(|| Coded {
            on,
            flow,
            deadline,
            numbers: Vec::new(),
            parts: Vec::new(),
            started_at: now,
            last_at: now,
        });
        if part.len() > open.longest() {
            open.flow = flow;
        }
        open.deadline = open.deadline.max(deadline);
        open.last_at = now;
        open.numbers.push(number);
        open.parts.push(bytes);
        self.end_if(|open| open.numbers.len() >= MOST_IN_GROUP);
    }

    fn end_if(&mut self, ends: impl Fn(&Coded) -> bool) {
        let Some(open) = self.open.take_if(|open| ends(open)) else { return };
        // More than one waits only while nothing may leave; the newest is of most use.
        if self.ended.len() >= 4
            && let Some(old) = self.ended.pop_front()
        {
            self.reuse(old.parts);
        }
        self.ended.push_back(open);
    }

    /// When the group that is open ends.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.open.as_ref().map(Coded::ends_at)
    }

    /// A group that has ended by now, for its repairs.
    pub(super) fn take_ended(&mut self, now: Instant) -> Option<Coded> {
        self.end_if(|open| open.ends_at() <= now);
        self.ended.pop_front()
    }

    /// These repairs of a group are to leave.
    pub(super) fn leave(&mut self, group: Coded, repairs: Repairs) {
        self.leaving = Some(Leaving { group, repairs, sent: Vec::new() });
    }

    /// The group of which a repair is to leave, the path it goes on, and its row.
    pub(super) fn leaving(&self) -> Option<(&Coded, PathId, u8)> {
        let leaving = self.leaving.as_ref()?;
        Some((&leaving.group, leaving.repairs.path, leaving.sent.len() as u8))
    }

    /// A repair has left under this number, or cannot.
    pub(super) fn on_repair(&mut self, number: Option<u64>) {
        let Some(leaving) = &mut self.leaving else { return };
        leaving.sent.extend(number);
        if number.is_some() && leaving.sent.len() < usize::from(leaving.repairs.count) {
            return;
        }
        if let Some(Leaving { group, sent, .. }) = self.leaving.take() {
            self.remember(group, sent);
        }
    }

    /// No repair of a group leaves.
    pub(super) fn let_go(&mut self, group: Coded) {
        self.reuse(group.parts);
    }

    fn remember(&mut self, group: Coded, repairs: Vec<u64>) {
        if !repairs.is_empty() {
            if self.remembered.len() >= MOST_REMEMBERED {
                self.remembered.pop_front();
            }
            let remembered =
                Remembered { on: group.on, numbers: group.numbers, repairs, missed: Vec::new() };
            self.remembered.push_back(remembered);
        }
        self.reuse(group.parts);
    }

    fn reuse(&mut self, parts: Vec<Vec<u8>>) {
        self.spare.extend(parts.into_iter().take(MOST_IN_GROUP));
        self.spare.truncate(MOST_IN_GROUP);
    }

    /// A frame is lost on a path, or its answer is overdue. Returns the frames that repairs do not make up for, with
    /// the path they were on: itself, or of its group all that are missed.
    pub(super) fn on_missed(&mut self, number: u64, on: PathId) -> (PathId, Vec<u64>) {
        // While its repairs have not left, it is by itself.
        let Some(group) = self.remembered.iter_mut().find(|group| group.concerns(number)) else {
            return (on, vec![number]);
        };
        if group.repairs.contains(&number) {
            group.repairs.retain(|repair| *repair != number);
        } else if !group.missed.contains(&number) {
            group.missed.push(number);
        }
        if group.missed.len() <= group.repairs.len() {
            return (on, Vec::new());
        }
        // Told once: what is missed after them is by itself.
        group.repairs.clear();
        (group.on, core::mem::take(&mut group.missed))
    }

    /// A frame has come in.
    pub(super) fn on_answered(&mut self, number: u64) {
        if let Some(group) = self.remembered.iter_mut().find(|group| group.concerns(number)) {
            group.missed.retain(|missed| *missed != number);
        }
    }
}

impl Remembered {
    fn concerns(&self, number: u64) -> bool {
        self.numbers.contains(&number) || self.repairs.contains(&number)
    }
}
