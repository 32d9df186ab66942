//! `marline lab paper`: reproductions of published measurements.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use marline_lab::figure::number;
use marline_lab::keep;
use marline_lab::parallel::available;
use marline_papers::{
    self as papers, Context, Machine, Paper, PaperFile, Reproduction, Row, RunInfo, Table, Value,
};

use crate::cmd::monitor::print;

/// Rows of a grid that are printed; all are in its file.
const LONGEST_GRID: usize = 50;

/// Arguments of `marline lab paper`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Keys; `all`: those that run in virtual time; `list`: print the available keys.
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
    /// Options of the runs.
    #[command(flatten)]
    pub runs: Runs,
}

/// Options of the runs, and the directory of results.
#[derive(Debug, clap::Args)]
pub struct Runs {
    /// Number of threads. Default: the number of processors.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Directory of results: JSON, CSV and SVG in a directory for each key.
    #[arg(long, value_name = "DIR", default_value = "target/papers")]
    pub out: PathBuf,
    /// Root seed of all randomness.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Fraction of the full number of runs, for a quick look; verdicts apply to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub scale: f64,
    /// Directory of traces [default: MARLINE_TRACE_DIR, or ../shared/traces].
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
}

/// Runs the selected keys and prints the tables. Success if all criteria are met; exit status 2 if
/// something could not be run.
///
/// # Errors
/// An unknown key, or a missing requirement.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let chosen = match args.keys.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => {
            print(&list()?)?;
            return Ok(ExitCode::SUCCESS);
        }
        ["all"] => papers::all().into_iter().filter(|paper| paper.in_virtual_time()).collect(),
        ref keys => keys.iter().map(|key| papers::find(key)).collect::<anyhow::Result<Vec<_>>>()?,
    };
    let (mut refused, mut failed) = (Vec::new(), Vec::new());
    for paper in chosen {
        // One that cannot run must not keep the others from it.
        match one(paper, &args.runs) {
            Ok(true) => {}
            Ok(false) => refused.push(paper.key()),
            Err(error) => {
                eprintln!("{}: {error:#}", paper.key());
                failed.push(paper.key());
            }
        }
    }
    if !refused.is_empty() {
        print(&format!("not accepted: {}\n", refused.join(", ")))?;
    }
    if !failed.is_empty() {
        print(&format!("could not be run: {}\n", failed.join(", ")))?;
    }
    Ok(match (refused.is_empty(), failed.is_empty()) {
        (true, true) => ExitCode::SUCCESS,
        (false, true) => ExitCode::FAILURE,
        (_, false) => ExitCode::from(2),
    })
}

fn list() -> anyhow::Result<String> {
    let mut text = String::new();
    for paper in papers::all() {
        let file = file(paper)?;
        let kind = if paper.in_virtual_time() { "" } else { " (real time, needs root)" };
        writeln!(text, "{:14} {}{kind}", paper.key(), file.title)?;
    }
    Ok(text)
}

pub(super) fn file(paper: &dyn Paper) -> anyhow::Result<PaperFile<toml::Table>> {
    PaperFile::parse(paper.text()).with_context(|| format!("papers/{}.toml", paper.key()))
}

/// Runs, keeps and prints one; whether everything is accepted.
fn one(paper: &dyn Paper, args: &Runs) -> anyhow::Result<bool> {
    let (result, info) = reproduce(paper, args)?;
    print(&told(paper, &result, &info)?)?;
    let at = args.out.join(paper.key());
    print(&format!("results in {}\n\n", at.display()))?;
    Ok(result.accepted())
}

/// Runs one and keeps what came out.
///
/// # Errors
/// Those of the paper; the results cannot be written.
pub(super) fn reproduce(paper: &dyn Paper, args: &Runs) -> anyhow::Result<(Reproduction, RunInfo)> {
    anyhow::ensure!(
        args.scale.is_finite() && args.scale > 0.0 && args.scale <= 100.0,
        "--scale {}: above 0, at most 100",
        args.scale
    );
    let directory = args.out.join(paper.key());
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let traces = args.trace_dir.clone().or_else(papers::trace_directory);
    let jobs = args.jobs.map_or_else(available, usize::from);
    let bar = bar(paper.key());
    let progress = |what: &str, done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_owned());
    };
    let context = Context {
        seed: args.seed,
        scale: args.scale,
        jobs,
        results: &directory,
        traces: traces.as_deref(),
        progress: &progress,
    };
    let start = Instant::now();
    let ran = papers::run(paper, &context);
    bar.finish_and_clear();
    let (result, digest) = ran?;
    let info = RunInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: keep::program()?,
        machine: Machine::here(),
        seed: args.seed,
        scale: args.scale,
        jobs,
        seconds: start.elapsed().as_secs_f64(),
        digest,
    };
    papers::store(&directory, &result, &info)?;
    Ok((result, info))
}

fn bar(key: &str) -> ProgressBar {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(1),
        false => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template(
        "{prefix} {bar:30} {pos}/{len} {msg}, {elapsed} gone, {eta} to go",
    );
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_prefix(key.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Everything but the figures, for a terminal.
fn told(paper: &dyn Paper, result: &Reproduction, info: &RunInfo) -> anyhow::Result<String> {
    let file = file(paper)?;
    let mut text = format!("{}: {}\n{}\n", paper.key(), file.title, file.citation);
    for table in &result.tables {
        write!(text, "\n{}\n{}", table.title, aligned(&table_cells(table)))?;
    }
    for grid in &result.grids {
        let cells = grid_cells(grid);
        let (shown, left) = cells.split_at(cells.len().min(LONGEST_GRID + 1));
        write!(text, "\n{}\n{}", grid.title, aligned(shown))?;
        if !left.is_empty() {
            writeln!(text, "  and {} rows more in {}.csv", left.len(), grid.name)?;
        }
    }
    for note in &result.notes {
        write!(text, "\n{note}\n")?;
    }
    if (info.scale - 1.0).abs() > f64::EPSILON {
        let share = number(100.0 * info.scale);
        write!(text, "\n{share} % of the full number of runs: for a look, not for a verdict\n")?;
    }
    write!(text, "\n{:.1} s on {} threads; ", info.seconds, info.jobs)?;
    if !info.digest.is_empty() {
        write!(text, "digest {}; ", info.digest)?;
    }
    Ok(text)
}

fn table_cells(table: &Table) -> Vec<Vec<String>> {
    let bound = table.rows.iter().any(|row| row.bound_ratio.is_some());
    let head = ["what", "paper", "ours", "ratio to the bound", "asked", "verdict"];
    let keep = |cells: Vec<String>| -> Vec<String> {
        cells.into_iter().enumerate().filter(|(at, _)| bound || *at != 3).map(|c| c.1).collect()
    };
    let value = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), Value::to_string);
    let cells = |row: &Row| {
        let verdict = match row.remark.as_str() {
            "" => row.verdict.word().to_owned(),
            remark => format!("{} ({remark})", row.verdict.word()),
        };
        let ratio = row.bound_ratio.map_or_else(String::new, number);
        let (paper, ours) = (value(&row.paper), value(&row.ours));
        keep(vec![row.what.clone(), paper, ours, ratio, row.requirement.clone(), verdict])
    };
    let head = keep(head.map(str::to_owned).to_vec());
    std::iter::once(head).chain(table.rows.iter().map(cells)).collect()
}

fn grid_cells(grid: &papers::Grid) -> Vec<Vec<String>> {
    let head = grid.columns.iter().map(|column| match column.unit.as_str() {
        "" => column.name.clone(),
        unit => format!("{} ({unit})", column.name),
    });
    let cells = |row: &Vec<Value>| row.iter().map(Value::to_string).collect();
    std::iter::once(head.collect()).chain(grid.rows.iter().map(cells)).collect()
}

/// Columns as wide as their widest cell, the last as it comes.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(line, " {cell:width$} ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_the_ratio_to_the_bound_only_where_there_is_one() {
        let row = Row::new("echo p99").paper(40.0, "ms").ours(41.0, "ms").within(0.15);
        let plain = Table::new("t", "T", vec![row.clone()]);
        let with = Table::new("t", "T", vec![row.bound_ratio(1.25)]);
        let text = aligned(&table_cells(&plain));
        assert!(!text.contains("bound"), "{text}");
        let text = aligned(&table_cells(&with));
        assert!(text.contains("ratio to the bound") && text.contains("1.25"), "{text}");
        let line = text.lines().nth(1).unwrap();
        assert!(line.ends_with("within 15 % of the paper  accepted"), "{line}");
    }
}
