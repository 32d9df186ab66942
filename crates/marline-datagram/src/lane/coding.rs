//! Coding of sent frames: groups of frames, and repairs from which a lost frame can be recovered.
//!
//! *Problem.* A frame of video is several datagrams. A copy protects one datagram. A sum over all of them is no longer
//! than one datagram and can replace any of them. If losses are single packets, as on radio links, repairs achieve as
//! much as copies of everything, with a quarter of the bytes.
//!
//! *Solution.* Consecutive frames on a path form a *group* if the policy requests it and they have no copies. It ends
//! when nothing has been sent for [`PAUSE`], after [`MAX_GROUP_TIME`], with [`MAX_GROUP_FRAMES`] frames, or with a
//! frame on another path. Then the policy decides the number and path of the repairs. For a group of one frame, the
//! repair is a copy. An overdue frame of a group is not sent again while the repairs compensate for it.
//!
//! *Source.* The code is the one used for repairs of streams (docs/decisions/coding.md). *Differs:* a cell contains the
//! datagrams of a whole frame, so no grid is needed, and a lost repair is not sent again.

use std::collections::VecDeque;

use marline_policy::{DatagramContext, FlowClass, Group, PathId, Repairs};
use marline_time::{Duration, Instant};
use marline_wire::repair_code::coefficient;

use super::sent_frames::{Copy, FrameToKeep};
use super::{Lane, Transmit};
use crate::frame::{
    HEADER_BYTES, LEN_BYTES, MAX_GROUP_FRAMES, Repair, TAG_BYTES, add_part, datagram_overhead,
};
use crate::path::Path;

/// Pause and age after which a group ends.
const PAUSE: Duration = Duration::from_millis(1);
const MAX_GROUP_TIME: Duration = Duration::from_millis(5);
/// Maximum number of groups remembered after their end.
const MAX_REMEMBERED_GROUPS: usize = 64;

/// Groups of sent frames, and their repairs.
#[derive(Debug, Default)]
pub(super) struct FrameGroups {
    open: Option<FrameGroup>,
    /// Groups that have ended but whose repairs have not yet been requested.
    ended: VecDeque<FrameGroup>,
    leaving: Option<RepairsInProgress>,
    remembered: VecDeque<EndedGroup>,
    spare: Vec<Vec<u8>>,
}

/// Frames that share repairs.
#[derive(Debug)]
pub(super) struct FrameGroup {
    pub(super) on: PathId,
    /// Flow of the largest datagram.
    pub(super) flow: u64,
    pub(super) deadline: Instant,
    numbers: Vec<u64>,
    parts: Vec<Vec<u8>>,
    started_at: Instant,
    last_at: Instant,
}

/// Group whose repairs are being sent.
#[derive(Debug)]
struct RepairsInProgress {
    group: FrameGroup,
    repairs: Repairs,
    sent: Vec<u64>,
}

/// Group that has ended, and the losses for which its repairs compensate.
#[derive(Debug)]
struct EndedGroup {
    on: PathId,
    numbers: Vec<u64>,
    /// Packet numbers of the group's repairs.
    repairs: Vec<u64>,
    missed: Vec<u64>,
}

impl FrameGroup {
    pub(super) fn view(&self) -> Group {
        Group { frames: self.numbers.len() as u8, on: self.on }
    }

    /// Number of the group's only frame; `None` if there are several.
    pub(super) fn only_frame(&self) -> Option<u64> {
        (self.numbers.len() == 1).then(|| self.numbers[0])
    }

    pub(super) fn longest(&self) -> usize {
        self.parts.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Length of a repair item of this group, in bytes.
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
        (self.last_at + PAUSE).min(self.started_at + MAX_GROUP_TIME)
    }
}

impl FrameGroups {
    /// Adds a sent frame with these datagrams to the current group.
    pub(super) fn on_sent(
        &mut self,
        number: u64,
        part: &[u8],
        keeping: &FrameToKeep,
        now: Instant,
    ) {
        let FrameToKeep { flow, deadline, path: on, .. } = *keeping;
        self.end_groups_if(|open| open.on != on || open.ends_at() <= now);
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(part);
        let open = self.open.get_or_insert_with(|| FrameGroup {
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
        self.end_groups_if(|open| open.numbers.len() >= MAX_GROUP_FRAMES);
    }

    fn end_groups_if(&mut self, ends: impl Fn(&FrameGroup) -> bool) {
        let Some(open) = self.open.take_if(|open| ends(open)) else { return };
        // Several groups wait only while nothing may be sent. The newest group is the most useful.
        if self.ended.len() >= 4
            && let Some(old) = self.ended.pop_front()
        {
            self.reuse(old.parts);
        }
        self.ended.push_back(open);
    }

    /// Time at which the current group ends.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.open.as_ref().map(FrameGroup::ends_at)
    }

    /// Takes the next group that has ended.
    pub(super) fn take_ended(&mut self, now: Instant) -> Option<FrameGroup> {
        self.end_groups_if(|open| open.ends_at() <= now);
        self.ended.pop_front()
    }

    /// Starts to send these repairs of a group.
    pub(super) fn start_repairs(&mut self, group: FrameGroup, repairs: Repairs) {
        self.leaving = Some(RepairsInProgress { group, repairs, sent: Vec::new() });
    }

    /// Returns the group whose repair must be sent next, with the repair's path and row.
    pub(super) fn next_repair(&self) -> Option<(&FrameGroup, PathId, u8)> {
        let leaving = self.leaving.as_ref()?;
        Some((&leaving.group, leaving.repairs.path, leaving.sent.len() as u8))
    }

    /// Records that a repair was sent with this number, or could not be sent (`None`).
    pub(super) fn on_repair(&mut self, number: Option<u64>) {
        let Some(leaving) = &mut self.leaving else { return };
        leaving.sent.extend(number);
        if number.is_some() && leaving.sent.len() < usize::from(leaving.repairs.count) {
            return;
        }
        if let Some(RepairsInProgress { group, sent, .. }) = self.leaving.take() {
            self.remember(group, sent);
        }
    }

    /// Discards a group that gets no repairs.
    pub(super) fn discard_group(&mut self, group: FrameGroup) {
        self.reuse(group.parts);
    }

    fn remember(&mut self, group: FrameGroup, repairs: Vec<u64>) {
        if !repairs.is_empty() {
            if self.remembered.len() >= MAX_REMEMBERED_GROUPS {
                self.remembered.pop_front();
            }
            let remembered =
                EndedGroup { on: group.on, numbers: group.numbers, repairs, missed: Vec::new() };
            self.remembered.push_back(remembered);
        }
        self.reuse(group.parts);
    }

    fn reuse(&mut self, parts: Vec<Vec<u8>>) {
        self.spare.extend(parts.into_iter().take(MAX_GROUP_FRAMES));
        self.spare.truncate(MAX_GROUP_FRAMES);
    }

    /// Handles a frame that is lost on a path or whose acknowledgment is overdue. Returns the frames for which repairs
    /// do not compensate, with their path: the frame itself, or all missing frames of its group.
    pub(super) fn on_missed(&mut self, number: u64, on: PathId) -> (PathId, Vec<u64>) {
        // Before the repairs of its group are sent, the frame is treated individually.
        let Some(group) = self.remembered.iter_mut().find(|group| group.contains_frame(number))
        else {
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
        // The group is returned only once. Further missing frames are treated individually.
        group.repairs.clear();
        (group.on, core::mem::take(&mut group.missed))
    }

    /// Handles the acknowledgment of a frame.
    pub(super) fn on_answered(&mut self, number: u64) {
        if let Some(group) = self.remembered.iter_mut().find(|group| group.contains_frame(number)) {
            group.missed.retain(|missed| *missed != number);
        }
    }
}

impl EndedGroup {
    fn contains_frame(&self, number: u64) -> bool {
        self.numbers.contains(&number) || self.repairs.contains(&number)
    }
}

impl Lane {
    /// Sends a repair of a group that has ended, or the copy of its only frame.
    pub(super) fn transmit_repair(
        &mut self,
        now: Instant,
        frame: &mut Vec<u8>,
    ) -> Option<Transmit> {
        while self.coding.next_repair().is_none() {
            let group = self.coding.take_ended(now)?;
            match (self.repairs_of(&group, now), group.only_frame()) {
                (None, _) => self.coding.discard_group(group),
                (Some(repairs), None) => self.coding.start_repairs(group, repairs),
                (Some(Repairs { path, .. }), Some(number)) => {
                    self.coding.discard_group(group);
                    self.copy(Copy { number, path, rescue: false });
                    if let Some(transmit) = self.transmit_copy(now, frame) {
                        return Some(transmit);
                    }
                }
            }
        }
        let (group, id, row) = self.coding.next_repair()?;
        frame.resize(HEADER_BYTES, 0);
        group.write(row, frame);
        let bytes = frame.len() + TAG_BYTES;
        let fits = |path: &&mut Path| {
            path.id() == id && bytes <= path.frame_bytes().into() && path.has_room_for_copy(bytes)
        };
        let Some(at) = self.paths.iter_mut().position(|path| fits(&path)) else {
            self.coding.on_repair(None);
            frame.clear();
            return None;
        };
        let number = self.seal(frame);
        self.coding.on_repair(Some(number));
        self.paths[at].on_sent(number, bytes, false, now);
        self.stats.copied_frame_bytes += bytes as u64;
        self.stats.repair_frame_bytes += bytes as u64;
        self.policy.on_sent(now, bytes as u64, true);
        Some(Transmit { path: id, bytes })
    }

    fn repairs_of(&mut self, group: &FrameGroup, now: Instant) -> Option<Repairs> {
        if group.deadline <= now {
            return None;
        }
        let bytes = group.repair_bytes().saturating_sub(datagram_overhead(u64::MAX, None));
        self.update_path_views(bytes, None, now);
        let class = self.flows.find_known(group.flow).map_or(FlowClass::Steady, |flow| flow.class);
        let flow = self.flow_view(group.flow, class, bytes, group.deadline);
        let context = DatagramContext { now, paths: &self.views, repairs: self.peer_repairs };
        let frames = group.view().frames;
        let repairs = self.policy.repairs(&context, &flow, group.view())?;
        let count = repairs.count.clamp(1, frames);
        context.path(repairs.path).map(|path| Repairs { path: path.id, count })
    }
}
