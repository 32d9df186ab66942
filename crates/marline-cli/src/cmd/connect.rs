//! `marline connect`: one connection on standard input and output.

use std::path::PathBuf;
use std::process::ExitCode;

use marline::PathSpec;
use tokio::io::{AsyncReadExt, AsyncWriteExt, stdin, stdout};

use super::client::FAREWELL;
use crate::proxy::client::dialer::Dialer;
use crate::proxy::client::tunnel::{Patience, Tunnel};
use crate::proxy::config::Word;
use crate::proxy::config::client::ClientOptions;
use crate::proxy::config::policies::Mode;
use crate::proxy::target::{Host, Target};
use crate::proxy::transport::Transport;

/// Bytes read ahead per direction.
const BUFFER_LEN: usize = 32 * 1_024;

/// Arguments of `marline connect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A client's TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A file with the invite, mode 0600
    #[arg(long, value_name = "FILE")]
    pub invite_file: Option<PathBuf>,
    /// A path, as for `marline client`; again for more
    #[arg(long, value_name = "LOCAL")]
    pub path: Vec<Word<PathSpec>>,
    /// What the paths are for [default: interactive]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// The scheduler, instead of the mode's
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<String>,
    /// Where to: a name (the server resolves it) or an address
    pub host: String,
    /// TCP port
    pub port: u16,
}

/// Runs it.
///
/// # Errors
/// What went wrong, in words for the user.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let target = Target::new(Host::parse(&args.host)?, args.port)?;
    let flags = ClientOptions {
        invite_file: args.invite_file,
        path: args.path,
        mode: args.mode,
        scheduler: args.scheduler,
        ..ClientOptions::default()
    };
    let plan = flags.with_file(args.config.as_deref())?.plan()?;
    let client = marline::Client::bind(plan.network).await?;
    let dialer = Dialer::new(client.clone(), plan.invite.servers);
    let patience = Patience::default();
    let tunnel = Tunnel::new(dialer, plan.invite.pin, plan.invite.token, patience, 0)?;
    let result = match tunnel.open(&target).await {
        Ok(stream) => pass(stream).await,
        Err(error) => Err(error.into()),
    };
    client.drained(FAREWELL).await;
    result?;
    Ok(ExitCode::SUCCESS)
}

/// Both directions, each to its end. An end of the remote side closes standard output at once, so
/// that the reader learns of it; standard input may go on.
async fn pass<S: Transport>(mut stream: S) -> anyhow::Result<()> {
    let result = {
        let (mut from, mut to) = tokio::io::split(&mut stream);
        let upload = async {
            let mut input = stdin();
            let mut buf = vec![0; BUFFER_LEN];
            loop {
                match input.read(&mut buf).await? {
                    0 => return to.shutdown().await,
                    read => to.write_all(&buf[..read]).await?,
                }
                to.flush().await?;
            }
        };
        let download = async {
            let mut output = stdout();
            let mut buf = vec![0; BUFFER_LEN];
            loop {
                match from.read(&mut buf).await? {
                    0 => break,
                    read => output.write_all(&buf[..read]).await?,
                }
                output.flush().await?;
            }
            // Closes the pipe without closing the descriptor, whose number must stay taken.
            let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
            Ok(rustix::stdio::dup2_stdout(&nowhere)?)
        };
        tokio::try_join!(upload, download)
    };
    if let Err(error) = result {
        stream.abort();
        return Err(anyhow::Error::new(error).context("the connection broke"));
    }
    Ok(())
}
