//! Transmission of one burst with and without repairs.

use marline_link::{DuplexSpec, Link, Packet};
use marline_time::{Duration, Instant, Rng, SeedTree};

/// Sizes of a full packet and of an acknowledgment in bytes.
const DATA_BYTES: usize = 1_500;
const ACK_BYTES: usize = 72;
/// Initial RTT estimate of the first path, which was in use earlier.
const RTT: Duration = Duration::from_millis(96);
/// Time after which a missing acknowledgment triggers a hedged copy: the RTT plus three times the jitter's deviation.
const HEDGE_DELAY: Duration = Duration::from_millis(108);
/// Silence after which the other path is used, and interval between repetitions.
const PROBE_DELAY: Duration = Duration::from_millis(120);
/// Number of later acknowledged segments that indicate a loss.
const DUPTHRESH: usize = 3;
/// Number of bursts that [`Protection::Selective`] duplicates after a burst with losses.
const PROTECTED_BURSTS: u32 = 3;

/// Protection in addition to recovery.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Nothing.
    Plain,
    /// Overdue packets are copied to the other path.
    Hedged,
    /// Number of last packets that are also sent over the other path immediately.
    Tail(usize),
    /// All packets of some bursts after one with losses are also sent over the other path immediately.
    Selective,
    /// Number of parity packets that are sent over the other path immediately, each over every n-th packet.
    Xor(usize),
    /// Number of repair packets that are sent over the other path immediately, each of which can replace any lost
    /// packet.
    Ideal(usize),
}

/// A packet of the model.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A packet of the burst, by its number.
    Data(usize),
    /// A repair, by its number.
    Repair(usize),
    /// Acknowledgment of a packet on this path, and true if the receiver has the whole burst.
    Ack(Option<usize>, bool),
}

/// A packet and its burst. Packets that arrive after their burst are useless.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Piece {
    burst: Instant,
    unit: Unit,
}

impl Packet for Piece {
    fn wire_len(&self) -> usize {
        if matches!(self.unit, Unit::Ack(..)) { ACK_BYTES } else { DATA_BYTES }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }
}

/// Links of both paths: to the receiver, and back.
pub(crate) struct Paths {
    there: Vec<Link<Piece>>,
    back: Vec<Link<Piece>>,
    /// Number of following bursts for which losses are expected.
    bursts_at_risk: u32,
}

impl Paths {
    /// Creates links from these descriptions.
    pub(crate) fn new(specs: [DuplexSpec; 2], seeds: &SeedTree) -> Self {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for (number, spec) in specs.iter().enumerate() {
            let config = spec.resolve(seeds, &mut |_| None).expect("no traces");
            let own = seeds.branch(&format!("path/{number}"));
            there.push(Link::new(config.up, &own.branch("there"), Instant::ZERO));
            back.push(Link::new(config.down, &own.branch("back"), Instant::ZERO));
        }
        Paths { there, back, bursts_at_risk: PROTECTED_BURSTS }
    }

    fn next_event(&self) -> Option<Instant> {
        self.there.iter().chain(&self.back).filter_map(Link::next_event).min()
    }
}

/// A random moment while a burst is sent.
pub(crate) fn moment(packets: usize, rng: &mut impl Rng) -> Duration {
    // 0.6 ms per packet, plus the transit time of the last one.
    Duration::from_millis(1).mul_f64((0.6 * packets as f64 + 40.0) * rng.unit())
}

/// The sender's knowledge of a packet.
#[derive(Copy, Clone, Debug, Default)]
struct OutstandingPacket {
    sent_at: Option<Instant>,
    acked: bool,
    copied: bool,
}

/// A burst in transit.
pub(crate) struct Burst {
    protection: Protection,
    start: Instant,
    death: Option<Instant>,
    outstanding: Vec<OutstandingPacket>,
    /// Packets at the receiver, and numbers of repairs.
    known: Vec<bool>,
    repairs: Vec<bool>,
    last_ack_at: Instant,
    sent: usize,
    acknowledged: bool,
    /// True if a packet was lost or overdue.
    trouble: bool,
}

impl Burst {
    /// Runs a burst of this many packets. The first path fails at `death`, until the next burst.
    pub(crate) fn new(
        packets: usize,
        protection: Protection,
        start: Instant,
        death: Option<Instant>,
    ) -> Self {
        let repairs = match protection {
            Protection::Xor(extra) | Protection::Ideal(extra) => extra,
            _ => 0,
        };
        Burst {
            protection,
            start,
            death,
            outstanding: vec![OutstandingPacket::default(); packets],
            known: vec![false; packets],
            repairs: vec![false; repairs],
            last_ack_at: start,
            sent: 0,
            acknowledged: false,
            trouble: false,
        }
    }

    /// Returns the time until the receiver has the whole burst, and the number of packets, including repairs and
    /// copies, sent until the sender knew this.
    pub(crate) fn run(mut self, paths: &mut Paths) -> (Duration, usize) {
        for link in paths.there.iter_mut().chain(&mut paths.back) {
            link.set_up(self.start, true);
        }
        self.begin(paths);
        let (mut now, mut complete) = (self.start, None);
        let end = self.start + Duration::from_millis(1_990);
        while !self.acknowledged && now < end {
            if self.death.is_some_and(|death| death <= now) {
                paths.there[0].set_up(now, false);
                paths.back[0].set_up(now, false);
                self.death = None;
            }
            self.receive(now, paths);
            if complete.is_none() && self.known.iter().all(|known| *known) {
                complete = Some(now);
            }
            self.process_acks(now, paths);
            let timer = if self.acknowledged { None } else { self.act(now, paths) };
            let next = [timer, paths.next_event(), self.death].into_iter().flatten().min();
            now = next.unwrap_or(end).max(now + Duration::from_nanos(1));
        }
        paths.bursts_at_risk =
            if self.trouble { PROTECTED_BURSTS } else { paths.bursts_at_risk.saturating_sub(1) };
        (complete.unwrap_or(end).since(self.start), self.sent)
    }

    fn send(&mut self, now: Instant, paths: &mut Paths, path: usize, unit: Unit) {
        self.sent += 1;
        paths.there[path].offer(now, Piece { burst: self.start, unit });
        if let (Unit::Data(number), 0) = (unit, path) {
            self.outstanding[number].sent_at = Some(now);
        }
    }

    fn begin(&mut self, paths: &mut Paths) {
        let count = self.known.len();
        for number in 0..count {
            self.send(self.start, paths, 0, Unit::Data(number));
        }
        match self.protection {
            Protection::Selective if paths.bursts_at_risk > 0 => self.copy_tail(count, paths),
            Protection::Plain | Protection::Hedged | Protection::Selective => {}
            Protection::Tail(extra) => self.copy_tail(extra, paths),
            Protection::Xor(extra) | Protection::Ideal(extra) => {
                (0..extra).for_each(|n| self.send(self.start, paths, 1, Unit::Repair(n)));
            }
        }
    }

    fn copy_tail(&mut self, extra: usize, paths: &mut Paths) {
        for number in self.known.len() - extra..self.known.len() {
            self.outstanding[number].copied = true;
            self.send(self.start, paths, 1, Unit::Data(number));
        }
    }

    /// Runs the receiver.
    fn receive(&mut self, now: Instant, paths: &mut Paths) {
        for path in 0..2 {
            while let Some(piece) = paths.there[path].poll(now) {
                if piece.burst != self.start {
                    continue;
                }
                let number = match piece.unit {
                    Unit::Data(number) => {
                        self.known[number] = true;
                        Some(number)
                    }
                    Unit::Repair(number) => {
                        self.repairs[number] = true;
                        None
                    }
                    Unit::Ack(..) => None,
                };
                self.decode();
                let all = self.known.iter().all(|known| *known);
                let unit = Unit::Ack(number.filter(|_| path == 0), all);
                paths.back[path].offer(now, Piece { burst: self.start, unit });
            }
        }
    }

    fn decode(&mut self) {
        match self.protection {
            Protection::Ideal(_) => {
                let missing = self.known.iter().filter(|known| !**known).count();
                let repairs = self.repairs.iter().filter(|has| **has).count();
                if missing <= repairs {
                    self.known.fill(true);
                }
            }
            Protection::Xor(groups) => {
                for group in (0..groups).filter(|group| self.repairs[*group]) {
                    let members = (group..self.known.len()).step_by(groups);
                    let missing: Vec<usize> = members.filter(|n| !self.known[*n]).collect();
                    if let [one] = missing[..] {
                        self.known[one] = true;
                    }
                }
            }
            _ => {}
        }
    }

    /// Processes acknowledgments that arrived.
    fn process_acks(&mut self, now: Instant, paths: &mut Paths) {
        for path in 0..2 {
            while let Some(piece) = paths.back[path].poll(now) {
                let (Unit::Ack(number, all), true) = (piece.unit, piece.burst == self.start) else {
                    continue;
                };
                self.acknowledged |= all;
                if let Some(number) = number {
                    self.outstanding[number].acked = true;
                    self.last_ack_at = now;
                }
            }
        }
    }

    /// Runs the sender: repairs, copies, probes. Returns the time at which it must run again.
    fn act(&mut self, now: Instant, paths: &mut Paths) -> Option<Instant> {
        let mut timer = None;
        let mut answered: Vec<(Instant, usize)> = Vec::new();
        for (number, other) in self.outstanding.iter().enumerate().filter(|(_, o)| o.acked) {
            answered.extend(other.sent_at.map(|at| (at, number)));
        }
        answered.sort_unstable();
        let mut wake = |at: Instant| timer = Some(timer.map_or(at, |t: Instant| t.min(at)));
        for number in 0..self.outstanding.len() {
            // The peer reports which packets it has, so decoded data is not repeated.
            let OutstandingPacket { sent_at: Some(sent_at), acked, copied } =
                self.outstanding[number]
            else {
                continue;
            };
            if acked || (self.known[number] && now >= sent_at + RTT) {
                continue;
            }
            if let Some(at) = known_lost_at(&answered, number, sent_at) {
                if at <= now {
                    self.trouble = true;
                    self.send(now, paths, 0, Unit::Data(number));
                    wake(now + PROBE_DELAY);
                    continue;
                }
                wake(at);
            }
            let hedged = matches!(self.protection, Protection::Hedged | Protection::Selective);
            let patience = if hedged { HEDGE_DELAY } else { PROBE_DELAY };
            let since = if hedged { sent_at } else { sent_at.max(self.last_ack_at) };
            if copied {
                // Packets sent on both paths are repeated on the first path after a long silence.
                let at = sent_at.max(self.last_ack_at) + PROBE_DELAY * 3;
                if at <= now {
                    self.send(now, paths, 1, Unit::Data(number));
                    self.outstanding[number].sent_at = Some(now);
                }
                wake(at.max(now + RTT));
            } else if since + patience <= now {
                self.trouble = true;
                self.outstanding[number].copied = true;
                self.send(now, paths, 1, Unit::Data(number));
            } else {
                wake(since + patience);
            }
        }
        timer
    }
}

/// Time at which later acknowledgments show that a packet is lost. `acked` is in the order of sending.
fn known_lost_at(acked: &[(Instant, usize)], number: usize, sent_at: Instant) -> Option<Instant> {
    let before = acked.partition_point(|other| *other <= (sent_at, number));
    match acked.len() - before {
        0 => None,
        few if few < DUPTHRESH => Some(sent_at + RTT + RTT / 4),
        _ => Some(sent_at),
    }
}
