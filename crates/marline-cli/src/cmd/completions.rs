//! Subcommand `marline completions`: generates shell completions.

use std::process::ExitCode;

use clap::CommandFactory as _;

use super::monitor::print;
use crate::Cli;

/// Arguments of `marline completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell.
    pub shell: clap_complete::Shell,
}

/// Prints the script.
///
/// # Errors
/// None. A closed output is ignored.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "marline", &mut script);
    let _ = print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}
