//! Subcommand `marline connect`: one connection on standard input and output. Prints little, because its standard
//! error is usually the terminal of an ssh session.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use marline::advanced::KeptCapabilities;
use marline::paths::PathSpec;
use marline_proxy::client::dialer::Dialer;
use marline_proxy::client::direct::Direct;
use marline_proxy::client::open::Open;
use marline_proxy::client::tunnel::{Timeouts, Tunnel};
use marline_proxy::deadlines::Deadlines;
use marline_proxy::socks;
use marline_proxy::target::{Host, Target};
use marline_proxy::transport::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt, stdin, stdout};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client_network::CLOSING_TIME;
use crate::config::StringValue;
use crate::config::client::{ClientOptions, ClientPlan, Route};
use crate::config::policies::Mode;
use crate::native::{CarrierChoice, drop_privileges};

/// Size of the read-ahead buffer per direction, in bytes.
const BUFFER_LEN: usize = 32 * 1_024;

/// Time limit for the answer from a SOCKS5 port, including the connection behind it.
const SOCKS_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `marline connect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// TOML configuration file of a client
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// File with the invite, mode 0600 [default: the one that `marline join` stored]
    #[arg(long, value_name = "FILE")]
    pub invite_file: Option<PathBuf>,
    /// Connect directly to the target, without a server, like `marline client --direct`
    #[arg(long, conflicts_with = "invite_file")]
    pub direct: bool,
    /// Connect only through this SOCKS5 port, for example that of a running `marline client`
    #[arg(long, value_name = "ADDR:PORT", conflicts_with_all = ["direct", "invite_file", "config"])]
    pub socks5: Option<SocketAddr>,
    /// Path, as for `marline client`; may be repeated
    #[arg(long, value_name = "LOCAL")]
    pub path: Vec<StringValue<PathSpec>>,
    /// Mode: how the paths are used [default: balanced]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Scheduler [default: the mode's]
    #[arg(long, value_name = "SPEC")]
    pub scheduler: Option<String>,
    /// Carrier for segments [default: udp, or raw with --direct]
    #[arg(long, value_enum)]
    pub carrier: Option<CarrierChoice>,
    /// Target host: a name (resolved by the server) or an address
    pub host: String,
    /// TCP port
    pub port: u16,
}

/// Target and route of the connection.
#[derive(Debug)]
pub struct PreparedConnect {
    target: Target,
    way: ConnectVia,
}

#[derive(Debug)]
enum ConnectVia {
    Socks5(SocketAddr),
    Own(Box<ClientPlan>),
}

/// Completes the privileged setup, then drops the privileges.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<PreparedConnect> {
    prepare_route(args).map_err(single_line_error)
}

/// Removes line breaks, because the parent process, such as ssh, shows the error in its own terminal.
fn single_line_error(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    match text.contains('\n') {
        true => anyhow::anyhow!("{}", text.split_whitespace().collect::<Vec<_>>().join(" ")),
        false => error,
    }
}

fn prepare_route(args: Args) -> anyhow::Result<PreparedConnect> {
    let target = Target::new(Host::parse(&args.host)?, args.port)?;
    if let Some(address) = args.socks5 {
        drop_privileges(KeptCapabilities::Nothing)?;
        return Ok(PreparedConnect { target, way: ConnectVia::Socks5(address) });
    }
    let flags = ClientOptions {
        invite_file: args.invite_file,
        direct: args.direct,
        path: args.path,
        mode: args.mode,
        scheduler: args.scheduler,
        carrier: args.carrier,
        ..ClientOptions::default()
    };
    let mut options = flags.with_file(args.config.as_deref())?;
    // Remote forwards in the file are for the running client.
    options.remote_forward.clear();
    let mut plan = options.plan()?;
    plan.network.carrier(plan.carrier.clone().open(KeptCapabilities::Nothing)?);
    Ok(PreparedConnect { target, way: ConnectVia::Own(Box::new(plan)) })
}

/// Runs the connection. Only the final error is written to standard error, unless the log is enabled (`-v`).
///
/// # Errors
/// An error message for the user, in one line.
pub async fn run(prepared: PreparedConnect) -> anyhow::Result<ExitCode> {
    connect_and_relay(prepared).await.map_err(single_line_error)
}

async fn connect_and_relay(prepared: PreparedConnect) -> anyhow::Result<ExitCode> {
    let target = prepared.target;
    let plan = match prepared.way {
        ConnectVia::Own(plan) => plan,
        ConnectVia::Socks5(address) => {
            relay_stdio(connect_by_socks(address, &target).await?).await?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let client = plan.network.bind().await?;
    let deadlines = Deadlines::default();
    deadlines.change(plan.deadlines);
    let result = match plan.route {
        Route::Direct => relay_streams(&Direct::new(client.clone(), deadlines), &target).await,
        Route::Through(invite) => {
            let dialer = Dialer::new(client.clone(), invite.servers, plan.carrier.transport());
            let patience = Timeouts::default();
            let tunnel =
                Tunnel::with_deadlines(dialer, invite.pin, invite.token, patience, deadlines, 0)?;
            relay_streams(&*tunnel, &target).await
        }
    };
    client.drained(CLOSING_TIME).await;
    result?;
    Ok(ExitCode::SUCCESS)
}

async fn relay_streams<O: Open>(way: &O, target: &Target) -> anyhow::Result<()> {
    relay_stdio(way.open(target).await?).await
}

async fn connect_by_socks(address: SocketAddr, target: &Target) -> anyhow::Result<TcpStream> {
    let connected = TcpStream::connect(address).await;
    let mut stream = connected.with_context(|| format!("cannot connect to SOCKS5 {address}"))?;
    stream.set_nodelay(true)?;
    let asked = timeout(SOCKS_TIMEOUT, socks::request_target(&mut stream, target)).await;
    match asked {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(error)) => Err(error).with_context(|| format!("SOCKS5 {address}: {target}")),
        Err(_) => anyhow::bail!("no answer from SOCKS5 proxy {address}"),
    }
}

/// Relays both directions until each has ended. The end of the remote side closes standard output immediately, so that
/// the reader notices. Standard input may continue.
async fn relay_stdio<S: Transport>(mut stream: S) -> anyhow::Result<()> {
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
            // Closes the pipe but keeps the descriptor, whose number must stay in use.
            let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
            Ok(rustix::stdio::dup2_stdout(&nowhere)?)
        };
        tokio::try_join!(upload, download)
    };
    if let Err(error) = result {
        stream.abort();
        return Err(anyhow::Error::new(error).context("connection lost"));
    }
    Ok(())
}
