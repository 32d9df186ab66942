//! Link models of the paths, most of them fitted to the published numbers.
//!
//! *WiFi.* 95 ms. Losses come in bad periods of 9 s on average, every 69 s, with 20 % loss, and 0.1 % otherwise. The
//! total is 2.7 %, slightly below the 3 % of the study that the paper relies on. The two directions have
//! independent bad periods. With independent losses, single-path TCP reaches neither the published average nor the
//! deviation. With shorter, worse bad periods, its worst case is far longer than published.
//!
//! *LTE.* 154 ms, spread over 132 ms (the sum of two uniform spreads), without random losses: the paper's longest round
//! trip over LTE has no retransmission in it.
//!
//! *Train.* Each connection changes cells up to eight times a minute. A new cell has a new delay, 60 to 200 ms one
//! way. One in four changes is seamless, because base stations forward packets. The others fail, and the connection is
//! lost for at least half a second, 1.8 s on average, at most 6 s. The correlation of the two connections is a separate
//! choice ([`Coincidence`]).

use std::fmt::Write as _;

use marline_lab::experiment::Experiment;
use marline_lab::scenario::Event;
use marline_lab::workload::{Gap, Workload};
use marline_time::{Rng, SeedTree};

/// Number of messages per run, sent 100 ms apart, for the length of the published trace.
pub(super) const MESSAGES: usize = 1_000;
/// Time between two messages, ms.
const GAP_MS: f64 = 100.0;
/// Size of a message.
pub(super) const BYTES: u32 = 64;

/// WiFi with losses in bad periods.
pub(super) const WIFI: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=60s:9s:20%:0.1%";
/// WiFi with independent losses.
pub(super) const WIFI_INDEPENDENT: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,loss=3%";
/// WiFi with shorter and worse bad periods.
pub(super) const WIFI_SHORT: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=50s:4s:30%:0.1%";
/// LTE at home.
pub(super) const LTE: &str = "rate=10M,delay=77ms,jitter=uniform:33ms";
/// LTE on the train. The delay comes from the cells.
const TRAIN: &str = "rate=10M,delay=130ms,jitter=uniform:20ms";
/// Names of the paths on the train.
pub(super) const TRAIN_PATHS: [&str; 2] = ["lte1", "lte2"];

/// Cell changes of each connection per minute.
const CHANGES_PER_MINUTE: f64 = 8.0;
/// Share of the cell changes that fail.
const FAILING: f64 = 0.75;
/// Minimum, mean and maximum time without connection, s.
const GAP_S: (f64, f64, f64) = (0.5, 1.8, 6.0);
/// Minimum and maximum one-way delay of a cell, ms.
const CELL_DELAY_MS: (f64, f64) = (60.0, 200.0);
/// Shortest time between two changes, s.
const MIN_STAY_S: f64 = 0.3;

fn echoes(count: usize) -> Workload {
    let gap = Gap { least_ms: GAP_MS, most_ms: GAP_MS };
    Workload::Ask { request_bytes: BYTES, answer_bytes: BYTES, gap, count: count as u32 }
}

/// Length of a run with `count` messages, s.
fn lasts_s(count: usize) -> f64 {
    count as f64 * GAP_MS / 1e3
}

fn event(at_s: f64, path: &str, command: String) -> Event {
    Event { at: format!("{at_s:.4}s"), path: path.to_owned(), command }
}

/// Echoes at home with `count` messages.
pub(super) fn home_experiment(wifi: &str, lte: &str, count: usize) -> Experiment {
    Experiment::over(&[("wifi", wifi), ("lte", lte)], echoes(count))
}

/// Echoes at home over the links of the study.
pub(crate) fn home_echoes(count: usize) -> Experiment {
    home_experiment(WIFI, LTE, count)
}

/// Echoes on the train, with connections that never fail at the same time, as the authors observed.
pub(crate) fn train_echoes(count: usize, seed: u64) -> Experiment {
    train_experiment(Coincidence::Never, count, seed)
}

/// Failure of the WiFi in the middle of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum WifiEnd {
    /// All packets are lost from one moment to the next.
    Abrupt,
    /// The loss increases for three seconds, as when the user leaves the building.
    Fading,
}

/// Time at which the WiFi dies, s after the start. It is in the middle tenth of the run.
pub(super) fn death_s(count: usize, rng: &mut impl Rng) -> f64 {
    lasts_s(count) * 0.1_f64.mul_add(rng.unit(), 0.45)
}

/// Echoes at home until the WiFi fails.
pub(super) fn wifi_loss_experiment(farewell: WifiEnd, count: usize, death_s: f64) -> Experiment {
    let mut experiment = home_experiment(WIFI, LTE, count);
    let events = &mut experiment.scenario.events;
    if farewell == WifiEnd::Fading {
        for (before_s, loss) in [(3.0, 10), (2.0, 25), (1.0, 50)] {
            let at_s = (death_s - before_s).max(0.0);
            events.push(event(at_s, "wifi", format!("set loss={loss}%")));
        }
    }
    events.push(event(death_s, "wifi", "down".to_owned()));
    experiment
}

/// Relation between the cell changes of the two connections.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Coincidence {
    /// The connections never fail at the same time, as the paper's authors observed.
    Never,
    /// Random. This share of each connection's failing changes affects both at once. The other changes are
    /// independent. 0: all are independent.
    Share(f64),
}

/// An echo experiment with `count` messages on the train.
pub(super) fn train_experiment(coincidence: Coincidence, count: usize, seed: u64) -> Experiment {
    let [first, second] = TRAIN_PATHS;
    let mut experiment = Experiment::over(&[(first, TRAIN), (second, TRAIN)], echoes(count));
    let mut rng = SeedTree::new(seed).stream("remp2015/cells");
    let end_s = lasts_s(count);
    experiment.scenario.events = match coincidence {
        Coincidence::Never => draw_alternating_cells(end_s, &mut rng),
        Coincidence::Share(share) => random_cells(share, end_s, &mut rng),
    };
    experiment
}

/// Time without connection after a failed change, s.
fn gap_s(rng: &mut impl Rng) -> f64 {
    let (least_s, mean_s, most_s) = GAP_S;
    exponential(rng).mul_add(mean_s - least_s, least_s).min(most_s)
}

/// Cell changes that never overlap, each on a random connection.
fn draw_alternating_cells(end_s: f64, rng: &mut impl Rng) -> Vec<Event> {
    let mut events = Vec::new();
    for name in TRAIN_PATHS {
        events.push(event(0.0, name, draw_cell(rng)));
    }
    let mut at_s = 0.1;
    loop {
        let stay_s = exponential(rng) * 60.0 / (2.0 * CHANGES_PER_MINUTE);
        at_s += stay_s.max(MIN_STAY_S);
        let gap_s = gap_s(rng);
        if at_s + gap_s > end_s {
            return events;
        }
        let name = TRAIN_PATHS[usize::from(rng.unit() < 0.5)];
        if rng.unit() < FAILING {
            events.push(event(at_s, name, "down".to_owned()));
            at_s += gap_s;
            events.push(event(at_s, name, "up".to_owned()));
        }
        // The shortest possible delay, because events at the same time have no order.
        events.push(event(at_s + 1e-4, name, draw_cell(rng)));
    }
}

/// Independent changes of both connections, and their common ones.
fn random_cells(common: f64, end_s: f64, rng: &mut impl Rng) -> Vec<Event> {
    let both = gaps(CHANGES_PER_MINUTE * FAILING * common, end_s, rng);
    let mut events = Vec::new();
    for name in TRAIN_PATHS {
        events.push(event(0.0, name, draw_cell(rng)));
        let mut gaps = gaps(CHANGES_PER_MINUTE * FAILING * (1.0 - common), end_s, rng);
        gaps.extend(&both);
        for (from_s, to_s) in merge_intervals(gaps) {
            events.push(event(from_s, name, "down".to_owned()));
            events.push(event(to_s, name, "up".to_owned()));
            events.push(event(to_s + 1e-4, name, draw_cell(rng)));
        }
        for at_s in moments(CHANGES_PER_MINUTE * (1.0 - FAILING), end_s, rng) {
            events.push(event(at_s, name, draw_cell(rng)));
        }
    }
    events
}

/// Random times at this rate per minute.
fn moments(per_minute: f64, end_s: f64, rng: &mut impl Rng) -> Vec<f64> {
    let mut all = Vec::new();
    let mut at_s = 0.1;
    loop {
        // With a rate of zero the time is never reached.
        at_s += (exponential(rng) * 60.0 / per_minute).max(MIN_STAY_S);
        if at_s >= end_s || at_s.is_nan() {
            return all;
        }
        all.push(at_s);
    }
}

/// Times without connection, limited to those that end before the run.
fn gaps(per_minute: f64, end_s: f64, rng: &mut impl Rng) -> Vec<(f64, f64)> {
    let starts = moments(per_minute, end_s, rng);
    let gaps = starts.into_iter().map(|from_s| (from_s, from_s + gap_s(rng)));
    gaps.filter(|gap| gap.1 < end_s).collect()
}

/// Merges intervals that overlap or nearly touch.
fn merge_intervals(mut gaps: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut all: Vec<(f64, f64)> = Vec::new();
    for (from_s, to_s) in gaps {
        match all.last_mut() {
            Some(last) if from_s <= last.1 + 0.01 => last.1 = last.1.max(to_s),
            _ => all.push((from_s, to_s)),
        }
    }
    all
}

fn draw_cell(rng: &mut impl Rng) -> String {
    let (least_ms, most_ms) = CELL_DELAY_MS;
    let mut command = String::from("set delay=");
    let delay_ms = (most_ms - least_ms).mul_add(rng.unit(), least_ms);
    // Writing to a string cannot fail.
    let _ = write!(command, "{delay_ms:.1}ms");
    command
}

/// Exponentially distributed number with mean 1.
fn exponential(rng: &mut impl Rng) -> f64 {
    -(1.0 - rng.unit()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINS: u64 = 200;

    /// Times without connection of both paths, s after the start.
    fn outages(coincidence: Coincidence, seed: u64) -> [Vec<(f64, f64)>; 2] {
        let events = train_experiment(coincidence, MESSAGES, seed).scenario.events;
        let told = |events: &[Event]| format!("{events:?}");
        let again = train_experiment(coincidence, MESSAGES, seed).scenario.events;
        assert_eq!(told(&events), told(&again), "equal seeds give equal trains");
        TRAIN_PATHS.map(|name| {
            let (mut all, mut down) = (Vec::new(), None);
            for event in events.iter().filter(|event| event.path == name) {
                let at_s: f64 = event.at.trim_end_matches('s').parse().expect("a time");
                match (event.command.as_str(), down.take()) {
                    ("down", None) => down = Some(at_s),
                    ("up", Some(from_s)) => all.push((from_s, at_s)),
                    (command, before) => {
                        assert!(command.starts_with("set delay="), "{command}");
                        down = before;
                    }
                }
            }
            assert_eq!(down, None);
            all
        })
    }

    /// Shares of the time in which the first connection, and both, are lost.
    fn outage_shares(coincidence: Coincidence) -> (f64, f64) {
        let (mut first_s, mut both_s) = (0.0, 0.0);
        for seed in 1..=TRAINS {
            let [first, second] = outages(coincidence, seed);
            for (from_s, to_s) in &first {
                first_s += to_s - from_s;
                for (other_s, until_s) in &second {
                    both_s += (to_s.min(*until_s) - from_s.max(*other_s)).max(0.0);
                }
            }
        }
        let all_s = TRAINS as f64 * lasts_s(MESSAGES);
        (first_s / all_s, both_s / all_s)
    }

    #[test]
    fn alternating_connections_never_fail_at_the_same_time() {
        // Each connection has a failing change every 14 s, of about 1.8 s.
        let (first, both) = outage_shares(Coincidence::Never);
        assert!((0.1..0.15).contains(&first) && both == 0.0, "{first} {both}");
    }

    #[test]
    fn random_connections_fail_together_as_often_as_configured() {
        let (first, both) = outage_shares(Coincidence::Share(0.0));
        // The product of both shares, because the connections are independent.
        assert!((0.11..0.2).contains(&first), "{first}");
        assert!(both > 0.0 && both < 4.0 * first * first, "{first} {both}");
        let (first, both) = outage_shares(Coincidence::Share(0.5));
        assert!((0.3..0.7).contains(&(both / first)), "{first} {both}");
        let (first, both) = outage_shares(Coincidence::Share(1.0));
        assert!((both - first).abs() < 1e-9, "{first} {both}");
    }
}
