//! Table of datagrams at a constant rate over two lossy paths: lost or late through Marline over both, through Marline
//! over each path alone, and as plain UDP, with the price of the extra bytes. docs/research/constant-rate.md has it.
//!
//! `cargo run --release -p marline-sim --example constant_rate [SEEDS [SECONDS [POLICY [LOSSES]]]]`; with LOSSES, as in
//! "5 + 0", those rows alone.

mod scene;

use scene::{Cell, run};

const RATES: [f64; 4] = [0.5, 2.0, 4.0, 8.0];
const LOSSES: [f64; 4] = [1.0, 3.0, 5.0, 10.0];
const DEADLINES_MS: [u64; 3] = [50, 100, 150];
const DELAYS_MS: [[u64; 2]; 2] = [[8, 30], [20, 20]];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(3);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(60);
    let policy = arguments.next().unwrap_or_else(|| "auto".to_owned());
    let only = arguments.next();
    println!(
        "| delays ms | losses % | Mbit/s | deadline ms | Marline % | path A, B alone % | plain UDP A, B % | bytes | \
         longest gap ms | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let (mut worse, mut cells) = (0, 0);
    for delay_ms in DELAYS_MS {
        let each = |loss: &f64| [[*loss, *loss], [*loss, 0.0], [0.0, *loss]];
        let losses = [[0.0, 0.0]].into_iter().chain(LOSSES.iter().flat_map(each));
        for loss in losses {
            let named = format!("{} + {}", loss[0], loss[1]);
            if only.as_ref().is_some_and(|only| *only != named) {
                continue;
            }
            for rate in RATES {
                for deadline_ms in DEADLINES_MS {
                    let cell = Cell { rate, loss, delay_ms, deadline_ms, seconds };
                    let outcome = run(&cell, &policy, seeds);
                    let least = outcome.better().min(outcome.plain[0]).min(outcome.plain[1]);
                    let is_worse = outcome.both > least + 0.05;
                    (worse, cells) = (worse + u32::from(is_worse), cells + 1);
                    println!(
                        "| {} + {} | {named} | {rate} | {deadline_ms} | {:.2} | {:.2}, {:.2} | {:.2}, {:.2} | {:.2} | \
                         {:.0} | {} |",
                        delay_ms[0],
                        delay_ms[1],
                        outcome.both,
                        outcome.alone[0],
                        outcome.alone[1],
                        outcome.plain[0],
                        outcome.plain[1],
                        outcome.price,
                        outcome.longest_gap_ms,
                        if is_worse { "**worse**" } else { "" },
                    );
                }
            }
        }
    }
    println!("\n{worse} of {cells} cells are worse than the better path alone.");
}
