//! A session survives a sleep from which the machine wakes with other addresses.

mod cases;

use cases::sleep::run;
use marline_time::Duration;

#[test]
fn a_session_continues_soon_after_ten_minutes_without_any_path() {
    for seed in 1..=2 {
        let outcome = run(Duration::from_secs(600), "min-rtt", seed);
        println!("seed {seed}: first byte {:?} after the return", outcome.resumed_after);
        assert!(outcome.resumed_after <= Duration::from_secs(2), "{outcome:?}");
    }
}
