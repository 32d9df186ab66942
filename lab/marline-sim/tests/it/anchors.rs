//! Tests of published schedulers on emulated links: the intended effect and the cost of each. The whole table: `cargo
//! run --release -p marline-sim --example numbers anchors`.

use crate::cases::anchors::{Outcome, SCENES, download, messages};
use crate::cases::parallel;

const COUNT: u64 = 1_200;
const PUBLISHED: [&str; 4] = ["xlink", "peekaboo", "paaf", "augur"];

fn all<const N: usize>(links: [&str; 2], schedulers: [&str; N]) -> [Outcome; N] {
    let outcomes = parallel(&schedulers, |scheduler| messages(&links, scheduler, COUNT, 1));
    for (scheduler, outcome) in schedulers.iter().zip(&outcomes) {
        let [p50, p99, most] = [0.5, 0.99, 1.0].map(|share| outcome.delay_ms(share));
        println!(
            "{links:?}, {scheduler}: {p50:.1}, {p99:.1}, {most:.1} ms, {:.2?}",
            outcome.shares
        );
    }
    outcomes.try_into().expect("the requested number")
}

#[test]
fn only_xlink_uses_a_second_path_next_to_a_steady_one() {
    let [xlink, peekaboo, paaf, augur] = all(SCENES[0].1, PUBLISHED);
    // A small message is always urgent, so XLINK always repeats it.
    assert!((1.0..1.1).contains(&xlink.shares[1]), "{:?}", xlink.shares);
    for outcome in [peekaboo, paaf, augur] {
        assert!(outcome.shares[1] < 0.02, "{:?}", outcome.shares);
        assert!(outcome.delay_ms(0.99) < 12.0);
    }
}

#[test]
fn published_schedulers_beat_lowest_rtt_under_bursty_loss_at_different_costs() {
    let [_, (_, links), ..] = SCENES;
    let [lowest, redundant] = all(links, ["lowest-rtt", "redundant"]);
    let [xlink, peekaboo, paaf, augur] = all(links, PUBLISHED);
    assert!(xlink.delay_ms(0.99) <= 1.05 * redundant.delay_ms(0.99));
    for outcome in [&xlink, &peekaboo, &paaf, &augur] {
        assert!(outcome.delay_ms(0.99) < 0.5 * lowest.delay_ms(0.99));
    }
    // PAAF copies while it is warned, AUGUR within its budget (10 %, the reserve, headers, retransmissions).
    assert!((0.05..0.4).contains(&paaf.shares[1]), "{:?}", paaf.shares);
    assert!((0.02..0.2).contains(&augur.shares[1]), "{:?}", augur.shares);
}

#[test]
fn where_a_path_fades_a_warning_shortens_the_wait_and_a_budget_limits_it() {
    let [.., (_, links), _] = SCENES;
    let [paaf, poor, rich] = all(links, ["paaf", "augur", "augur,budget=100%,reserve=1MB"]);
    // A message that waits for the faded path takes 200 ms and more.
    assert!(paaf.delay_ms(0.99) < 100.0 && rich.delay_ms(0.99) < 100.0);
    assert!(poor.delay_ms(0.99) > rich.delay_ms(0.99));
    assert!(poor.shares[1] < 0.2 && rich.shares[1] > poor.shares[1]);
}

/// The mode `redundant`: small messages are as fast as on the better path, and a download has the rate of both paths.
#[test]
fn without_a_limit_auto_is_full_duplication_of_small_messages_but_not_of_bulk() {
    for (name, links) in SCENES {
        let copied = ["auto,budget=unlimited", "redundant", "redundant-idle"];
        let [auto, redundant, idle] = all(links, copied).map(|outcome| outcome.delay_ms(0.99));
        let limit = 1.05 * redundant.min(idle);
        assert!(auto <= limit, "{name}: {auto:.1} ms, at most {limit:.1}");
    }
    let times = ["auto,budget=unlimited", "min-rtt", "redundant"]
        .map(|scheduler| download(&SCENES[0].1, scheduler, 10_000_000, 1).as_secs_f64());
    assert!(times[0] < 1.1 * times[1] && times[0] < 0.8 * times[2], "{times:?}");
}

#[test]
fn a_download_uses_both_paths_or_the_primary_alone() {
    let links = SCENES[0].1;
    let times = parallel(&PUBLISHED, |scheduler| download(&links, scheduler, 10_000_000, 1));
    println!("{times:?}");
    let seconds: Vec<f64> = times.iter().map(|time| time.as_secs_f64()).collect();
    // 50 and 30 Mbit/s.
    assert!(seconds[..2].iter().all(|time| *time < 2.4), "{seconds:?}");
    assert!(seconds[2..].iter().all(|time| (2.7..3.2).contains(time)), "{seconds:?}");
}

/// Two paths with similar delays, the first with bursts of loss.
const ALIKE: [&str; 2] =
    ["rate=30M,delay=12ms,jitter=10ms,down.ge=2s:60ms:60%:0", "rate=20M,delay=15ms,jitter=10ms"];

#[test]
fn raven_copies_while_the_faster_path_is_unknown() {
    let [steady] = all(SCENES[0].1, ["raven"]);
    assert!(steady.shares[1] < 0.1, "one is clearly faster: {:?}", steady.shares);
    let [lowest, redundant, raven] = all(ALIKE, ["lowest-rtt", "redundant", "raven"]);
    assert!(raven.shares[1] > 0.5, "{:?}", raven.shares);
    assert!(raven.delay_ms(0.99) < 1.1 * redundant.delay_ms(0.99));
    assert!(raven.delay_ms(0.99) < 0.6 * lowest.delay_ms(0.99));
}

#[test]
fn lamps_copies_while_a_path_loses_and_until_it_is_sure() {
    let [steady] = all(SCENES[0].1, ["lamps"]);
    assert!(steady.shares[1] < 0.02, "{:?}", steady.shares);
    let [lowest, lamps, surer] = all(SCENES[3].1, ["lowest-rtt", "lamps", "lamps,sure=0.999"]);
    assert!(surer.delay_ms(0.99) < 0.7 * lowest.delay_ms(0.99), "every message has its copy");
    assert!(lamps.shares[1] < surer.shares[1] && surer.shares[1] < 1.1, "{:?}", lamps.shares);
}
