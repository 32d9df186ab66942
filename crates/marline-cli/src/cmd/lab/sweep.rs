//! `marline lab sweep`: an experiment over ranges of its values.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use marline_lab::experiment::file::ExperimentFile;
use marline_lab::figure::number;
use marline_lab::runs::{Job, Summary};

use super::paper::aligned;
use super::run::{How, warn};
use crate::cmd::monitor::print;

/// Arguments of `marline lab sweep`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The experiment, a TOML file with a table `sweep`.
    pub file: PathBuf,
    /// Options of the runs.
    #[command(flatten)]
    pub how: How,
    /// Print the combinations, and run nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Runs every combination; success if every run completed.
///
/// # Errors
/// The file is invalid or has no sweep, permission to run in real time is missing, or results
/// cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = ExperimentFile::open(&args.file)?.with_traces(args.how.trace_dir.clone());
    let points = file.points()?;
    ensure!(
        points.iter().all(|point| !point.values.is_empty()),
        "{}: nothing to sweep. For example:\n\n    [sweep]\n    \"path.{}.delay\" = [\"10ms\", \
         \"50ms\"]",
        args.file.display(),
        file.experiment.scenario.paths[0].name
    );
    let (mut jobs, mut ends) = (Vec::new(), vec![0]);
    for point in &points {
        let lanes = point.file.lanes(&args.how.stacks)?;
        let series = Job::series(&point.file.experiment, &lanes, args.how.seeds).into_iter();
        jobs.extend(series.map(|job| Job { point: point.values.clone(), ..job }));
        ends.push(jobs.len());
    }
    if args.dry_run {
        for point in &points {
            let values = point.values.iter().map(|(key, value)| format!("{key} = {value}"));
            print(&format!("{}\n", values.collect::<Vec<_>>().join(", ")))?;
        }
        print(&format!("{} combinations, {} runs\n", points.len(), jobs.len()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let out = args.how.place(&args.file)?;
    let records = args.how.all(&jobs, &out)?;
    let radios = Summary::of(&jobs, &records).radio_names();
    let mut table = vec![head(&points[0].values, &radios)];
    for (point, ends) in points.iter().zip(ends.windows(2)) {
        let these = ends[0]..ends[1];
        let summary = Summary::of(&jobs[these.clone()], &records[these]);
        rows(&mut table, &point.values, &summary, &radios);
    }
    print(&aligned(&table))?;
    let summary = Summary::of(&jobs, &records);
    warn(&summary)?;
    summary.write(&out, &args.how.formats())?;
    let files = args.how.files(&["messages", "runs", "sweep"]);
    print(&format!("\n{files} in {}\n", out.display()))?;
    let whole = records.iter().all(|record| record.error.is_none());
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn head(values: &[(String, String)], radios: &[&str]) -> Vec<String> {
    let keys = values.iter().map(|(key, _)| key.clone());
    let rest = ["stack", "variant", "p50 ms", "p95", "p99", "Mbit/s"];
    let joules = radios.iter().map(|path| format!("J {path} (idle)"));
    keys.chain(rest.map(str::to_owned)).chain(joules).collect()
}

fn rows(
    table: &mut Vec<Vec<String>>,
    values: &[(String, String)],
    summary: &Summary<'_>,
    radios: &[&str],
) {
    for lane in &summary.lanes {
        let mut row: Vec<String> = values.iter().map(|(_, value)| value.clone()).collect();
        row.extend([lane.stack.to_string(), lane.variant.clone()]);
        let latency = &lane.latency;
        let shown = [latency.p50_ms, latency.p95_ms, latency.p99_ms, lane.goodput_mbit_per_s];
        row.extend(shown.map(number));
        row.extend(radios.iter().map(|path| lane.joules(path)));
        table.push(row);
    }
}
