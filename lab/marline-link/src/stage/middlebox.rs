//! Middleboxes that modify TCP: they choose other sequence numbers, split and merge segments, thin out acknowledgments,
//! lose a NAT translation, or answer for the receiver.
//!
//! The sources are surveys of TCP interference in the field (Honda et al., "Is it still possible to extend TCP?", IMC
//! 2011; Detal et al., "Revealing middlebox interference with tracebox", IMC 2013; Edeline and Donnet, "A first look at
//! the prevalence and persistence of middleboxes in the wild", ITC 2017) and RFC 8684 section 6, which lists
//! middleboxes that Multipath TCP must tolerate.
//!
//! A link is one direction, and so is a middlebox. State of the other direction is derived from segments or from time:
//! renumbering from the ports, a lost translation from the time. [`crate::Link::take_answer`] returns the packets that
//! a middlebox sends back.
//!
//! The order is: swallow, renumber, rebind, split, coalesce, thin. All except the last two treat each segment
//! separately. The last two hold back at most one segment per flow, in a bounded table, and release it after a timeout
//! or when the next segment of its flow cannot be combined with it.

mod held;
mod numbers;
pub(crate) mod options;
mod reshape;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use marline_time::{Duration, Instant, PcgRng, Rng, SeedTree};

use self::held::HeldSegments;
use super::tcp::{ACK, FIN, FLAGS_AT, RST, SYN, options_end};
use crate::{MiddleboxConfig, Packet};

/// The middleboxes of one direction.
#[derive(Debug)]
pub(crate) struct Middleboxes<P> {
    held: HeldSegments<P>,
    /// Packets to forward over the link now.
    out: VecDeque<P>,
    /// Packets to return to the sender.
    answers: VecDeque<P>,
    drop_draws: PcgRng,
    counts: Counts,
}

/// Counters of the middleboxes' actions.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) swallowed: u64,
    pub(crate) split: u64,
    pub(crate) coalesced: u64,
    pub(crate) thinned: u64,
    pub(crate) forgotten: u64,
}

impl<P: Packet> Middleboxes<P> {
    pub(crate) fn new(seeds: &SeedTree) -> Self {
        Middleboxes {
            held: HeldSegments::default(),
            out: VecDeque::new(),
            answers: VecDeque::new(),
            drop_draws: seeds.stream("box/swallow"),
            counts: Counts::default(),
        }
    }

    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Processes a packet that arrives `age` after the link's start. [`Middleboxes::pop`] then returns the packets to
    /// forward. Returns `false` if a middlebox dropped the packet.
    pub(crate) fn take_packet(
        &mut self,
        now: Instant,
        age: Duration,
        config: &MiddleboxConfig,
        mut packet: P,
    ) -> bool {
        if !config.has_middleboxes() {
            self.release_all();
            self.out.push_back(packet);
            return true;
        }
        let Some(segment) = packet.tcp_mut().filter(|segment| options_end(segment).is_some())
        else {
            self.out.push_back(packet);
            return true;
        };
        if config.swallow > 0.0 && has_payload(segment) && self.drop_draws.chance(config.swallow) {
            self.acknowledge_and_drop(&mut packet);
            return false;
        }
        if let Some(renumber) = config.renumber {
            numbers::renumber(segment, renumber);
        }
        if let Some(rebind) = config.rebind.filter(|rebind| rebind.at <= age)
            && !numbers::rebind(segment, rebind)
        {
            self.counts.forgotten += 1;
            return false;
        }
        match config.split.and_then(|split| reshape::split(&mut packet, split)) {
            Some(pieces) => {
                self.counts.split += 1;
                for piece in pieces {
                    self.hold_packet(now, config, piece);
                }
            }
            None => self.hold_packet(now, config, packet),
        }
        true
    }

    /// Takes the next packet to forward.
    pub(crate) fn pop(&mut self) -> Option<P> {
        self.out.pop_front()
    }

    /// Takes the next packet to return to the sender.
    pub(crate) fn pop_answer(&mut self) -> Option<P> {
        self.answers.pop_front()
    }

    /// Time at which a held segment must be released.
    pub(crate) fn next_release(&self) -> Instant {
        self.held.next_release()
    }

    /// Releases segments that may be held at most until `now`.
    pub(crate) fn release_due(&mut self, now: Instant) {
        while let Some(packet) = self.held.pop_due(now) {
            self.out.push_back(packet);
        }
    }

    fn release_all(&mut self) {
        self.release_due(Instant::FAR_FUTURE);
    }

    /// Acknowledges a segment that will be dropped.
    fn acknowledge_and_drop(&mut self, packet: &mut P) {
        self.counts.swallowed += 1;
        let answer = packet.tcp_mut().and_then(|segment| numbers::forge_acknowledgment(segment));
        let answer = answer.and_then(|segment| packet.answer(&segment));
        // The number of answers that are not fetched is limited.
        if self.answers.len() < HeldSegments::<P>::MAX_FLOWS {
            self.answers.extend(answer);
        }
    }

    /// Applies the stages that wait for the next segment of a flow.
    fn hold_packet(&mut self, now: Instant, config: &MiddleboxConfig, mut packet: P) {
        let Some(segment) = packet.tcp_mut() else { return self.out.push_back(packet) };
        let (flow, payload, flags) = (
            super::tcp::ports(segment),
            has_payload(segment),
            segment[FLAGS_AT] & (SYN | FIN | RST | ACK),
        );
        let before = self.held.remove(flow);
        if payload && flags == ACK && config.coalesce.is_some() {
            let wait = config.coalesce.unwrap_or_default();
            let Some(mut before) = before else {
                return self.hold_entry(flow, held::Entry { packet, until: now + wait, count: 1 });
            };
            if let Some(joined) = reshape::merge_segments(&mut before.packet, &mut packet) {
                self.counts.coalesced += 1;
                return self.hold_entry(flow, held::Entry { packet: joined, ..before });
            }
            self.out.push_back(before.packet);
            return self.hold_entry(flow, held::Entry { packet, until: now + wait, count: 1 });
        }
        let pure = !payload && flags == ACK;
        if let Some(every) = config.thin.filter(|_| pure) {
            return self.thin_acks(now, flow, before, packet, every);
        }
        self.out.extend(before.map(|before| before.packet));
        self.out.push_back(packet);
    }

    /// Passes only the latest of consecutive acknowledgments, after `every` of them or when the first has waited long
    /// enough.
    fn thin_acks(
        &mut self,
        now: Instant,
        flow: held::Flow,
        before: Option<held::Entry<P>>,
        mut packet: P,
        every: u32,
    ) {
        let (until, count) = match before {
            None => (now + held::ACK_THINNING_DELAY, 1),
            Some(mut before) => {
                let data = before.packet.tcp_mut().is_some_and(|segment| has_payload(segment));
                let newer = !data && numbers::is_newer(&mut packet, &mut before.packet);
                if newer {
                    self.counts.thinned += 1;
                    (before.until, before.count + 1)
                } else {
                    self.out.push_back(before.packet);
                    (now + held::ACK_THINNING_DELAY, 1)
                }
            }
        };
        if count >= every {
            return self.out.push_back(packet);
        }
        self.hold_entry(flow, held::Entry { packet, until, count });
    }

    fn hold_entry(&mut self, flow: held::Flow, entry: held::Entry<P>) {
        self.out.extend(self.held.hold(flow, entry));
    }
}

fn has_payload(segment: &[u8]) -> bool {
    options_end(segment).is_some_and(|end| end < segment.len())
}
