//! `marline-lab link`: the link model in real time, as a UDP relay between sockets or as interfaces
//! between two network namespaces.

mod between;
mod relay;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use marline_lab::scenario::Path;

use super::link_supervisor::{LinkSupervisor, NamedLinks, SupervisorArgs};
use marline_cli::native::{capabilities_for_ports, drop_privileges};
use relay::Relay;

/// Arguments of `marline-lab link`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address to which clients send. Port 0 lets the system choose.
    #[arg(long, value_name = "ADDR:PORT", requires = "to", required_unless_present = "between")]
    pub listen: Option<SocketAddr>,
    /// Address to which their datagrams are forwarded.
    #[arg(long, value_name = "ADDR:PORT", requires = "listen")]
    pub to: Option<SocketAddr>,
    /// Connect two network namespaces instead, the client's and the server's, by their names in `ip netns`:
    /// each path is an interface in both. Needs root.
    #[arg(
        long, num_args = 2, value_names = ["CLIENT-NS", "SERVER-NS"],
        conflicts_with_all = ["listen", "to", "spec", "uplink", "downlink", "name"],
        requires = "path"
    )]
    pub between: Vec<String>,
    /// A path between the namespaces: name, client's and server's address, link; for example
    /// `wifi,10.0.1.2/24,10.0.1.1/24,rate=8M,delay=10ms`. May be repeated.
    #[arg(long, value_name = "PATH", requires = "between")]
    pub path: Vec<Path>,
    /// Name of the link in reports.
    #[arg(long, default_value = "link")]
    pub name: String,
    /// The link: a preset (wifi, lte, umts, walkout) and items such as
    /// `rate=20M,delay=10ms,queue=80ms,loss=1%,up.rate=5M`. Default: an ideal link.
    #[arg(default_value = "")]
    pub spec: String,
    /// Items for the direction from the client only.
    #[arg(long, visible_alias = "up", value_name = "ITEMS")]
    pub uplink: Option<String>,
    /// Items for the direction to the client only.
    #[arg(long, visible_alias = "down", value_name = "ITEMS")]
    pub downlink: Option<String>,
    /// Directory of traces [default: MARLINE_TRACE_DIR].
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
    /// Seed of all random numbers of the link.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Command at a given time after the start: `5s down`, `10s set rate=1M`, between namespaces `5s down wifi`. May
    /// be repeated.
    #[arg(long, value_name = "TIME COMMAND")]
    pub at: Vec<String>,
    /// Maximum number of simultaneous client addresses.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub max_clients: u32,
    /// Source of commands.
    #[command(flatten)]
    pub supervisor: SupervisorArgs,
}

impl Args {
    /// Drops privileges that a UDP relay does not need. Links between namespaces need root's privileges and keep them.
    /// Must be called before threads are started.
    ///
    /// # Errors
    /// A system call failed.
    pub fn drop_privileges(&self) -> anyhow::Result<()> {
        match self.listen {
            Some(address) => drop_privileges(capabilities_for_ports([address.port()])),
            None => Ok(()),
        }
    }
}

/// Runs the link until it is interrupted, receives `quit` or its time limit ends, and prints its statistics.
///
/// # Errors
/// The spec is invalid, a trace is missing, a socket cannot be bound or an interface cannot be
/// created.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let supervisor = LinkSupervisor::new(&args.supervisor)?;
    if let [client, server] = &args.between[..] {
        let links = between::start(&args, [client, server])?;
        eprintln!("link between {client} and {server}: {}", between::names(&links));
        supervisor.run(Arc::new(NamedLinks(links)), &args.supervisor).await?;
    } else {
        let (listen, to) = args.listen.zip(args.to).context("--listen and --to are missing")?;
        let relay = Relay::start(&args, listen, to)?;
        eprintln!("link {} listening on {}, to {to}", args.name, relay.local_addr()?);
        supervisor.run(Arc::new(relay), &args.supervisor).await?;
    }
    Ok(ExitCode::SUCCESS)
}
