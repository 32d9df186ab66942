//! `marline-lab plot`: a drawing of a trace.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, ensure};
use marline_lab::figure::SequencePlot;
use marline_qlog::{Course, TransmissionKind, read};

use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab plot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Traces (.sqlog) from `--qlog` or `marline-lab run --qlog`. They may still be being written.
    #[arg(required = true, value_name = "FILE.sqlog")]
    pub files: Vec<PathBuf>,
    /// File of the drawing [default: next to the trace, with extension .svg]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Start of the drawing, in milliseconds of the trace.
    #[arg(long, value_name = "MS")]
    pub from: Option<f64>,
    /// End of the drawing, in milliseconds of the trace.
    #[arg(long, value_name = "MS")]
    pub to: Option<f64>,
}

/// Draws each trace.
///
/// # Errors
/// A file is not a Multipath TCP trace, nothing was sent in that time, or the drawing cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(args.out.is_none() || args.files.len() == 1, "--out supports only one trace");
    for file in &args.files {
        let out = args.out.clone().unwrap_or_else(|| file.with_extension("svg"));
        let line = plot(args, file, &out).with_context(|| file.display().to_string())?;
        print(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws a trace, and returns its description.
fn plot(args: &Args, file: &Path, out: &Path) -> anyhow::Result<String> {
    let drawn = draw(file, args.from, args.to)?;
    std::fs::write(out, drawn.svg).with_context(|| out.display().to_string())?;
    Ok(format!("{}: {}\n", out.display(), drawn.says))
}

/// A drawing of a trace.
pub(crate) struct Drawing {
    pub(crate) svg: String,
    /// End and connection of the trace, from its header.
    pub(crate) title: String,
    /// Summary of the trace.
    pub(crate) says: String,
}

/// Draws the data that one end sent, between `from` and `to` in milliseconds of the trace.
pub(crate) fn draw(file: &Path, from: Option<f64>, to: Option<f64>) -> anyhow::Result<Drawing> {
    let whole = from.is_none() && to.is_none();
    let text = std::fs::read_to_string(file)?;
    let recording = read(&text).map_err(|error| anyhow!(error))?;
    let course = Course::from_recording(&recording);
    ensure!(!course.carried.is_empty(), "this end sent no data: use the trace of the other end");
    let times = || course.carried.iter().map(|carried| carried.time_ms);
    let (first, last) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
    let (from, to) = (from.unwrap_or(first.min(last)), to.unwrap_or(last));
    ensure!(
        times().any(|time| time >= from && time <= to),
        "no data was sent from {from} to {to} ms: the trace covers {first} to {last}"
    );
    let end = recording.vantage.name();
    let title = format!("{}, sent by the {end}", recording.title);
    let mut plot = SequencePlot::new(&title, &course);
    if !whole {
        plot = plot.range(from, to);
    }
    let sums =
        TransmissionKind::ALL.map(|manner| format!("{} B {}", course.bytes(manner), manner.name()));
    let holes = course.holes.len();
    Ok(Drawing { svg: plot.svg(), title, says: format!("{}, {holes} gaps", sums.join(", ")) })
}
