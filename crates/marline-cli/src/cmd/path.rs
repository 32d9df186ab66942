//! `marline path`: listing and changing the paths of a running client.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use marline::paths::PathHealth;

use super::monitor::{connect_control, print};
use crate::control::protocol::{Answer, Command, Path, PathChange, Reached};
use crate::path_summary::nat64_text;
use crate::path_table::align;

/// Arguments of `marline path`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process; may be omitted if only one process runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Path to change: an interface, address or number from the list.
    #[arg(requires = "change")]
    pub path: Option<String>,
    /// Change to make.
    pub change: Option<Change>,
    /// State of the radio signal, for `hint`.
    #[arg(required_if_eq("change", "hint"))]
    pub hint: Option<Hint>,
}

/// Changes to a path.
#[derive(Copy, Clone, Debug, clap::ValueEnum)]
pub enum Change {
    /// Enable the path.
    Up,
    /// Disable the path and close its subflows.
    Down,
    /// Use the path only while no other path works.
    Backup,
    /// Use the path like the others.
    Primary,
    /// Use the path sparingly, as its bytes cost money.
    Metered,
    /// Use the path freely, as its bytes cost nothing.
    Unmetered,
    /// Send no copies into its idle capacity, as its bytes count against an allowance.
    Limited,
    /// Report the state of the radio signal: after `hint fading`, new data uses other paths if possible; `hint steady`
    /// ends this.
    Hint,
}

/// Reported state of a path's radio signal.
#[derive(Copy, Clone, Debug, clap::ValueEnum)]
pub enum Hint {
    /// The signal is fading.
    Fading,
    /// The signal is good.
    Steady,
}

impl Args {
    /// Returns the requested change.
    fn change(&self) -> anyhow::Result<Option<PathChange>> {
        let change = match (self.change, self.hint) {
            (None, _) => return Ok(None),
            (Some(Change::Hint), Some(Hint::Fading)) => PathChange::Fading,
            (Some(Change::Hint), Some(Hint::Steady)) => PathChange::Steady,
            (Some(Change::Hint), None) => bail!("missing argument: fading or steady"),
            (Some(change), Some(_)) => bail!("{change:?} takes no argument"),
            (Some(Change::Up), None) => PathChange::Up,
            (Some(Change::Down), None) => PathChange::Down,
            (Some(Change::Backup), None) => PathChange::Backup,
            (Some(Change::Primary), None) => PathChange::Primary,
            (Some(Change::Metered), None) => PathChange::Metered,
            (Some(Change::Unmetered), None) => PathChange::Unmetered,
            (Some(Change::Limited), None) => PathChange::Limited,
        };
        Ok(Some(change))
    }
}

/// Lists the paths or changes one.
///
/// # Errors
/// No process can be reached, or it rejects the request.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let change = args.change()?;
    let mut client = connect_control(args.control.as_ref()).await?;
    if let (Some(path), Some(change)) = (args.path, change) {
        client.request(Command::SetPath { path, change }).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let paths = match client.request(Command::Paths).await? {
        Answer::Paths(paths) => paths,
        other => bail!("unexpected answer to the request for paths: {other:?}"),
    };
    let text = if args.json { serde_json::to_string(&paths)? + "\n" } else { list(&paths) };
    // A closed output is ignored.
    let _ = print(&text);
    Ok(ExitCode::SUCCESS)
}

/// Returns the paths as a table, followed by the causes of faults. Lines fit 80 columns with IPv4 addresses.
fn list(paths: &[Path]) -> String {
    let mut rows = vec![["#", "path", "state", "local", "remote"].map(str::to_owned)];
    for (number, path) in paths.iter().enumerate() {
        let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        rows.push([
            number.to_string(),
            path.name.clone(),
            state_text(path),
            or_dash(&path.local),
            or_dash(&path.remote),
        ]);
    }
    align(&rows, &[1, 2, 3, 4]) + &causes(paths) + &describe_nat64(paths) + &servers(paths)
}

/// Returns the properties of a path, joined by commas: `up,backup,limited,usable`.
fn state_text(path: &Path) -> String {
    let has_failed = path.up && path.health == PathHealth::Unreachable;
    let words = [
        (true, if path.up { "up" } else { "down" }),
        (path.backup, "backup"),
        (path.metered, "metered"),
        (path.limited && !path.metered, "limited"),
        // The hint no longer matters once the path has failed.
        (path.fading && !has_failed, "fading"),
        // Health of the path, if its interface is up.
        (path.up, path.health.name()),
    ];
    words
        .into_iter()
        .filter_map(|(holds, word)| holds.then_some(word))
        .collect::<Vec<_>>()
        .join(",")
}

/// Returns an empty line, then a line for each path with a fault.
fn causes(paths: &[Path]) -> String {
    let line = |path: &Path| Some(format!("{}: {}\n", path.name, path.cause.as_ref()?));
    let lines: String = paths.iter().filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Returns an empty line, then a line for each path whose network has only IPv6.
fn describe_nat64(paths: &[Path]) -> String {
    let of = |path: &Path| {
        let prefix = path.nat64.as_ref()?;
        Some(format!("{}: {}\n", path.name, nat64_text(prefix)))
    };
    let lines: String = paths.iter().filter_map(of).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Returns an empty line, then the state of each server over each path. Empty if no server was tried.
fn servers(paths: &[Path]) -> String {
    let mut rows = vec![["path", "server", "reachability"].map(str::to_owned)];
    for path in paths {
        let row = |reached: &Reached| {
            [path.name.clone(), reached.server.clone(), describe_reachability(reached)]
        };
        rows.extend(path.servers.iter().map(row));
    }
    if rows.len() > 1 { format!("\n{}", align(&rows, &[0, 1, 2])) } else { String::new() }
}

/// Returns the state of a server, with the carrier if it is TCP.
fn describe_reachability(reached: &Reached) -> String {
    match &reached.tcp_failure {
        _ if reached.by_tcp => format!("{}, over TCP", reached.text),
        Some(why) => format!("{}; {why}", reached.text),
        None => reached.text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_numbers_paths_and_shows_their_faults() {
        let paths = [
            Path {
                name: "wlan0".into(),
                up: true,
                local: Some("192.0.2.7".into()),
                ..Path::default()
            },
            Path {
                name: "wwan0".into(),
                backup: true,
                metered: true,
                limited: true,
                fading: true,
                cause: Some("no route".into()),
                ..Path::default()
            },
        ];
        let text = list(&paths);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "0  wlan0  up,untried                  192.0.2.7  -");
        assert_eq!(lines[2], "1  wwan0  down,backup,metered,fading  -          -");
        assert_eq!(lines[3..], ["", "wwan0: no route"]);
    }

    #[test]
    fn the_list_fits_eighty_columns() {
        let server = Reached {
            server: "203.0.113.200:65535".into(),
            reach: "no-answer".into(),
            text: "no answer for 3600 s (tried 999 times)".into(),
            ..Reached::default()
        };
        let text = list(&[Path {
            name: "enp0s31f6".into(),
            up: true,
            backup: true,
            limited: true,
            fading: true,
            health: PathHealth::Unreachable,
            local: Some("192.168.100.200".into()),
            remote: Some("203.0.113.200".into()),
            cause: Some(format!("{}: {}", server.server, server.text)),
            servers: vec![server],
            ..Path::default()
        }]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_silent_path_is_listed_as_unreachable() {
        let server = |reach: &str, text: &str| Reached {
            server: "9.9.9.1:7777".into(),
            reach: reach.into(),
            text: text.into(),
            ..Reached::default()
        };
        let silent = "no answer for 12 s (tried 5 times)";
        let path = |name: &str, health: PathHealth, server: Reached, cause: Option<String>| Path {
            name: name.into(),
            up: true,
            health,
            servers: vec![server],
            cause,
            ..Path::default()
        };
        let text = list(&[
            path(
                "wlan0",
                PathHealth::Unreachable,
                server("no-answer", silent),
                Some(format!("9.9.9.1:7777: {silent}")),
            ),
            path(
                "wwan0",
                PathHealth::Usable,
                server("answers", "answers (last received 80 ms ago)"),
                None,
            ),
        ]);
        let expected = "\
#  path   state           local  remote
0  wlan0  up,unreachable  -      -
1  wwan0  up,usable       -      -

wlan0: 9.9.9.1:7777: no answer for 12 s (tried 5 times)

path   server        reachability
wlan0  9.9.9.1:7777  no answer for 12 s (tried 5 times)
wwan0  9.9.9.1:7777  answers (last received 80 ms ago)
";
        assert_eq!(text, expected);
    }
}
