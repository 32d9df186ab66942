//! `marline scheduler`: changing the scheduler of running connections.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use super::monitor::{print, reach};
use crate::control::protocol::{Answer, Command};

/// Arguments of `marline scheduler`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process; may be omitted if only one runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Only this connection [default: all existing ones].
    #[arg(long, value_name = "NUMBER")]
    pub connection: Option<u64>,
    /// The scheduler, such as `redundant`, or with parameters and wrappers
    /// `lowest-rtt+orp,penalise=paper` (`marline policies` lists all). It applies to data sent by
    /// this side; the peer chooses its own.
    #[arg(value_name = "SPEC")]
    pub scheduler: String,
}

/// Changes the scheduler.
///
/// # Errors
/// No process can be reached, the scheduler is invalid, or no connection has this number.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut client = reach(args.control.as_ref()).await?;
    let command = Command::SetScheduler { scheduler: args.scheduler, connection: args.connection };
    match client.ask(command).await? {
        Answer::Changed(count) => {
            // A closed output is ignored.
            let _ = print(&format!("{count} connections changed\n"));
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("asked for a scheduler, got {other:?}"),
    }
}
