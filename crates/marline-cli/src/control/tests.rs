use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use marline::monitor::{ConnectionId, FourTuple, MonitorEvent, MonitorKind};
use marline::paths::PathHealth;
use marline::policy::Reason;
use marline::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::broadcast;

use super::client::ControlClient;
use super::protocol::{AddressPair, Answer, Command, Connection, Path, PathChange, Subflow};
use super::{Handle, serve};

/// Stand-in for a running client that records its calls.
struct Recorder {
    events: broadcast::Sender<MonitorEvent>,
    decisions: broadcast::Sender<MonitorEvent>,
    subflows: Mutex<Vec<Subflow>>,
    done: Mutex<Vec<String>>,
}

impl Handle for Recorder {
    fn address_pairs(&self) -> Option<Vec<AddressPair>> {
        let (local, health) = ("192.0.2.7".into(), PathHealth::Usable);
        Some(vec![AddressPair { local, health, ..AddressPair::default() }])
    }

    fn role(&self) -> &'static str {
        "client"
    }

    fn connections(&self) -> Vec<Connection> {
        let (scheduler, subflows) = ("min-rtt".into(), self.subflows.lock().expect("lock").clone());
        vec![Connection { connection: 4, scheduler, subflows, ..Connection::default() }]
    }

    fn paths(&self) -> Vec<Path> {
        let path = |name: &str, local: &str| {
            let (name, local) = (name.into(), Some(local.into()));
            Path { name, local, up: true, ..Path::default() }
        };
        vec![path("wlan0", "192.0.2.7 2001:db8::7"), path("wwan0", "10.70.0.2")]
    }

    fn events(&self) -> broadcast::Receiver<MonitorEvent> {
        self.events.subscribe()
    }

    fn decisions(&self) -> Option<broadcast::Receiver<MonitorEvent>> {
        Some(self.decisions.subscribe())
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
    Arc::new(Recorder {
        events: broadcast::channel(4).0,
        decisions: broadcast::channel(4).0,
        subflows: Mutex::default(),
        done: Mutex::default(),
    })
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
    let Answer::Hello(hello) = client.request(Command::Hello).await.expect("hello") else {
        panic!("not a hello");
    };
    assert_eq!((hello.role.as_str(), hello.pid), ("client", std::process::id()));
    assert_eq!(client.connections().await.expect("connections")[0].connection, 4);
    let set = |name: &str| Command::SetScheduler { scheduler: name.into(), connection: Some(4) };
    assert_eq!(client.request(set("redundant")).await.expect("set"), Answer::Changed(2));
    let refused = client.request(set("psychic")).await.expect_err("no such scheduler");
    assert_eq!(refused.to_string(), "no scheduler named `psychic`");
    let backup = Command::SetPath { path: "wlan0".into(), change: PathChange::Backup };
    assert_eq!(client.request(backup).await.expect("backup"), Answer::Done);
    assert_eq!(*handle.done.lock().expect("lock"), ["Some(4) redundant", "wlan0 Backup"]);
    drop(server);
    assert!(!path.exists());
}

#[tokio::test]
async fn events_use_kernel_names_and_a_slow_reader_gets_lagged() {
    let (path, handle) = (socket("events"), recorder());
    let _server = serve(&path, handle.clone()).expect("serve");
    let mut client = ControlClient::connect(&path).await.expect("connect");
    assert_eq!(
        client.request(Command::Monitor { decisions: false }).await.expect("monitor"),
        Answer::Monitoring
    );
    // Six events into a channel of four before the forwarding task runs again: two are lost.
    for number in 1..=6 {
        handle.events.send(created(number)).expect("a receiver exists");
    }
    let first = client.event().await.expect("event").expect("open");
    assert_eq!((first.event.as_str(), first.missed), ("LAGGED", Some(2)));
    let next = client.event().await.expect("event").expect("open");
    assert_eq!((next.event.as_str(), next.connection, next.at_us), ("CREATED", Some(3), 3_000));
    assert_eq!(next.local.as_deref(), Some("192.0.2.7:50000"));
}

/// A copy on subflow 1 of data sent on subflow 0.
const COPY: &str = "question=next decision=run:1:0-14000 rule=late path=1 other=0 arrives_us=45000 other_us=31000 \
    other_late_us=84000 gain_us=12000 price_us=3000 now_ns=5000000 unsent=14000-14000 written=14000 una=0 \
    window_end=90000 send_limit=4194304 repairs=0 spent=0.36 unlimited=0 asked=next:1:0>0-14000:1";

fn copied(missed: u64) -> MonitorEvent {
    let reason = Arc::new(Reason::parse(COPY).expect("a record"));
    MonitorEvent {
        at: Instant::from_millis(5),
        connection: ConnectionId(4),
        kind: MonitorKind::Decided { reason, missed },
    }
}

#[tokio::test]
async fn decisions_are_sent_in_words_to_monitors_that_request_them() {
    let (path, handle) = (socket("decisions"), recorder());
    let _server = serve(&path, handle.clone()).expect("serve");
    let subflow = |subflow, local: &str| Subflow {
        subflow,
        local: local.into(),
        remote: "198.51.100.1:443".into(),
        ..Subflow::default()
    };
    *handle.subflows.lock().expect("lock") =
        vec![subflow(0, "192.0.2.7:50000"), subflow(1, "10.70.0.2:50001")];
    let mut plain = ControlClient::connect(&path).await.expect("connect");
    let quiet = Command::Monitor { decisions: false };
    assert_eq!(plain.request(quiet).await.expect("monitor"), Answer::Monitoring);
    assert_eq!(handle.decisions.receiver_count(), 0, "decisions were not requested");
    let mut client = ControlClient::connect(&path).await.expect("connect");
    let all = Command::Monitor { decisions: true };
    assert_eq!(client.request(all).await.expect("monitor"), Answer::Monitoring);
    handle.decisions.send(copied(3)).expect("a receiver exists");
    let event = client.event().await.expect("event").expect("open");
    assert_eq!(
        event.to_line(),
        "[     0.005000]       DECISION conn=4 subflow=1 missed=3 copy of 14 kB on wwan0: wlan0's answer \
         is due in 31 ms (p90 84 ms); a copy arrives in 45 ms and is expected to save 12 ms, at a cost of 3.0 ms; \
         36% of the budget spent"
    );
    // The decision can be recomputed from the record.
    let record = event.record.expect("a record");
    assert_eq!(Reason::parse(&record), Reason::parse(COPY));
    assert_eq!((event.rule.as_deref(), event.connection), (Some("late"), Some(4)));
    // The slot now belongs to another path.
    *handle.subflows.lock().expect("lock") =
        vec![subflow(0, "192.0.2.7:50000"), subflow(1, "192.0.2.7:50002")];
    let ends = FourTuple {
        local: "192.0.2.7:50002".parse().expect("address"),
        remote: "198.51.100.1:443".parse().expect("address"),
    };
    let id = marline::policy::SubflowId(1);
    let kind = MonitorKind::SubflowEstablished { id, path: ends, backup: false };
    handle.events.send(MonitorEvent { kind, ..copied(0) }).expect("a receiver exists");
    let event = client.event().await.expect("event").expect("open");
    assert_eq!(event.event, "SF_ESTABLISHED");
    handle.decisions.send(copied(0)).expect("a receiver exists");
    let event = client.event().await.expect("event").expect("open");
    let text = event.text.expect("words");
    assert!(text.starts_with("copy of 14 kB on wlan0 (subflow 1): wlan0 (subflow 0)'s"), "{text}");
    // The other client received only the event of the subflow.
    let event = plain.event().await.expect("event").expect("open");
    assert_eq!(event.event, "SF_ESTABLISHED");
    drop(client);
    while handle.decisions.receiver_count() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn invalid_requests_are_refused_and_endless_lines_cut_off() {
    let path = socket("bad");
    let _server = serve(&path, recorder()).expect("serve");
    let mut stream = BufReader::new(UnixStream::connect(&path).await.expect("connect"));
    stream.write_all(b"hello?\n{\"cmd\":\"hello\",\"id\":9}\n").await.expect("write");
    let mut line = String::new();
    stream.read_line(&mut line).await.expect("refusal");
    assert!(line.contains("\"error\":\"invalid request"), "{line}");
    line.clear();
    stream.read_line(&mut line).await.expect("answer");
    assert!(line.starts_with("{\"id\":9,\"ok\":{\"hello\":"), "{line}");
    // The server may close before everything is written.
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
