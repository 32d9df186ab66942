//! Subcommand `marline upgrade`: replaces a running server or front with the current program on disk without
//! interrupting its connections.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::monitor::{connect_control, print};
use crate::control::protocol::{Answer, Command};
use crate::control::socket_path;

/// Arguments of `marline upgrade`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process, or its directory; may be omitted if only one process runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// New program [default: the file that is now at the path of the running program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Seconds for the new process to become ready [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: Option<u64>,
}

/// Requests the replacement.
///
/// # Errors
/// No process can be reached, or the upgrade failed and the process continues unchanged.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let control = args.control.as_deref().map(socket_in).transpose()?;
    let mut client = connect_control(control.as_ref()).await?;
    let program = match &args.program {
        None => None,
        Some(program) => {
            let absolute = std::path::absolute(program).context("invalid --program")?;
            let text = absolute.to_str().context("--program: the path is not valid UTF-8")?;
            Some(text.to_owned())
        }
    };
    match client.request(Command::Upgrade { program, patience_s: args.timeout }).await? {
        Answer::Upgraded(done) => {
            // A closed output is ignored.
            let _ = print(&format!(
                "process {} (version {}) has taken over; {} connections remain in the old process\n",
                done.pid, done.version, done.connections
            ));
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("unexpected answer to the upgrade request: {other:?}"),
    }
}

/// Returns the only socket in a directory. Any other path is returned unchanged.
fn socket_in(path: &Path) -> anyhow::Result<PathBuf> {
    match path.is_dir() {
        true => socket_path::find_socket_in(path).map_err(anyhow::Error::msg),
        false => Ok(path.to_owned()),
    }
}
