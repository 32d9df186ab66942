//! Tests of verdicts on paths in broken networks: `marline status` with its exit status, `marline path`, `marline
//! monitor --table` and the metrics must agree, and so must `marline doctor`.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Output;

use super::support::{self, Running, ServerSide, start_server};
use super::{metric, until};
use marline_testkit::{free_address, free_port};

/// Exit statuses of `marline status` with a working path, and without one.
const WORKS: i32 = 0;
const NO_PATH: i32 = 2;

/// A running client with a single path.
struct Judged<'a> {
    dir: &'a Path,
    control: String,
    metrics: SocketAddr,
    socks: SocketAddr,
    _client: Running,
}

impl<'a> Judged<'a> {
    /// Starts a client with this invite and path.
    fn start(dir: &'a Path, invite: &Path, path: &str, flags: &[&str]) -> Judged<'a> {
        let control = dir.join("client.control").to_str().expect("text").to_owned();
        let metrics = free_address();
        let port = metrics.to_string();
        let mut all = vec!["--path", path, "--control", &control, "--metrics", &port];
        all.extend_from_slice(flags);
        let (client, socks) = support::start_client(dir, invite, &all);
        Judged { dir, control, metrics, socks, _client: client }
    }

    fn ask(&self, words: &[&str]) -> Output {
        support::run(self.dir, &[words, &["--control", &self.control]].concat())
    }

    /// Returns the state and cause of the path in `marline status`, and its exit status.
    fn status(&self) -> (String, Option<i32>) {
        let output = self.ask(&["status", "--json"]);
        let (out, _) = support::texts(&output);
        let told: serde_json::Value = serde_json::from_str(&out).unwrap_or_default();
        let word = |key: &str| told["paths"][0][key].as_str().unwrap_or_default().to_owned();
        (format!("{}: {}", word("state"), word("reason")), output.status.code())
    }

    /// Waits until all views show this state of the path. `exit`: exit status of `marline status`.
    fn is(&self, state: &str, cause: &str, exit: i32) {
        until(&format!("the path is {state}: {cause}"), || {
            let (said, code) = self.status();
            said.starts_with(&format!("{state}: ")) && said.contains(cause) && code == Some(exit)
        });
        let (text, _) = support::texts(&self.ask(&["status"]));
        assert!(text.contains(state) && text.contains(cause), "{text}");
        let (text, _) = support::texts(&self.ask(&["path"]));
        assert!(text.contains(&format!("up,{state}")) && text.contains(cause), "{text}");
        let (json, _) = support::texts(&self.ask(&["path", "--json"]));
        let told: serde_json::Value = serde_json::from_str(&json).expect(&json);
        assert_eq!(told[0]["health"], state, "{json}");
        let (table, _) = support::texts(&self.ask(&["monitor", "--table", "--once"]));
        assert_eq!(table.contains(&format!(": {state}: ")), state != "usable", "{table}");
        for word in ["usable", "degraded", "unreachable", "untried"] {
            let name = format!("state=\"{word}\"");
            let shown = metric_with(self.metrics, "marline_interface_state", &name);
            assert_eq!(shown, u64::from(word == state), "{word} where it is {state}");
        }
    }
}

/// Returns the sum of a metric with this name and label.
fn metric_with(at: SocketAddr, name: &str, label: &str) -> u64 {
    // The order of the labels is that of the exporter.
    let labels = ["127.0.0.1", "::1", "p"];
    let of = |path: &str| metric(at, &format!("{name}{{interface=\"{path}\",{label}}}"));
    labels.iter().map(|path| of(path)).sum()
}

/// Returns the verdict of `marline doctor` about a client with this invite and path, and its output.
fn doctor(dir: &Path, invite: &Path, path: &str) -> (bool, serde_json::Value, String) {
    let invite = invite.to_str().expect("text");
    let args = ["doctor", "--invite-file", invite, "--path", path];
    let output = support::run(dir, &[&args[..], &["--json"]].concat());
    let (out, err) = support::texts(&output);
    let told = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let (text, _) = support::texts(&support::run(dir, &args));
    (output.status.success(), told, text)
}

/// A broken network, the verdict on its only path, and words of the cause.
struct World {
    name: &'static str,
    make: fn(&Path) -> Made,
    state: &'static str,
    cause: &'static str,
    /// A separate line in `marline status`, for a client that cannot work on any path.
    not_working: Option<&'static str>,
    /// Words of the doctor about the remedy.
    helps: &'static str,
}

/// Parts of a broken network. Dropping this ends them.
struct Made {
    invite: std::path::PathBuf,
    path: &'static str,
    _server: Option<ServerSide>,
    _sockets: Option<(UdpSocket, TcpListener)>,
}

impl Made {
    fn of(server: ServerSide) -> Made {
        Made {
            invite: server.invite_file.clone(),
            path: "127.0.0.1",
            _server: Some(server),
            _sockets: None,
        }
    }
}

/// Returns an invite to a server that never runs, and its address.
fn invite_of_nobody(dir: &Path) -> (std::path::PathBuf, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let args = ["server", "--init", "--config", "nobody.toml", "--listen", &address.to_string()];
    let invite = support::run_ok(dir, &args);
    let file = dir.join("nobody");
    support::write_private(&file, &invite);
    (file, address)
}

/// Returns an invite with another credential of a server.
fn credential(dir: &Path, name: &str) -> std::path::PathBuf {
    let args = ["server", "--config", "server.toml", "credential", "add", name];
    let file = dir.join(name);
    support::write_private(&file, &support::run_ok(dir, &args));
    file
}

const WORLDS: &[World] = &[
    World {
        name: "a working network",
        make: |dir| Made::of(start_server(dir, &[])),
        state: "usable",
        cause: "",
        not_working: None,
        helps: "a client can connect over 127.0.0.1",
    },
    World {
        name: "UDP works, and the server does not listen on TCP",
        make: |dir| Made::of(start_server(dir, &["--carrier", "udp"])),
        state: "usable",
        cause: "",
        not_working: None,
        helps: "a client can connect over 127.0.0.1",
    },
    World {
        name: "nothing listens: both ports refuse",
        make: |dir| {
            let (invite, _) = invite_of_nobody(dir);
            Made { invite, path: "127.0.0.1", _server: None, _sockets: None }
        },
        state: "unreachable",
        cause: "refused by the server: nothing listens on this port",
        not_working: None,
        helps: "start `marline server` there",
    },
    World {
        name: "silence: both ports are open, and nothing answers",
        make: |dir| {
            let (invite, address) = invite_of_nobody(dir);
            let sockets = UdpSocket::bind(address).expect("bind");
            let sockets = Some((sockets, TcpListener::bind(address).expect("bind")));
            Made { invite, path: "127.0.0.1", _server: None, _sockets: sockets }
        },
        state: "unreachable",
        cause: "no answer for",
        not_working: None,
        helps: "is the server running, is UDP port",
    },
    World {
        name: "another key",
        make: |dir| {
            let server = start_server(dir, &[]);
            let listen = server.address.to_string();
            let args = ["server", "--init", "--config", "other.toml", "--listen", &listen];
            let invite = dir.join("other");
            support::write_private(&invite, &support::run_ok(dir, &args));
            Made { invite, ..Made::of(server) }
        },
        state: "unreachable",
        cause: "the server's key differs from the invite's",
        not_working: Some("ask the server's owner for a new invite"),
        helps: "ask the server's owner for a new invite",
    },
    World {
        name: "a credential that the server does not know",
        make: |dir| {
            drop(start_server(dir, &[]));
            let invite = credential(dir, "tablet");
            let revoke = ["server", "--config", "server.toml", "credential", "revoke", "tablet"];
            support::run_ok(dir, &revoke);
            let mut process = Running::start(dir, &["server", "--config", "server.toml"]);
            let address = process.address_after("listening on ");
            Made {
                invite: invite.clone(),
                ..Made::of(ServerSide { process, address, invite_file: invite })
            }
        },
        state: "unreachable",
        cause: "refused by the server: unknown credential",
        not_working: Some("the server's owner can admit this client again"),
        helps: "the server's owner can admit this client again",
    },
    World {
        name: "no address of the server's family",
        make: |dir| Made { path: "::1", ..Made::of(start_server(dir, &[])) },
        state: "unreachable",
        cause: "no IPv6 address of the server",
        not_working: None,
        helps: "use a path that has an address of that family",
    },
];

#[test]
fn status_and_the_doctor_say_the_same_of_every_broken_world() {
    let _others = support::among_others();
    for world in WORLDS {
        eprintln!("world: {}", world.name);
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path();
        let made = (world.make)(dir);
        let works = world.state == "usable";
        let exit = if works { WORKS } else { NO_PATH };
        let client = Judged::start(dir, &made.invite, made.path, &[]);
        client.is(world.state, world.cause, exit);
        let (text, _) = support::texts(&client.ask(&["status"]));
        let line = text.lines().find(|line| line.starts_with("not working: "));
        assert!(line.is_none() || !works, "{}: {text}", world.name);
        if let Some(words) = world.not_working {
            assert!(line.is_some_and(|line| line.contains(words)), "{}: {text}", world.name);
        }
        let (well, told, text) = doctor(dir, &made.invite, made.path);
        assert_eq!(well, works, "{}: {text}", world.name);
        assert_eq!(told["paths"][0]["state"], world.state, "{}: {told}", world.name);
        let cause = told["paths"][0]["cause"].as_str().unwrap_or_default();
        assert!(cause.contains(world.cause), "{}: {cause}", world.name);
        assert!(text.contains(world.helps), "{}: {text}", world.name);
        for transport in ["UDP", "TCP"] {
            let line = |line: &str| line.split_whitespace().nth(1) == Some(transport);
            assert!(text.lines().any(line), "{}: {transport} is missing in {text}", world.name);
        }
    }
}

/// With a single carrier, its own refusal counts.
#[test]
fn a_refused_port_is_unreachable_by_each_carrier_alone() {
    let _others = support::among_others();
    for carrier in ["udp", "tcp"] {
        let dir = tempfile::tempdir().expect("a folder");
        let (invite, _) = invite_of_nobody(dir.path());
        let client = Judged::start(dir.path(), &invite, "127.0.0.1", &["--carrier", carrier]);
        client.is("unreachable", "refused by the server", NO_PATH);
    }
}

#[test]
fn a_path_that_was_never_tried_is_not_called_usable() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let control = dir.path().join("client.control");
    let control = control.to_str().expect("text").to_owned();
    let metrics = free_address();
    let port = metrics.to_string();
    let flags = ["--path", "127.0.0.1", "--warm", "0", "--control", &control, "--metrics", &port];
    let (client, socks) = support::start_client(dir.path(), &server.invite_file, &flags);
    let client = Judged { dir: dir.path(), control, metrics, socks, _client: client };
    client.is("untried", "not tried yet", NO_PATH);
    let target = support::socks::echo_target();
    drop(support::socks::open(socks, target).expect("a stream"));
    client.is("usable", "", WORKS);
    // An idle server is still reachable. This is longer than the interval of keepalives.
    std::thread::sleep(std::time::Duration::from_secs(22));
    client.is("usable", "", WORKS);
}

#[test]
fn a_server_that_is_killed_is_noticed_and_found_again() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = start_server(dir.path(), &[]);
    let client = Judged::start(dir.path(), &server.invite_file, "127.0.0.1", &[]);
    client.is("usable", "", WORKS);
    server.process.signal("KILL");
    server.process.end();
    client.is("unreachable", "refused by the server", NO_PATH);
    let mut again = Running::start(dir.path(), &["server", "--config", "server.toml"]);
    again.line_with("listening on ");
    client.is("usable", "", WORKS);
}

#[test]
fn a_client_that_is_revoked_while_it_runs_says_so_and_works_again_once_admitted() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let invite = credential(dir.path(), "tablet");
    // Until then the client is refused. Its path is briefly usable, between the multipath handshake and the
    // refusal.
    server.process.line_with("credentials reloaded");
    let client = Judged::start(dir.path(), &invite, "127.0.0.1", &[]);
    client.is("usable", "", WORKS);
    let clients = dir.path().join("server.clients");
    let before = std::fs::read(&clients).expect("the credentials");
    let revoke = ["server", "--config", "server.toml", "credential", "revoke", "tablet"];
    support::run_ok(dir.path(), &revoke);
    client.is("unreachable", "refused by the server: unknown credential", NO_PATH);
    server.process.line_with("credentials reloaded");
    let (well, told, _) = doctor(dir.path(), &invite, "127.0.0.1");
    assert!(!well && told["paths"][0]["state"] == "unreachable", "{told}");
    support::write_private(&clients, &String::from_utf8(before).expect("text"));
    server.process.line_with("credentials reloaded");
    // A refused client retries by itself after pauses of up to a minute, and immediately for an application.
    let target = support::socks::echo_target();
    until("an application is served", || support::socks::open(client.socks, target).is_ok());
    client.is("usable", "", WORKS);
}

/// A wildcard address has a row for each local address that connections use.
#[test]
fn a_server_on_a_wildcard_address_shows_its_bytes_at_each_address() {
    let _others = support::among_others();
    for (listen, addresses) in
        [("0.0.0.0", &["127.0.0.1", "127.0.0.2"][..]), ("[::]", &["::1", "127.0.0.1"][..])]
    {
        let dir = tempfile::tempdir().expect("a folder");
        let (port, control) = (free_port(), dir.path().join("server.control"));
        let control = control.to_str().expect("text");
        let (listen, public) = (format!("{listen}:{port}"), format!("127.0.0.1:{port}"));
        let init = [
            "server",
            "--init",
            "--config",
            "server.toml",
            "--listen",
            &listen,
            "--public",
            &public,
        ];
        let invite = dir.path().join("invite");
        support::write_private(&invite, &support::run_ok(dir.path(), &init));
        let args =
            ["server", "--config", "server.toml", "--allow", "127.0.0.0/8", "--control", control];
        let mut server = Running::start(dir.path(), &args);
        server.line_with("listening on ");
        let target = support::socks::echo_target();
        let clients: Vec<_> = addresses
            .iter()
            .map(|address| {
                let remote: SocketAddr =
                    SocketAddr::new(address.parse().expect("an address"), port);
                let path = format!("{address}={remote},name=p");
                let home = dir.path().join(address.replace(':', "_"));
                std::fs::create_dir(&home).expect("a folder");
                let (client, socks) = support::start_client(&home, &invite, &["--path", &path]);
                let mut stream = support::socks::open(socks, target).expect("a stream");
                super::pump(&mut stream, 100_000).expect("bytes there and back");
                (client, stream)
            })
            .collect();
        let json = support::run_ok(dir.path(), &["status", "--json", "--control", control]);
        let told: serde_json::Value = serde_json::from_str(&json).expect(&json);
        let rows = told["paths"].as_array().expect("paths");
        for address in addresses {
            let here = |row: &&serde_json::Value| {
                let local = row["local"].as_str().and_then(|l| l.parse::<SocketAddr>().ok());
                local.is_some_and(|local| local.ip().to_canonical().to_string() == **address)
            };
            let row = rows.iter().find(here).unwrap_or_else(|| panic!("{address}: {json}"));
            for way in ["bytes_sent", "bytes_received"] {
                assert!(row[way].as_u64().expect(way) >= 100_000, "{address} {way}: {json}");
            }
            assert_eq!((&row["state"], &row["name"]), (&"usable".into(), &listen.clone().into()));
        }
        drop(clients);
    }
}
