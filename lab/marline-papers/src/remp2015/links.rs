//! Link models of the paths, most of them fitted to the published numbers.
//!
//! *WiFi.* 95 ms. Losses come in bad times of 9 s on average, every 69 s, in which a fifth is lost, and
//! 0.1 % else: 2.7 % in all, a little below the 3 % of the study that the paper relies on. Both directions
//! have bad times of their own. With losses independent of each other single-path TCP reaches
//! neither the published average nor the deviation; with shorter, worse times its worst case becomes
//! far longer than the published.
//!
//! *LTE.* 154 ms, spread over 132 ms (the sum of two even spreads), 0.1 % lost.
//!
//! *Train.* Both connections change cells four times a minute. A new cell has a new delay, 60 to
//! 200 ms one way. Four of five changes are seamless, as forwarding between base stations makes
//! them; one in five fails, and nothing gets through for half a second and more, 2 s on average, 6 s at
//! most. What the two connections have to do with each other is a choice of its own ([`Coincidence`]).

use std::fmt::Write as _;

use marline_lab::experiment::Experiment;
use marline_lab::scenario::Event;
use marline_lab::workload::{Gap, Workload};
use marline_time::{Rng, SeedTree};

/// Messages of a run, 100 ms apart: the length of the published trace.
pub(super) const MESSAGES: usize = 1_000;
/// Between two, ms.
const GAP_MS: f64 = 100.0;
/// Of a message.
pub(super) const BYTES: u32 = 64;

/// WiFi with losses in bad times.
pub(super) const WIFI: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=60s:9s:20%:0.1%";
/// With losses independent of each other.
pub(super) const WIFI_INDEPENDENT: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,loss=3%";
/// With shorter and worse bad times.
pub(super) const WIFI_SHORT: &str = "rate=20M,delay=47.5ms,jitter=uniform:6ms,ge=50s:4s:30%:0.1%";
/// LTE at home.
pub(super) const LTE: &str = "rate=10M,delay=77ms,jitter=uniform:33ms,loss=0.1%";
/// LTE in the train; the delay comes with the cells.
const TRAIN: &str = "rate=10M,delay=130ms,jitter=uniform:20ms,loss=0.1%";
/// The connections in the train.
pub(super) const TRAIN_PATHS: [&str; 2] = ["lte1", "lte2"];

/// Changes of cell per minute, of each connection.
const CHANGES_PER_MINUTE: f64 = 4.0;
/// Share of them that fail.
const FAILING: f64 = 0.2;
/// Shortest, mean and longest time without connection, s.
const GAP_S: (f64, f64, f64) = (0.5, 2.0, 6.0);
/// One-way delays of cells, ms.
const CELL_DELAY_MS: (f64, f64) = (60.0, 200.0);
/// Shortest time between two changes, s.
const MIN_STAY_S: f64 = 0.3;

fn echoes(count: usize) -> Workload {
    let gap = Gap { least_ms: GAP_MS, most_ms: GAP_MS };
    Workload::Ask { request_bytes: BYTES, answer_bytes: BYTES, gap, count: count as u32 }
}

/// How long a run with so many messages is, s.
fn lasts_s(count: usize) -> f64 {
    count as f64 * GAP_MS / 1e3
}

fn event(at_s: f64, path: &str, command: String) -> Event {
    Event { at: format!("{at_s:.4}s"), path: path.to_owned(), command }
}

/// At home, with so many messages.
pub(super) fn home(wifi: &str, lte: &str, count: usize) -> Experiment {
    Experiment::over(&[("wifi", wifi), ("lte", lte)], echoes(count))
}

/// At home as the study is repeated, with so many messages.
pub(crate) fn home_echoes(count: usize) -> Experiment {
    home(WIFI, LTE, count)
}

/// In the train as its authors saw it, with so many messages.
pub(crate) fn train_echoes(count: usize, seed: u64) -> Experiment {
    train(Coincidence::Never, count, seed)
}

/// How the WiFi ends in the middle of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum WifiEnd {
    /// From one moment to the next.
    Abrupt,
    /// It loses more and more for three seconds, as when one walks out of the door.
    Fading,
}

/// When the WiFi is dead, s after the start: in the middle tenth of the run.
pub(super) fn death_s(count: usize, rng: &mut impl Rng) -> f64 {
    lasts_s(count) * 0.1_f64.mul_add(rng.unit(), 0.45)
}

/// At home, and then out of the door.
pub(super) fn leaving(farewell: WifiEnd, count: usize, death_s: f64) -> Experiment {
    let mut experiment = home(WIFI, LTE, count);
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

/// What the cells of one connection have to do with those of the other.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Coincidence {
    /// Never both without connection at once, as the paper's authors saw it.
    Never,
    /// As chance has it: this share of the changes that fail, of each connection, fails for both at
    /// once, the others of each by themselves. 0: two processes that know nothing of each other.
    Share(f64),
}

/// In the train, with so many messages.
pub(super) fn train(coincidence: Coincidence, count: usize, seed: u64) -> Experiment {
    let [first, second] = TRAIN_PATHS;
    let mut experiment = Experiment::over(&[(first, TRAIN), (second, TRAIN)], echoes(count));
    let mut rng = SeedTree::new(seed).stream("remp2015/cells");
    let end_s = lasts_s(count);
    experiment.scenario.events = match coincidence {
        Coincidence::Never => alternating_cells(end_s, &mut rng),
        Coincidence::Share(share) => random_cells(share, end_s, &mut rng),
    };
    experiment
}

/// How long a change that fails leaves one without connection, s.
fn gap_s(rng: &mut impl Rng) -> f64 {
    let (least_s, mean_s, most_s) = GAP_S;
    exponential(rng).mul_add(mean_s - least_s, least_s).min(most_s)
}

/// One thing after the other, on the one or the other connection.
fn alternating_cells(end_s: f64, rng: &mut impl Rng) -> Vec<Event> {
    let mut events = Vec::new();
    for name in TRAIN_PATHS {
        events.push(event(0.0, name, new_cell(rng)));
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
        // Later by the shortest time there is: events of one moment have no order.
        events.push(event(at_s + 1e-4, name, new_cell(rng)));
    }
}

/// Both connections by themselves, and what both have in common.
fn random_cells(common: f64, end_s: f64, rng: &mut impl Rng) -> Vec<Event> {
    let both = gaps(CHANGES_PER_MINUTE * FAILING * common, end_s, rng);
    let mut events = Vec::new();
    for name in TRAIN_PATHS {
        events.push(event(0.0, name, new_cell(rng)));
        let mut gaps = gaps(CHANGES_PER_MINUTE * FAILING * (1.0 - common), end_s, rng);
        gaps.extend(&both);
        for (from_s, to_s) in united(gaps) {
            events.push(event(from_s, name, "down".to_owned()));
            events.push(event(to_s, name, "up".to_owned()));
            events.push(event(to_s + 1e-4, name, new_cell(rng)));
        }
        for at_s in moments(CHANGES_PER_MINUTE * (1.0 - FAILING), end_s, rng) {
            events.push(event(at_s, name, new_cell(rng)));
        }
    }
    events
}

/// Moments at so many a minute.
fn moments(per_minute: f64, end_s: f64, rng: &mut impl Rng) -> Vec<f64> {
    let mut all = Vec::new();
    let mut at_s = 0.1;
    loop {
        // None a minute: never.
        at_s += (exponential(rng) * 60.0 / per_minute).max(MIN_STAY_S);
        if at_s >= end_s || at_s.is_nan() {
            return all;
        }
        all.push(at_s);
    }
}

/// Times without connection that end before the run does.
fn gaps(per_minute: f64, end_s: f64, rng: &mut impl Rng) -> Vec<(f64, f64)> {
    let starts = moments(per_minute, end_s, rng);
    let gaps = starts.into_iter().map(|from_s| (from_s, from_s + gap_s(rng)));
    gaps.filter(|gap| gap.1 < end_s).collect()
}

/// Times that overlap, or nearly touch, as one.
fn united(mut gaps: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
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

fn new_cell(rng: &mut impl Rng) -> String {
    let (least_ms, most_ms) = CELL_DELAY_MS;
    let mut command = String::from("set delay=");
    let delay_ms = (most_ms - least_ms).mul_add(rng.unit(), least_ms);
    // Writing to a string cannot fail.
    let _ = write!(command, "{delay_ms:.1}ms");
    command
}

/// With mean 1.
fn exponential(rng: &mut impl Rng) -> f64 {
    -(1.0 - rng.unit()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINS: u64 = 200;

    /// Times without connection of both, s after the start.
    fn outages(coincidence: Coincidence, seed: u64) -> [Vec<(f64, f64)>; 2] {
        let events = train(coincidence, MESSAGES, seed).scenario.events;
        let told = |events: &[Event]| format!("{events:?}");
        let again = train(coincidence, MESSAGES, seed).scenario.events;
        assert_eq!(told(&events), told(&again), "a seed is a train");
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

    /// Shares of the time in which the first, and both, are gone.
    fn gone(coincidence: Coincidence) -> (f64, f64) {
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
    fn connections_in_turn_are_never_gone_at_once() {
        // A failing change each in 75 s, about 1.9 s.
        let (first, both) = gone(Coincidence::Never);
        assert!((0.012..0.04).contains(&first) && both == 0.0, "{first} {both}");
    }

    #[test]
    fn connections_by_chance_are_gone_at_once_as_often_as_is_said() {
        let (first, both) = gone(Coincidence::Share(0.0));
        // Where one knows nothing of the other, the product.
        assert!((0.012..0.04).contains(&first), "{first}");
        assert!(both > 0.0 && both < 4.0 * first * first, "{first} {both}");
        let (first, both) = gone(Coincidence::Share(0.5));
        assert!((0.3..0.7).contains(&(both / first)), "{first} {both}");
        let (first, both) = gone(Coincidence::Share(1.0));
        assert!((both - first).abs() < 1e-9, "{first} {both}");
    }
}
