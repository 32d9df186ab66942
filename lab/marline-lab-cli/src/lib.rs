//! The `marline-lab` program: experiments in virtual time and in network namespaces over emulated links,
//! reproductions of papers, and single links. One file per subcommand.

#![forbid(unsafe_code)]

pub mod agree;
pub mod compare;
pub mod engine;
pub mod ground;
pub mod import;
pub mod link;
pub mod link_supervisor;
pub mod mutations;
pub mod net;
pub mod paper;
pub mod plot;
mod progress;
pub mod report;
pub mod run;
pub mod scenes;
pub mod sweep;
mod table;
pub mod what_if;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use marline_cli::log::{self, LogArgs};
use marline_lab::policies;

pub use marline_cli::Registry;

/// Multipath TCP in user space: the lab.
#[derive(Debug, Parser)]
#[command(name = "marline-lab", version = marline_cli::VERSION, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// All subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run an experiment (a TOML file) in virtual time, live and on the kernel's stacks, and
    /// compare the results (docs/research/lab.md).
    Run(run::Args),
    /// Run an experiment for all values in its table `sweep`; an interrupted sweep is resumed.
    Sweep(sweep::Args),
    /// Answer the questions of scenes in virtual time (docs/research/scenes.md).
    Scenes(scenes::Args),
    /// Create and remove the two hosts of a scenario and the paths between them. Needs root.
    Net(net::Args),
    /// Compare two results seed by seed, or (as root) Marline with the kernel's TCP and Multipath TCP over
    /// emulated links.
    Compare(compare::Args),
    /// Convert a measurement (CSV, or iperf3's JSON) into a path of an experiment file.
    Import(import::Args),
    /// Estimate the effect of redundancy from captures of two paths.
    WhatIf(what_if::Args),
    /// Reproduce published measurements in virtual time, with the published value, ours and a verdict.
    Paper(paper::Args),
    /// Switch off each mechanism of the seed systems in turn, and list the rows that notice.
    Mutations(mutations::Args),
    /// Run the default scheduler in the scenes of the seed systems, next to each system.
    Ground(ground::Args),
    /// Compare the verdicts of `paper` under several master roots.
    Agree(agree::Args),
    /// Draw a trace (qlog) as an SVG: positions in the stream over time, with copies and reinjections.
    Plot(plot::Args),
    /// Write all results as one HTML page.
    Report(report::Args),
    /// Emulate a link: a UDP relay with rate, delay, loss and outages, or interfaces between two namespaces.
    Link(Box<link::Args>),
    /// One end of a run (started internally).
    #[command(hide = true)]
    End {
        /// The job, in JSON.
        job: String,
    },
}

/// Runs the whole program with these policies. Every subcommand, and every process it starts from the same program,
/// knows them by name. Must be called first in `main`.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     let mut registry = marline_cli::registry();
///     // my_policies::register(&mut registry) ...
///     marline_lab_cli::main_with(registry)
/// }
/// ```
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    match policies::choose(registry) {
        Ok(()) => run(),
        Err(error) => fail(&error),
    }
}

/// Parses the command line, runs the subcommand, prints its error.
#[must_use]
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    // Capabilities are per thread, so they are dropped before other threads start.
    if let Command::Link(args) = &cli.command
        && let Err(error) = args.drop_privileges()
    {
        return fail(&error);
    }
    run_parsed(cli)
}

/// Like [`run()`], with these arguments (the program's name first). Keeps the process's privileges, for a process that
/// already has threads.
#[must_use]
pub fn run_from(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    run_parsed(Cli::parse_from(args))
}

fn run_parsed(cli: Cli) -> ExitCode {
    log::start(cli.log.level(), cli.log.log_format, true);
    run_command(cli.command).unwrap_or_else(|error| fail(&error))
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("marline-lab: {error:#}");
    ExitCode::FAILURE
}

/// Runs the subcommand.
///
/// # Errors
/// The subcommand failed.
pub fn run_command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Net(args) => run_in_runtime(net::run(args)),
        Command::Link(args) => run_in_runtime(link::run(*args)),
        Command::Import(args) => import::run(&args),
        Command::WhatIf(args) => what_if::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Scenes(args) => scenes::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Agree(args) => agree::run(&args),
        Command::Ground(args) => ground::run(&args),
        Command::Mutations(args) => mutations::run(&args),
        Command::Paper(args) => paper::run(&args),
        Command::End { job } => {
            marline_lab::experiment::run_end(&job, marline_cli::times::time_of_day)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_in_runtime(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    runtime.block_on(work)
}
