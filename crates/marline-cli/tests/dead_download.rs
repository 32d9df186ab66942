//! 20 MB through a client and a server of ours, WiFi and a sleeping LTE radio between them. WiFi loses
//! everything after 1.5 s; the client, which only receives, opens LTE because it hears nothing. Prints
//! the hole and its parts. Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test dead_download -- --nocapture
//! ```

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use marline_lab::net::{Net, Options};
use marline_lab::scenario::{Scenario, Side};
use marline_testkit::need;
use support::world::namespaces_work;

const SCENARIO: &str = r#"
[[path]]
name = "wifi"
link = "rate=20M,delay=10ms,queue=50ms"
client = ["10.0.1.2/24"]
server = ["10.0.1.1/24"]

[[path]]
name = "lte"
link = "rate=20M,delay=30ms,queue=100ms,radio=lte"
client = ["10.0.2.2/24"]
server = ["10.0.2.1/24"]
"#;

const BYTES: usize = 20_000_000;
const DIES_AFTER: Duration = Duration::from_millis(1_500);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// The promotion of the LTE radio, in milliseconds, and one of its round trips, of which a Fast JOIN takes
/// two until what was missing is here.
const PROMOTION_MS: f64 = 260.1;
const LTE_RTT_MS: f64 = 60.0;
/// What a busy machine may add.
const SLACK_MS: f64 = 500.0;

const ROLE: &str = "MARLINE_TEST_ROLE";

/// Where the bytes come from: whoever connects gets them.
#[test]
fn source() {
    if std::env::var(ROLE).as_deref() != Ok("source") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:8080").expect("bind");
    println!("ready");
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut stream = stream;
            let _ = stream.write_all(&vec![7; BYTES]);
        });
    }
}

/// Where they go: says when the first came, and in the end where the longest pause was.
#[test]
fn sink() {
    if std::env::var(ROLE).as_deref() != Ok("sink") {
        return;
    }
    let mut stream = TcpStream::connect("127.0.0.1:9000").expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
    let (mut first, mut last, mut longest) = (None, Instant::now(), Duration::ZERO);
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        let now = Instant::now();
        match first {
            None => {
                first = Some(now);
                println!("first");
            }
            Some(_) => longest = longest.max(now - last),
        }
        last = now;
        count += n;
    }
    let whole = first.map_or(Duration::ZERO, |first| last - first);
    println!("sum {count} {} {}", longest.as_micros(), whole.as_micros());
}

/// Kills what it was given, when it goes.
struct Killed(Vec<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Two hosts. Programs end before their namespaces do.
struct Stage {
    running: Killed,
    net: Net,
    dir: PathBuf,
}

impl Stage {
    fn command(&self, text: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_marline")).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command.args(["-euc", text]).current_dir(&self.dir).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", program.display()));
        command.env("HOME", &self.dir).env("XDG_RUNTIME_DIR", &self.dir);
        command
    }

    fn shell(&self, side: Side, text: &str) {
        let child = self.net.spawn(side, &mut self.command(text)).expect("spawn");
        let output = child.wait_with_output().expect("output");
        assert!(output.status.success(), "{text}: {}", output.status);
    }

    /// Starts it; what it says comes line by line.
    fn start(&mut self, side: Side, command: &mut Command) -> Receiver<String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = self.net.spawn(side, command).expect("spawn");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        self.running.0.push(child);
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Whoever hears no more must not end a program that still speaks.
                let _ = tell.send(line);
            }
        });
        told
    }

    fn program(&mut self, side: Side, text: &str) -> Receiver<String> {
        let mut command = self.command(&format!("exec {text} 2>&1"));
        self.start(side, &mut command)
    }

    /// This test once more, in another role.
    fn role(&mut self, side: Side, role: &str) -> Receiver<String> {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", role, "--nocapture"]).env(ROLE, role);
        self.start(side, &mut command)
    }
}

/// Waits for a line that has this word.
fn hear(lines: &Receiver<String>, word: &str) -> String {
    let begun = Instant::now();
    let mut heard = Vec::new();
    while let Some(left) = PATIENCE.checked_sub(begun.elapsed()) {
        let Ok(line) = lines.recv_timeout(left) else { break };
        if line.contains(word) {
            return line;
        }
        heard.push(line);
    }
    panic!("nothing with {word:?} in {heard:#?}");
}

/// The value of a key in a line of `marline monitor --json`.
fn at_us(line: &str) -> f64 {
    let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
    event["at_us"].as_f64().expect("a time")
}

/// In milliseconds: the longest pause, and of it from the verdict to the established subflow.
struct Hole {
    total_ms: f64,
    open_ms: f64,
    reason: String,
}

fn download(dir: &Path, options: &str) -> Hole {
    let scenario = Scenario::from_toml(SCENARIO).expect("scenario");
    let instance = format!("idle-{}", std::process::id());
    let net = Net::up(&scenario, &Options::new(&instance)).expect("net");
    let mut stage = Stage { running: Killed(Vec::new()), net, dir: dir.to_owned() };
    hear(&stage.role(Side::Server, "source"), "ready");
    stage.shell(
        Side::Server,
        "umask 077; marline server --init --config marline.toml --listen 10.0.1.1:7777 \
         --public 10.0.1.1:7777 --allow 127.0.0.0/8 > invite 2> /dev/null",
    );
    let server = "marline server --config marline.toml --allow 127.0.0.0/8";
    hear(&stage.program(Side::Server, server), "listening on");
    let client = format!(
        "marline client --invite-file invite --path wifi --path lte,backup \
         -L 9000:127.0.0.1:8080 --warm 0 --control client.sock {options}"
    );
    hear(&stage.program(Side::Client, &client), "listening on");
    let events = stage.program(Side::Client, "marline monitor --json --control client.sock");
    std::thread::sleep(Duration::from_millis(300));
    let sink = stage.role(Side::Client, "sink");
    hear(&sink, "first");
    std::thread::sleep(DIES_AFTER);
    stage.net.command("wifi", "down").expect("WiFi dies");
    let silent = hear(&events, "SF_SILENT");
    let opened = hear(&events, "SF_ESTABLISHED");
    let sum = hear(&sink, "sum ");
    let figures: Vec<f64> =
        sum.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
    assert_eq!(figures[0] as usize, BYTES, "{sum}");
    let event: serde_json::Value = serde_json::from_str(&silent).expect("JSON");
    let hole = Hole {
        total_ms: figures[1] / 1e3,
        open_ms: (at_us(&opened) - at_us(&silent)) / 1e3,
        reason: event["reason"].as_str().unwrap_or_default().to_owned(),
    };
    println!(
        "{options}: hole {:.0} ms ({}; from the verdict to the subflow {:.0} ms), 20 MB in {:.1} s",
        hole.total_ms,
        hole.reason,
        hole.open_ms,
        figures[2] / 1e6
    );
    hole
}

#[test]
fn a_download_goes_on_over_lte_although_wifi_dies() {
    if need::program("ip").is_none() {
        return;
    }
    if !namespaces_work() {
        return need::skip("making network namespaces needs root");
    }
    for (timer, wait_ms, reason) in
        [("multimob", 500.0, "receive timer"), ("probing", 350.0, "unanswered probes")]
    {
        let dir = tempfile::tempdir().expect("directory");
        let options = format!("--mode interactive --receive-timer {timer}");
        let hole = download(dir.path(), &options);
        assert_eq!(hole.reason, reason);
        let allowed = wait_ms + PROMOTION_MS + 2.0 * LTE_RTT_MS + SLACK_MS;
        assert!(hole.total_ms <= allowed, "{timer}: {} ms, {allowed} allowed", hole.total_ms);
    }
}
