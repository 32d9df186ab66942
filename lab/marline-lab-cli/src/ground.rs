//! `marline-lab ground`: the default in the scenes of each seed system.

use std::path::PathBuf;
use std::process::ExitCode;

use marline_cli::cmd::monitor::print;
use marline_lab::generated_part::write_between_markers;
use marline_papers::default_on_seed_ground;

use super::paper::{Runs, in_context};

/// Arguments of `marline-lab ground`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also write the table into this file, between its markers.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Options of the runs.
    #[command(flatten)]
    pub runs: Runs,
}

/// Runs the default in the seeds' scenes and prints a Markdown table, its losses first.
///
/// # Errors
/// A run failed, or the file cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = in_context("ground", &args.runs, default_on_seed_ground)?;
    print(&text)?;
    if let Some(file) = &args.write {
        write_between_markers(file, "ground", &text)?;
    }
    Ok(ExitCode::SUCCESS)
}
