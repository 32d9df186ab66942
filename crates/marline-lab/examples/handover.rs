//! The README's figure: latency of an echo over time while WiFi is lost and returns, over each path alone
//! and over both. Virtual time and one seed: the same file again, byte for byte.
//!
//! `cargo xtask figures handover`, or with other files: `cargo run --release -p marline-lab --example handover
//! -- EXPERIMENT.toml FIGURE.svg`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use marline_lab::experiment::file::ExperimentFile;
use marline_lab::experiment::{Stack, simulate};
use marline_lab::figure::Plot;

fn main() -> anyhow::Result<ExitCode> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let [experiment, figure] = files.as_slice() else {
        eprintln!("usage: handover EXPERIMENT.toml FIGURE.svg");
        return Ok(ExitCode::from(2));
    };
    std::fs::write(figure, draw(Path::new(experiment))?).with_context(|| figure.clone())?;
    println!("{figure}");
    Ok(ExitCode::SUCCESS)
}

/// The first seed of every variant in virtual time: a curve of latencies, a mark for each event.
fn draw(experiment: &Path) -> anyhow::Result<String> {
    let file = ExperimentFile::open(experiment)?;
    let experiment = &file.experiment;
    let mut plot = Plot::new(
        "Round trip of an echo while WiFi is lost and returns",
        "time (s)",
        "round trip (ms)",
    )
    .log_y();
    for event in &experiment.scenario.events {
        let (at, _) = event.parse()?;
        plot = plot.mark_x(at.as_secs_f64(), &format!("{} {}", event.path, event.command));
    }
    for lane in file.lanes(&[Stack::Sim])? {
        let outcome = simulate(experiment, &lane.variant, experiment.scenario.seed)?;
        let messages = outcome.messages(&experiment.workload);
        let curve: Vec<(f64, f64)> =
            messages.iter().map(|message| (message.sent_ms / 1e3, message.latency_ms)).collect();
        plot = plot.line(&lane.variant.name, &curve);
        let worst = curve.iter().map(|point| point.1).fold(0.0, f64::max);
        println!("{}: {} answers, the slowest after {worst:.0} ms", lane.variant.name, curve.len());
    }
    Ok(plot.svg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readmes_figure_is_what_the_program_draws_today() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let drawn = draw(&root.join("scenarios/handover.toml")).expect("the experiment runs");
        let kept = std::fs::read_to_string(root.join("docs/start/handover.svg"));
        let same = drawn == kept.expect("docs/start/handover.svg");
        assert!(same, "docs/start/handover.svg is old: cargo xtask figures handover");
    }
}
