//! `marline monitor`: live view of a running client or server through its control socket.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use crate::control::client::ControlClient;
use crate::control::protocol::{Answer, Command, Event};
use crate::control::socket_path;
use crate::{path_health_table, path_table};

/// Arguments of `marline monitor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process, printed at its start; may be omitted if only one process runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
    /// Also show scheduler decisions: the chosen path, and the reason for copies. In text form, similar
    /// decisions are shown once a second; --json shows each decision with its inputs.
    #[arg(long, conflicts_with = "table")]
    pub decisions: bool,
    /// Show a live table of all paths instead of events.
    #[arg(long)]
    pub table: bool,
    /// Seconds between two updates of --table.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, requires = "table")]
    pub interval: f64,
    /// Print the table once and exit.
    #[arg(long, requires = "table")]
    pub once: bool,
}

/// Connects to the given socket, or to the only existing one.
pub(super) async fn connect_control(control: Option<&PathBuf>) -> anyhow::Result<ControlClient> {
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
        bail!("--interval {}: must be 0.05 to 3600 seconds", args.interval);
    }
    let mut client = connect_control(args.control.as_ref()).await?;
    if args.table { show_table(&mut client, &args).await } else { show_events(client, &args).await }
}

async fn show_events(mut client: ControlClient, args: &Args) -> anyhow::Result<ExitCode> {
    match client.request(Command::Monitor { decisions: args.decisions }).await? {
        Answer::Monitoring => {}
        other => bail!("unexpected answer to the request for events: {other:?}"),
    }
    let mut alike = ShownDecisions::default();
    while let Some(event) = client.event().await? {
        let line = if args.json {
            serde_json::to_string(&event)?
        } else {
            let Some(line) = alike.line(&event) else { continue };
            line
        };
        if print(&format!("{line}\n")).is_err() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Kind of a decision: connection, rule and subflow.
type Kind = (Option<u64>, String, Option<u64>);

/// The decisions shown last, by kind.
#[derive(Debug, Default)]
struct ShownDecisions {
    /// Time in us at which a decision was shown, and the number of hidden ones since then.
    shown: BTreeMap<Kind, (u64, u64)>,
}

impl ShownDecisions {
    /// Interval between two shown decisions of the same kind.
    const SHOW_INTERVAL_US: u64 = 1_000_000;
    /// Maximum number of remembered kinds. Beyond it, old ones are removed.
    const MAX_KINDS: usize = 1_000;

    /// Returns the line to show for this event, or `None` for a decision whose kind was shown less than a second ago.
    fn line(&mut self, event: &Event) -> Option<String> {
        let Some(rule) = event.rule.clone() else { return Some(event.to_line()) };
        if self.shown.len() > Self::MAX_KINDS {
            self.shown.clear();
        }
        let key = (event.connection, rule, event.subflow);
        let mut line = event.to_line();
        if let Some((at_us, left_out)) = self.shown.get_mut(&key) {
            if event.at_us.saturating_sub(*at_us) < Self::SHOW_INTERVAL_US {
                *left_out += 1;
                return None;
            }
            if *left_out > 0 {
                line.push_str(&format!(" ({left_out} similar decisions omitted)"));
            }
        }
        self.shown.insert(key, (event.at_us, 0));
        Some(line)
    }
}

async fn show_table(client: &mut ControlClient, args: &Args) -> anyhow::Result<ExitCode> {
    let redraw = std::io::stdout().is_terminal() && !args.json && !args.once;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(args.interval));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let has_path_health = match client.request(Command::Hello).await? {
        Answer::Hello(hello) => hello.path_health,
        other => bail!("unexpected answer to the greeting: {other:?}"),
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
            // An older program may not support path health monitoring.
            let address_pairs = client.address_pairs().await.unwrap_or_default();
            let health = if has_path_health || !address_pairs.is_empty() {
                path_health_table::render(&address_pairs, &connections)
            } else {
                String::new()
            };
            path_table::render(&connections) + &health + &path_table::list_unusable(&paths)
        };
        // Cursor home, the text with the rest of each line erased, then erase everything below.
        let text =
            if redraw { format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")) } else { text };
        if print(&text).is_err() || args.once {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Writes to standard output without buffering. An error, such as a closed pipe (`| head`), ends the program quietly.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(at_ms: u64, rule: &str) -> Event {
        Event {
            event: "DECISION".into(),
            at_us: at_ms * 1_000,
            connection: Some(2),
            subflow: Some(1),
            rule: Some(rule.into()),
            text: Some("copy of 14 kB on lte".into()),
            ..Event::default()
        }
    }

    #[test]
    fn similar_decisions_are_shown_once_per_second() {
        let mut alike = ShownDecisions::default();
        let first = alike.line(&decision(1_000, "late"));
        let line = "[     1.000000]       DECISION conn=2 subflow=1 copy of 14 kB on lte";
        assert_eq!(first.as_deref(), Some(line));
        assert_eq!(alike.line(&decision(1_400, "late")), None);
        assert!(alike.line(&decision(1_500, "end")).is_some(), "another rule");
        assert_eq!(alike.line(&decision(1_999, "late")), None);
        let later = alike.line(&decision(2_000, "late")).expect("one second later");
        assert!(later.ends_with(" on lte (2 similar decisions omitted)"), "{later}");
        let later = alike.line(&decision(3_000, "late")).expect("one second later");
        assert!(later.ends_with(" on lte"), "{later}");
        // Any other event is always shown.
        let other = Event { event: "SF_PRIO".into(), ..Event::default() };
        assert!(alike.line(&other).is_some() && alike.line(&other).is_some());
        for connection in 0..2_000 {
            alike.line(&Event { connection: Some(connection), ..decision(4_000, "late") });
        }
        assert!(alike.shown.len() <= ShownDecisions::MAX_KINDS + 1);
    }
}
