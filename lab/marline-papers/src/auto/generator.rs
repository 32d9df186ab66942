//! Generator of pairs of links, each of a kind that is hard for a scheduler that uses both paths.
//!
//! A pair is drawn from one stream of random numbers: the kind of each path, its rate and delay over more than an order
//! of magnitude (log-uniform), and the parameters of the kind. The ranges are our choice, to cover radio access of the
//! last fifteen years and satellites. Nothing is fitted to a measurement. Descriptions have the syntax of `marline-lab
//! link`. Steps of anything but the rate are events.
//!
//! No pair shares a bottleneck, because the link model has none.

use marline_lab::scenario::Event;
use marline_time::Rng;

/// Names of the paths of every pair.
pub(super) const PATHS: [&str; 2] = ["first", "second"];
/// Period of stepped rates, s. It is longer than any run.
const STEPS_S: f64 = 60.0;
/// Time between two decisions of Starlink's scheduler, which assigns a satellite to each terminal, s.
const SLOT_S: f64 = 15.0;

/// Property that makes a link difficult for a scheduler.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only a little random loss.
    Steady,
    /// Losses in bursts, after Gilbert and Elliott.
    Bursty,
    /// The rate follows a Markov chain.
    Markov,
    /// The link is repeatedly down for a while.
    Handover,
    /// Rate and delay change every 15 s, after a short pause.
    Slots,
    /// A queue of at least half a second.
    Bufferbloat,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Steady, Kind::Bursty, Kind::Markov, Kind::Handover, Kind::Slots, Kind::Bufferbloat];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Kind::Steady => "steady",
            Kind::Bursty => "bursty loss",
            Kind::Markov => "Markov rate",
            Kind::Handover => "handover",
            Kind::Slots => "15 s slots",
            Kind::Bufferbloat => "bufferbloat",
        }
    }
}

/// A pair of generated links.
#[derive(Clone, Debug)]
pub(super) struct GeneratedPair {
    pub(super) kinds: [Kind; 2],
    /// Link descriptions.
    pub(super) links: [String; 2],
    pub(super) events: Vec<Event>,
    /// Seed for its runs.
    pub(super) seed: u64,
}

/// Draws the next pair. Its first path is of kind `first`.
pub(super) fn pair(first: Kind, rng: &mut impl Rng) -> GeneratedPair {
    let second = Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize];
    let mut events = Vec::new();
    let links = [(first, PATHS[0]), (second, PATHS[1])].map(|(kind, path)| {
        let base = CommonParameters::draw(kind, rng);
        format!("{}{}", base.text(), draw_extras(kind, base, path, rng, &mut events))
    });
    GeneratedPair { kinds: [first, second], links, events, seed: rng.next_u64() >> 11 }
}

/// Parameters common to all links.
#[derive(Copy, Clone, Debug)]
struct CommonParameters {
    /// Rates to and from the client.
    down_kbit: u64,
    up_kbit: u64,
    /// One-way delay.
    delay_us: u64,
    queue_ms: u64,
}

impl CommonParameters {
    fn draw(kind: Kind, rng: &mut impl Rng) -> CommonParameters {
        // Only slow links have deep queues.
        let fastest_kbit = if kind == Kind::Bufferbloat { 20_000.0 } else { 60_000.0 };
        let down_kbit = logarithmic(rng, 2_000.0, fastest_kbit);
        let up_kbit = (down_kbit as f64 * draw_uniform(rng, 0.2, 1.0)) as u64;
        let queue_ms = match kind {
            Kind::Bufferbloat => logarithmic(rng, 500.0, 3_000.0),
            _ => logarithmic(rng, 30.0, 250.0),
        };
        let delay_us = logarithmic(rng, 5_000.0, 80_000.0);
        CommonParameters { down_kbit, up_kbit: up_kbit.max(1_000), delay_us, queue_ms }
    }

    fn text(self) -> String {
        let CommonParameters { down_kbit, up_kbit, delay_us, queue_ms } = self;
        format!("down.rate={down_kbit}k,up.rate={up_kbit}k,delay={delay_us}us,queue={queue_ms}ms")
    }
}

/// Parameters that a kind adds to the description of a link, and its events.
fn draw_extras(
    kind: Kind,
    base: CommonParameters,
    path: &str,
    rng: &mut impl Rng,
    events: &mut Vec<Event>,
) -> String {
    match kind {
        Kind::Steady => format!(",loss={:.4}", draw_uniform(rng, 0.0, 0.005)),
        Kind::Bursty => {
            let good_ms = logarithmic(rng, 700.0, 10_000.0);
            let bad_ms = logarithmic(rng, 20.0, 400.0);
            format!(",ge={good_ms}ms:{bad_ms}ms:{:.2}:0", draw_uniform(rng, 0.3, 1.0))
        }
        Kind::Markov => format!(",down.rate={}", markov_rates(base, rng)),
        Kind::Handover => {
            let up_ms = logarithmic(rng, 3_000.0, 20_000.0);
            let down_ms = logarithmic(rng, 100.0, 2_000.0);
            let mode = if rng.below(2) == 0 { "kill" } else { "suspend" };
            format!(",flap={up_ms}ms:{down_ms}ms,outage={mode}")
        }
        Kind::Slots => slots(base, path, rng, events),
        Kind::Bufferbloat => String::new(),
    }
}

/// Rates between a tenth of the base rate and all of it. The chain moves one state up or down after an exponentially
/// distributed time.
fn markov_rates(base: CommonParameters, rng: &mut impl Rng) -> String {
    const SHARES: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 1.0];
    let stay_ms = logarithmic(rng, 200.0, 2_000.0) as f64;
    let mut state = rng.below(SHARES.len() as u64) as usize;
    let mut steps = Vec::new();
    let mut at_ms = 0.0;
    while at_ms < STEPS_S * 1e3 {
        let kbit = (base.down_kbit as f64 * SHARES[state]) as u64;
        steps.push(format!("{}ms:{kbit}k", at_ms as u64));
        at_ms += 1.0 - stay_ms * (1.0 - rng.unit()).ln();
        state = match state {
            0 => 1,
            last if last + 1 == SHARES.len() => last - 1,
            _ if rng.below(2) == 0 => state + 1,
            _ => state - 1,
        };
    }
    format!("{}/{}s", steps.join("+"), STEPS_S as u64)
}

/// Slots of a satellite. After a pause of some tens of ms in which packets wait, both directions get a new rate
/// and a new delay.
fn slots(
    base: CommonParameters,
    path: &str,
    rng: &mut impl Rng,
    events: &mut Vec<Event>,
) -> String {
    let mut rates = vec![format!("0s:{}k", base.down_kbit)];
    let mut pauses = Vec::new();
    let mut at_ms = (1e3 * draw_uniform(rng, 1.0, SLOT_S)) as u64;
    while (at_ms as f64) < STEPS_S * 1e3 {
        let kbit = (base.down_kbit as f64 * draw_uniform(rng, 0.3, 1.0)) as u64;
        rates.push(format!("{at_ms}ms:{kbit}k"));
        pauses.push(format!("{at_ms}ms-{}ms", at_ms + logarithmic(rng, 20.0, 150.0)));
        let delay_us = (base.delay_us as f64 * draw_uniform(rng, 0.7, 1.6)) as u64;
        events.push(Event {
            at: format!("{at_ms}ms"),
            path: path.to_owned(),
            command: format!("set delay={delay_us}us"),
        });
        at_ms += (1e3 * SLOT_S) as u64;
    }
    format!(",down.rate={},down={},outage=suspend", rates.join("+"), pauses.join("+"))
}

fn draw_uniform(rng: &mut impl Rng, least: f64, most: f64) -> f64 {
    least + (most - least) * rng.unit()
}

/// Log-uniform random number, rounded down.
fn logarithmic(rng: &mut impl Rng, least: f64, most: f64) -> u64 {
    (least * (most / least).powf(rng.unit())) as u64
}

#[cfg(test)]
mod tests {
    use marline_lab::experiment::Experiment;
    use marline_lab::workload::Workload;
    use marline_time::SeedTree;

    use super::*;

    fn pairs(seed: u64, count: usize) -> Vec<GeneratedPair> {
        let mut rng = SeedTree::new(seed).stream("pairs");
        (0..count).map(|number| pair(Kind::ALL[number % Kind::ALL.len()], &mut rng)).collect()
    }

    #[test]
    fn equal_seeds_give_equal_pairs_and_other_seeds_others() {
        let text = |seed| format!("{:?}", pairs(seed, 60));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn every_description_and_event_can_be_run() {
        let workload = Workload::Blocks { bytes: 1_000, lasts_ms: 1_000 };
        for generated in pairs(3, 600) {
            let links = [(PATHS[0], &*generated.links[0]), (PATHS[1], &*generated.links[1])];
            let mut experiment = Experiment::over(&links, workload);
            experiment.scenario.events = generated.events.clone();
            experiment.check().unwrap_or_else(|error| panic!("{error:#}: {generated:?}"));
        }
    }

    #[test]
    fn every_kind_is_on_either_path_and_slots_step_both_rate_and_delay() {
        let pairs = pairs(5, 600);
        for kind in Kind::ALL {
            for path in [0, 1] {
                assert!(pairs.iter().filter(|pair| pair.kinds[path] == kind).count() > 50);
            }
        }
        for pair in pairs.iter().filter(|pair| pair.kinds[0] == Kind::Slots) {
            let steps = pair.links[0].matches("k+").count();
            let of_first = pair.events.iter().filter(|event| event.path == PATHS[0]).count();
            assert!(of_first >= 3 && steps == of_first, "{pair:?}");
        }
    }
}
