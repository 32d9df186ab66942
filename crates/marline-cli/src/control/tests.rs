use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use marline::{ConnectionId, FourTuple, Instant, MonitorEvent, MonitorKind};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::broadcast;

use super::client::ControlClient;
use super::protocol::{AddressPair, Answer, Command, Connection, Path, PathChange};
use super::{Handle, serve};

/// Stands in for a running client: keeps what it is told.
struct Recorder {
    events: broadcast::Sender<MonitorEvent>,
    done: Mutex<Vec<String>>,
}

impl Handle for Recorder {
    fn address_pairs(&self) -> Option<Vec<AddressPair>> {
        let (local, health) = ("192.0.2.7".into(), "good".into());
        Some(vec![AddressPair { local, health, ..AddressPair::default() }])
    }

    fn role(&self) -> &'static str {
        "client"
    }

    fn connections(&self) -> Vec<Connection> {
        vec![Connection { connection: 4, scheduler: "min-rtt".into(), ..Connection::default() }]
    }

    fn paths(&self) -> Vec<Path> {
        vec![Path { name: "wlan0".into(), up: true, ..Path::default() }]
    }

    fn events(&self) -> broadcast::Receiver<MonitorEvent> {
        self.events.subscribe()
    }

    fn set_scheduler(&self, connection: Option<u64>, name: &str) -> Result<u64, String> {
        if name == "psychic" {
            return Err("no scheduler named `psychic`".into());
        }
        self.done.lock().expect("lock").push(format!("{connection:?} {name}"));
        Ok(2)
    }

    fn set_path(&self, path: &str, change: PathChange) -> Result<(), String> {
        self.done.lock().expect("lock").push(format!("{path} {change:?}"));
        Ok(())
    }
}

fn recorder() -> Arc<Recorder> {
    Arc::new(Recorder { events: broadcast::channel(4).0, done: Mutex::default() })
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("marline-control-{}-{name}.sock", std::process::id()))
}

fn created(number: u64) -> MonitorEvent {
    let path = FourTuple {
        local: "192.0.2.7:50000".parse().expect("address"),
        remote: "198.51.100.1:443".parse().expect("address"),
    };
    MonitorEvent {
        at: Instant::from_millis(number),
        connection: ConnectionId(number),
        kind: MonitorKind::Created(path),
    }
}

#[tokio::test]
async fn questions_are_answered_and_orders_reach_the_handle() {
    let (path, handle) = (socket("ask"), recorder());
    let server = serve(&path, handle.clone()).expect("serve");
    let mode = std::fs::metadata(&path).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = ControlClient::connect(&path).await.expect("connect");
    let Answer::Hello(hello) = client.ask(Command::Hello).await.expect("hello") else {
        panic!("not a hello");
    };
    assert_eq!((hello.role.as_str(), hello.pid), ("client", std::process::id()));
    assert_eq!(client.connections().await.expect("connections")[0].connection, 4);
    let set = |name: &str| Command::SetScheduler { scheduler: name.into(), connection: Some(4) };
    assert_eq!(client.ask(set("redundant")).await.expect("set"), Answer::Changed(2));
    let refused = client.ask(set("psychic")).await.expect_err("no such scheduler");
    assert_eq!(refused.to_string(), "no scheduler named `psychic`");
    let backup = Command::SetPath { path: "wlan0".into(), change: PathChange::Backup };
    assert_eq!(client.ask(backup).await.expect("backup"), Answer::Done);
    assert_eq!(*handle.done.lock().expect("lock"), ["Some(4) redundant", "wlan0 Backup"]);
    drop(server);
    assert!(!path.exists());
}

#[tokio::test]
async fn events_arrive_under_the_kernels_names_and_a_slow_reader_is_told() {
    let (path, handle) = (socket("events"), recorder());
    let _server = serve(&path, handle.clone()).expect("serve");
    let mut client = ControlClient::connect(&path).await.expect("connect");
    assert_eq!(client.ask(Command::Monitor).await.expect("monitor"), Answer::Monitoring);
    // Six into a channel of four before the forwarding task runs again: two are lost.
    for number in 1..=6 {
        handle.events.send(created(number)).expect("somebody listens");
    }
    let first = client.event().await.expect("event").expect("open");
    assert_eq!((first.event.as_str(), first.missed), ("LAGGED", Some(2)));
    let next = client.event().await.expect("event").expect("open");
    assert_eq!((next.event.as_str(), next.connection, next.at_us), ("CREATED", Some(3), 3_000));
    assert_eq!(next.local.as_deref(), Some("192.0.2.7:50000"));
}

#[tokio::test]
async fn what_is_no_request_is_refused_and_what_never_ends_is_cut() {
    let path = socket("bad");
    let _server = serve(&path, recorder()).expect("serve");
    let mut stream = BufReader::new(UnixStream::connect(&path).await.expect("connect"));
    stream.write_all(b"hello?\n{\"cmd\":\"hello\",\"id\":9}\n").await.expect("write");
    let mut line = String::new();
    stream.read_line(&mut line).await.expect("refusal");
    assert!(line.contains("\"error\":\"not a request"), "{line}");
    line.clear();
    stream.read_line(&mut line).await.expect("answer");
    assert!(line.starts_with("{\"id\":9,\"ok\":{\"hello\":"), "{line}");
    // The server may close before all of it is written.
    let _ = stream.write_all(&[b'x'; 10_000]).await;
    line.clear();
    let ended = stream.read_line(&mut line).await;
    assert!(ended.is_err() || line.is_empty(), "{line}");
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced_a_living_one_is_not() {
    let path = socket("stale");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("leave one behind"));
    assert!(path.exists());
    let _server = serve(&path, recorder()).expect("replaced");
    let second = serve(&path, recorder()).expect_err("in use");
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
    assert!(ControlClient::connect(&path).await.is_ok());
}

#[test]
fn the_spellings_of_before_are_read() {
    let asked: Command = serde_json::from_str(r#"{"cmd":"netpaths"}"#).unwrap();
    assert_eq!(asked, Command::AddressPairs);
    let answer: Answer = serde_json::from_str(r#"{"netpaths":[{"verdict":"bad"}]}"#).unwrap();
    let pair = AddressPair { health: "bad".into(), ..AddressPair::default() };
    assert_eq!(answer, Answer::AddressPairs(vec![pair]));
    let hello = r#"{"hello":{"role":"client","version":"0.1.0","pid":1,"oracle":true}}"#;
    let hello: Answer = serde_json::from_str(hello).unwrap();
    assert!(matches!(hello, Answer::Hello(hello) if hello.path_health));
}
