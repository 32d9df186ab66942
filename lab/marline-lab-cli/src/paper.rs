//! `marline-lab paper`: reproductions of published measurements.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use marline_lab::figure::number;
use marline_lab::parallel::available;
use marline_lab::provenance;
use marline_papers::{
    self as papers, Context, Counts, Effort, MIN_ROOTS, Machine, Mechanism, Paper, PaperFile,
    ProcessorTimes, Reproduction, Row, RunInfo, Table, Value, Verdict,
};
use rustix::time::{ClockId, clock_gettime};

use super::table::{align_columns, wrap_text};
use marline_cli::cmd::monitor::print;

/// Maximum number of printed rows of a grid. Its file has all rows.
const MAX_PRINTED_ROWS: usize = 50;

/// Arguments of `marline-lab paper`.
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
    /// Master root, from which the roots of all runs are drawn. Use different ones for development and for verdicts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub master: u64,
    /// Use two roots and shorter runs, without verdicts.
    #[arg(long, conflicts_with = "roots")]
    pub quick: bool,
    /// Number of roots per part [default: as many as the verdicts need]. Fewer than 20 give no verdicts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub roots: Option<u16>,
    /// Measure all roots again instead of reusing the results of an earlier run of this build.
    #[arg(long)]
    pub fresh: bool,
    /// Fraction of the full number of runs, for keys that run in real time.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub scale: f64,
    /// Directory of traces [default: MARLINE_TRACE_DIR, or ../shared/traces].
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
}

impl Runs {
    fn effort(&self) -> Effort {
        match self.roots {
            _ if self.quick => Effort::Quick,
            Some(roots) => Effort::Roots(usize::from(roots)),
            None => Effort::Full,
        }
    }
}

/// Runs the selected keys and prints the tables. The exit status is 0 if every criterion is met or nothing is
/// judged, 1 if one is missed or undecided, and 2 if something could not be run.
///
/// # Errors
/// An unknown key, or a missing requirement.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let chosen = match args.keys.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => {
            print(&list()?)?;
            return Ok(ExitCode::SUCCESS);
        }
        ["all"] => papers::all().into_iter().filter(|paper| paper.is_virtual_time()).collect(),
        ref keys => keys.iter().map(|key| papers::find(key)).collect::<anyhow::Result<Vec<_>>>()?,
    };
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    for paper in chosen {
        // A key that cannot run does not prevent the others from running.
        match run_paper(paper, &args.runs) {
            Ok(result) => all.push((paper.key(), result.verdict(), result.counts())),
            Err(error) => {
                eprintln!("{}: {error:#}", paper.key());
                failed.push(paper.key());
            }
        }
    }
    print(&summary(&all))?;
    if !failed.is_empty() {
        print(&format!("could not run: {}\n", failed.join(", ")))?;
        return Ok(ExitCode::from(2));
    }
    let met = |(_, verdict, _): &(&str, Verdict, Counts)| {
        matches!(verdict, Verdict::Accepted | Verdict::NotJudged)
    };
    Ok(if all.iter().all(met) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One line per key with the number of rows for each verdict.
fn summary(all: &[(&str, Verdict, Counts)]) -> String {
    let head = ["key", "accepted", "not accepted", "inconclusive", "fitted", "verdict"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (key, verdict, counts) in all {
        let Counts { accepted, not_accepted, inconclusive, fitted, .. } = counts;
        let numbers = [accepted, not_accepted, inconclusive, fitted].map(usize::to_string);
        let words = [(*key).to_owned()].into_iter().chain(numbers);
        rows.push(words.chain([verdict.name().to_owned()]).collect());
    }
    align_columns(&rows)
}

fn list() -> anyhow::Result<String> {
    let mut text = String::new();
    for paper in papers::all() {
        let file = file(paper)?;
        let kind = if paper.is_virtual_time() { "" } else { " (real time, needs root)" };
        writeln!(text, "{:14} {}{kind}", paper.key(), file.title)?;
    }
    Ok(text)
}

pub(crate) fn file(paper: &dyn Paper) -> anyhow::Result<PaperFile<toml::Table>> {
    PaperFile::parse(paper.text()).with_context(|| format!("papers/{}.toml", paper.key()))
}

/// Runs, stores and prints one key.
fn run_paper(paper: &dyn Paper, args: &Runs) -> anyhow::Result<Reproduction> {
    let (result, info) = reproduce(paper, args)?;
    print(&results_text(paper, &result, &info)?)?;
    let at = args.out.join(paper.key());
    print(&format!("Wrote the results to {}\n\n", at.display()))?;
    Ok(result)
}

/// Runs one key and stores the results. Results without a mechanism that is switched off are stored separately.
///
/// # Errors
/// The paper cannot run, or the results cannot be written.
pub(crate) fn reproduce(paper: &dyn Paper, args: &Runs) -> anyhow::Result<(Reproduction, RunInfo)> {
    in_context(paper.key(), args, |context| {
        let (start, cpu_before) = (Instant::now(), process_cpu_seconds());
        let (result, digest) = papers::run(paper, context)?;
        let kept =
            context.spent.lock().unwrap_or_else(PoisonError::into_inner).values().sum::<f64>();
        let info = RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: context.program.to_owned(),
            machine: Machine::current(),
            master: args.master,
            effort: effort_text(args.effort()),
            scale: args.scale,
            jobs: context.jobs,
            seconds: start.elapsed().as_secs_f64(),
            cpu_s: process_cpu_seconds() - cpu_before + kept,
            digest,
        };
        papers::store(context.results, &result, &info)?;
        Ok((result, info))
    })
}

/// Calls `run` with the context of a key: its directory, roots and progress bar.
///
/// # Errors
/// `run` failed, an option is invalid, or the directory cannot be created.
pub(crate) fn in_context<T>(
    key: &str,
    args: &Runs,
    run: impl FnOnce(&Context<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    anyhow::ensure!(
        args.scale.is_finite() && args.scale > 0.0 && args.scale <= 100.0,
        "--scale {}: must be above 0 and at most 100",
        args.scale
    );
    let mutation = Mechanism::switched_off();
    let directory = match mutation {
        Some(mechanism) => args.out.join("mutations").join(mechanism.name()),
        None => args.out.join(key),
    };
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let traces = args.trace_dir.clone().or_else(papers::trace_directory);
    let bar = bar(key);
    let progress = |what: &str, done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_owned());
    };
    let (mut program, spent) = (provenance::program_hash()?, ProcessorTimes::default());
    if let Some(mechanism) = mutation {
        write!(program, " without {}", mechanism.name())?;
    }
    let context = Context {
        key,
        master: args.master,
        effort: args.effort(),
        scale: args.scale,
        jobs: args.jobs.map_or_else(available, usize::from),
        program: &program,
        results: &directory,
        traces: traces.as_deref(),
        spent: &spent,
        progress: &progress,
    };
    if args.fresh {
        papers::remove_stored(&context)?;
    }
    let result = run(&context);
    bar.finish_and_clear();
    result
}

fn effort_text(effort: Effort) -> String {
    match effort {
        Effort::Full => "as many roots as the verdicts need".to_owned(),
        Effort::Quick => "a quick run without verdicts".to_owned(),
        Effort::Roots(count) if count < MIN_ROOTS => {
            format!("{count} roots per part, without verdicts")
        }
        Effort::Roots(count) => format!("{count} roots per part"),
    }
}

/// CPU time of all threads so far.
fn process_cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn bar(key: &str) -> ProgressBar {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(1),
        false => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template(
        "{prefix} {bar:30} {pos}/{len} {msg}, {elapsed} elapsed, {eta} left",
    );
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_prefix(key.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// The results without figures, for a terminal.
fn results_text(
    paper: &dyn Paper,
    result: &Reproduction,
    info: &RunInfo,
) -> anyhow::Result<String> {
    let file = file(paper)?;
    let title = format!("{}: {}", paper.key(), file.title);
    let mut text = wrap_text(&title) + &wrap_text(&file.citation);
    for table in &result.tables {
        write!(text, "\n{}{}", wrap_text(&table.title), align_columns(&table_cells(table)))?;
    }
    for grid in &result.grids {
        let cells = grid_cells(grid);
        let (shown, left) = cells.split_at(cells.len().min(MAX_PRINTED_ROWS + 1));
        write!(text, "\n{}{}", wrap_text(&grid.title), align_columns(shown))?;
        if !left.is_empty() {
            writeln!(text, "  and {} more rows in {}.csv", left.len(), grid.name)?;
        }
    }
    for note in &result.notes {
        write!(text, "\n{}", wrap_text(note))?;
    }
    write!(text, "\nMaster root {}, {}", info.master, info.effort)?;
    if !paper.is_virtual_time() && (info.scale - 1.0).abs() > f64::EPSILON {
        write!(text, "; {} % of the full number of runs", number(100.0 * info.scale))?;
    }
    let (wall, cpu) = (info.seconds, info.cpu_s / 60.0);
    write!(text, "\n{wall:.1} s on {} threads, {cpu:.1} CPU-minutes; ", info.jobs)?;
    if !info.digest.is_empty() {
        write!(text, "digest {}; ", info.digest)?;
    }
    Ok(text)
}

fn table_cells(table: &Table) -> Vec<Vec<String>> {
    let bound = table.rows.iter().any(|row| row.bound_ratio.is_some());
    let head = ["what", "paper", "ours", "ratio to bound", "goal", "verdict"];
    let keep = |cells: Vec<String>| -> Vec<String> {
        cells.into_iter().enumerate().filter(|(at, _)| bound || *at != 3).map(|c| c.1).collect()
    };
    let value = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), Value::to_string);
    let cells = |row: &Row| {
        let verdict = match row.remark.as_str() {
            "" => row.verdict_words(),
            remark => format!("{} ({remark})", row.verdict_words()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_the_ratio_only_if_a_bound_exists() {
        let row = Row::new("echo p99").paper(40.0, "ms").measured(41.0, "ms").within_of_paper(0.15);
        let plain = Table::new("t", "T", vec![row.clone()]);
        let with = Table::new("t", "T", vec![row.bound_ratio(1.25)]);
        let text = align_columns(&table_cells(&plain));
        assert!(!text.contains("bound"), "{text}");
        let text = align_columns(&table_cells(&with));
        assert!(text.contains("ratio to bound") && text.contains("1.25"), "{text}");
        let line = text.lines().nth(1).unwrap();
        assert!(line.ends_with("within 15 % of the paper  accepted"), "{line}");
    }
}
