//! The side-by-side table in virtual time, with what the table asks: `cargo run --release -p
//! marline-sim --example rows [WORD ...]` prints the rows whose names hold one of the words (2a, 2b,
//! 2c, 2d, 2e, bulk). `SEEDS=n` runs each n times, 10 if not said.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "this program measures what simulating costs; the simulation itself sees no clock"
)]

#[path = "../tests/cases/mod.rs"]
mod cases;

use std::env;
use std::time::Instant as Clock;

use cases::rows::{self, Claim};

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let seeds = env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(10);
    let all: [(&str, fn(u64) -> Vec<Claim>); 7] = [
        ("2a redundant", rows::echo_redundant),
        ("2a default", rows::echo_default),
        ("2b", rows::blocks),
        ("2c", rows::bursts),
        ("2d", rows::small_windows),
        ("2e", rows::handover),
        ("bulk", rows::bulk),
    ];
    let mut missed = 0;
    for (name, row) in all {
        if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
            let begun = Clock::now();
            let claims = row(seeds);
            missed += claims.iter().filter(|claim| !claim.holds()).count();
            for claim in claims {
                println!("{claim}");
            }
            println!("  ({:.1} s)", begun.elapsed().as_secs_f64());
        }
    }
    println!("{missed} do not hold");
}
