//! `marline demo`: a self-contained demonstration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use marline_emulator::RelayReport;
use marline_link::DuplexSpec;
use serde_json::json;

use super::monitor::print;
use crate::demo::columns::wrap_line;
use crate::demo::{DemoPlan, outcome, plan, run_demo, verdict};
use crate::path_table::bytes;
use marline_emulator::report_text;

/// Arguments of `marline demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds for which the applications run, excluding startup and catch-up [default: 24, or 60 with
    /// --dashboard]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(5..=600))]
    pub seconds: Option<u32>,
    /// Serve the dashboard of Marline's client on this address, without a token [default: 127.0.0.1:9101]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:9101")]
    pub dashboard: Option<SocketAddr>,
    /// Write traces (qlog) of Marline's client and server into this directory (docs/spec/qlog.md).
    #[arg(long, value_name = "DIR")]
    pub qlog: Option<PathBuf>,
    /// Seed of the links' randomness and of the file.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Link that fails, in the syntax of `marline-lab link` [default: WiFi, 30 Mbit/s]
    #[arg(long, value_name = "LINK", default_value = plan::WIFI, hide_default_value = true)]
    pub wifi: DuplexSpec,
    /// Link that keeps working; to replay a recording, use `trace=NAME,delay=30ms` and --trace-dir
    /// [default: LTE, 15 Mbit/s]
    #[arg(long, value_name = "LINK", default_value = plan::LTE, hide_default_value = true)]
    pub lte: DuplexSpec,
    /// Directory of traces [default: MARLINE_TRACE_DIR].
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
    /// Rate at which the HTTP server sends the file, in Mbit/s; 0: unlimited, which fills the
    /// links' queues.
    #[arg(long, value_name = "MBIT", default_value_t = 4.0)]
    pub file_rate: f64,
    /// Write the results, with every latency, to this JSON file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs the demo and evaluates it.
///
/// # Errors
/// Something could not be started.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let plan = plan(&args)?;
    // An interrupt drops everything, which kills the processes and removes the files.
    let (outcomes, reports) = tokio::select! {
        result = run_demo(&plan) => result?,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            bail!("interrupted");
        }
    };
    let failures = outcome::failures(&outcomes);
    let verdict = verdict::sentence(&outcomes, plan.return_time() - plan.failure_time());
    let mut text = introduction(&plan);
    text.push_str(&outcome::table(&outcomes));
    let failed = failures.iter().map(|failure| format!("FAILED: {failure}"));
    let busy = [describe_unreliable_links(&reports), outcome::describe_unreliable_run(&outcomes)]
        .into_iter()
        .flatten();
    let last = failed.chain(busy).map(|line| wrap_line(&line)).collect::<String>();
    text.push_str(&last);
    if let Some(verdict) = &verdict {
        text.push_str(&format!("\n{}", wrap_line(verdict)));
    }
    // A closed output is ignored.
    let _ = print(&text);
    if let Some(path) = &args.json {
        let value = json!({
            "seconds": plan.run.as_secs(),
            "seed": args.seed,
            "wifi": plan.wifi.to_string(),
            "lte": plan.lte.to_string(),
            "dies_s": plan.failure_time().as_secs_f64(),
            "returns_s": plan.return_time().as_secs_f64(),
            "outcomes": outcomes.iter().map(outcome::to_json).collect::<Vec<_>>(),
            "links": reports.iter().map(report_text::to_json).collect::<Vec<_>>(),
            "failures": failures,
            "verdict": verdict,
        });
        std::fs::write(path, format!("{value:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the description of the links and the run, above the table.
fn introduction(plan: &DemoPlan) -> String {
    let lines = [
        String::new(),
        format!("WiFi: {}", plan.wifi),
        format!("LTE:  {}", plan.lte),
        format!(
            "WiFi was down from {:.1} s to {:.1} s of {} s.",
            plan.failure_time().as_secs_f64(),
            plan.return_time().as_secs_f64(),
            plan.run.as_secs(),
        ),
        format!(
            "Echo: {} per second, {} B. File: {}.",
            DemoPlan::ECHOES_PER_S,
            crate::demo::application::MESSAGE,
            bytes(plan.file_bytes),
        ),
        String::new(),
    ];
    lines.iter().map(|line| wrap_line(line)).collect()
}

/// Returns the reasons why the results are unreliable, such as properties of the links, in one line.
fn describe_unreliable_links(reports: &[RelayReport]) -> Option<String> {
    let doubtful: Vec<&RelayReport> = reports.iter().filter(|r| !r.doubts().is_empty()).collect();
    if doubtful.is_empty() {
        return None;
    }
    let late = |report: &&RelayReport| report.up.late.p99_us.max(report.down.late.p99_us);
    let worst = doubtful.iter().map(late).max().unwrap_or(0) as f64 / 1e3;
    let dropped: u64 = doubtful.iter().map(|report| report.kernel_drops).sum();
    Some(format!(
        "WARNING: unreliable results, as this machine was busy: on {} of {} emulated links, 1% of the \
         datagrams were sent late (on the worst link by {worst:.1} ms or more), and {dropped} were dropped \
         before they reached a link",
        doubtful.len(),
        reports.len(),
    ))
}

fn plan(args: &Args) -> anyhow::Result<DemoPlan> {
    if !(0.0..=1_000.0).contains(&args.file_rate) {
        bail!("--file-rate {}: must be 0 to 1000 Mbit/s", args.file_rate);
    }
    if let Some(address) = args.dashboard
        && !address.ip().is_loopback()
    {
        bail!("--dashboard {address}: must be a loopback address, as the demo uses no token");
    }
    let seconds = args.seconds.unwrap_or(if args.dashboard.is_some() { 60 } else { 24 });
    let run = Duration::from_secs(seconds.into());
    // Without a rate, the file has a length that takes about a third of the run on the slower link.
    let mbit = if args.file_rate > 0.0 { args.file_rate } else { 8.0 };
    let share = if args.file_rate > 0.0 { 0.9 } else { 0.6 };
    Ok(DemoPlan {
        run,
        seed: args.seed,
        wifi: args.wifi.clone(),
        lte: args.lte.clone(),
        trace_dir: args.trace_dir.clone(),
        pace: (args.file_rate > 0.0).then_some((mbit * 125_000.0) as u64),
        file_bytes: (run.as_secs_f64() * share * mbit * 125_000.0) as u64,
        dashboard: args.dashboard,
        qlog: args.qlog.clone(),
    })
}
