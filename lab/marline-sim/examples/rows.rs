//! Comparison table in virtual time, with its criteria: `cargo run --release -p marline-sim --example rows [FILTER
//! ...]` prints the rows whose names contain one of the filters (2a, 2b, 2c, 2d, 2e, bulk). `SEEDS=n` runs each n
//! times (default 10).

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "measures the cost of simulation; the simulation itself reads no clock"
)]

#[path = "../tests/it/cases/mod.rs"]
mod cases;

use std::env;
use std::time::Instant as Clock;

use cases::rows::{Claim, echo, failure, stream};

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let seeds = env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(10);
    type Row = fn(u64) -> Vec<Claim>;
    let all: [(&str, Row); 7] = [
        ("2a redundant", echo::redundant),
        ("2a default", echo::default),
        ("2b", stream::blocks),
        ("2c", failure::bursts),
        ("2d", stream::small_windows),
        ("2e", failure::handover),
        ("bulk", stream::bulk),
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
    println!("{missed} criteria missed");
}
