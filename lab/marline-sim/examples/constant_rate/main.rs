//! Table of lost or late datagrams at a constant rate over two lossy paths: through Marline over both paths, through
//! Marline over each path alone, and as plain UDP, with the cost in extra bytes. docs/research/constant-rate.md shows
//! it.
//!
//! `cargo run --release -p marline-sim --example constant_rate [SEEDS [SECONDS [POLICY [LOSSES [RATE]]]]]`; with
//! LOSSES, such as "5 + 0", and RATE, only those rows. Scenes run on as many threads as there are processors.

mod scene;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use scene::{Outcome, Scene, mean, run};

const RATES: [f64; 4] = [0.5, 2.0, 4.0, 8.0];
const LOSSES: [f64; 4] = [1.0, 3.0, 5.0, 10.0];
const DEADLINES_MS: [u64; 3] = [50, 100, 150];
const DELAYS_MS: [[u64; 2]; 2] = [[8, 30], [20, 20]];

fn loss_name(loss: [f64; 2]) -> String {
    format!("{} + {}", loss[0], loss[1])
}

fn scenes(seconds: u64, losses: Option<&str>, rate: Option<f64>) -> Vec<Scene> {
    let each = |loss: &f64| [[*loss, *loss], [*loss, 0.0], [0.0, *loss]];
    let mut scenes = Vec::new();
    for delay_ms in DELAYS_MS {
        for loss in [[0.0, 0.0]].into_iter().chain(LOSSES.iter().flat_map(each)) {
            scenes.extend(RATES.map(|rate| Scene { rate, loss, delay_ms, seconds }));
        }
    }
    scenes.retain(|scene| losses.is_none_or(|losses| losses == loss_name(scene.loss)));
    scenes.retain(|scene| rate.is_none_or(|rate| rate == scene.rate));
    scenes
}

fn print(scene: &Scene, outcomes: &[Outcome]) {
    for (outcome, deadline_ms) in outcomes.iter().zip(DEADLINES_MS) {
        let [a, b, plain_a, plain_b] = outcome.single.each_ref().map(|single| mean(single));
        let (by, half) = outcome.difference_to_best();
        println!(
            "| {} + {} | {} | {} | {deadline_ms} | {:.2} | {a:.2}, {b:.2} | {plain_a:.2}, \
                {plain_b:.2} | {by:+.2} ± \
             {half:.2} | {:.2} | {:.0} | {} |",
            scene.delay_ms[0],
            scene.delay_ms[1],
            loss_name(scene.loss),
            scene.rate,
            mean(&outcome.both),
            outcome.price,
            outcome.longest_gap_ms,
            if outcome.is_worse() { "**worse**" } else { "" },
        );
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(30);
    let policy = arguments.next().unwrap_or_else(|| "auto".to_owned());
    let losses = arguments.next().filter(|text| text != "all");
    let scenes =
        scenes(seconds, losses.as_deref(), arguments.next().and_then(|text| text.parse().ok()));
    println!(
        "| delays ms | losses % | Mbit/s | deadline ms | Marline % | path A, B alone % | plain \
            UDP A, B % | relative \
         to the best | bytes | longest gap ms | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let next = AtomicUsize::new(0);
    // Prints finished scenes in order.
    let done = Mutex::new((vec![None; scenes.len()], 0, [0; 2]));
    let work = || {
        while let Some(scene) = scenes.get(next.fetch_add(1, Relaxed)) {
            let outcomes = run(scene, &policy, seeds, &DEADLINES_MS);
            let (results, printed, count) = &mut *done.lock().expect("no panic");
            let place = scenes.iter().position(|other| core::ptr::eq(other, scene)).expect("one");
            results[place] = Some(outcomes);
            while let Some(Some(outcomes)) = results.get(*printed) {
                print(&scenes[*printed], outcomes);
                count[0] += outcomes.iter().filter(|outcome| outcome.is_worse()).count();
                count[1] += outcomes.len();
                *printed += 1;
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let [worse, cells] = done.into_inner().expect("no panic").2;
    println!(
        "\n{worse} of {cells} cells are worse than the best single path, beyond the confidence \
            interval."
    );
}
