//! The README's figure: latency of an echo over time while WiFi is lost and returns, over each path alone and over
//! both. The run uses virtual time and one seed, so the file is reproduced byte for byte.
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
        plot =
            plot.add_vertical_line(at.as_secs_f64(), &format!("{} {}", event.path, event.command));
    }
    for lane in file.lanes(&[Stack::Sim])? {
        let outcome = simulate(experiment, &lane.variant, experiment.scenario.seed)?;
        let messages = outcome.messages(experiment.workload());
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
    use marline_lab::runs::Job;

    use super::*;

    /// The longest latency of a hundred runs in ms, and the number of answers: the values `max` and `messages` that
    /// `marline-lab run scenarios/handover.toml --seeds 100` prints.
    fn slowest(file: &ExperimentFile, variant: &str) -> (f64, usize) {
        let mut lanes = file.lanes(&[Stack::Sim]).expect("lanes");
        lanes.retain(|lane| lane.variant.name == variant);
        let (mut worst_ms, mut count) = (0.0_f64, 0);
        for job in Job::series(&file.experiment, &lanes, 100) {
            let outcome = simulate(&job.experiment, &job.lane.variant, job.seed).expect("a run");
            for message in outcome.messages(job.experiment.workload()) {
                worst_ms = worst_ms.max(message.latency_ms);
                count += 1;
            }
        }
        (worst_ms, count)
    }

    #[test]
    fn the_caption_in_the_readme_matches_a_hundred_runs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = ExperimentFile::open(&root.join("scenarios/handover.toml")).expect("a file");
        let ((both_ms, answers), (wifi_ms, _)) =
            (slowest(&file, "Marline over both"), slowest(&file, "WiFi alone"));
        assert_eq!(answers, 24_000);
        let caption = format!(
            "the slowest of 24,000 echoes took {:.2} s, over WiFi alone {:.1} s.",
            both_ms / 1e3,
            wifi_ms / 1e3
        );
        let readme = std::fs::read_to_string(root.join("README.md")).expect("README.md");
        let said = readme.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&caption), "README.md must contain: {caption}");
    }

    #[test]
    fn the_figure_in_the_readme_is_current() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let drawn = draw(&root.join("scenarios/handover.toml")).expect("the experiment runs");
        let kept = std::fs::read_to_string(root.join("docs/start/handover.svg"));
        let same = drawn == kept.expect("docs/start/handover.svg");
        assert!(same, "docs/start/handover.svg is outdated: run cargo xtask figures handover");
    }
}
