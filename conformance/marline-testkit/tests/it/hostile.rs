//! Random runs of `hostile`: the scripts of the fuzz target, from seeds instead of coverage.

use marline_testkit::hostile::{self, Outcome};
use marline_time::{Rng, SeedTree};

/// Default number of runs, unless `MARLINE_HOSTILE_RUNS` is set.
const RUNS: u64 = 300;

/// Bytes per operation. Forging takes any number of bytes, so later bytes are arbitrary.
const fn operands(op: u8) -> usize {
    match op {
        2 | 5 | 14 | 15 => 0,
        0 | 1 => 2,
        8 | 9 => 3,
        10 | 11 => 8,
        _ => 1,
    }
}

fn random_script(rng: &mut dyn Rng, opcodes: &[u8]) -> Vec<u8> {
    // Configuration (Multipath TCP on), seed, schedulers.
    let mut script = rng.next_u32().to_be_bytes().to_vec();
    script[0] &= 0x76;
    for _ in 0..10 + rng.below(120) {
        let op = opcodes[rng.below(opcodes.len() as u64) as usize];
        script.push(op | (rng.next_u32() as u8 & 0x80));
        script.extend((0..operands(op)).map(|_| rng.next_u32() as u8));
    }
    script
}

fn runs() -> u64 {
    std::env::var("MARLINE_HOSTILE_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(RUNS)
}

fn all(name: &str, opcodes: &[u8]) -> Vec<Outcome> {
    let seeds = SeedTree::new(7);
    (0..runs())
        .map(|i| {
            let mut rng = seeds.branch(name).stream(&i.to_string());
            let script = random_script(&mut rng, opcodes);
            let outcome = std::panic::catch_unwind(|| hostile::run(&script));
            outcome.unwrap_or_else(|_| panic!("{name} {i}: {script:02x?}"))
        })
        .collect()
}

#[test]
fn a_quiet_network_brings_every_byte() {
    let outcomes = all("quiet", &[0, 1, 2, 3, 15]);
    let connected = outcomes.iter().filter(|o| o.connected == 2).count();
    assert_eq!(connected, outcomes.len());
    assert!(outcomes.iter().all(|o| o.complete), "every byte arrives");
    assert!(outcomes.iter().map(|o| o.bytes_right).sum::<u64>() > 1_000_000);
}

#[test]
fn a_bad_network_brings_every_byte_in_the_end() {
    let outcomes = all("bad", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 14, 15]);
    assert!(outcomes.iter().all(|o| o.forged == 0));
    let complete = outcomes.iter().filter(|o| o.complete).count();
    assert_eq!(complete, outcomes.len(), "every byte arrives");
}

#[test]
fn closing_and_moving_at_random_never_delivers_a_wrong_byte() {
    let outcomes = all("moving", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15]);
    assert!(outcomes.iter().any(|o| o.bytes_right > 0));
}

#[test]
fn forged_segments_never_crash_the_process() {
    let outcomes = all("forged", &[0, 1, 2, 3, 4, 5, 7, 9, 9, 10, 10, 10, 11, 11, 12, 13, 15]);
    assert!(outcomes.iter().map(|o| u64::from(o.forged)).sum::<u64>() > 1_000);
}

#[test]
fn equal_scripts_give_equal_runs() {
    let mut rng = SeedTree::new(3).stream("again");
    let script = random_script(&mut rng, &[0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 15]);
    assert_eq!(hostile::run(&script), hostile::run(&script));
}
