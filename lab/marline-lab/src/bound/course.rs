//! One direction of a link as a clairvoyant sender sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use marline_link::{Jitter, Link, LinkConfig, LossConfig, Packet, QueueLimit, RateConfig, Steps};
use marline_time::{Duration, Instant, SeedTree};

/// Payload and wire length in bytes of the pieces that large messages are cut into. The header share is that of a full
/// packet with 40 bytes of headers.
const PIECE_BYTES: (u32, usize) = (146, 150);
/// Step between the send times that are tried. Shorter favorable intervals may be missed.
pub(super) const GRID: Duration = Duration::from_millis(1);
/// Precision of the search for the first favorable time between two steps.
const PRECISION: Duration = Duration::from_nanos(250);

/// Change of a link by an event.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// The link goes up (true) or down.
    Up(bool),
    /// New settings.
    Settings(Box<LinkConfig>),
}

/// One direction of a link from the start of the simulation.
#[derive(Debug)]
pub(super) struct LinkCourse {
    first: LinkConfig,
    seeds: SeedTree,
    changes: Vec<(Instant, Change)>,
    /// Maximum time by which jitter lets a packet arrive earlier than the nominal delay.
    lead: Duration,
    /// True if a packet that is sent later may arrive earlier.
    may_reorder: bool,
    until: Instant,
    /// Best send time per grid step, by packet length.
    tables: Mutex<BTreeMap<usize, Arc<Table>>>,
}

/// The earliest arrival of a packet sent at this grid step or later.
#[derive(Copy, Clone, Debug)]
struct EarliestArrival {
    arrival: Instant,
    sent: Instant,
}

type Table = Vec<Option<EarliestArrival>>;

/// A packet of this length in bytes.
#[derive(Copy, Clone, Debug)]
struct Probe(usize);

impl Packet for Probe {
    fn wire_len(&self) -> usize {
        self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }
}

impl LinkCourse {
    /// Computes the behavior of a link until a time.
    pub(super) fn new(
        config: &LinkConfig,
        seeds: SeedTree,
        changes: Vec<(Instant, Change)>,
        until: Instant,
    ) -> LinkCourse {
        let (first, mut lead) = without_packet_draws(config);
        let mut may_reorder = first.delay.trace.is_some();
        let changes = changes.into_iter().map(|(at, change)| match change {
            Change::Settings(config) => {
                let (config, further) = without_packet_draws(&config);
                lead = lead.max(further);
                may_reorder = true;
                (at, Change::Settings(Box::new(config)))
            }
            up @ Change::Up(_) => (at, up),
        });
        let changes = changes.collect();
        let tables = Mutex::default();
        LinkCourse { first, seeds, changes, lead, may_reorder, until, tables }
    }

    /// The link at a given time, and its later changes.
    fn link_at(&self, at: Instant) -> (Link<Probe>, &[(Instant, Change)]) {
        let mut link = Link::new(self.first.clone(), &self.seeds, Instant::ZERO);
        let past = self.changes.partition_point(|(when, _)| *when <= at);
        for (when, change) in &self.changes[..past] {
            apply_change(&mut link, *when, change);
        }
        (link, &self.changes[past..])
    }

    /// Arrival time of a packet of `bytes` that is sent at `from` on an otherwise idle link. `None` if it does not
    /// arrive before the end.
    fn sent_at(&self, from: Instant, bytes: usize) -> Option<Instant> {
        let (mut link, mut changes) = self.link_at(from);
        link.offer(from, Probe(bytes));
        loop {
            let event = link.next_event().filter(|event| *event <= self.until);
            let change = changes.first().map(|change| change.0).filter(|at| *at <= self.until);
            match (event, change) {
                (None, None) => return None,
                // A packet at the time of a change precedes it, since this is a bound.
                (Some(event), change) if change.is_none_or(|change| event <= change) => {
                    if let Some((at, _)) = link.poll_timed(event) {
                        return Some(at.max(from + self.lead) - self.lead);
                    }
                }
                _ => {
                    let ((at, change), rest) = changes.split_first()?;
                    apply_change(&mut link, *at, change);
                    changes = rest;
                }
            }
        }
    }

    /// The earliest arrival of a packet of `bytes` that is sent at `from` or later.
    pub(super) fn arrival_of_packet(&self, from: Instant, bytes: usize) -> Option<Instant> {
        let at_once = self.sent_at(from, bytes);
        if at_once.is_some() && !self.may_reorder {
            return at_once;
        }
        let table = self.table(bytes);
        let next = from.as_nanos().div_ceil(GRID.as_nanos() as u64) as usize;
        let Some(best) = table.get(next).copied().flatten() else { return at_once };
        if at_once.is_some_and(|at_once| at_once <= best.arrival) {
            return at_once;
        }
        let before =
            Instant::from_nanos(best.sent.as_nanos().saturating_sub(GRID.as_nanos() as u64));
        // The favorable interval began between the last failed attempt and this one.
        let (mut bad, mut good) = (before.max(from), best);
        while good.sent.since(bad) > PRECISION {
            let middle = bad + good.sent.since(bad) / 2;
            match self.sent_at(middle, bytes) {
                Some(arrival) if arrival <= good.arrival => {
                    good = EarliestArrival { arrival, sent: middle }
                }
                _ => bad = middle,
            }
        }
        let found = good.arrival - PRECISION;
        Some(at_once.map_or(found, |at_once| at_once.min(found)))
    }

    fn table(&self, bytes: usize) -> Arc<Table> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(tables.entry(bytes).or_insert_with(|| Arc::new(self.fill_table(bytes))))
    }

    fn fill_table(&self, bytes: usize) -> Table {
        let count = self.until.as_nanos() / GRID.as_nanos() as u64;
        let mut best: Option<EarliestArrival> = None;
        let mut table = vec![None; count as usize + 1];
        for index in (0..table.len()).rev() {
            let sent = Instant::from_nanos(index as u64 * GRID.as_nanos() as u64);
            if let Some(arrival) = self.sent_at(sent, bytes)
                && best.is_none_or(|best| arrival <= best.arrival)
            {
                best = Some(EarliestArrival { arrival, sent });
            }
            table[index] = best;
        }
        table
    }

    /// Arrival times of the pieces of a large message if they keep the link busy starting at `from`: at most `count`,
    /// none after `latest`. They are in order of time, since any piece counts.
    fn pieces(&self, from: Instant, count: usize, latest: Instant) -> Vec<Instant> {
        let latest = latest.min(self.until);
        if self.first.rate == RateConfig::Unlimited {
            let first =
                self.arrival_of_packet(from, PIECE_BYTES.1).filter(|first| *first <= latest);
            return first.map_or_else(Vec::new, |first| vec![first; count]);
        }
        let (mut link, mut changes) = self.link_at(from);
        let (mut now, mut arrivals) = (from, Vec::new());
        while arrivals.len() < count && now <= latest {
            let under_way = |link: &Link<Probe>| {
                let stats = link.stats();
                (stats.offered_packets - stats.dropped() - stats.delivered_packets) as usize
            };
            let offered = link.stats().offered_packets;
            while link.is_up()
                && link.queued_bytes() < 2 * PIECE_BYTES.1 as u64
                // Without a rate the queue never fills.
                && link.stats().offered_packets < offered + count as u64
                // A piece sent later may still arrive earlier.
                && (self.may_reorder || under_way(&link) < count - arrivals.len())
            {
                link.offer(now, Probe(PIECE_BYTES.1));
            }
            let event = link.next_event();
            let wakes = link.next_outage_change().filter(|_| !link.is_up());
            let change = changes.first().map(|change| change.0);
            let Some(next) = event.into_iter().chain(wakes).chain(change).min() else { break };
            now = next;
            while let Some((at, _)) = link.poll_timed(now) {
                arrivals.push(at.max(from + self.lead) - self.lead);
            }
            while let Some(((_, change), rest)) =
                changes.split_first().filter(|(change, _)| change.0 <= now)
            {
                apply_change(&mut link, now, change);
                changes = rest;
            }
        }
        arrivals.retain(|at| *at <= latest);
        arrivals
    }
}

/// The earliest time at which `bytes` could have arrived over all of these links together, with empty queues at the
/// start. This is a relaxation: the message is a fluid, every per-packet draw is favorable, and every piece that
/// arrives counts, even after losses.
pub(super) fn earliest_arrival(
    links: &[&LinkCourse],
    from: Instant,
    bytes: u32,
) -> Option<Instant> {
    // On each link, one piece may have arrived almost completely.
    let pieces = (bytes.div_ceil(PIECE_BYTES.0) as usize).saturating_sub(links.len()).max(1);
    let mut arrivals: Vec<Instant> = Vec::new();
    let mut latest = Instant::FAR_FUTURE;
    for link in links {
        arrivals.extend(link.pieces(from, pieces, latest));
        arrivals.sort_unstable();
        // Pieces that arrive after the first `pieces` are not needed.
        latest = arrivals.get(pieces - 1).copied().unwrap_or(latest);
    }
    arrivals.get(pieces - 1).copied()
}

fn apply_change(link: &mut Link<Probe>, at: Instant, change: &Change) {
    match change {
        Change::Up(up) => link.set_up(at, *up),
        Change::Settings(config) => link.set_config(at, (**config).clone()),
    }
}

/// Removes the effects that are drawn per packet. Returns the link without them, and the maximum time by which a
/// packet may arrive earlier than over that link.
///
/// A sender that knows every future draw uses up the bad ones on dummy packets, so draws per packet cannot delay the
/// message. Draws over time can: outages, states and steps in which everything is lost, and the delays and rates of
/// traces.
fn without_packet_draws(config: &LinkConfig) -> (LinkConfig, Duration) {
    let mut lucky = config.clone();
    lucky.middlebox = Default::default();
    lucky.faults = Default::default();
    // Smaller packets arrive no earlier.
    lucky.mtu = None;
    // A sender that knows the future wakes the radio in time.
    lucky.radio = None;
    lucky.queue = QueueLimit::Bytes(1 << 20);
    lucky.delay.overtaking = true;
    let certain = |chance: f64| if chance >= 1.0 { 1.0 } else { 0.0 };
    let LossConfig { gilbert_elliott, steps, trace, .. } = &config.loss;
    let gilbert_elliott = gilbert_elliott.map(|model| marline_link::GilbertElliott {
        loss_bad: certain(model.loss_bad),
        loss_good: certain(model.loss_good),
        ..model
    });
    let steps = steps.as_ref().map(|steps| {
        let points = steps.points().iter().map(|(at, chance)| (*at, certain(*chance))).collect();
        // These times come from validated steps.
        Steps::new(points, steps.period()).map_or_else(|_| Arc::clone(steps), Into::into)
    });
    let (random, pattern, trace) = (0.0, Vec::new(), trace.clone());
    lucky.loss = LossConfig { random, gilbert_elliott, pattern, steps, trace };
    // Sums of twelve uniform values stay within six standard deviations.
    let shift = match config.delay.jitter {
        Jitter::None => Duration::ZERO,
        Jitter::Uniform(most) => most,
        Jitter::Normal(deviation) => deviation * 6,
    };
    lucky.delay.jitter = Jitter::None;
    lucky.delay.base = config.delay.base.saturating_sub(shift);
    let further = shift.saturating_sub(config.delay.base);
    // Without a trace, no delay can be shorter.
    let lead = if config.delay.trace.is_some() { further } else { Duration::ZERO };
    (lucky, lead)
}
