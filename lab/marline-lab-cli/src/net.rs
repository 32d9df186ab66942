//! `marline-lab net`: the hosts of a scenario as network namespaces.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use marline_lab::net::{Net, Options, Owner, claims, release, remove_remains};
use marline_lab::scenario::Side;
use serde_json::json;

use crate::link_supervisor::{LinkSupervisor, NamedLinks, SupervisorArgs};
use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab net`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a scenario's hosts and links, which exist until this command is interrupted.
    Up(Up),
    /// End a network and the process that runs it, and remove its remains.
    Down {
        /// Name of the network, as listed by `status`.
        name: String,
    },
    /// Remove the remains of networks whose process has ended.
    Sweep,
    /// List the networks of this machine.
    Status {
        /// Print a JSON array instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `marline-lab net up`.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// The scenario or experiment, a TOML file.
    pub file: PathBuf,
    /// Name of the network, unique on this machine: 1 to 20 letters, digits and `-`. Default: the
    /// file's name.
    #[arg(long)]
    pub name: Option<String>,
    /// Directory of traces [default: MARLINE_TRACE_DIR].
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
    /// Source of commands: `down wifi`, `up wifi`, `set wifi rate=5M`, `stats`, `quit`.
    #[command(flatten)]
    pub supervisor: SupervisorArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// No permission to create namespaces, an invalid scenario, or no such network.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Up(up) => run_network(up).await?,
        Command::Down { name } => release(&name)?,
        Command::Sweep => {
            for name in remove_remains() {
                // A closed reader is not an error.
                let _ = print(&format!("{name}: removed\n"));
            }
        }
        Command::Status { json } => {
            let _ = print(&status(json));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn status(json: bool) -> String {
    let nets = claims();
    if json {
        let describe = |(name, owner): (String, Owner)| {
            let alive = owner.is_alive();
            json!({ "name": name, "pid": owner.pid, "alive": alive })
        };
        return format!("{}\n", nets.into_iter().map(describe).collect::<serde_json::Value>());
    }
    let line = |(name, owner): (String, Owner)| match owner.is_alive() {
        true => format!("{name}: used by process {}\n", owner.pid),
        false => format!("{name}: process {} has ended; `sweep` removes the network\n", owner.pid),
    };
    nets.into_iter().map(line).collect()
}

async fn run_network(args: Up) -> anyhow::Result<()> {
    let scenario = marline_lab::experiment::file::hosts(&args.file)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => {
            let stem = args.file.file_stem().and_then(|stem| stem.to_str());
            stem.context("the file's name is not a valid network name: give --name")?.to_owned()
        }
    };
    let mut options = Options::new(&name);
    options.trace_dir.clone_from(&args.trace_dir);
    options.spin = Duration::from_micros(args.supervisor.spin_us);
    // Created before the network, so that a signal at any later time removes the network cleanly.
    let supervisor = LinkSupervisor::new(&args.supervisor)?;
    let net = Net::create(&scenario, &options)?;
    eprint!("{}", paths_text(&net));
    supervisor.run(Arc::new(NamedLinks(net)), &args.supervisor).await
}

/// Prints the paths, and the commands that open a shell on the hosts.
fn paths_text(net: &Net) -> String {
    let mut text = String::new();
    for side in [Side::Client, Side::Server] {
        text += &format!("{side}: ip netns exec {} sh\n", net.namespace(side));
    }
    for path in &net.scenario().paths {
        let list = |side| {
            let nets = path.addresses(side).iter().map(|net| net.addr().to_string());
            nets.collect::<Vec<String>>().join(", ")
        };
        let link = if path.link.is_empty() { "an ideal link" } else { &path.link };
        let (name, client, server) = (&path.name, list(Side::Client), list(Side::Server));
        text += &format!("path {name}: {client} - {server}: {link}\n");
    }
    text
}
