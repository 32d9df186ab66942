//! `marline completions`: what a shell needs to complete this program's command lines.

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
/// None: a reader that went away has seen enough.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "marline", &mut script);
    let _ = print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}
