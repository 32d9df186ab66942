//! Subcommand `marline status`: state of the paths at a glance, for people and scripts.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use marline::paths::PathHealth;
use marline_dashboard::PathSummary;
use serde::Serialize;

use super::monitor::{connect_control, print};
use crate::control::protocol::{
    Answer, Client, Clients, Command, Connection, Hello, OpenTarget, Path, Trouble,
};
use crate::memory::Memory;
use crate::path_summary::{summarize, summarize_listener};
use crate::path_table::align;
use crate::times::{format_ago, span};

/// Exit status: no path is usable.
const NO_PATH: u8 = 2;
/// Exit status: no process is running.
const NOT_RUNNING: u8 = 3;
/// Duplicate bytes are shown if they are at least this fraction of the received bytes: one hundredth.
const DUPLICATE_DISPLAY_DIVISOR: u64 = 100;

/// Arguments of `marline status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 if a path is usable or degraded, 2 if none is, 3 if no process is running."
)]
pub struct Args {
    /// Control socket of the process; may be omitted if only one process runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Also show the targets of a client's open streams. Only the client's user and root may use this
    /// command.
    #[arg(long)]
    pub targets: bool,
}

/// Complete status.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    role: String,
    version: String,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    connections: usize,
    /// Problem between this client and its server, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<Trouble>,
    /// Schedulers of the open connections.
    schedulers: Vec<String>,
    /// Number of connections that fell back to plain TCP.
    fallbacks: usize,
    /// Use of the paths by the policy, and the reasons for unused paths, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// Number of repair segments sent to the peer, and of bytes recovered from the peer's repair segments.
    repairs_sent: u64,
    bytes_repaired: u64,
    /// Use of the memory budget.
    memory: Memory,
    paths: Vec<PathSummary>,
    /// Clients and refusals of a server.
    #[serde(flatten)]
    clients: Clients,
    /// Targets of a client's streams, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<Vec<OpenTarget>>,
}

/// Prints the status.
///
/// # Errors
/// The running process does not answer as expected.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut client = match connect_control(args.control.as_ref()).await {
        Ok(client) => client,
        Err(error) => {
            eprintln!("marline: {error:#}");
            return Ok(ExitCode::from(NOT_RUNNING));
        }
    };
    let Answer::Hello(hello) = client.request(Command::Hello).await? else {
        bail!("unexpected answer to the hello command")
    };
    let Answer::Connections(connections) = client.request(Command::Connections).await? else {
        bail!("unexpected answer to the connections command")
    };
    // A server has no paths of its own.
    let paths = match client.request(Command::Paths).await {
        Ok(Answer::Paths(paths)) => paths,
        _ => Vec::new(),
    };
    // A client has no clients of its own.
    let clients = match client.request(Command::Clients).await {
        Ok(Answer::Clients(clients)) => clients,
        _ => Clients::default(),
    };
    let targets = match args.targets {
        false => None,
        true => match client.request(Command::Targets).await? {
            Answer::Targets(targets) => Some(targets),
            _ => bail!("unexpected answer to the targets command"),
        },
    };
    let status = Status { targets, ..status(hello, &connections, &paths, clients) };
    let text =
        if args.json { serde_json::to_string(&status)? + "\n" } else { status_text(&status) };
    // A closed output is ignored.
    let _ = print(&text);
    Ok(if status.has_working_path() { ExitCode::SUCCESS } else { ExitCode::from(NO_PATH) })
}

impl Status {
    /// Returns true if data gets through on some path.
    fn has_working_path(&self) -> bool {
        self.paths.iter().any(|path| path.state.is_usable())
    }
}

fn status(hello: Hello, connections: &[Connection], paths: &[Path], clients: Clients) -> Status {
    let mut schedulers: Vec<String> =
        connections.iter().map(|connection| connection.scheduler.clone()).collect();
    schedulers.sort();
    schedulers.dedup();
    let rows = |path: &Path| match hello.role.as_str() {
        "client" => vec![summarize(path, connections)],
        _ => summarize_listener(path, connections),
    };
    let paths: Vec<PathSummary> = paths.iter().flat_map(rows).collect();
    Status {
        role: hello.role,
        version: hello.version,
        pid: hello.pid,
        mode: hello.mode,
        connections: connections.len(),
        trouble: hello.trouble,
        schedulers,
        fallbacks: connections.iter().filter(|connection| connection.fallback.is_some()).count(),
        policy: policy(&paths),
        repairs_sent: hello.repairs_sent,
        bytes_repaired: hello.bytes_repaired,
        memory: hello.memory,
        paths,
        clients,
        targets: None,
    }
}

/// Returns the status as text, in at most 80 columns except for causes.
fn status_text(status: &Status) -> String {
    let Status { role, version, pid, connections, .. } = status;
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let mut text = format!("marline {role} {version}, process {pid}");
    if let Some(mode) = &status.mode {
        text += &format!(", mode {mode}");
    }
    text += &format!(": {connections} connection{}", plural(*connections));
    if !status.schedulers.is_empty() {
        text += &format!(", by {}", status.schedulers.join(" "));
    }
    if status.fallbacks > 0 {
        text += &format!(", {} of them over plain TCP", status.fallbacks);
    }
    text.push('\n');
    if let Some(policy) = &status.policy {
        text += &format!("{policy}\n");
    }
    if let Some(Trouble { text: why, help, .. }) = &status.trouble {
        let what =
            if status.has_working_path() { "the latest attempt failed" } else { "not working" };
        text += &format!("{what}: {why}; {help}\n");
    }
    if status.repairs_sent + status.bytes_repaired > 0 {
        let (sent, recovered) = (status.repairs_sent, bytes(status.bytes_repaired));
        text += &format!("repairs: {sent} sent; {recovered} recovered from received repairs\n");
    }
    text += &format_memory(&status.memory);
    if !status.paths.is_empty() {
        text += &format_paths(&status.paths);
    }
    text += &format_clients(&status.clients, SystemTime::now());
    text + &status.targets.as_deref().map(format_targets).unwrap_or_default()
}

/// Returns a line about memory, if memory is scarce or a writer had to wait for it.
fn format_memory(memory: &Memory) -> String {
    let Memory { limit: Some(limit), used, waits, by_kind } = memory else { return String::new() };
    if *waits == 0 && *used < limit / 2 {
        return String::new();
    }
    let mut kinds: Vec<(&String, &u64)> = by_kind.iter().collect();
    kinds.sort_by_key(|(_, held)| Reverse(**held));
    let kinds: Vec<String> =
        kinds.iter().take(3).map(|(kind, held)| format!("{kind} {}", bytes(**held))).collect();
    let (used, limit) = (bytes(*used), bytes(*limit));
    format!("memory: {used} of {limit} ({}), waited {waits} times\n", kinds.join(", "))
}

/// Returns a row for each path, and additional remarks.
fn format_paths(paths: &[PathSummary]) -> String {
    let head = ["path", "state", "local", "last rx", "srtt", "retx", "sent", "copies", "recv"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(paths.iter().map(row));
    let mut text = align(&rows, &[0, 1, 2]);
    for path in paths {
        let quota = path.quota.as_ref().map(|quota| format!("quota: {}", quota.text()));
        let words = [path.reason.as_ref(), quota.as_ref()];
        for word in words.into_iter().flatten() {
            text += &format!("{}: {word}\n", path.name);
        }
    }
    let twice = |path: &&PathSummary| {
        path.bytes_duplicate > path.bytes_received / DUPLICATE_DISPLAY_DIVISOR
    };
    let twice: Vec<String> = paths
        .iter()
        .filter(twice)
        .map(|path| format!("{} {}", path.name, bytes(path.bytes_duplicate)))
        .collect();
    if !twice.is_empty() {
        text += &format!("duplicates received: {}\n", twice.join(", "));
    }
    text
}

/// Returns a row for each stream, in order of opening. Only the last column has no limit.
fn format_targets(targets: &[OpenTarget]) -> String {
    if targets.is_empty() {
        return "no open streams\n".to_owned();
    }
    let head = ["connection", "open for", "to target", "from target", "target"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(targets.iter().map(|open| {
        [
            open.connection.map_or_else(|| "-".to_owned(), |number| number.to_string()),
            span(Duration::from_secs(open.age_s)),
            bytes(open.to_target),
            bytes(open.from_target),
            open.target.clone(),
        ]
    }));
    align(&rows, &[4])
}

/// Returns the shares of the paths in the first transmissions of the open connections, and the reasons for paths
/// without a share. Returns `None` if there is only one path, or nothing was sent.
fn policy(paths: &[PathSummary]) -> Option<String> {
    /// Share below which a path counts as unused, because the share rounds to zero.
    const MIN_SHARE: f64 = 0.005;
    let new = |path: &PathSummary| {
        path.bytes_sent.saturating_sub(path.bytes_repeated + path.bytes_copied)
    };
    let all: u64 = paths.iter().map(new).sum();
    if paths.len() < 2 || all == 0 {
        return None;
    }
    let of_all = |bytes: u64| bytes as f64 / all as f64;
    let (used, left): (Vec<_>, Vec<_>) =
        paths.iter().partition(|path| of_all(new(path)) >= MIN_SHARE);
    let share = |path: &&PathSummary| format!("{} {:.0}%", path.name, of_all(new(path)) * 100.0);
    let used: Vec<String> = used.iter().map(share).collect();
    let copied: u64 = paths.iter().map(|path| path.bytes_copied).sum();
    let copied = of_all(copied) * 100.0;
    let mut text = format!("new data: {}; copies: {copied:.1}%", used.join(", "));
    for path in left {
        text += &format!("; {} unused: {}", path.name, exclusion_reason(path, paths));
    }
    Some(text)
}

/// Returns the reason why a path has no share.
fn exclusion_reason(path: &PathSummary, paths: &[PathSummary]) -> String {
    let soonest = paths.iter().filter(|other| other.state == PathHealth::Usable);
    let soonest = soonest.filter_map(|other| Some((other.srtt_us?, other))).min_by_key(|at| at.0);
    match (path.state, soonest, path.srtt_us) {
        (PathHealth::Unreachable | PathHealth::Untried, ..) => path.state.name().to_owned(),
        _ if path.quota.as_ref().is_some_and(|quota| quota.state != "within") => {
            "quota used up".to_owned()
        }
        _ if path.backup => "backup".to_owned(),
        (PathHealth::Degraded, ..) => "degraded".to_owned(),
        (_, Some((least, other)), Some(own)) if own > least => {
            format!("slower than {}", other.name)
        }
        _ => "not needed so far".to_owned(),
    }
}

/// Returns rows for up to 20 clients: those with connections, then the most recent ones.
fn format_clients(Clients { clients, refusals }: &Clients, now: SystemTime) -> String {
    const MAX_TARGETS: usize = 20;
    let mut text = String::new();
    if !clients.is_empty() {
        let head = ["client", "open", "so far", "to targets", "from targets", "last seen"];
        let mut rows = vec![head.map(str::to_owned)];
        let mut by_use: Vec<&Client> = clients.iter().collect();
        by_use.sort_by_key(|client| Reverse((client.open, client.seen_unix_s)));
        rows.extend(by_use.into_iter().take(MAX_TARGETS).map(|client| {
            let seen_at = SystemTime::UNIX_EPOCH + Duration::from_secs(client.seen_unix_s);
            [
                client.name.chars().take(24).collect(),
                client.open.to_string(),
                client.connections.to_string(),
                bytes(client.to_targets),
                bytes(client.from_targets),
                format_ago(now.duration_since(seen_at).unwrap_or_default()),
            ]
        }));
        text += &align(&rows, &[0]);
        if clients.len() > MAX_TARGETS {
            text += &format!("and {} others\n", clients.len() - MAX_TARGETS);
        }
    }
    for client in clients {
        if let Some(quota) = client.quota.as_ref().filter(|quota| quota.state != "within") {
            text += &format!("{}: quota: {}\n", client.name, quota.text());
        }
    }
    if !refusals.is_empty() {
        let each: Vec<String> =
            refusals.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        text += &format!("refused: {}\n", each.join(", "));
    }
    text
}

fn row(path: &PathSummary) -> [String; 9] {
    let state = path.state.name();
    let state = if path.backup { format!("{state},backup") } else { state.to_owned() };
    let dash = || "-".to_owned();
    let first = |local: &String| local.split([',', ' ']).next().unwrap_or_default().to_owned();
    [
        path.name.clone(),
        state,
        path.local.as_ref().map_or_else(dash, first),
        path.last_rx_ms.map_or_else(dash, |ms| format!("{:.1}s", ms as f64 / 1e3)),
        path.srtt_us.map_or_else(dash, |us| format!("{:.0}ms", us as f64 / 1e3)),
        path.retransmitted.map_or_else(dash, |share| format!("{:.1}%", share * 100.0)),
        bytes(path.bytes_sent),
        bytes(path.bytes_copied),
        bytes(path.bytes_received),
    ]
}

/// Returns a number of bytes in at most six characters.
fn bytes(count: u64) -> String {
    let scaled = |unit: f64, name: &str| {
        let value = count as f64 / unit;
        if value < 9.95 { format!("{value:.1}{name}") } else { format!("{value:.0}{name}") }
    };
    match count {
        0..1_000 => format!("{count}B"),
        1_000..999_500 => scaled(1e3, "kB"),
        999_500..999_500_000 => scaled(1e6, "MB"),
        999_500_000..999_500_000_000 => scaled(1e9, "GB"),
        _ => scaled(1e12, "TB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::{Quota, Reached, Subflow};

    fn hello() -> Hello {
        Hello {
            role: "client".into(),
            version: "0.2.0".into(),
            pid: 42,
            path_health: true,
            trouble: None,
            mode: Some("balanced".into()),
            repairs_sent: 0,
            bytes_repaired: 0,
            memory: Memory::default(),
        }
    }

    fn path(name: &str, local: &str, health: PathHealth) -> Path {
        Path {
            name: name.into(),
            local: Some(local.into()),
            up: true,
            health,
            servers: vec![Reached { last_rx_ms: Some(1_240), ..Reached::default() }],
            ..Path::default()
        }
    }

    fn subflow(local: &str, srtt_us: u64) -> Subflow {
        Subflow {
            local: local.into(),
            srtt_us: Some(srtt_us),
            bytes_sent: 2_000_000,
            bytes_retransmitted: 30_000,
            bytes_reinjected: 5_000,
            bytes_received: 999,
            health: PathHealth::Usable,
            ..Subflow::default()
        }
    }

    fn connections() -> Vec<Connection> {
        let of = |subflows: Vec<Subflow>, gone: Vec<Subflow>| Connection {
            scheduler: "auto".into(),
            subflows,
            gone,
            ..Connection::default()
        };
        let lte = subflow("[2001:db8::7]:5", 90_000);
        vec![
            of(vec![subflow("192.0.2.7:5", 31_400), lte], vec![]),
            of(vec![subflow("192.0.2.7:6", 28_000)], vec![subflow("192.0.2.7:7", 1)]),
        ]
    }

    #[test]
    fn status_shows_usable_paths_within_eighty_columns() {
        let mut lte = path("wwan0", "2001:db8::7", PathHealth::Degraded);
        (lte.backup, lte.cause) = (true, Some("answers are overdue".into()));
        let mut dead = path("eth0", "198.51.100.9", PathHealth::Unreachable);
        dead.cause = Some("9.9.9.1:7777: no answer for 12 s (tried 5 times)".into());
        let paths = [path("wlan0", "192.0.2.7", PathHealth::Usable), lte, dead];
        let text = status_text(&status(hello(), &connections(), &paths, Clients::default()));
        let expected = "\
marline client 0.2.0, process 42, mode balanced: 2 connections, by auto
new data: wlan0 75%, wwan0 25%; copies: 0.3%; eth0 unused: unreachable
path   state            local         last rx  srtt  retx   sent  copies   recv
wlan0  usable           192.0.2.7        1.2s  28ms  1.5%  6.0MB    15kB  3.0kB
wwan0  degraded,backup  2001:db8::7      1.2s  90ms  1.5%  2.0MB   5.0kB   999B
eth0   unreachable      198.51.100.9     1.2s     -     -     0B      0B     0B
wwan0: answers are overdue
eth0: 9.9.9.1:7777: no answer for 12 s (tried 5 times)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn status_says_why_a_path_has_no_share() {
        let path = |name: &str, srtt_us, bytes_sent| PathSummary {
            bytes_sent,
            srtt_us: Some(srtt_us),
            ..summarize(&path(name, "192.0.2.7", PathHealth::Usable), &[])
        };
        let two = |lte: PathSummary| policy(&[path("wifi", 20_000, 1_000_000), lte]).unwrap();
        let lte = || path("lte", 80_000, 100);
        let head = "new data: wifi 100%; copies: 0.0%; lte unused: ";
        assert_eq!(two(lte()), format!("{head}slower than wifi"));
        assert_eq!(two(PathSummary { backup: true, ..lte() }), format!("{head}backup"));
        let degraded = PathSummary { state: PathHealth::Degraded, ..lte() };
        assert_eq!(two(degraded), format!("{head}degraded"));
        let used_up = Some(Quota { state: "hard".into(), ..Quota::default() });
        assert_eq!(two(PathSummary { quota: used_up, ..lte() }), format!("{head}quota used up"));
        assert_eq!(two(path("lte", 10_000, 0)), format!("{head}not needed so far"));
        // There is no policy line.
        assert_eq!(policy(&[path("wifi", 20_000, 1_000_000)]), None);
        assert_eq!(
            policy(&[path("wifi", 20_000, 0), lte()]).as_deref(),
            Some("new data: lte 100%; copies: 0.0%; wifi unused: not needed so far")
        );
        assert_eq!(policy(&[path("wifi", 20_000, 0), path("lte", 80_000, 0)]), None);
    }

    #[test]
    fn a_disabled_path_is_shown_with_its_cause() {
        let cause = Some("disabled by hand".to_owned());
        let down = Path { up: false, cause, ..path("wlan0", "192.0.2.7", PathHealth::Unreachable) };
        let status = status(hello(), &[], &[down], Clients::default());
        assert_eq!(status.paths[0].state, PathHealth::Unreachable);
        assert_eq!(status.paths[0].reason.as_deref(), Some("disabled by hand"));
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["paths"][0]["state"], "unreachable");
        assert_eq!(json["connections"], 0);
    }

    #[test]
    fn status_shows_duplicates_repairs_and_targets() {
        let path = |name: &str, received, twice| PathSummary {
            bytes_received: received,
            bytes_duplicate: twice,
            ..summarize(&path(name, "192.0.2.7", PathHealth::Usable), &[])
        };
        let paths = vec![path("wifi", 1_000_000, 9_000), path("lte", 20_000, 12_000)];
        let target = |connection, target: &str| OpenTarget {
            target: target.into(),
            connection,
            age_s: 3_900,
            to_target: 17,
            from_target: 2_400_000,
        };
        let targets = vec![target(Some(999_999), "example.org:443"), target(None, "[::1]:22")];
        let base = status(hello(), &[], &[], Clients::default());
        let all = Status { paths, repairs_sent: 12, bytes_repaired: 3_000, ..base };
        let text = status_text(&Status { targets: Some(targets), ..all.clone() });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "repairs: 12 sent; 3.0kB recovered from received repairs");
        assert_eq!(
            lines[5..],
            [
                "duplicates received: lte 12kB",
                "connection  open for  to target  from target  target",
                "    999999    65 min        17B        2.4MB  example.org:443",
                "         -    65 min        17B        2.4MB  [::1]:22",
            ]
        );
        assert!(
            status_text(&Status { targets: Some(vec![]), ..all.clone() })
                .ends_with("no open streams\n")
        );
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!(json["paths"][1]["bytes_duplicate"], 12_000);
        assert_eq!(
            (&json["mode"], &json["targets"]),
            (&"balanced".into(), &serde_json::Value::Null)
        );
    }

    #[test]
    fn bytes_are_short() {
        for (count, text) in [
            (0, "0B"),
            (999, "999B"),
            (9_940, "9.9kB"),
            (999_499, "999kB"),
            (999_500, "1.0MB"),
            (23_000_000_000, "23GB"),
            (u64::MAX, "18446744TB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn status_shows_memory_only_when_it_is_tight() {
        let by_kind = [("send", 90_000_000), ("socket", 100_000_000), ("relay", 1_000)];
        let by_kind = by_kind.map(|(kind, bytes)| (kind.to_owned(), bytes)).into();
        let memory = Memory { limit: Some(300_000_000), used: 190_001_000, waits: 0, by_kind };
        assert_eq!(
            format_memory(&memory),
            "memory: 190MB of 300MB (socket 100MB, send 90MB, relay 1.0kB), waited 0 times\n"
        );
        assert_eq!(format_memory(&Memory { used: 100, ..memory.clone() }), "");
        assert_ne!(format_memory(&Memory { used: 100, waits: 1, ..memory.clone() }), "");
        assert_eq!(format_memory(&Memory { limit: None, ..memory }), "");
    }

    #[test]
    fn server_status_lists_clients_and_refusals() {
        let client = |name: &str, open, seen_unix_s| Client {
            name: name.into(),
            open,
            connections: 7,
            to_targets: 12_000,
            from_targets: 3_400_000,
            seen_unix_s,
            quota: None,
            memory: 0,
            memory_waits: 0,
        };
        let mut clients = vec![client("idle", 0, 999_000), client("busy", 2, 999_990)];
        let text = "1.0GB of 1GB (100%) until 2026-12-01 UTC".to_owned();
        clients[0].quota = Some(Quota { state: "hard".into(), text, ..Quota::default() });
        let refusals = [("credential".to_owned(), 10_000)].into();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let text = format_clients(&Clients { clients, refusals }, now);
        let expected = "\
client  open  so far  to targets  from targets   last seen
busy       2       7        12kB         3.4MB    10 s ago
idle       0       7        12kB         3.4MB  16 min ago
idle: quota: 1.0GB of 1GB (100%) until 2026-12-01 UTC: used up
refused: credential 10000
";
        assert_eq!(text, expected);
    }
}
