//! `marline lab net`: the hosts of a scenario as network namespaces.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use marline_lab::net::{Net, Options, claims, release, sweep};
use marline_lab::scenario::{Scenario, Side};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};

use crate::cmd::monitor::print;
use crate::emulation::report;
use crate::emulation::script::Line;

/// Arguments of `marline lab net`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a scenario's hosts and links; they stand until this is interrupted.
    Up(Up),
    /// End a net, whoever holds it, and remove what it left.
    Down {
        /// Its name, as `status` lists it.
        name: String,
    },
    /// Remove what nets left whose process is gone; those in use are not touched.
    Sweep,
    /// List the nets of this machine.
    Status {
        /// A JSON array instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `marline lab net up`.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// The scenario, a TOML file.
    pub file: PathBuf,
    /// What tells it from others on this machine: 1 to 20 letters, digits and `-`. Without: the
    /// file's name.
    #[arg(long)]
    pub name: Option<String>,
    /// Directory of traces; else MARLINE_TRACE_DIR.
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
    /// End after so many seconds instead of standing until interrupted.
    #[arg(long = "for", value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Spin so long before a packet is due instead of sleeping: precision for processor time.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub spin_us: u64,
    /// The final statistics as one JSON array.
    #[arg(long)]
    pub json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// No right to make namespaces, something wrong with the scenario, or no such net.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Up(up) => stand(up).await?,
        Command::Down { name } => release(&name)?,
        Command::Sweep => {
            for name in sweep() {
                // A reader that went away has seen enough.
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
        let each = |(name, owner): &(String, marline_lab::net::Owner)| json!({ "name": name, "pid": owner.pid, "alive": owner.is_alive() });
        let list: Vec<serde_json::Value> = nets.iter().map(each).collect();
        return format!("{}\n", serde_json::Value::from(list));
    }
    let line = |(name, owner): &(String, marline_lab::net::Owner)| match owner.is_alive() {
        true => format!("{name}: held by process {}\n", owner.pid),
        false => format!("{name}: its process {} is gone; `sweep` removes it\n", owner.pid),
    };
    nets.iter().map(line).collect()
}

async fn stand(args: Up) -> anyhow::Result<()> {
    let scenario = Scenario::from_file(&args.file)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => {
            let stem = args.file.file_stem().and_then(|stem| stem.to_str());
            stem.context("the file's name cannot name a net: say --name")?.to_owned()
        }
    };
    let mut options = Options::new(&name);
    options.trace_dir.clone_from(&args.trace_dir);
    options.spin = Duration::from_micros(args.spin_us);
    // Before the net stands: a signal at any later time takes it down in order.
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let time = args.seconds.map(Duration::try_from_secs_f64).transpose()?;
    let net = Net::up(&scenario, &options)?;
    eprint!("{}", welcome(&net));
    let over = async {
        match time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
        () = over => {}
        () = obey_standard_input(&net) => {}
    }
    let reports = net.report()?;
    let text = match args.json {
        true => {
            let list: Vec<serde_json::Value> = reports.iter().map(report::to_json).collect();
            format!("{}\n", serde_json::Value::from(list))
        }
        false => reports.iter().map(report::text).collect(),
    };
    let _ = print(&text);
    Ok(())
}

/// How to enter the hosts, and what there is.
fn welcome(net: &Net) -> String {
    let mut text = String::new();
    for side in [Side::Client, Side::Server] {
        text += &format!("{side}: ip netns exec {} sh\n", net.namespace(side));
    }
    for path in &net.scenario().paths {
        let list = |side| {
            let nets = path.addresses(side).iter().map(|net| net.addr().to_string());
            nets.collect::<Vec<String>>().join(", ")
        };
        let link = if path.link.is_empty() { "a wire" } else { &path.link };
        let (name, client, server) = (&path.name, list(Side::Client), list(Side::Server));
        text += &format!("path {name}: {client} - {server}: {link}\n");
    }
    text
}

/// Obeys commands on standard input; returns at `quit`. At its end the net goes on standing.
async fn obey_standard_input(net: &Net) {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.trim().is_empty() {
            continue;
        }
        match line.parse() {
            Ok(Line::Path(path, order)) => match net.order(&path, order) {
                Ok(()) => {}
                Err(error) => eprintln!("marline lab net: {error:#}"),
            },
            Ok(Line::Stats) => match net.report() {
                Ok(reports) => eprint!("{}", reports.iter().map(report::text).collect::<String>()),
                Err(error) => eprintln!("marline lab net: {error:#}"),
            },
            Ok(Line::Quit) => return,
            Err(error) => eprintln!("marline lab net: {error:#}"),
        }
    }
    std::future::pending().await
}
