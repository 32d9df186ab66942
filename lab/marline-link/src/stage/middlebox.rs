//! Middleboxes that take TCP for something they may mend: they choose other sequence numbers, cut
//! segments and put them together, thin out acknowledgments, forget a translation, or answer for the
//! receiver.
//!
//! The sources are the surveys of what the field does to TCP (Honda et al., "Is it still possible to
//! extend TCP?", IMC 2011; Detal et al., "Revealing middlebox interference with tracebox", IMC 2013;
//! Edeline and Donnet, "A first look at the prevalence and persistence of middleboxes in the wild", ITC
//! 2017) and the notes on what a Multipath TCP must stand (RFC 8684 section 6).
//!
//! A link is one direction, and so is a box: what a box must know of the other direction is made a
//! function of what every segment carries (renumbering follows from the ports, a translation from the
//! time). What a box sends back by itself goes to [`crate::Link::take_answer`].
//!
//! The order is: swallow, renumber, rebind, split, coalesce, thin. All but the last two decide on a
//! segment alone. Those hold back at most one segment per flow, in a table that is bounded, and let it
//! go when its time is over or the next one of its flow does not go with it.

mod held;
mod numbers;
pub(crate) mod options;
mod reshape;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use marline_time::{Duration, Instant, PcgRng, Rng, SeedTree};

use self::held::Held;
use super::tcp::{ACK, FIN, FLAGS_AT, RST, SYN, options_end};
use crate::{MiddleboxConfig, Packet};

/// The boxes of one direction.
#[derive(Debug)]
pub(crate) struct Middleboxes<P> {
    held: Held<P>,
    /// Goes on over the link now.
    out: VecDeque<P>,
    /// Goes back to where the packets come from.
    answers: VecDeque<P>,
    swallows: PcgRng,
    counts: Counts,
}

/// What the boxes did.
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
            held: Held::default(),
            out: VecDeque::new(),
            answers: VecDeque::new(),
            swallows: seeds.stream("box/swallow"),
            counts: Counts::default(),
        }
    }

    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }

    /// A packet that came so long (`age`) after the link's start. What goes on is then in
    /// [`Middleboxes::pop`]. `false`: a box dropped it.
    pub(crate) fn take(
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
        if config.swallow > 0.0 && has_payload(segment) && self.swallows.chance(config.swallow) {
            self.swallow(&mut packet);
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
                    self.hold(now, config, piece);
                }
            }
            None => self.hold(now, config, packet),
        }
        true
    }

    /// The next packet that goes on.
    pub(crate) fn pop(&mut self) -> Option<P> {
        self.out.pop_front()
    }

    /// The next packet that goes back.
    pub(crate) fn pop_answer(&mut self) -> Option<P> {
        self.answers.pop_front()
    }

    /// When something that is held must go on.
    pub(crate) fn next_release(&self) -> Instant {
        self.held.next_release()
    }

    /// Lets go what is held no longer than until `now`.
    pub(crate) fn release_due(&mut self, now: Instant) {
        while let Some(packet) = self.held.pop_due(now) {
            self.out.push_back(packet);
        }
    }

    fn release_all(&mut self) {
        self.release_due(Instant::FAR_FUTURE);
    }

    /// Acknowledges what never arrives.
    fn swallow(&mut self, packet: &mut P) {
        self.counts.swallowed += 1;
        let answer = packet.tcp_mut().and_then(|segment| numbers::acknowledgment_of(segment));
        let answer = answer.and_then(|segment| packet.answer(&segment));
        // What nobody fetches is not kept for ever.
        if self.answers.len() < Held::<P>::MOST {
            self.answers.extend(answer);
        }
    }

    /// The stages that wait for a segment's followers.
    fn hold(&mut self, now: Instant, config: &MiddleboxConfig, mut packet: P) {
        let Some(segment) = packet.tcp_mut() else { return self.out.push_back(packet) };
        let (flow, payload, flags) = (
            super::tcp::ports(segment),
            has_payload(segment),
            segment[FLAGS_AT] & (SYN | FIN | RST | ACK),
        );
        let before = self.held.take(flow);
        if payload && flags == ACK && config.coalesce.is_some() {
            let wait = config.coalesce.unwrap_or_default();
            let Some(mut before) = before else {
                return self.put(flow, held::Entry { packet, until: now + wait, count: 1 });
            };
            if let Some(joined) = reshape::join(&mut before.packet, &mut packet) {
                self.counts.coalesced += 1;
                return self.put(flow, held::Entry { packet: joined, ..before });
            }
            self.out.push_back(before.packet);
            return self.put(flow, held::Entry { packet, until: now + wait, count: 1 });
        }
        let pure = !payload && flags == ACK;
        if let Some(every) = config.thin.filter(|_| pure) {
            return self.thin(now, flow, before, packet, every);
        }
        self.out.extend(before.map(|before| before.packet));
        self.out.push_back(packet);
    }

    /// Of acknowledgments one after the other the latest goes on, when there were `every` of them or the
    /// first has waited long enough.
    fn thin(
        &mut self,
        now: Instant,
        flow: held::Flow,
        before: Option<held::Entry<P>>,
        mut packet: P,
        every: u32,
    ) {
        let (until, count) = match before {
            None => (now + held::THIN_WAIT, 1),
            Some(mut before) => {
                let data = before.packet.tcp_mut().is_some_and(|segment| has_payload(segment));
                let newer = !data && numbers::is_newer(&mut packet, &mut before.packet);
                if newer {
                    self.counts.thinned += 1;
                    (before.until, before.count + 1)
                } else {
                    self.out.push_back(before.packet);
                    (now + held::THIN_WAIT, 1)
                }
            }
        };
        if count >= every {
            return self.out.push_back(packet);
        }
        self.put(flow, held::Entry { packet, until, count });
    }

    fn put(&mut self, flow: held::Flow, entry: held::Entry<P>) {
        self.out.extend(self.held.put(flow, entry));
    }
}

fn has_payload(segment: &[u8]) -> bool {
    options_end(segment).is_some_and(|end| end < segment.len())
}
