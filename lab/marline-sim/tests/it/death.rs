//! Test of the death of one path in the middle of a transfer.

use crate::cases::death::{Transfer, run};
use marline_time::Instant;

#[test]
fn a_dying_path_costs_its_srtt_two_tenths_and_a_round_trip() {
    let mut violations = Vec::new();
    for way in [Transfer::Upload, Transfer::Download] {
        for dying in [0, 1] {
            for (seed, at_ms) in [(1, 1_500), (2, 2_011)] {
                let outcome = run(way, dying, Instant::from_millis(at_ms), "min-rtt", seed);
                let (hole, allowed) = (outcome.hole, outcome.allowed);
                let line = format!(
                    "{way:?}, path {dying} dies at {at_ms} ms: gap {hole:?}, allowed {allowed:?}"
                );
                println!("{line}");
                if hole > allowed {
                    violations.push(line);
                }
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}
