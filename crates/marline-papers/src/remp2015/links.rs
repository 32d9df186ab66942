//! Fitted link models of the paths.
//!
//! *WiFi.* 95 ms. Losses come in bad times of 9 s on average, every 69 s, in which a fifth is lost, and
//! 0.1 % else: 2.7 % in all, a little below the 3 % of the study that the paper relies on. Both directions
//! have bad times of their own. With losses independent of each other single-path TCP reaches
//! neither the published average nor the deviation; with shorter, worse times its worst case becomes
//! far longer than the published.
//!
//! *LTE.* 154 ms, spread over 132 ms (the sum of two even spreads), 0.1 % lost.
//!
//! *Train.* Both connections change cells four times a minute, independently, but never both at
//! once. A new cell has a new delay, 60 to 200 ms one way. Four of five changes are seamless, as
//! forwarding between base stations makes them; one in five fails, and nothing gets through for
//! half a second and more, 2 s on average, 6 s at most.

use std::fmt::Write as _;

use marline_lab::experiment::Experiment;
use marline_lab::scenario::Event;
use marline_lab::workload::{Gap, Workload};
use marline_time::{Rng, SeedTree};

/// Messages of a run, 100 ms apart: the length of the published trace.
pub(super) const MESSAGES: u32 = 1_000;
/// Between two, ms.
const GAP_MS: f64 = 100.0;
/// Of a message.
const BYTES: u32 = 64;

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

/// Changes of cell per minute, of each connection.
const CHANGES_PER_MINUTE: f64 = 4.0;
/// Share of them that fail.
const FAILING: f64 = 0.2;
/// Shortest, mean and longest time without connection, s.
const GAP_S: (f64, f64, f64) = (0.5, 2.0, 6.0);
/// One-way delays of cells, ms.
const CELL_DELAY_MS: (f64, f64) = (60.0, 200.0);
/// Shortest time between two changes, s.
const LEAST_STAY_S: f64 = 0.3;

fn echoes() -> Workload {
    let gap = Gap { least_ms: GAP_MS, most_ms: GAP_MS };
    Workload::Ask { request_bytes: BYTES, answer_bytes: BYTES, gap, count: MESSAGES }
}

fn event(at_s: f64, path: &str, command: String) -> Event {
    Event { at: format!("{at_s:.4}s"), path: path.to_owned(), command }
}

/// At home.
pub(super) fn home(wifi: &str) -> Experiment {
    Experiment::over(&[("wifi", wifi), ("lte", LTE)], echoes())
}

/// How the WiFi ends in the middle of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// From one moment to the next.
    Abrupt,
    /// It loses more and more for three seconds, as when one walks out of the door.
    Fading,
}

/// When the WiFi is dead, s after the start.
pub(super) const DEATH_S: f64 = 50.02;

/// At home, and then out of the door.
pub(super) fn leaving(farewell: Farewell) -> Experiment {
    let mut experiment = home(WIFI);
    let events = &mut experiment.scenario.events;
    if farewell == Farewell::Fading {
        for (before_s, loss) in [(3.0, 10), (2.0, 25), (1.0, 50)] {
            events.push(event(DEATH_S - before_s, "wifi", format!("set loss={loss}%")));
        }
    }
    events.push(event(DEATH_S, "wifi", "down".to_owned()));
    experiment
}

/// In the train.
pub(super) fn train(seed: u64) -> Experiment {
    let mut experiment = Experiment::over(&[("lte1", TRAIN), ("lte2", TRAIN)], echoes());
    experiment.scenario.events = cells(seed);
    experiment
}

/// What the cells do to both connections.
fn cells(seed: u64) -> Vec<Event> {
    let mut rng = SeedTree::new(seed).stream("remp2015/cells");
    let mut events = Vec::new();
    let names = ["lte1", "lte2"];
    let end_s = f64::from(MESSAGES) * GAP_MS / 1e3;
    for name in names {
        events.push(event(0.0, name, new_cell(&mut rng)));
    }
    let mut at_s = 0.1;
    loop {
        let stay_s = exponential(&mut rng) * 60.0 / (2.0 * CHANGES_PER_MINUTE);
        at_s += stay_s.max(LEAST_STAY_S);
        let (least_s, mean_s, most_s) = GAP_S;
        let gap_s = exponential(&mut rng).mul_add(mean_s - least_s, least_s).min(most_s);
        if at_s + gap_s > end_s {
            return events;
        }
        let name = names[usize::from(rng.unit() < 0.5)];
        if rng.unit() < FAILING {
            events.push(event(at_s, name, "down".to_owned()));
            at_s += gap_s;
            events.push(event(at_s, name, "up".to_owned()));
        }
        // Later by the shortest time there is: events of one moment have no order.
        events.push(event(at_s + 1e-4, name, new_cell(&mut rng)));
    }
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

    #[test]
    fn connections_are_never_gone_at_once_and_a_seed_is_a_train() {
        let mut gone_s = 0.0;
        for seed in 1..=50 {
            let events = cells(seed);
            let told = |events: &[Event]| format!("{events:?}");
            assert_eq!(told(&events), told(&cells(seed)));
            let mut down: Option<(f64, String)> = None;
            for event in &events {
                let at_s: f64 = event.at.trim_end_matches('s').parse().expect("a time");
                match (event.command.as_str(), down.take()) {
                    ("down", before) => {
                        assert!(before.is_none(), "seed {seed}: both at {at_s}");
                        down = Some((at_s, event.path.clone()));
                    }
                    ("up", Some((from_s, path))) => {
                        assert_eq!(path, event.path);
                        assert!((0.49..6.01).contains(&(at_s - from_s)), "{}", at_s - from_s);
                        gone_s += at_s - from_s;
                    }
                    (command, before) => {
                        assert!(command.starts_with("set delay="), "{command}");
                        down = before;
                    }
                }
            }
        }
        // Two connections, a failing change each in 75 s, about 1.9 s.
        let share = gone_s / (50.0 * 2.0 * 100.0);
        assert!((0.012..0.04).contains(&share), "{share}");
    }
}
