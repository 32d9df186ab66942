//! `marline scheduler`: changing the scheduler of running connections.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use super::monitor::{connect_control, print};
use crate::control::protocol::{Answer, Command};

/// Arguments of `marline scheduler`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process; may be omitted if only one process runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Number of the connection to change [default: all open connections].
    #[arg(long, value_name = "NUMBER")]
    pub connection: Option<u64>,
    /// Scheduler, for example `redundant`, or `lowest-rtt+orp,penalize=paper` with a wrapper and a parameter
    /// (`marline policies` lists all). It applies to data that this side sends; the peer chooses its own.
    #[arg(value_name = "SPEC")]
    pub scheduler: String,
}

/// Changes the scheduler.
///
/// # Errors
/// No process can be reached, the scheduler is invalid, or no connection has this number.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut client = connect_control(args.control.as_ref()).await?;
    let command = Command::SetScheduler { scheduler: args.scheduler, connection: args.connection };
    match client.request(command).await? {
        Answer::Changed(count) => {
            // A closed output is ignored.
            let _ = print(&format!("{count} connections changed\n"));
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("unexpected answer to the scheduler change: {other:?}"),
    }
}
