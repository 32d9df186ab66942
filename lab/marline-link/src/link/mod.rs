//! One direction of a link, stage by stage.
//!
//! ```text
//! offer -> middleboxes -> MTU -> [queue] -> radio -> rate -> loss -> delay -> faults -> [in flight] -> poll
//! ```
//!
//! Only the head of the queue has a scheduled departure. The fate of other packets is decided when they become the
//! head, so any setting can change while packets wait. Packets in flight are kept in order of arrival. A late call
//! changes nothing: each step happens at its own time, not at the time of the call.

mod outage;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use marline_time::{Instant, PcgRng, Rng, SeedTree};

use crate::radio::{Radio, RadioTap};
use crate::stage::middlebox::Middleboxes;
use crate::stage::middlebox::options::{self, PacketOutcome};
use crate::stage::{DelayStage, LossStage, OutageStage, Shaper};
use crate::{LinkConfig, Mtu, OutageMode, Packet, QueueLimit};
pub use stats::LinkStats;

/// The packet being sent.
#[derive(Copy, Clone, Debug)]
struct Head {
    started: Instant,
    finish: Instant,
    /// Bytes left to send at `started`.
    bytes: u64,
}

#[derive(Clone, Debug)]
struct InFlight<P> {
    at: Instant,
    packet: P,
}

/// One direction of a link: accepts packets and delivers them later, or never.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    middleboxes: Middleboxes<P>,
    queue: VecDeque<P>,
    queued_bytes: u64,
    head: Option<Head>,
    /// Unsent bytes of the head while the link is stopped.
    paused_bytes: Option<u64>,
    shaper: Shaper,
    loss: LossStage,
    delay: DelayStage,
    outage: OutageStage,
    radio: Option<RadioTap>,
    reorders: PcgRng,
    duplicates: PcgRng,
    corruptions: PcgRng,
    rewrites: PcgRng,
    flight: VecDeque<InFlight<P>>,
    last_arrival: Instant,
    commanded_down: bool,
    down_since: Option<Instant>,
    dropped: Vec<P>,
    /// Notices to senders of packets that were too large.
    notices: VecDeque<P>,
    stats: LinkStats,
    start: Instant,
}

impl<P: Packet> Link<P> {
    /// Queue limit in bytes for a limit given as a time if the rate is unlimited.
    pub const UNLIMITED_QUEUE_BYTES: u64 = 16 << 20;
    /// Maximum number of packets in flight. Further packets are dropped as if the queue were full.
    pub const MAX_IN_FLIGHT: usize = 1 << 20;
    /// Maximum number of dropped packets kept for [`Link::take_dropped`].
    const MAX_DROPPED: usize = 256;
    /// Maximum number of notices kept for [`Link::take_answer`]. Further ones are not created.
    const MAX_NOTICES: usize = 256;
    /// Minimum number of bytes for a queue limit given as a time.
    const MIN_QUEUE_BYTES: u64 = 3_008;

    /// Creates a link whose schedules and traces begin at `start`. `seeds` should be a separate branch.
    #[must_use]
    pub fn new(config: LinkConfig, seeds: &SeedTree, start: Instant) -> Self {
        let mut link = Link {
            shaper: Shaper::new(config.rate.clone(), start),
            loss: LossStage::new(config.loss.clone(), seeds, start),
            delay: DelayStage::new(config.delay.clone(), seeds, start),
            outage: OutageStage::new(config.outage.clone(), seeds, start),
            radio: config.radio.map(|radio| RadioTap::new(radio, start)),
            reorders: seeds.stream("faults/reorder"),
            duplicates: seeds.stream("faults/duplicate"),
            corruptions: seeds.stream("faults/corrupt"),
            rewrites: seeds.stream("faults/rewrite"),
            middleboxes: Middleboxes::new(seeds),
            config,
            queue: VecDeque::new(),
            queued_bytes: 0,
            head: None,
            paused_bytes: None,
            flight: VecDeque::new(),
            last_arrival: start,
            commanded_down: false,
            down_since: None,
            dropped: Vec::new(),
            notices: VecDeque::new(),
            stats: LinkStats::default(),
            start,
        };
        link.follow_outage(start);
        link
    }

    /// The current settings.
    #[must_use]
    pub const fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes settings while packets are in transit: queued packets leave at the new rate, packets in flight arrive
    /// as before. Random streams and packet counts continue.
    pub fn set_config(&mut self, now: Instant, config: LinkConfig) {
        self.advance(now);
        if self.config.rate != config.rate {
            self.pause_head(now);
            self.shaper = Shaper::new(config.rate.clone(), self.start);
        }
        self.loss.set_config(config.loss.clone(), now);
        self.delay.config = config.delay.clone();
        self.outage.set_config(config.outage.clone(), now);
        if self.config.radio != config.radio {
            self.radio = config.radio.map(|radio| RadioTap::new(radio, now));
        }
        self.config = config;
        self.follow_outage(now);
        self.start_head(now);
    }

    /// Makes both directions of an interface share one radio: this direction now uses that of `other`, if both have
    /// radios with the same parameters.
    pub fn share_radio<Q>(&mut self, other: &Link<Q>) {
        if let (Some(radio), Some(other)) = (&mut self.radio, &other.radio) {
            radio.share_radio(other);
        }
    }

    /// The radio, for its state and energy. `None` if there is none.
    #[must_use]
    pub fn radio(&self) -> Option<Radio> {
        self.radio.as_ref().map(RadioTap::snapshot)
    }

    /// Statistics so far.
    #[must_use]
    pub const fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// Bytes in the queue, including the packet being sent.
    #[must_use]
    pub const fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Passes a packet to the link.
    pub fn offer(&mut self, now: Instant, mut packet: P) {
        self.advance(now);
        let bytes = packet.wire_len() as u64;
        self.stats.offered_packets += 1;
        self.stats.offered_bytes += bytes;
        if self.down_since.is_some() && self.config.outage.mode == OutageMode::Kill {
            self.stats.dropped_outage += 1;
            return self.drop_packet(now, packet);
        }
        let age = now.since(self.start);
        match options::apply_rules(&self.config.middlebox, age, &mut packet) {
            PacketOutcome::Passes => {}
            PacketOutcome::Changed => self.stats.stripped += 1,
            PacketOutcome::Dropped => {
                self.stats.dropped_blocked += 1;
                return self.drop_packet(now, packet);
            }
        }
        if !self.middleboxes.take_packet(now, age, &self.config.middlebox, packet) {
            self.stats.last_fault_at = Some(now);
        }
        self.enqueue_from_middleboxes(now);
    }

    /// Moves packets released by the middleboxes into the queue.
    fn enqueue_from_middleboxes(&mut self, now: Instant) {
        let counts = self.middleboxes.counts();
        self.stats.dropped_swallowed = counts.swallowed;
        self.stats.dropped_thinned = counts.thinned;
        self.stats.dropped_forgotten = counts.forgotten;
        self.stats.split = counts.split;
        self.stats.coalesced = counts.coalesced;
        while let Some(packet) = self.middleboxes.pop() {
            self.enqueue(now, packet);
        }
    }

    fn enqueue(&mut self, now: Instant, packet: P) {
        let bytes = packet.wire_len() as u64;
        if let Some(mtu) = self.config.mtu.filter(|mtu| bytes > u64::from(mtu.bytes)) {
            return self.refuse(now, packet, mtu);
        }
        let full = !self.queue.is_empty() && self.queued_bytes + bytes > self.queue_limit(now);
        if full || self.flight.len() >= Self::MAX_IN_FLIGHT {
            self.stats.dropped_queue += 1;
            return self.drop_packet(now, packet);
        }
        self.queue.push_back(packet);
        self.queued_bytes += bytes;
        self.stats.queue_max_bytes = self.stats.queue_max_bytes.max(self.queued_bytes);
        if self.queue.len() == 1 {
            self.start_head(now);
            self.advance(now);
        }
    }

    /// Drops a packet larger than the MTU.
    fn refuse(&mut self, now: Instant, packet: P, mtu: Mtu) {
        self.stats.dropped_mtu += 1;
        if !mtu.silent && self.notices.len() < Self::MAX_NOTICES {
            self.notices.extend(packet.too_big(mtu.bytes));
        }
        self.drop_packet(now, packet);
    }

    /// Returns the next packet that has arrived by `now`, in order of arrival.
    pub fn poll(&mut self, now: Instant) -> Option<P> {
        self.poll_timed(now).map(|(_, packet)| packet)
    }

    /// Like [`Link::poll`], with the arrival time. In real time, the host is always slightly late and needs to know by
    /// how much.
    pub fn poll_timed(&mut self, now: Instant) -> Option<(Instant, P)> {
        self.advance(now);
        if self.is_suspended() || self.flight.front()?.at > now {
            return None;
        }
        let InFlight { at, packet } = self.flight.pop_front()?;
        self.stats.delivered_packets += 1;
        self.stats.delivered_bytes += packet.wire_len() as u64;
        Some((at, packet))
    }

    /// Time of the next call of [`Link::poll`], which may return nothing. `None` while nothing is in transit.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        let release = self.middleboxes.next_release();
        let nothing_held = release == Instant::FAR_FUTURE;
        if self.queue.is_empty() && self.flight.is_empty() && nothing_held {
            return None;
        }
        let mut next = self.outage.next_change().min(release);
        if !self.is_suspended() {
            next = self.flight.front().map_or(next, |first| next.min(first.at));
        }
        next = self.head.map_or(next, |head| next.min(head.finish));
        (next != Instant::FAR_FUTURE).then_some(next)
    }

    /// Takes a packet that a middlebox sends back to the sender, or a notice that a packet was larger than the MTU.
    /// Statistics do not include them.
    pub fn take_answer(&mut self) -> Option<P> {
        self.middleboxes.pop_answer().or_else(|| self.notices.pop_front())
    }

    /// Takes a dropped packet, so that its memory can be reused. Only some are kept.
    pub fn take_dropped(&mut self) -> Option<P> {
        self.dropped.pop()
    }

    /// Performs everything due until `now`, in chronological order.
    fn advance(&mut self, now: Instant) {
        loop {
            let finish = self.head.map_or(Instant::FAR_FUTURE, |head| head.finish);
            let change = self.outage.next_change();
            let release = self.middleboxes.next_release();
            let first = finish.min(change).min(release);
            if first > now || first == Instant::FAR_FUTURE {
                return;
            }
            if release == first {
                self.middleboxes.release_due(release);
                self.enqueue_from_middleboxes(release);
            } else if change <= finish {
                self.outage.step();
                self.follow_outage(change);
            } else {
                self.depart(finish);
            }
        }
    }

    /// Handles the departure of the head of the queue.
    fn depart(&mut self, now: Instant) {
        self.head = None;
        let Some(packet) = self.queue.pop_front() else { return };
        self.queued_bytes -= packet.wire_len() as u64;
        if let Some(radio) = self.radio.as_ref().filter(|_| !packet.is_foreign()) {
            radio.record_departure(now, packet.wire_len() as u64);
        }
        self.start_head(now);
        if self.loss.is_lost(now) {
            self.stats.dropped_loss += 1;
            return self.drop_packet(now, packet);
        }
        let twice = self.chance(|faults| faults.duplicate, |link| &mut link.duplicates);
        if twice {
            self.stats.duplicated += 1;
            let copy = packet.clone();
            self.launch_packet(now, copy);
        }
        self.launch_packet(now, packet);
    }

    /// Draws delay and faults, and puts the packet in flight.
    fn launch_packet(&mut self, now: Instant, mut packet: P) {
        if self.chance(|faults| faults.corrupt, |link| &mut link.corruptions) {
            self.corrupt(now, &mut packet);
        }
        if self.chance(|faults| faults.rewrite, |link| &mut link.rewrites) {
            let (pick, change) = (self.rewrites.below(1 << 16), 1 + self.rewrites.below(255) as u8);
            if options::rewrite_payload(&mut packet, pick, change) {
                self.stats.rewritten += 1;
                self.stats.last_fault_at = Some(now);
            }
        }
        let mut at = self.delay.arrival(now);
        if !self.config.delay.overtaking {
            at = at.max(self.last_arrival);
            self.last_arrival = at;
        }
        if let Some(reorder) = self.config.faults.reorder
            && self.reorders.chance(reorder.probability)
        {
            self.stats.reordered += 1;
            at += reorder.extra;
        }
        if self.flight.back().is_none_or(|last| last.at <= at) {
            self.flight.push_back(InFlight { at, packet });
        } else {
            let place = self.flight.partition_point(|other| other.at <= at);
            self.flight.insert(place, InFlight { at, packet });
        }
    }

    /// Flips one to three bits of one 16-bit word, like a short burst. The Internet checksum always detects these.
    /// Flips in several words could cancel out in the checksum.
    fn corrupt(&mut self, now: Instant, packet: &mut P) {
        let flips = 1 + self.corruptions.below(3);
        let bytes = packet.bytes_mut();
        if bytes.len() < 2 {
            return;
        }
        self.stats.corrupted += 1;
        self.stats.last_fault_at = Some(now);
        let word = self.corruptions.below(bytes.len() as u64 / 2) as usize * 2;
        // The bits must be distinct, or the flips would cancel out.
        let first = self.corruptions.below(16);
        for flip in 0..flips {
            let bit = (first + flip * 5) % 16;
            bytes[word + (bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }

    fn chance(
        &mut self,
        probability: fn(&crate::Faults) -> f64,
        stream: fn(&mut Self) -> &mut PcgRng,
    ) -> bool {
        let probability = probability(&self.config.faults);
        probability > 0.0 && stream(self).chance(probability)
    }

    /// Starts sending the head of the queue, if there is one and the link is up.
    fn start_head(&mut self, now: Instant) {
        if self.head.is_some() || self.down_since.is_some() {
            return;
        }
        let Some(first) = self.queue.front() else { return };
        let bytes = self.paused_bytes.take().unwrap_or(first.wire_len() as u64);
        let radio = self.radio.as_ref().filter(|_| !first.is_foreign());
        let started = radio.map_or(now, |radio| radio.wake(now));
        self.head = Some(Head { started, finish: self.shaper.finish(started, bytes), bytes });
    }

    /// Stops sending the head and records how much of it is left.
    fn pause_head(&mut self, now: Instant) {
        let Some(head) = self.head.take() else { return };
        let whole = head.finish.since(head.started).as_nanos();
        let left = head.finish.since(now.max(head.started)).as_nanos();
        let bytes = if head.finish == Instant::FAR_FUTURE || whole == 0 {
            head.bytes
        } else {
            (u128::from(head.bytes) * left).div_ceil(whole) as u64
        };
        self.paused_bytes = Some(bytes);
    }

    fn queue_limit(&self, now: Instant) -> u64 {
        match self.config.queue {
            QueueLimit::Bytes(bytes) => bytes,
            QueueLimit::Time(time) => match self.shaper.reference_rate(now) {
                None => Self::UNLIMITED_QUEUE_BYTES,
                Some(rate) => rate.bytes_in(time).max(Self::MIN_QUEUE_BYTES),
            },
        }
    }

    fn drop_packet(&mut self, now: Instant, packet: P) {
        self.stats.last_fault_at = Some(now);
        if self.dropped.len() < Self::MAX_DROPPED {
            self.dropped.push(packet);
        }
    }
}
