//! `marline-lab scenes`: questions of users, answered in virtual time.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use marline_lab::experiment::file::ExperimentFile;
use marline_lab::generated_part::write_between_markers;
use marline_lab::parallel::available;
use marline_lab::scenes::{answers, read_directory, table};

use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab scenes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Scenes: experiment files with checks (docs/research/lab.md). Default: those in scenarios/.
    pub files: Vec<PathBuf>,
    /// Processors to use. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Also write the table into this file, between its markers.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// Runs the scenes and prints their answers.
///
/// # Errors
/// A file is invalid, or a run cannot be made.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scenes: Vec<ExperimentFile> = match args.files.is_empty() {
        true => read_directory("scenarios".as_ref())?,
        false => args
            .files
            .iter()
            .map(|file| ExperimentFile::open(file))
            .collect::<anyhow::Result<_>>()?,
    };
    ensure!(!scenes.is_empty(), "no scenes in scenarios/");
    let text = table(&answers(&scenes, args.jobs.map_or_else(available, usize::from))?);
    print(&text)?;
    if let Some(file) = &args.write {
        write_between_markers(file, "scenes", &text)?;
    }
    Ok(ExitCode::SUCCESS)
}
