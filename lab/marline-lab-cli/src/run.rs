//! `marline-lab run`: an experiment on several stacks.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use marline_lab::experiment::file::ExperimentFile;
use marline_lab::experiment::{QlogConfig, Stack, TimelineConfig};
use marline_lab::figure::number;
use marline_lab::parallel::available;
use marline_lab::results::Format;
use marline_lab::runs::{
    Agreement, Captures, Figures, Job, QlogFiles, Qlogs, RealTimeFiles, Record, Series, Shard,
    Store, StoredRuns, Summary, Timelines,
};

use super::progress::SeriesWork;
use super::table::align_columns;
use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The experiment, a TOML file (docs/research/lab.md; some are in scenarios/).
    pub file: PathBuf,
    /// Options of the runs.
    #[command(flatten)]
    pub how: RunOptions,
    /// Write time lines of the runs on stack sim: table subflows (samples of each subflow at this interval;
    /// without a value: 10ms) and table copies (path of each copy of a message, and the winner).
    #[arg(
        long,
        value_name = "INTERVAL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10ms",
        value_parser = interval,
        conflicts_with = "shard"
    )]
    pub timelines: Option<Duration>,
    /// Write a qlog and a drawing of it for each connection and Marline end into DIR/qlog
    /// (docs/spec/qlog.md).
    #[arg(long, conflicts_with = "shard")]
    pub qlog: bool,
    /// Write a capture (pcapng) of each end of the runs, on any stack, into DIR/pcap. In captures of real packets,
    /// MPTCP keys are replaced by zeros.
    #[arg(long, conflicts_with = "shard")]
    pub pcap: bool,
    /// Keep MPTCP keys in the captures of real packets, so that Wireshark can assign subflows to connections.
    #[arg(long, requires = "pcap")]
    pub pcap_secrets: bool,
    /// Draw figures into DIR: the latencies of all variants (cdf.svg, boxes.svg), and windows and delays of the
    /// subflows in the first run of each variant on stack sim.
    #[arg(long, conflicts_with = "shard")]
    pub plot: bool,
    /// Print the planned runs and exit.
    #[arg(long)]
    pub dry_run: bool,
}

/// Time between two samples.
fn interval(text: &str) -> anyhow::Result<Duration> {
    let interval = marline_lab::emulation::script::duration(text)?;
    Ok(TimelineConfig::with_interval(interval)?.interval)
}

/// Options common to `run` and `sweep`.
#[derive(Debug, clap::Args)]
pub struct RunOptions {
    /// Stacks, separated by commas: sim (virtual time), live (Marline's processes), tcp and mptcp
    /// (this machine's kernel), duplicate (two TCP, the first answer counts), to-kernel and from-kernel
    /// (Marline at one end only). All but sim need root.
    #[arg(long = "stack", value_name = "STACK,..", value_delimiter = ',', default_value = "sim")]
    pub stacks: Vec<Stack>,
    /// Number of runs of each variant on each stack, each with a different seed.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub seeds: u32,
    /// Processors to use. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Directory of results. Default: target/lab/NAME, with the name of the file.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Formats of tables, separated by commas: csv, parquet.
    #[arg(long = "format", value_name = "FORMAT,..", value_delimiter = ',', default_value = "csv")]
    pub formats: Vec<Format>,
    /// Repeat runs that already have results.
    #[arg(long)]
    pub fresh: bool,
    /// Make only the I-th of N parts of the runs, without tables, to distribute the runs among machines that share
    /// DIR. When all parts are done, run the same command without this option to write the tables.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Directory of traces [default: MARLINE_TRACE_DIR].
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
}

/// Runs the experiment. The exit status is success if every run completed.
///
/// # Errors
/// The file is invalid, permission to run in real time is missing, or results cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = ExperimentFile::open(&args.file)?.with_traces(args.how.trace_dir.clone());
    let lanes = file.lanes(&args.how.stacks)?;
    let jobs = Job::series(&file.experiment, &lanes, args.how.seeds);
    let simulated = lanes.iter().any(|lane| lane.stack == Stack::Sim);
    ensure!(args.timelines.is_none() || simulated, "time lines need stack sim: add it to --stack");
    let ours = lanes.iter().any(|lane| lane.stack.is_marline());
    ensure!(
        !args.qlog || ours,
        "--qlog needs a Marline end because the kernel writes no traces: add sim or live to --stack"
    );
    // A file may enable time lines for all stacks; only simulated runs have them.
    let timelines = args.timelines.or(file.timelines).filter(|_| simulated);
    if args.dry_run {
        let line = |lane: &marline_lab::experiment::file::Lane| {
            format!("{:9} {} x {}\n", lane.stack, args.how.seeds, lane.variant.name)
        };
        print(&lanes.iter().map(line).collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let out = args.how.results_directory(&args.file)?;
    if let Some(shard) = args.how.shard {
        return args.how.run_shard(shard, jobs, &out);
    }
    let files = args.make_real_time_files(&out, &jobs, file.qlog)?;
    let records = args.how.all(&jobs, &out, files.clone())?;
    let summary = Summary::from_runs(&jobs, &records);
    print_results(&summary, &file.title)?;
    summary.write(&out, &args.how.selected_formats())?;
    let json = serde_json::to_string_pretty(&summary.json(&file.title))?;
    write(&out, "result.json", &(json + "\n"))?;
    let mut names = format!("{}, result.json", args.how.files(&["messages", "runs"]));
    if let Some(interval) = timelines {
        write_timelines(&jobs, &args.how, interval, &out)?;
        names.push_str(", ");
        names.push_str(&args.how.files(&["subflows", "copies"]));
    }
    if (args.qlog || file.qlog) && simulated {
        names.push_str(&write_qlogs(&jobs, &args.how, &out)?);
    }
    if args.pcap && simulated {
        names.push_str(&write_captures(&jobs, &args.how, &out)?);
    }
    if let Some(RealTimeFiles { captures, traces, .. }) = &files {
        let both = [("pcap/", captures.is_some()), ("qlog/", traces.is_some() && ours)];
        for (directory, _) in both.iter().filter(|(_, written)| *written) {
            names.push_str(&format!(", {directory} (real-time runs)"));
        }
    }
    if args.plot {
        names.push_str(&draw(&summary, &file.title, &out)?);
    }
    print(&format!("\nWrote {names} to {}\n", out.display()))?;
    let whole = records.iter().all(|record| record.error.is_none());
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the results.
fn print_results(summary: &Summary<'_>, title: &str) -> anyhow::Result<()> {
    if !title.is_empty() {
        print(&format!("{title}\n\n"))?;
    }
    print(&align_columns(&summary.table()))?;
    let intervals = summary.intervals();
    if !intervals.is_empty() {
        print(&format!(
            "\n95 % intervals (bootstrap over the runs)\n{}",
            align_columns(&intervals)
        ))?;
    }
    let calibration = summary.calibration();
    if !calibration.is_empty() {
        print(&format!("\nanswer-time forecasts\n{}", align_columns(&calibration)))?;
    }
    print(&agreement(&summary.agreement()))?;
    let warnings = summary.warnings();
    print_warnings(&warnings, warnings.len());
    Ok(())
}

impl Args {
    /// Settings of the files of real-time runs, if there are such runs.
    fn make_real_time_files(
        &self,
        out: &Path,
        jobs: &[Job],
        qlog: bool,
    ) -> anyhow::Result<Option<RealTimeFiles>> {
        let runs = jobs.iter().filter(|job| job.lane.stack.is_real_time()).count();
        let captures = self.pcap.then(|| RealTimeFiles::captures(self.pcap_secrets));
        let traces = (self.qlog || qlog).then(QlogConfig::default);
        if runs == 0 || (captures.is_none() && traces.is_none()) {
            return Ok(None);
        }
        let most = Captures::MAX_RUNS;
        ensure!(
            runs <= most,
            "captures and traces are limited to {most} real-time runs, but there are {runs}: \
                use fewer --seeds"
        );
        Ok(Some(RealTimeFiles { directory: out.to_owned(), captures, traces }))
    }
}

/// Writes the time lines of all simulated runs, and prints a warning if rows are left out.
fn write_timelines(
    jobs: &[Job],
    how: &RunOptions,
    interval: Duration,
    out: &Path,
) -> anyhow::Result<()> {
    let config = TimelineConfig::with_interval(interval)?;
    let timelines = Timelines { jobs: how.processors(), config };
    let written = timelines.write(jobs, out, &how.selected_formats())?;
    if let Some(cut) = written.omission_note() {
        eprintln!("WARNING: {cut}");
    }
    Ok(())
}

/// Writes traces of all simulated runs with drawings, and returns a summary.
fn write_qlogs(jobs: &[Job], how: &RunOptions, out: &Path) -> anyhow::Result<String> {
    let qlogs = Qlogs { jobs: how.processors(), config: QlogConfig::default() };
    let files = qlogs.write(jobs, &out.join("qlog"))?;
    let cut = files.omission_notes();
    print_warnings(&cut, cut.len());
    let QlogFiles { traces, drawings, .. } = files;
    Ok(format!(", qlog/ with {traces} traces and {drawings} drawings"))
}

/// Writes captures of all simulated runs, and returns a summary.
fn write_captures(jobs: &[Job], how: &RunOptions, out: &Path) -> anyhow::Result<String> {
    let captures = Captures { jobs: how.processors(), max_bytes: Captures::MAX_BYTES };
    let written = captures.write(jobs, &out.join("pcap"))?;
    let cut = written.omission_notes();
    print_warnings(&cut, cut.len());
    let files = written.files;
    Ok(format!(", pcap/ with {files} captures"))
}

/// Draws the figures, and returns a summary.
fn draw(summary: &Summary<'_>, title: &str, out: &Path) -> anyhow::Result<String> {
    let mut files = String::new();
    for figure in (Figures { title, runs: &summary.runs() }).draw() {
        let name = format!("{}.svg", figure.name);
        write(out, &name, &figure.svg)?;
        files.push_str(", ");
        files.push_str(&name);
    }
    Ok(files)
}

/// Comparison of virtual and real time, as text.
fn agreement(agreements: &[Agreement]) -> String {
    if agreements.is_empty() {
        return String::new();
    }
    let head = ["sim and live", "p50 ms", "", "ratio", "p95 ms", "", "ratio", "agree"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for agreement in agreements {
        let mut row = vec![agreement.variant.clone()];
        for (sim, live) in [agreement.p50_ms, agreement.p95_ms] {
            row.extend([number(sim), number(live), format!("{:.2}", live / sim)]);
        }
        row.push(if agreement.holds() { "yes" } else { "NO" }.to_owned());
        table.push(row);
    }
    format!("\n{}  (median within 10 %, 95th percentile within 20 %)\n", align_columns(&table))
}

/// Prints the first warnings about unreliable or failed runs. `count` is the total number.
pub(crate) fn print_warnings(warnings: &[String], count: usize) {
    const MAX_SHOWN_WARNINGS: usize = 12;
    for warning in warnings.iter().take(MAX_SHOWN_WARNINGS) {
        eprintln!("WARNING: {warning}");
    }
    if count > MAX_SHOWN_WARNINGS {
        eprintln!("{} more warnings; see the table of runs", count - MAX_SHOWN_WARNINGS);
    }
}

fn write(out: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let file = out.join(name);
    std::fs::write(&file, text).with_context(|| file.display().to_string())
}

impl RunOptions {
    /// The directory of results.
    pub(crate) fn results_directory(&self, file: &Path) -> anyhow::Result<PathBuf> {
        let stem = file.file_stem().context("the file name is missing")?;
        let out = self.out.clone().unwrap_or_else(|| Path::new("target/lab").join(stem));
        std::fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        Ok(out)
    }

    /// Formats of tables, without duplicates.
    pub(crate) fn selected_formats(&self) -> Vec<Format> {
        Format::ALL.into_iter().filter(|format| self.formats.contains(format)).collect()
    }

    /// File names of these tables.
    pub(crate) fn files(&self, tables: &[&str]) -> String {
        let formats = self.selected_formats();
        let of = |table: &&str| formats.iter().map(|f| format!("{table}.{f}")).collect::<Vec<_>>();
        tables.iter().flat_map(of).collect::<Vec<_>>().join(", ")
    }

    fn processors(&self) -> usize {
        self.jobs.map_or_else(available, usize::from)
    }

    /// The store of runs.
    pub(crate) fn store(&self, out: &Path) -> anyhow::Result<Store> {
        Store::open(&out.join("runs"), self.fresh)
    }

    /// Options of the series.
    pub(crate) fn series<'a>(&self, store: &'a Store) -> Series<'a> {
        let instance = format!("run-{}", std::process::id());
        Series { store, jobs: self.processors(), instance, files: None }
    }

    /// Makes the missing runs with a progress bar.
    fn all(
        &self,
        jobs: &[Job],
        out: &Path,
        files: Option<RealTimeFiles>,
    ) -> anyhow::Result<Vec<Record>> {
        let store = self.store(out)?;
        let series = Series { files, ..self.series(&store) };
        let mut ahead = SeriesWork::default();
        ahead.add(&series, jobs);
        let bar = ahead.begin();
        let records = series.run(jobs, &|progress| bar.record_run(progress));
        bar.end();
        StoredRuns::write_list(out, &store, jobs)?;
        records
    }

    /// Makes the missing runs of a shard.
    fn run_shard(&self, shard: Shard, jobs: Vec<Job>, out: &Path) -> anyhow::Result<ExitCode> {
        let store = self.store(out)?;
        let (series, all) = (self.series(&store), jobs.len());
        let jobs = shard.part(jobs);
        let mut ahead = SeriesWork::default();
        ahead.add(&series, &jobs);
        let bar = ahead.begin();
        let records = series.run(&jobs, &|progress| bar.record_run(progress));
        bar.end();
        records?;
        ShardReport { shard, runs: jobs.len(), all_runs: all, failed: bar.failed() }.print(&store)
    }
}

/// Result of a shard.
pub(crate) struct ShardReport {
    pub(crate) shard: Shard,
    /// Runs of the shard.
    pub(crate) runs: usize,
    /// Runs of all shards.
    pub(crate) all_runs: usize,
    pub(crate) failed: usize,
}

impl ShardReport {
    /// Prints the directory of the runs and their number. The exit code shows if any failed.
    pub(crate) fn print(&self, store: &Store) -> anyhow::Result<ExitCode> {
        let ShardReport { shard, runs, all_runs, failed } = *self;
        let place = store.directory().display();
        print(&format!("shard {shard}: {runs} of {all_runs} runs, in {place}\n"))?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
