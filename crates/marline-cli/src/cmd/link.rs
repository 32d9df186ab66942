//! `marline link`: the link model as a UDP relay between real sockets.

mod running;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};

use super::monitor::print;
use crate::control;
use crate::emulation::{report, script};
use running::{Running, serve};

/// Arguments of `marline link`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where clients send to; port 0 lets the system choose.
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Where their datagrams go.
    #[arg(long, value_name = "ADDR:PORT")]
    pub to: SocketAddr,
    /// What reports call the link.
    #[arg(long, default_value = "link")]
    pub name: String,
    /// The link: a preset (wifi, lte, umts, walkout) and items such as
    /// `rate=20M,delay=10ms,queue=80ms,loss=1%,up.rate=5M`. Without: a wire.
    #[arg(default_value = "")]
    pub spec: String,
    /// Items for the direction from the client only.
    #[arg(long, visible_alias = "up", value_name = "ITEMS")]
    pub uplink: Option<String>,
    /// Items for the direction to the client only.
    #[arg(long, visible_alias = "down", value_name = "ITEMS")]
    pub downlink: Option<String>,
    /// Directory of traces; else MARLINE_TRACE_DIR.
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
    /// Seed of everything random on the link.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A command at a time after the start: `5s down`, `8s up`, `10s set rate=1M`; may be repeated.
    #[arg(long, value_name = "TIME COMMAND")]
    pub at: Vec<String>,
    /// Take commands here too: a unix socket, one command a line, one JSON object back.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// End after so many seconds instead of running until interrupted.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Client addresses at the same time.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub max_clients: u32,
    /// Spin so long before a datagram is due instead of sleeping: precision for processor time.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub spin_us: u64,
    /// The final statistics as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the link until it is interrupted, told to quit or its time is over, and prints what it did.
///
/// # Errors
/// The description cannot be understood, a trace is missing or a socket cannot be bound.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let running = std::sync::Arc::new(Running::start(&args)?);
    eprintln!("link {} listening on {}, to {}", args.name, running.local_addr()?, args.to);
    let quit = std::sync::Arc::new(tokio::sync::Notify::new());
    let _control = match &args.control {
        Some(path) => Some(serve(path, running.clone(), quit.clone())?),
        None => None,
    };
    let mut terminated = signal(SignalKind::terminate())?;
    let time = args.seconds.map(Duration::try_from_secs_f64).transpose()?;
    let over = async {
        match time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        signal = tokio::signal::ctrl_c() => signal?,
        _ = terminated.recv() => {}
        () = over => {}
        () = quit.notified() => {}
        () = obey_standard_input(&running) => {}
    }
    let report = running.report()?;
    let text =
        if args.json { format!("{}\n", report::to_json(&report)) } else { report::text(&report) };
    // A reader that went away has seen enough.
    let _ = print(&text);
    Ok(ExitCode::SUCCESS)
}

/// Obeys commands on standard input; returns at `quit`. At its end the link goes on.
async fn obey_standard_input(running: &Running) {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.trim().is_empty() {
            continue;
        }
        match line.parse().and_then(|order| running.obey(&order)) {
            Ok(running::Answer::Done) => {}
            Ok(running::Answer::Stats(report)) => eprint!("{}", report::text(&report)),
            Ok(running::Answer::Quit) => return,
            Err(error) => eprintln!("marline link: {error:#}"),
        }
    }
    std::future::pending().await
}
