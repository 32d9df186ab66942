//! `marline lab`: scenarios in network namespaces, over emulated links. One file per subcommand.

pub mod compare;
pub mod net;
pub mod paper;
pub mod report;
pub mod run;
pub mod sweep;

use std::process::ExitCode;

/// Arguments of `marline lab`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Lab,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Lab {
    /// Run an experiment, a TOML file, in virtual time, live and on the kernel's stacks, and put the
    /// results side by side (docs/research/lab.md).
    Run(run::Args),
    /// Run it over the ranges of its table `sweep`; goes on where it was interrupted.
    Sweep(sweep::Args),
    /// Make and remove the two hosts of a scenario and the paths between them. Needs root.
    Net(net::Args),
    /// Marline beside the kernel's TCP and Multipath TCP over emulated links. Needs root.
    Compare(compare::Args),
    /// Published measurements, done again in virtual time: paper, ours, verdict.
    Paper(paper::Args),
    /// All results as one HTML page.
    Report(report::Args),
    /// One end of a run (it is started by those that run something).
    #[command(hide = true)]
    End {
        /// What to do, in JSON.
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
        // Both block, and an end has a runtime of its own with a single thread.
        Lab::Compare(args) => tokio::task::spawn_blocking(move || compare::run(&args)).await?,
        Lab::Run(args) => tokio::task::spawn_blocking(move || run::run(&args)).await?,
        Lab::Sweep(args) => tokio::task::spawn_blocking(move || sweep::run(&args)).await?,
        Lab::Report(args) => tokio::task::spawn_blocking(move || report::run(&args)).await?,
        Lab::Paper(args) => tokio::task::spawn_blocking(move || paper::run(&args)).await?,
        Lab::End { job } => {
            tokio::task::spawn_blocking(move || marline_lab::experiment::run_end(&job)).await??;
            Ok(ExitCode::SUCCESS)
        }
    }
}
