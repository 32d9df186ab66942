//! `marline monitor`: live view of a running client or server through its control socket.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use crate::control::client::ControlClient;
use crate::control::protocol::{Answer, Command};
use crate::control::socket_path;
use crate::{path_health_table, path_table};

/// Arguments of `marline monitor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process to watch, which prints it at start; may be omitted if only one
    /// runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
    /// Show a live table of all paths instead of events.
    #[arg(long)]
    pub table: bool,
    /// Seconds between two updates of --table.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, requires = "table")]
    pub interval: f64,
    /// Print --table once, then end.
    #[arg(long, requires = "table")]
    pub once: bool,
}

/// Connects to the socket that was named, or to the only one there is.
pub(super) async fn reach(control: Option<&PathBuf>) -> anyhow::Result<ControlClient> {
    let path = match control {
        Some(path) => path.clone(),
        None => socket_path::find().map_err(anyhow::Error::msg)?,
    };
    ControlClient::connect(&path).await
}

/// Shows events or the table until the watched process ends or the user interrupts.
///
/// # Errors
/// No process can be reached, or the interval is invalid.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !(0.05..=3_600.0).contains(&args.interval) {
        bail!("--interval {}: between 0.05 and 3600 seconds", args.interval);
    }
    let mut client = reach(args.control.as_ref()).await?;
    if args.table { show_table(&mut client, &args).await } else { show_events(client, &args).await }
}

async fn show_events(mut client: ControlClient, args: &Args) -> anyhow::Result<ExitCode> {
    match client.ask(Command::Monitor).await? {
        Answer::Monitoring => {}
        other => bail!("asked to monitor, got {other:?}"),
    }
    while let Some(event) = client.event().await? {
        let line = if args.json { serde_json::to_string(&event)? } else { event.to_line() };
        if print(&format!("{line}\n")).is_err() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn show_table(client: &mut ControlClient, args: &Args) -> anyhow::Result<ExitCode> {
    let redraw = std::io::stdout().is_terminal() && !args.json && !args.once;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(args.interval));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let has_path_health = match client.ask(Command::Hello).await? {
        Answer::Hello(hello) => hello.path_health,
        other => bail!("greeted, got {other:?}"),
    };
    loop {
        ticks.tick().await;
        let Ok(connections) = client.connections().await else {
            eprintln!("the marline process has ended");
            return Ok(ExitCode::SUCCESS);
        };
        let text = if args.json {
            format!("{}\n", serde_json::to_string(&connections)?)
        } else {
            let paths = client.paths().await.unwrap_or_default();
            // A program of before has no path health monitor to ask.
            let address_pairs = client.address_pairs().await.unwrap_or_default();
            let health = if has_path_health || !address_pairs.is_empty() {
                path_health_table::render(&address_pairs, &connections)
            } else {
                String::new()
            };
            path_table::render(&connections) + &health + &path_table::radios(&paths)
        };
        // Home, the text with the rest of each line erased, then everything below.
        let text =
            if redraw { format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")) } else { text };
        if print(&text).is_err() || args.once {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// A reader that went away (`| head`) ends the program quietly.
pub(super) fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
