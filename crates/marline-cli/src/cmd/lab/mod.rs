//! `marline lab`: scenarios in network namespaces, over emulated links. One file per subcommand.

pub mod net;

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
    /// Make and remove the two hosts of a scenario and the paths between them. Needs root.
    Net(net::Args),
}

/// Runs the subcommand.
///
/// # Errors
/// Those of the subcommand.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Lab::Net(args) => net::run(args).await,
    }
}
