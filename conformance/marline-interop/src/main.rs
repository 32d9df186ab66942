//! Interoperability matrix: Marline against the kernel's Multipath TCP, in both roles, over
//! emulated links in namespaces. See `cargo xtask interop --help` and docs/research/interop.md.

#![forbid(unsafe_code)]

mod cell;
mod cell_result;
mod cell_setup;
mod content;
mod exchange;
mod judge;
mod kernel_log;
mod peer;
mod play;
mod results;
mod run;
mod special;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use clap::{Parser, Subcommand};

use cell::{Cell, Condition, Pair, Subflows, Workload};
use cell_setup::Scale;
use results::Results;
use run::Task;

/// Runs cells of the matrix; needs root, ip, tcpdump and tshark.
#[derive(Debug, Parser)]
#[command(name = "marline-interop", max_term_width = 100)]
struct Args {
    /// Only cells that together cover all pairs of values, with small transfers: a few minutes
    #[arg(long)]
    small: bool,
    /// Only cells whose name contains this; may be repeated, all must match
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Number of cells run at the same time
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// Directory of results; cells that passed with the same program are not run again
    #[arg(long, value_name = "DIR", default_value = "target/interop")]
    results: PathBuf,
    /// Repeat cells that passed
    #[arg(long)]
    fresh: bool,
    /// Also keep the captures of passed cells, and print their findings
    #[arg(long)]
    keep_captures: bool,
    /// List the cells and exit
    #[arg(long)]
    list: bool,
    /// Write the summary into this file, between its markers
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Inner>,
}

#[derive(Debug, Subcommand)]
enum Inner {
    /// Run one end of a cell (used by the runner)
    #[command(hide = true)]
    Peer {
        /// The job, in JSON
        job: String,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Inner::Peer { job }) => peer(job).map(|()| true),
        None => matrix(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("marline-interop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn peer(job: &str) -> anyhow::Result<()> {
    peer::run(&serde_json::from_str(job).context("cannot parse the job")?)
}

/// The selected cells.
fn tasks(args: &Args) -> Vec<Task> {
    let scale = if args.small { Scale::Small } else { Scale::Full };
    let cells = if args.small { Cell::covering_cells() } else { Cell::all() };
    let mut tasks: Vec<Task> = cells.into_iter().map(|cell| Task::Cell(cell, scale)).collect();
    if !args.small {
        let huge = |cell: &Cell| {
            let bulk = [Workload::Up, Workload::Down, Workload::Both].contains(&cell.workload);
            let plain = (cell.family, cell.checksum, cell.condition, cell.subflows)
                == (cell::Family::V4, cell::Checksum::Off, Condition::Clean, Subflows::Two);
            bulk && plain
        };
        debug_assert_eq!(Pair::ALL.len(), 3);
        let cells = Cell::all().into_iter().filter(huge);
        tasks.extend(cells.map(|cell| Task::Cell(cell, Scale::Huge)));
    }
    tasks.extend(special::all().iter().map(Task::Special));
    tasks.retain(|task| args.only.iter().all(|text| task.to_string().contains(text.as_str())));
    tasks
}

/// Runs the selected cells. `true` if all passed.
fn matrix(args: &Args) -> anyhow::Result<bool> {
    let tasks = tasks(args);
    if args.list {
        tasks.iter().for_each(|task| println!("{task}"));
        return Ok(true);
    }
    let results = Results::open(&args.results, args.fresh, args.keep_captures)?;
    let waiting: VecDeque<Task> =
        tasks.iter().copied().filter(|t| !results.has_passed(t)).collect();
    println!("{} cells, {} of which have already passed", tasks.len(), tasks.len() - waiting.len());
    let swept = marline_lab::net::remove_remains();
    if !swept.is_empty() {
        println!("removed remains of earlier runs: {}", swept.join(", "));
    }
    let (total, waiting) = (waiting.len(), Mutex::new(waiting));
    std::thread::scope(|scope| {
        for worker in 0..args.jobs {
            let (results, waiting) = (&results, &waiting);
            scope.spawn(move || {
                let instance = format!("iop-{}-{worker}", std::process::id());
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(task) = next else { return };
                    let result = run::run(task, &instance, &results.directory(&task));
                    results.keep(&task, &result, total);
                }
            });
        }
    });
    let summary = results.summary(&tasks)?;
    print!("{}", summary.text);
    if let Some(file) = &args.write {
        marline_lab::generated_part::write_between_markers(file, "interop", &summary.markdown)?;
    }
    Ok(summary.green)
}
