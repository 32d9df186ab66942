//! `marline scheduler`: another scheduler for running connections.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use super::monitor::{print, reach};
use crate::control::protocol::{Answer, Command};

/// Arguments of `marline scheduler`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process; may be left out if only one runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Only this connection; all that exist otherwise.
    #[arg(long, value_name = "NUMBER")]
    pub connection: Option<u64>,
    /// The scheduler's name, such as `min-rtt` or `redundant`. It decides what this side sends:
    /// the other direction is the peer's to choose.
    pub name: String,
}

/// Changes it.
///
/// # Errors
/// No process can be reached, no scheduler has this name or no connection this number.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut client = reach(args.control.as_ref()).await?;
    let command = Command::SetScheduler { scheduler: args.name, connection: args.connection };
    match client.ask(command).await? {
        Answer::Changed(count) => {
            // A reader that went away has seen enough.
            let _ = print(&format!("{count} connections changed\n"));
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("asked for a scheduler, got {other:?}"),
    }
}
