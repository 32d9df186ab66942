//! `marline-lab sweep`: an experiment for every combination of the values in its table `sweep`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use marline_lab::experiment::file::ExperimentFile;
use marline_lab::runs::{Seeds, Sweep};

use super::engine::{Engine, run_on_ray};
use super::progress::SeriesWork;
use super::run::{RunOptions, ShardReport, print_warnings};
use super::table::align_columns;
use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab sweep`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The experiment, a TOML file with a table `sweep`.
    pub file: PathBuf,
    /// Options of the runs.
    #[command(flatten)]
    pub how: RunOptions,
    /// Engine for the runs: local (this process) or ray[=ADDRESS] (a Ray cluster through the Python package,
    /// docs/research/python.md); without an address, the cluster that Ray finds, or this machine.
    #[arg(
        long,
        value_name = "ENGINE",
        default_value = "local",
        hide_default_value = true,
        conflicts_with_all = ["shard", "fresh", "jobs"]
    )]
    pub engine: Engine,
    /// Print the combinations and exit.
    #[arg(long)]
    pub dry_run: bool,
}

/// Runs every combination. The exit status is success if every run completed.
///
/// # Errors
/// The file is invalid or has no sweep, permission to run in real time is missing, or results
/// cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = ExperimentFile::open(&args.file)?.with_traces(args.how.trace_dir.clone());
    let sweep = Sweep::from_file(&file, &args.how.stacks, Seeds::Own(args.how.seeds))?;
    ensure!(
        sweep.points().all(|values| !values.is_empty()),
        "{}: the table `sweep` is missing. For example:\n\n    [sweep]\n    \"path.{}.delay\" = \
            [\"10ms\", \"50ms\"]",
        args.file.display(),
        file.experiment.scenario.paths[0].name
    );
    if args.dry_run {
        for values in sweep.points() {
            let values = values.iter().map(|(key, value)| format!("{key} = {value}"));
            print(&format!("{}\n", values.collect::<Vec<_>>().join(", ")))?;
        }
        let (points, runs) = (sweep.points().count(), sweep.runs());
        print(&format!("{points} combinations, {runs} runs\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Engine::Ray(address) = &args.engine {
        return run_on_ray(&args.file, &args.how, address.as_deref());
    }
    let out = args.how.results_directory(&args.file)?;
    let store = args.how.store(&out)?;
    let series = args.how.series(&store);
    let (mut ahead, mut mine) = (SeriesWork::default(), 0);
    sweep.run_selected(args.how.shard, |jobs| {
        mine += jobs.len();
        ahead.add(&series, jobs);
        Ok(())
    })?;
    let bar = ahead.begin();
    let made = sweep.run(&series, args.how.shard, &|progress| bar.record_run(progress));
    bar.end();
    made?;
    if let Some(shard) = args.how.shard {
        let (runs, all_runs, failed) = (mine, sweep.runs(), bar.failed());
        return ShardReport { shard, runs, all_runs, failed }.print(&store);
    }
    let swept = sweep.collect(&store, &out, &args.how.selected_formats())?;
    print(&align_columns(&swept.table()))?;
    print_warnings(&swept.warnings, swept.warnings_count);
    let files = args.how.files(&["messages", "runs", "sweep"]);
    print(&format!("\nWrote {files} to {}\n", out.display()))?;
    Ok(if swept.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
