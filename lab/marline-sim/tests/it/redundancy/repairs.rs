//! Tests of repairs across paths (FUSO): data lost on the slow path is sent on the fast one as soon as the loss is
//! detected, and nothing else is.

use marline_time::Duration;

use super::{Bursts, bursts, ms, scene};

const FAST: &str = "rate=20M,delay=10ms,queue=100ms";
const SLOW: &str = "rate=20M,delay=60ms,queue=100ms,down.loss=3%";
const BURST: u64 = 100_000;

fn run(scheduler: &str) -> Bursts {
    let at_ms: Vec<u64> = (0..80).map(|n| n * 600).collect();
    bursts(&mut scene(&[FAST, SLOW], scheduler, 3), BURST, &at_ms)
}

fn mean(run: &Bursts) -> Duration {
    run.latencies.iter().sum::<Duration>() / run.latencies.len() as u32
}

/// Times at which data of the slow path was also sent on the fast one, relative to the original.
fn repairs(run: &Bursts) -> Vec<Duration> {
    let mut after = Vec::new();
    for (index, copy) in run.sent.iter().enumerate().filter(|(_, sent)| sent.path == 0) {
        let before = &run.sent[..index];
        let original = before.iter().find(|s| s.start <= copy.start && copy.start < s.end);
        after.extend(original.filter(|s| s.path == 1).map(|s| copy.at.saturating_sub(s.at)));
    }
    after
}

#[test]
fn detected_losses_of_the_slow_path_move_to_the_fast_one() {
    let [plain, found] = ["lowest-rtt", "lowest-rtt+fuso,spare=off"].map(run);
    let after = repairs(&found);
    println!("{:?} and {:?}, {} repairs", mean(&plain), mean(&found), after.len());
    assert_eq!(repairs(&plain), [], "without FUSO, a subflow repairs its own losses");
    assert!(after.len() > 30, "{after:?}");
    // No loss is detected before a round trip of the slow path.
    assert!(after.iter().all(|after| *after >= ms(60)), "{after:?}");
    assert!(mean(&found) < mean(&plain).mul_f64(0.95));
}

#[test]
fn spare_room_repeats_suspected_losses_on_the_fast_path() {
    let [found, spare] = ["lowest-rtt+fuso,spare=off", "lowest-rtt+fuso"].map(run);
    let early = repairs(&spare).iter().filter(|after| **after < ms(120)).count();
    println!("{:?} and {:?}, {early} early", mean(&found), mean(&spare));
    assert!(early > 100, "{early}");
    assert!(mean(&spare) < mean(&found));
}
