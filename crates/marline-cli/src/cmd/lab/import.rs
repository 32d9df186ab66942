//! `marline lab import`: a measurement of a path as a part of an experiment file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use marline_lab::import::{Measurement, read_csv, read_iperf3};

use crate::cmd::monitor::print;

/// Larger files are no measurement of a path.
const MOST_BYTES: u64 = 256 << 20;

/// Arguments of `marline lab import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The measurement: CSV with a heading (docs/research/import.md), or the output of `iperf3 --json`.
    pub file: PathBuf,
    /// What the file is [default: by its ending, .csv or .json].
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Name of the path [default: that of the file].
    #[arg(long, value_name = "NAME")]
    pub path: Option<String>,
    /// Queue of the link (docs/research/link.md), which no measurement tells.
    #[arg(long, value_name = "QUEUE")]
    pub queue: Option<String>,
    /// A column of the file that is called otherwise here: timestamp=time_s; may be repeated.
    #[arg(long = "column", value_name = "THEIRS=OURS", value_parser = pair)]
    pub columns: Vec<(String, String)>,
    /// Write here instead of printing.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A kind of file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// CSV with a heading: time, and some of rate, delay, loss.
    Csv,
    /// Output of `iperf3 --json`.
    Iperf3,
}

fn pair(text: &str) -> anyhow::Result<(String, String)> {
    let (theirs, ours) = text.split_once('=').context("expected THEIRS=OURS")?;
    Ok((theirs.to_owned(), ours.to_owned()))
}

/// Prints the path and its events.
///
/// # Errors
/// The file cannot be read or used.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args.file.display().to_string();
    let length = std::fs::metadata(&args.file).with_context(|| file.clone())?.len();
    ensure!(length <= MOST_BYTES, "{file} has {length} bytes, at most {MOST_BYTES}");
    let text = std::fs::read_to_string(&args.file).with_context(|| file.clone())?;
    let kind = args.kind.or_else(|| by_ending(&args.file));
    let kind = kind.with_context(|| format!("say what {file} is: --kind csv or --kind iperf3"))?;
    let measured: Measurement = match kind {
        Kind::Csv => read_csv(&file, &text, &args.columns)?,
        Kind::Iperf3 => {
            ensure!(args.columns.is_empty(), "--column is for CSV");
            read_iperf3(&file, &text)?
        }
    };
    if !measured.ignored.is_empty() {
        eprintln!("{file}: not used: {}", measured.ignored.join(", "));
    }
    let stem = args.file.file_stem().and_then(|stem| stem.to_str()).unwrap_or("path");
    let name = args.path.as_deref().unwrap_or(stem);
    let toml = measured.toml(name, args.queue.as_deref()).with_context(|| file.clone())?;
    match &args.out {
        Some(out) => std::fs::write(out, toml).with_context(|| out.display().to_string())?,
        None => print(&toml)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn by_ending(file: &Path) -> Option<Kind> {
    match file.extension()?.to_str()? {
        "csv" => Some(Kind::Csv),
        "json" => Some(Kind::Iperf3),
        _ => None,
    }
}
