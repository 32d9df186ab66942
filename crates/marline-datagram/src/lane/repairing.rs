//! Repair of received data: frames kept for some time, and lost frames recovered from repairs.
//!
//! Frames are kept only after the peer has sent a repair, until [`KEEP_TIME`] after its last one. A repair over n
//! frames, of which n - 1 are known, yields the missing one. In general, k repairs over one set of frames yield k
//! missing frames, by elimination in the field of 256 elements. If this is not yet possible, the repair waits for late
//! frames or for the next repair.
//!
//! *Hostile input.* A repair is as trustworthy as any other frame of the peer, and cannot have effects that the
//! peer's own frames could not have. Its cost is limited: [`MAX_KEPT_FRAMES`] frames, [`MAX_WAITING_REPAIRS`] repairs
//! of at most [`MAX_GROUP_FRAMES`] frames each.

use std::collections::{BTreeMap, VecDeque};

use marline_time::{Duration, Instant};
use marline_wire::repair_code::{add_multiple, coefficient, inverse};

use super::Lane;
use crate::frame::{self, Item, Items, LEN_BYTES, MAX_GROUP_FRAMES, Repair, add_part};

/// Time after the last repair during which frames are kept.
const KEEP_TIME: Duration = Duration::from_secs(10);
/// Maximum number of kept frames; the newest are kept. They span a tenth of a second at 100 Mbit/s, because bulk data
/// may be sent during a call.
const MAX_KEPT_FRAMES: usize = 1_024;
/// Maximum number of waiting repairs.
const MAX_WAITING_REPAIRS: usize = 16;

/// Frames and repairs from which lost frames are recovered.
#[derive(Debug, Default)]
pub(super) struct RepairState {
    until: Option<Instant>,
    /// Datagrams of received frames, by packet number.
    kept: BTreeMap<u64, Vec<u8>>,
    waiting: VecDeque<WaitingRepair>,
    spare: Vec<Vec<u8>>,
}

/// Repair that waits for more frames or repairs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WaitingRepair {
    row: u8,
    numbers: Vec<u64>,
    sum: Vec<u8>,
}

impl RepairState {
    /// Returns true if frames are kept at this time.
    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Handles a received frame with these datagrams. Returns the frames that can now be recovered.
    pub(super) fn on_frame(
        &mut self,
        number: u64,
        part: &[u8],
        now: Instant,
    ) -> Vec<(u64, Vec<u8>)> {
        if !self.is_active(now) {
            self.kept.clear();
            self.waiting.clear();
            return Vec::new();
        }
        if part.is_empty() {
            return Vec::new();
        }
        self.keep_frame(number, part);
        if self.waiting.iter().any(|waiting| waiting.numbers.contains(&number)) {
            self.solve()
        } else {
            Vec::new()
        }
    }

    fn keep_frame(&mut self, number: u64, part: &[u8]) {
        if self.kept.len() >= MAX_KEPT_FRAMES
            && let Some((_, bytes)) = self.kept.pop_first()
        {
            self.spare.push(bytes);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(part);
        self.kept.insert(number, bytes);
    }

    /// Handles a received repair. Returns the frames that can now be recovered.
    pub(super) fn on_repair(&mut self, repair: &Repair<'_>, now: Instant) -> Vec<(u64, Vec<u8>)> {
        self.until = Some(now + KEEP_TIME);
        let waiting = WaitingRepair {
            row: repair.row,
            numbers: repair.numbers().to_vec(),
            sum: repair.sum.to_vec(),
        };
        if self.missing_numbers(&waiting.numbers).is_empty() || self.waiting.contains(&waiting) {
            return Vec::new();
        }
        if self.waiting.len() >= MAX_WAITING_REPAIRS {
            self.waiting.pop_front();
        }
        self.waiting.push_back(waiting);
        self.solve()
    }

    fn missing_numbers(&self, numbers: &[u64]) -> Vec<u64> {
        numbers.iter().filter(|number| !self.kept.contains_key(number)).copied().collect()
    }

    /// Recovers all possible frames and drops repairs that are no longer useful.
    fn solve(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            let numbers = self.waiting[at].numbers.clone();
            let missing = self.missing_numbers(&numbers);
            let of_group = |waiting: &&WaitingRepair| waiting.numbers == numbers;
            let repairs: Vec<&WaitingRepair> = self.waiting.iter().filter(of_group).collect();
            if missing.len() > repairs.len() {
                at += 1;
                continue;
            }
            let solved = self.solve_group(&numbers, &missing, &repairs[..missing.len()]);
            self.waiting.retain(|waiting| waiting.numbers != numbers);
            for (number, part) in solved {
                self.keep_frame(number, &part);
                found.push((number, part));
            }
        }
        found
    }

    /// Solves for the missing frames with an equal number of repairs, by Gaussian elimination of the matrix and the
    /// sums.
    fn solve_group(
        &self,
        numbers: &[u64],
        missing: &[u64],
        repairs: &[&WaitingRepair],
    ) -> Vec<(u64, Vec<u8>)> {
        let cell = |number: &u64| numbers.iter().position(|other| other == number).unwrap_or(0);
        let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for repair in repairs {
            let mut rest = repair.sum.clone();
            for (cell, part) in numbers.iter().map(|number| self.kept.get(number)).enumerate() {
                let (Some(part), factor) = (part, coefficient(repair.row, cell as u64)) else {
                    continue;
                };
                if part.len() + LEN_BYTES > rest.len() {
                    // The repair contradicts the received data.
                    return Vec::new();
                }
                add_part(&mut rest, part, factor);
            }
            let factors = missing.iter().map(|number| coefficient(repair.row, cell(number) as u64));
            rows.push((factors.collect(), rest));
        }
        if rows.iter().any(|(_, rest)| rest.len() != rows[0].1.len()) || !eliminate(&mut rows) {
            return Vec::new();
        }
        let part = |(number, (_, cell)): (&u64, (Vec<u8>, Vec<u8>))| {
            let (len, bytes) = cell.split_first_chunk::<LEN_BYTES>()?;
            let part = bytes.get(..usize::from(u16::from_be_bytes(*len)))?;
            Some((*number, part.to_vec()))
        };
        missing.iter().zip(rows).filter_map(part).collect()
    }
}

/// Transforms a square matrix to the identity matrix, and the sums with it. Returns false if it is singular.
fn eliminate(rows: &mut [(Vec<u8>, Vec<u8>)]) -> bool {
    debug_assert!(rows.len() <= MAX_GROUP_FRAMES);
    for place in 0..rows.len() {
        let Some(pivot) = (place..rows.len()).find(|at| rows[*at].0[place] != 0) else {
            return false;
        };
        rows.swap(place, pivot);
        let scale = inverse(rows[place].0[place]);
        let scaled = |bytes: &[u8]| {
            let mut scaled = vec![0; bytes.len()];
            add_multiple(&mut scaled, bytes, scale);
            scaled
        };
        rows[place] = (scaled(&rows[place].0), scaled(&rows[place].1));
        let (factors, rest) = rows[place].clone();
        for (at, row) in rows.iter_mut().enumerate() {
            let factor = row.0[place];
            if at != place && factor != 0 {
                add_multiple(&mut row.0, &factors, factor);
                add_multiple(&mut row.1, &rest, factor);
            }
        }
    }
    true
}

impl Lane {
    /// Processes frames that were recovered from repairs.
    pub(super) fn process_repaired(&mut self, found: Vec<(u64, Vec<u8>)>, now: Instant) {
        for (number, part) in found {
            // The frame may have arrived before frames were kept, or long ago.
            if !self.window.is_new(number) {
                continue;
            }
            self.window.record(number, now);
            for item in Items::new(&part) {
                match item {
                    Ok(Item::Datagram { flow, payload }) => {
                        self.stats.repaired_datagrams += 1;
                        self.deliver(flow, payload);
                    }
                    Ok(_) | Err(frame::MalformedBody) => self.stats.malformed += 1,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant::from_secs(1);

    fn repair(row: u8, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let longest = frames.iter().map(|(_, part)| part.len()).max().unwrap();
        let mut sum = vec![0; LEN_BYTES + longest];
        for (cell, (_, part)) in frames.iter().enumerate() {
            add_part(&mut sum, part, coefficient(row, cell as u64));
        }
        sum
    }

    proptest! {
        #[test]
        fn each_repair_recovers_one_frame_in_any_order(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 2..=MAX_GROUP_FRAMES),
            rows in prop::collection::hash_set(0u8..64, 1..5),
            order in any::<u64>(),
        ) {
            let frames: Vec<(u64, Vec<u8>)> =
                parts.into_iter().enumerate().map(|(at, part)| (3 * at as u64 + 1, part)).collect();
            let numbers: Vec<u64> = frames.iter().map(|(number, _)| *number).collect();
            let lost = rows.len().min(frames.len());
            let mut pieces: Vec<Result<usize, u8>> =
                (lost..frames.len()).map(Ok).chain(rows.into_iter().map(Err)).collect();
            let mut rng = marline_time::SeedTree::new(order).stream("order");
            for at in (1..pieces.len()).rev() {
                pieces.swap(at, marline_time::Rng::below(&mut rng, at as u64 + 1) as usize);
            }
            let mut repairing = RepairState { until: Some(NOW + KEEP_TIME), ..RepairState::default() };
            let mut found = Vec::new();
            for piece in pieces {
                match piece {
                    Ok(at) => found.extend(repairing.on_frame(frames[at].0, &frames[at].1, NOW)),
                    Err(row) => {
                        let sum = repair(row, &frames);
                        found.extend(repairing.on_repair(&Repair::new(row, &numbers, &sum), NOW));
                    }
                }
            }
            found.sort();
            prop_assert!(frames[..lost].iter().all(|frame| found.contains(frame)));
            prop_assert!(found.iter().all(|frame| frames.contains(frame)));
            prop_assert!(repairing.waiting.is_empty());
        }

        #[test]
        fn arbitrary_repairs_are_harmless_and_bounded(
            pieces in prop::collection::vec(
                (any::<u8>(), prop::collection::btree_set(0u64..40, 1..10), prop::collection::vec(any::<u8>(), 3..20)),
                1..60,
            ),
        ) {
            let mut repairing = RepairState::default();
            for (row, numbers, bytes) in pieces {
                let numbers: Vec<u64> = numbers.into_iter().collect();
                if numbers.len() == 1 {
                    repairing.on_frame(numbers[0], &bytes, NOW);
                } else {
                    repairing.on_repair(&Repair::new(row, &numbers, &bytes), NOW);
                }
                prop_assert!(repairing.kept.len() <= MAX_KEPT_FRAMES && repairing.waiting.len() <= MAX_WAITING_REPAIRS);
            }
        }
    }

    #[test]
    fn frames_are_kept_only_near_received_repairs() {
        let frames = [(1, vec![1, 2, 3]), (2, vec![4, 5])];
        let mut repairing = RepairState::default();
        assert!(repairing.on_frame(1, &frames[0].1, NOW).is_empty() && repairing.kept.is_empty());
        let sum = repair(0, &frames);
        assert!(repairing.on_repair(&Repair::new(0, &[1, 2], &sum), NOW).is_empty());
        assert_eq!(repairing.on_frame(2, &frames[1].1, NOW), [frames[0].clone()]);
        repairing.on_frame(3, &[9], NOW + KEEP_TIME);
        assert!(repairing.kept.is_empty());
    }
}
