//! Flows of a lane: the traffic of each within the last second, and its class.
//!
//! The number of flows is limited. Beyond the limit, the flow that has been silent longest is dropped, and counts as
//! new when it sends again. This loses only its class and path.

use std::collections::{BTreeMap, BTreeSet};

use marline_policy::{FlowClass, PathId};
use marline_time::{Duration, Instant, Rate};

/// Maximum rate of a sparse flow: copies may always cost this much (16 kB/s).
const MAX_SPARSE_RATE: Rate = Rate::from_bits_per_s(128_000);
/// Minimum rate of a bulk flow. Such a flow must also fill the window and react to losses: a share of at least
/// [`BULK_WAIT_SHARE`] of its datagrams had to wait for the window, and few were dropped while waiting. It stays bulk
/// until hardly any datagram has to wait. A flow that does not react to losses is live video at any rate. The
/// application may set the class.
const BULK: Rate = Rate::from_mbit(2);
const BULK_WAIT_SHARE: f32 = 0.5;
const BULK_END_WAIT_SHARE: f32 = 0.1;
const MAX_BULK_DROP_SHARE: f32 = 0.2;
/// Minimum waiting time of a datagram that counts as having waited for the window.
const MIN_COUNTED_WAIT: Duration = Duration::from_millis(5);
/// Weight of the newest datagram in the share of waiting datagrams.
const WAITS_GAIN: f32 = 1.0 / 64.0;
/// Maximum pause between datagrams of one burst.
const MAX_BURST_PAUSE: Duration = Duration::from_millis(1);
/// Weight of the newest burst in the mean.
const BURST_GAIN: f32 = 0.25;
/// Number of slots into which the last second is divided.
const SLOTS: usize = 4;
const SLOT: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// Number of bytes per slot, and the number of the current slot.
    slots: [u32; SLOTS],
    slot: u64,
    mean_bytes: f32,
    /// Number of datagrams in the current burst, and the smoothed number in earlier bursts.
    burst: u32,
    mean_burst: f32,
    handed_over_at: Instant,
    /// Share of the flow's datagrams that had to wait.
    wait_share: f32,
    /// Share of the flow's datagrams that were dropped before they were sent.
    dropped: f32,
    pub(crate) class: FlowClass,
    /// True if the flow had sent nothing else within the last second.
    pub(crate) is_sparse: bool,
    /// True if the application has set the class.
    is_class_set: bool,
    /// Path of the last datagram, and the time at which the flow started to use it.
    pub(crate) last: Option<(PathId, Instant)>,
    used_at: Instant,
}

impl Flow {
    fn new(now: Instant) -> Self {
        Flow {
            slots: [0; SLOTS],
            slot: 0,
            mean_bytes: 0.0,
            burst: 0,
            mean_burst: 1.0,
            handed_over_at: now,
            wait_share: 0.0,
            dropped: 0.0,
            class: FlowClass::Sparse,
            is_sparse: true,
            is_class_set: false,
            last: None,
            used_at: now,
        }
    }

    fn on_datagram(&mut self, now: Instant, bytes: usize) {
        let slot = now.as_nanos() / SLOT.as_nanos() as u64;
        for passed in 1..=slot.saturating_sub(self.slot).min(SLOTS as u64) {
            self.slots[(self.slot + passed) as usize % SLOTS] = 0;
        }
        if slot - self.slot.min(slot) >= SLOTS as u64 {
            self.slots = [0; SLOTS];
        }
        self.slot = slot;
        self.is_sparse = self.slots == [0; SLOTS];
        let current = &mut self.slots[slot as usize % SLOTS];
        *current = current.saturating_add(bytes as u32);
        if now.since(self.handed_over_at) >= MAX_BURST_PAUSE && self.burst > 0 {
            self.mean_burst += (self.burst as f32 - self.mean_burst) * BURST_GAIN;
            self.burst = 0;
        }
        self.burst = self.burst.saturating_add(1);
        self.handed_over_at = now;
        let gain = if self.mean_bytes == 0.0 { 1.0 } else { 0.1 };
        self.mean_bytes += (bytes as f32 - self.mean_bytes) * gain;
        if !self.is_class_set {
            self.class = self.classify();
        }
    }

    fn classify(&self) -> FlowClass {
        let rate = self.rate();
        let fills = match self.class {
            FlowClass::Bulk => self.wait_share > BULK_END_WAIT_SHARE,
            FlowClass::Sparse | FlowClass::Steady => {
                rate > BULK && self.wait_share > BULK_WAIT_SHARE
            }
        };
        match rate {
            _ if rate <= MAX_SPARSE_RATE => FlowClass::Sparse,
            _ if fills && self.dropped < MAX_BULK_DROP_SHARE => FlowClass::Bulk,
            _ => FlowClass::Steady,
        }
    }

    /// Records that a datagram was sent after waiting for `waited`, or was dropped (`None`).
    pub(crate) fn record_wait(&mut self, waited: Option<Duration>) {
        let wait_share = f32::from(u8::from(waited.is_none_or(|waited| waited > MIN_COUNTED_WAIT)));
        self.wait_share += (wait_share - self.wait_share) * WAITS_GAIN;
        self.dropped += (f32::from(u8::from(waited.is_none())) - self.dropped) * WAITS_GAIN;
    }

    /// Returns the rate over the last second.
    pub(crate) fn rate(&self) -> Rate {
        Rate::from_bytes_per_s(self.slots.iter().map(|bytes| u64::from(*bytes)).sum())
    }

    /// Smoothed number of datagrams in a burst.
    pub(crate) const fn mean_burst(&self) -> f32 {
        self.mean_burst
    }

    pub(crate) const fn mean_bytes(&self) -> u32 {
        self.mean_bytes as u32
    }

    /// Records the path of a datagram.
    pub(crate) fn record_path(&mut self, now: Instant, path: PathId) {
        if self.last.is_none_or(|(last, _)| last != path) {
            self.last = Some((path, now));
        }
    }
}

/// Flows of a lane.
#[derive(Debug)]
pub(crate) struct Flows {
    flows: BTreeMap<u64, Flow>,
    /// Flows ordered by the time of their last use.
    order: BTreeSet<(Instant, u64)>,
    most: usize,
    forgotten: u64,
}

impl Flows {
    pub(crate) const fn new(most: usize) -> Self {
        Flows { flows: BTreeMap::new(), order: BTreeSet::new(), most, forgotten: 0 }
    }

    /// Records a datagram of a flow.
    pub(crate) fn on_datagram(&mut self, now: Instant, id: u64, bytes: usize) -> &mut Flow {
        let flow = self.mark_used(now, id);
        flow.on_datagram(now, bytes);
        flow
    }

    /// Sets the class of a flow at the application's request.
    pub(crate) fn set_class(&mut self, now: Instant, id: u64, class: FlowClass) {
        let flow = self.mark_used(now, id);
        (flow.class, flow.is_class_set) = (class, true);
    }

    pub(crate) fn find_known(&mut self, id: u64) -> Option<&mut Flow> {
        self.flows.get_mut(&id)
    }

    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    fn mark_used(&mut self, now: Instant, id: u64) -> &mut Flow {
        if let Some(flow) = self.flows.get(&id) {
            self.order.remove(&(flow.used_at, id));
        } else if self.flows.len() >= self.most.max(1)
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.flows.remove(&oldest);
            self.forgotten += 1;
        }
        self.order.insert((now, id));
        let flow = self.flows.entry(id).or_insert_with(|| Flow::new(now));
        flow.used_at = now;
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_classified_by_their_last_second_and_queueing() {
        let mut flows = Flows::new(10);
        let mut at = 0;
        let mut send = |flows: &mut Flows, bytes, every_ms, count, waited: Option<u64>| {
            for _ in 0..count {
                at += every_ms;
                let flow = flows.on_datagram(Instant::from_millis(at), 1, bytes);
                flow.record_wait(waited.map(Duration::from_millis));
            }
            flows.find_known(1).unwrap().class
        };
        assert_eq!(send(&mut flows, 80, 16, 100, Some(0)), FlowClass::Sparse);
        assert_eq!(send(&mut flows, 1_000, 10, 200, Some(0)), FlowClass::Steady);
        // Live video of 10 Mbit/s, which the paths can carry. Its rate does not depend on drops.
        assert_eq!(send(&mut flows, 1_200, 1, 2_000, Some(1)), FlowClass::Steady);
        assert_eq!(send(&mut flows, 1_200, 1, 2_000, None), FlowClass::Steady);
        // A download.
        assert_eq!(send(&mut flows, 1_200, 1, 2_000, Some(20)), FlowClass::Bulk);
        // At a tenth of the bulk rate, the flow remains bulk while its datagrams wait, but not when they no longer
        // wait.
        assert_eq!(send(&mut flows, 1_200, 20, 200, Some(20)), FlowClass::Bulk);
        assert_eq!(send(&mut flows, 1_200, 20, 200, Some(0)), FlowClass::Steady);
        assert_eq!(send(&mut flows, 80, 16, 200, Some(0)), FlowClass::Sparse);
        flows.set_class(Instant::from_secs(100), 1, FlowClass::Bulk);
        assert_eq!(send(&mut flows, 80, 16, 200, Some(0)), FlowClass::Bulk);
    }

    #[test]
    fn datagrams_within_a_millisecond_are_one_burst() {
        let mut flows = Flows::new(10);
        for frame in 0..50 {
            for packet in 0..3 {
                let at = Instant::from_millis(25 * frame) + Duration::from_micros(200 * packet);
                flows.on_datagram(at, 1, 1_000);
            }
            flows.on_datagram(Instant::from_millis(25 * frame), 2, 1_000);
        }
        let mut burst = |id| flows.find_known(id).unwrap().mean_burst();
        assert!((2.9..=3.0).contains(&burst(1)), "{}", burst(1));
        assert!((burst(2) - 1.0).abs() < 1e-6, "{}", burst(2));
    }

    #[test]
    fn a_hundred_thousand_flows_take_the_room_of_the_limit_and_the_newest_stay() {
        let mut flows = Flows::new(64);
        for id in 0..100_000u64 {
            flows.on_datagram(Instant::from_micros(id), id, 100);
            // An active flow is not dropped to make room for short ones.
            flows.on_datagram(Instant::from_micros(id), 7, 100);
        }
        assert_eq!((flows.len(), flows.order.len()), (64, 64));
        assert!(flows.find_known(7).is_some() && flows.find_known(99_999).is_some());
        assert!(flows.find_known(50).is_none());
        assert!(flows.forgotten() > 99_000);
    }
}
