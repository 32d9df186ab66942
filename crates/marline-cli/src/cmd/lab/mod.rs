//! `marline lab`: scenarios in network namespaces, over emulated links. One file per subcommand.

pub mod agree;
pub mod compare;
pub mod engine;
pub mod import;
pub mod net;
pub mod paper;
pub mod plot;
mod progress;
pub mod report;
pub mod run;
pub mod sweep;
pub mod what_if;

use std::process::ExitCode;

/// Arguments of `marline lab`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Lab,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Lab {
    /// Run an experiment (a TOML file) in virtual time, live and on the kernel's stacks, and
    /// compare the results (docs/research/lab.md).
    Run(run::Args),
    /// Run an experiment over the ranges of its table `sweep`; an interrupted sweep is resumed.
    Sweep(sweep::Args),
    /// Create and remove the two hosts of a scenario and the paths between them. Needs root.
    Net(net::Args),
    /// Compare two results seed by seed, or (as root) Marline with the kernel's TCP and Multipath TCP over
    /// emulated links.
    Compare(compare::Args),
    /// Make a path of an experiment file from what was measured of one: CSV, or iperf3's JSON.
    Import(import::Args),
    /// Say what redundancy would have done, from captures of two paths.
    WhatIf(what_if::Args),
    /// Reproduce published measurements in virtual time: published value, ours, verdict.
    Paper(paper::Args),
    /// Compare the verdicts of `paper` under several master roots.
    Agree(agree::Args),
    /// Draw a trace (qlog) as an SVG: places in the stream over time, with copies and reinjections.
    Plot(plot::Args),
    /// Write all results as one HTML page.
    Report(report::Args),
    /// One end of a run (started internally).
    #[command(hide = true)]
    End {
        /// The job, in JSON.
        job: String,
    },
}

/// Runs the subcommand.
///
/// # Errors
/// Those of the subcommand.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Lab::Net(args) => net::run(args).await,
        Lab::Import(args) => import::run(&args),
        Lab::WhatIf(args) => tokio::task::spawn_blocking(move || what_if::run(&args)).await?,
        // Both block, and an end has a runtime of its own with a single thread.
        Lab::Compare(args) => tokio::task::spawn_blocking(move || compare::run(&args)).await?,
        Lab::Run(args) => tokio::task::spawn_blocking(move || run::run(&args)).await?,
        Lab::Sweep(args) => tokio::task::spawn_blocking(move || sweep::run(&args)).await?,
        Lab::Report(args) => tokio::task::spawn_blocking(move || report::run(&args)).await?,
        Lab::Plot(args) => tokio::task::spawn_blocking(move || plot::run(&args)).await?,
        Lab::Agree(args) => tokio::task::spawn_blocking(move || agree::run(&args)).await?,
        Lab::Paper(args) => tokio::task::spawn_blocking(move || paper::run(&args)).await?,
        Lab::End { job } => {
            tokio::task::spawn_blocking(move || {
                marline_lab::experiment::run_end(&job, crate::times::time_of_day)
            })
            .await??;
            Ok(ExitCode::SUCCESS)
        }
    }
}
