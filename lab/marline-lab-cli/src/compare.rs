//! `marline-lab compare`: comparison of two results of `run` or `sweep`, or of Marline with the kernel's TCP and
//! Multipath TCP.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use marline_lab::compare::{Bench, Extent, Row, Sample, report, rows};
use marline_lab::generated_part::write_between_markers;
use marline_lab::parallel::available;
use marline_lab::runs::{Comparison, Selection, StoredLane, StoredRuns};

use super::table::align_columns;
use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Two results, A and B, each a directory written by `run` or `sweep`, optionally with :VARIANT: compares each
    /// measure of A and B, paired by seed. Or names of rows of the comparison with the kernel: runs only rows that
    /// start with one of them.
    #[arg(value_name = "A B | ROW..")]
    pub rows: Vec<String>,
    /// Ten runs of every row and variant, including the slow rows.
    #[arg(long)]
    pub full: bool,
    /// Number of runs of every row and variant.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// Number of processors for parallel runs. Default: all.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processors: Option<u32>,
    /// Directory of results. Runs with existing results of this program are not repeated.
    #[arg(long, value_name = "DIR", default_value = "target/compare")]
    pub results: PathBuf,
    /// Repeat runs that already have results.
    #[arg(long)]
    pub fresh: bool,
    /// List the rows and exit.
    #[arg(long)]
    pub list: bool,
    /// Print the table of existing results and exit.
    #[arg(long)]
    pub table: bool,
    /// Also write the table into this file, between its markers.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// Runs the selected rows and prints the table. The exit status is success if all targets are met.
///
/// # Errors
/// Runs are not possible on this machine.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.rows.iter().any(|word| Results::is_side_word(word)) {
        let [a, b] = &args.rows[..] else {
            let count = args.rows.len();
            anyhow::bail!("expected exactly two results (DIR[:VARIANT]), found {count} arguments");
        };
        return results(&Results::parse(a), &Results::parse(b));
    }
    let rows = select_rows(args)?;
    if args.list {
        let list: String =
            rows.iter().map(|row| format!("{:12} {}\n", row.key, row.title)).collect();
        print(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let bench = Bench::open(&args.results, args.fresh)?;
    if !args.table {
        let processors = args.processors.unwrap_or(available() as u32);
        let missing: usize = rows.iter().map(|row| bench.missing_runs(row).len()).sum();
        eprintln!("{missing} runs, on {processors} processors");
        let instance = format!("cmp-{}", std::process::id());
        bench.run_all(&rows, processors, &instance, &|(done, of), made| {
            let (key, who, repeat) = (&made.row.key, made.contestant.key(), made.repeat);
            eprintln!("{done:4}/{of} {key:12} {who:10} {repeat:2} {}", summarize_run(made.sample));
        })?;
    }
    let report = report(&bench, &rows);
    print(&report.markdown)?;
    if let Some(file) = &args.write {
        write_between_markers(file, "compare", &report.judged)?;
    }
    let holds = report.claims.iter().all(marline_lab::compare::Claim::holds);
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One side of a comparison: a directory of results, and optionally a variant.
struct Results<'a> {
    place: &'a Path,
    variant: Option<&'a str>,
}

impl<'a> Results<'a> {
    fn parse(word: &'a str) -> Results<'a> {
        match word.split_once(':') {
            Some((place, variant)) if !Path::new(word).is_dir() => {
                Results { place: Path::new(place), variant: Some(variant) }
            }
            _ => Results { place: Path::new(word), variant: None },
        }
    }

    /// Returns true if a word is one side of a comparison and not the name of a row.
    fn is_side_word(word: &str) -> bool {
        let of = Results::parse(word);
        of.place.is_dir() && (StoredRuns::has_results(of.place) || word.contains(['/', ':']))
    }

    fn name(&self, lane: &StoredLane) -> String {
        format!("{} {} in {}", lane.stack, lane.variant, self.place.display())
    }
}

/// Prints the comparison of two results.
fn results(a: &Results<'_>, b: &Results<'_>) -> anyhow::Result<ExitCode> {
    let (kept_a, kept_b) = (StoredRuns::open(a.place)?, StoredRuns::open(b.place)?);
    let all = Comparison::compare_all(
        Selection { results: &kept_a, variant: a.variant },
        Selection { results: &kept_b, variant: b.variant },
    )?;
    for (number, comparison) in all.iter().enumerate() {
        let Comparison { a: first, b: second, seeds, missing, .. } = comparison;
        let mut text = if number > 0 { "\n".to_owned() } else { String::new() };
        for (key, value) in &first.point {
            text += &format!("{key} = {value}\n");
        }
        text += &format!("A: {}\nB: {}\n", a.name(first), b.name(second));
        text += &format!(
            "{seeds} seeds in both, 95 % intervals, paired by seed\n{}",
            align_columns(&comparison.table())
        );
        if *missing != (0, 0) {
            text += &format!(
                "MISSING messages: {} in A, {} in B; latencies do not include them\n",
                missing.0, missing.1
            );
        }
        print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn select_rows(args: &Args) -> anyhow::Result<Vec<Row>> {
    let all = rows(if args.full { Extent::Full } else { Extent::Cover });
    let wanted = |row: &Row| {
        args.rows.is_empty() || args.rows.iter().any(|name| row.key.starts_with(name.as_str()))
    };
    let names: Vec<String> = all.iter().map(|row| row.key.clone()).collect();
    let mut rows: Vec<Row> = all.into_iter().filter(wanted).collect();
    ensure!(!rows.is_empty(), "unknown row; known: {}", names.join(", "));
    if let Some(repeats) = args.repeats {
        rows.iter_mut().for_each(|row| row.repeats = repeats);
    }
    Ok(rows)
}

/// Summarizes a run in a short text.
fn summarize_run(sample: &Sample) -> String {
    if let Some(error) = &sample.error {
        return format!("FAILED: {error}");
    }
    let values = sample.values.iter().map(|(name, values)| {
        let worst = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match values.as_slice() {
            [one] => format!("{name} {one:.1}"),
            _ => format!("{name} up to {worst:.1} ({} values)", values.len()),
        }
    });
    let mut text = values.collect::<Vec<_>>().join(", ");
    for doubt in &sample.doubts {
        text.push_str("; unreliable: ");
        text.push_str(doubt);
    }
    text
}
