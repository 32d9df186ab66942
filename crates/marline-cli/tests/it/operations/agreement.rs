//! Agreement of all views of a client: `marline status`, the dashboard, the metrics and `marline monitor` must
//! report one scripted outage identically, and as it happened on the links and in the application. Needs root and
//! curl.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path as FilePath;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use marline_lab::scenario::Side;
use serde_json::Value;

use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};

/// LTE has a large delay, so that switching to it causes a measurable pause.
const WIFI: &str = "rate=20M,delay=10ms,queue=50ms";
const LTE: &str = "rate=10M,delay=60ms,queue=100ms";

/// Connections of the application. The first one carries traffic, the others are idle.
const CONNECTIONS: usize = 3;
const EVERY: Duration = Duration::from_millis(20);
const MESSAGE: usize = 200;
/// LTE fails with WiFi and returns after this time, before which nothing gets through.
const BOTH_DEAD: Duration = Duration::from_millis(700);
/// Pauses of at least this length are gaps.
const GAP_US: u64 = 100_000;
/// Allowed difference between our own views.
const OWN_US: u64 = 50_000;
/// Allowed difference from the application and the links, in addition to the delays of this machine: round trips,
/// and the time to write and to read.
const TRUTH_US: u64 = 100_000;
/// Largest time between the first and the last view that reports the failure of WiFi.
const SPREAD_US: u64 = 2_000_000;
/// Headers of IP, UDP, the carrier's frame and TCP with all options.
const HEADERS: u64 = 20 + 8 + 9 + 60;
/// Segments that may be sent twice over a path with lost or late answers, early repeats included: the link carries
/// both, but only one is counted as received.
const REPEATS: u64 = 60;

/// Returns the time in microseconds of a clock shared by all processes of the machine.
fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// Reads a connection to its end. Prints `pause SINCE UNTIL` for each time of at least [`GAP_US`] without data.
fn listen(mut stream: &TcpStream, mut came: impl FnMut(&[u8])) {
    let (mut buffer, mut last) = ([0; 4_096], now_us());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let now = now_us();
        if now - last >= GAP_US {
            println!("pause {last} {now}");
        }
        last = now;
        came(&buffer[..count]);
    }
}

/// Echoes all data. Prints `ready`, and `pause SINCE UNTIL` for each time of at least [`GAP_US`] without data on a
/// connection.
#[test]
fn echoing() {
    if !two_uplinks::plays(echoing) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:8080").expect("bind");
    println!("ready");
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            stream.set_nodelay(true).expect("an option");
            // When the connection breaks, reading ends as well.
            listen(&stream, |bytes| drop((&stream).write_all(bytes)));
        });
    }
}

/// Returns a connection through the client that has carried one message and its echo.
fn connected() -> TcpStream {
    let mut stream = TcpStream::connect("127.0.0.1:9000").expect("the client's port");
    stream.set_nodelay(true).expect("nodelay");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(&[1; MESSAGE]).expect("write");
    stream.read_exact(&mut [0; MESSAGE]).expect("an echo");
    stream
}

/// Sends over the first of its connections until the file `quiet` exists. Prints `pause SINCE UNTIL` for each pause
/// between answers. At the end, when all answers have arrived, it prints `quiet BYTES LATE`: bytes sent on all
/// connections, which all were echoed, and the largest delay of a wakeup.
#[test]
fn talking() {
    if !two_uplinks::plays(talking) {
        return;
    }
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connected()).collect();
    println!("ready");
    let reader = streams[0].try_clone().expect("a second handle");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // The receiver may be gone.
        listen(&reader, |bytes| _ = tell.send(bytes.len()));
    });
    let (mut sent, mut late) = (0, Duration::ZERO);
    while !FilePath::new("quiet").exists() {
        let begun = Instant::now();
        streams[0].write_all(&[7; MESSAGE]).expect("write");
        sent += MESSAGE;
        std::thread::sleep(EVERY);
        late = late.max(begun.elapsed().saturating_sub(EVERY));
    }
    let mut heard = 0;
    while heard < sent {
        heard += told.recv_timeout(PATIENCE).expect("the rest of the echo");
    }
    println!("quiet {} {}", sent + CONNECTIONS * MESSAGE, late.as_micros());
    // The connections stay open until the process is killed.
    std::thread::sleep(Duration::from_secs(600));
}

/// A path, as shown by one view.
#[derive(Clone, Debug, PartialEq)]
struct Path {
    state: String,
    /// Reason without its numbers, which grow between two samples.
    reason: Option<String>,
    bytes_sent: u64,
    bytes_received: u64,
}

/// The client, as shown by one view.
#[derive(Clone, Debug, PartialEq)]
struct Look {
    connections: u64,
    paths: BTreeMap<String, Path>,
}

impl Look {
    /// Parses JSON of the status or of the page, which use the same names.
    fn of(connections: &Value, paths: &Value) -> Look {
        let path = |path: &Value| {
            let text = |name: &str| path[name].as_str().map(str::to_owned);
            let count = |name: &str| path[name].as_u64().expect("a count");
            let shown = Path {
                state: text("state").expect("a state"),
                reason: text("reason").map(|why| without_figures(&why)),
                bytes_sent: count("bytes_sent"),
                bytes_received: count("bytes_received"),
            };
            (text("name").expect("a name"), shown)
        };
        let paths = paths.as_array().expect("paths").iter().map(path).collect();
        Look { connections: connections.as_u64().expect("a count"), paths }
    }

    /// Parses the metrics, which contain no reasons.
    fn of_metrics(text: &str) -> Look {
        let path = |name: &str| {
            let of = |line: &&str| line.contains(&format!("interface=\"{name}\""));
            let sum = |metric: &str| {
                text.lines()
                    .filter(|line| line.starts_with(metric))
                    .filter(of)
                    .map(value)
                    .sum::<f64>() as u64
            };
            let mut states =
                text.lines().filter(|line| line.starts_with("marline_interface_state{"));
            let state = states.find(|line| of(line) && value(line) == 1.0).and_then(|line| {
                Some(line.split("state=\"").nth(1)?.split('"').next()?.to_owned())
            });
            let shown = Path {
                state: state.unwrap_or_default(),
                reason: None,
                bytes_sent: sum("marline_path_sent_bytes_total{"),
                bytes_received: sum("marline_path_received_bytes_total{"),
            };
            (name.to_owned(), shown)
        };
        let open = text.lines().find(|line| line.starts_with("marline_connections ")).map(value);
        Look { connections: open.expect("a gauge") as u64, paths: ["lte", "wifi"].map(path).into() }
    }

    fn state(&self, path: &str) -> &str {
        &self.paths[path].state
    }

    /// Removes the reasons, for comparison with the metrics.
    fn without_reasons(&self) -> Look {
        let mut look = self.clone();
        look.paths.values_mut().for_each(|path| path.reason = None);
        look
    }

    /// Removes the byte counts, for comparison while data is sent.
    fn without_bytes(&self) -> Look {
        let mut look = self.clone();
        for path in look.paths.values_mut() {
            (path.bytes_sent, path.bytes_received) = (0, 0);
        }
        look
    }
}

/// Returns the value in a line of metrics.
fn value(line: &str) -> f64 {
    line.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn without_figures(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// Data sent by the dashboard.
#[derive(Debug, Default)]
struct Page {
    sample: Option<Value>,
    happenings: Vec<Value>,
    /// Smallest delay of a message against its time on the process's clock, which is the offset of that clock.
    behind_us: Option<u64>,
    /// Time of its first report that WiFi has failed.
    gone_us: Option<u64>,
}

impl Page {
    /// Follows the stream of the dashboard.
    fn follow(lines: Receiver<String>) -> Arc<Mutex<Page>> {
        let page = Arc::<Mutex<Page>>::default();
        let told = Arc::clone(&page);
        std::thread::spawn(move || {
            let mut kind = String::new();
            for line in lines {
                if let Some(of) = line.strip_prefix("event: ") {
                    of.clone_into(&mut kind);
                } else if let Some(data) = line.strip_prefix("data: ") {
                    let data = serde_json::from_str(data).expect("JSON");
                    told.lock().expect("unpoisoned").take(&kind, data);
                }
            }
        });
        page
    }

    fn take(&mut self, kind: &str, data: Value) {
        match kind {
            "sample" => {
                let behind = now_us() - data["at_us"].as_u64().expect("a time");
                self.behind_us = Some(self.behind_us.map_or(behind, |least| least.min(behind)));
                let is_gone =
                    |path: &Value| path["name"] == "wifi" && path["state"] == "unreachable";
                if data["paths"].as_array().expect("paths").iter().any(is_gone) {
                    self.gone_us.get_or_insert_with(now_us);
                }
                self.sample = Some(data);
            }
            "happening" => self.happenings.push(data),
            _ => {}
        }
    }
}

/// The client and its views.
struct World {
    hosts: TwoUplinks,
    /// Output of the far side's application.
    far: Receiver<String>,
    page: Arc<Mutex<Page>>,
    events: Receiver<String>,
}

impl World {
    fn start(dir: &FilePath) -> World {
        let mut hosts = TwoUplinks::set(&two_uplinks::wifi_and_lte(WIFI, LTE), "agree", dir);
        let far = hosts.role(Side::Server, "", echoing);
        hear(&far, "ready");
        hosts.marline_server("udp");
        let client = "marline client --invite-file invite --path wifi --path lte,backup --warm 0 --mode handover \
                      -L 9000:127.0.0.1:8080 --control client.sock --metrics 127.0.0.1:9102 \
                      --dashboard 127.0.0.1:9101";
        hear(&hosts.program(Side::Client, client), "listening on");
        let events = hosts.program(Side::Client, "marline monitor --json --control client.sock");
        let page =
            Page::follow(hosts.program(Side::Client, "curl -sN http://127.0.0.1:9101/events"));
        while page.lock().expect("unpoisoned").sample.is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        World { hosts, far, page, events }
    }

    fn metrics(&self) -> String {
        self.hosts.shell(Side::Client, "curl -sS --fail http://127.0.0.1:9102/metrics")
    }

    /// Reads status, page and metrics.
    fn looks(&self) -> [Look; 3] {
        let status = self.hosts.shell(Side::Client, "marline status --json --control client.sock");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let status = Look::of(&status["connections"], &status["paths"]);
        let metrics = Look::of_metrics(&self.metrics());
        let page = self.page.lock().expect("unpoisoned");
        let sample = page.sample.as_ref().expect("some bytes were sent");
        [status, Look::of(&sample["totals"]["connections"], &sample["paths"]), metrics]
    }

    /// Waits until all views agree and `is_so` holds.
    fn agree(
        &self,
        what: &str,
        part: impl Fn(&Look) -> Look,
        is_so: impl Fn(&Look) -> bool,
    ) -> Look {
        let until = Instant::now() + PATIENCE;
        loop {
            let looks = self.looks();
            let [status, page, metrics] = looks.each_ref().map(&part);
            if status == page && status.without_reasons() == metrics && is_so(&status) {
                return status;
            }
            assert!(Instant::now() < until, "no agreement that {what}: {looks:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all views report that WiFi has failed. Returns the time of each view's first report.
    fn see_wifi_go(&self) -> [u64; 3] {
        let mut gone = [None; 3];
        let until = Instant::now() + PATIENCE;
        while gone.contains(&None) {
            assert!(Instant::now() < until, "not all say that WiFi is gone: {:#?}", self.looks());
            for (gone, look) in gone.iter_mut().zip(self.looks()) {
                if look.state("wifi") == "unreachable" {
                    gone.get_or_insert_with(now_us);
                }
            }
        }
        gone[1] = self.page.lock().expect("unpoisoned").gone_us;
        gone.map(|at| at.expect("each view has reported it"))
    }
}

/// A gap in delivery: connection, direction, start and end on the client's clock.
type Hole = (u64, String, u64, u64);

fn hole(event: &Value) -> Option<Hole> {
    let us = |name: &str| event[name].as_u64().expect("a number");
    let direction = || event["direction"].as_str().expect("a direction").to_owned();
    (event["event"] == "HOLE").then(|| (us("connection"), direction(), us("since_us"), us("at_us")))
}

#[test]
fn status_metrics_and_dashboard_agree_on_an_outage() {
    let _others = support::among_others();
    if !two_uplinks::possible(&["curl"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let mut world = World::start(dir.path());
    let talker = world.hosts.role(Side::Client, "", talking);
    hear(&talker, "ready");
    let both_work = |look: &Look| ["wifi", "lte"].iter().all(|path| look.state(path) == "usable");
    world.agree("both paths work", Look::without_bytes, both_work);

    // LTE fails for a moment as well. Otherwise a client that had already switched to it would not notice anything.
    for path in ["lte", "wifi"] {
        world.hosts.net.command(path, "down").expect("it dies");
    }
    let died = now_us();
    std::thread::sleep(BOTH_DEAD);
    let back = now_us();
    world.hosts.net.command("lte", "up").expect("LTE is back");
    let gone = world.see_wifi_go();
    let spread = gone.iter().max().unwrap() - gone.iter().min().unwrap();
    println!(
        "status, page, metrics: WiFi is gone after {:?} us",
        gone.map(|at| at.saturating_sub(died))
    );
    assert!(gone.iter().all(|at| *at > died) && spread < SPREAD_US, "{spread} us apart");
    let look = world.agree("WiFi alone is gone, and why", Look::without_bytes, |look| {
        look.state("wifi") == "unreachable" && look.state("lte") == "usable"
    });
    assert_ne!(look.paths["wifi"].reason, None, "{look:?}");
    world.hosts.net.command("wifi", "up").expect("WiFi is back");
    world.agree("both paths work again", Look::without_bytes, both_work);

    std::fs::write(dir.path().join("quiet"), "").expect("a file");
    let mut pauses = Vec::new();
    let (bytes, late) = loop {
        let line = talker.recv_timeout(PATIENCE).expect("the talker ends");
        let figures: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        pauses.extend(pause(&line));
        if let (true, [bytes, late]) = (line.starts_with("quiet"), &figures[..]) {
            break (*bytes, *late);
        }
    };
    check_gap_against_pauses(&world, [died, back], &pauses, late);
    let look = world.agree("the bytes of each direction agree", Look::clone, |_| true);
    assert_eq!(look.connections, CONNECTIONS as u64, "{look:?}");
    the_links_carried_it(&world, &look, bytes);
}

/// Returns a pause reported by an application.
fn pause(line: &str) -> Option<(u64, u64)> {
    let (since, until) = line.strip_prefix("pause ")?.split_once(' ')?;
    Some((since.parse().ok()?, until.parse().ok()?))
}

/// The monitor, the page and the metrics show the same gaps. The longest one matches the pause of the far side's
/// application in data from the client. The pause of the client's application, which waits for answers, does not
/// end before it.
fn check_gap_against_pauses(
    world: &World,
    [died, back]: [u64; 2],
    pauses: &[(u64, u64)],
    late: u64,
) {
    let told = world.events.try_iter();
    let told = told.filter_map(|line| hole(&serde_json::from_str(&line).expect("JSON")));
    let mut told: Vec<Hole> = told.collect();
    let page = world.page.lock().expect("unpoisoned");
    let mut shown: Vec<Hole> = page.happenings.iter().filter_map(hole).collect();
    told.sort();
    shown.sort();
    assert_eq!(told, shown, "the monitor and the page");
    let metrics = world.metrics();
    for direction in ["sent", "received"] {
        let lengths = told.iter().filter(|hole| hole.1 == direction).map(|hole| hole.3 - hole.2);
        let (count, sum) = lengths.fold((0, 0), |(count, sum), length| (count + 1, sum + length));
        let of = |metric: &str| {
            let name = format!("marline_hole_seconds_{metric}{{direction=\"{direction}\"}}");
            value(metrics.lines().find(|line| line.starts_with(&name)).expect("the event exists"))
        };
        assert_eq!(of("count") as u64, count, "{direction}: {told:?}");
        assert!(((of("sum") * 1e6) as u64).abs_diff(sum) < OWN_US, "{direction}: {told:?}");
    }
    let longest = told.iter().max_by_key(|hole| hole.3 - hole.2).expect("a gap");
    let far: Vec<(u64, u64)> = world.far.try_iter().filter_map(|line| pause(&line)).collect();
    let longest_of = |pauses: &[(u64, u64)]| {
        *pauses.iter().max_by_key(|pause| pause.1 - pause.0).expect("a pause")
    };
    let ((since, answered), (far_since, until)) = (longest_of(pauses), longest_of(&far));
    let behind = page.behind_us.expect("there were samples");
    let (begun, ended) = (longest.2 + behind, longest.3 + behind);
    let doubts = world.hosts.net.doubts().expect("the links run");
    println!(
        "both died at 0: the gap lasted from {} to {} us, the far side's pause from {} to {} us, ours from {} to \
         {} us; late by {late} us, {doubts:?}",
        begun as i64 - died as i64,
        ended as i64 - died as i64,
        far_since as i64 - died as i64,
        until as i64 - died as i64,
        since as i64 - died as i64,
        answered as i64 - died as i64,
    );
    let allowed = TRUTH_US + late;
    for (what, own, truth) in
        [("WiFi's death", begun, died), ("begin", begun, since), ("end", ended, until)]
    {
        assert!(own.abs_diff(truth) < allowed, "{what}: {own} and {truth} us, {allowed} allowed");
    }
    assert!(answered + OWN_US > ended, "answered at {answered}, {ended} us");
    assert!(ended + allowed > back, "{ended} us, and nothing got through before {back}");
}

/// The payload counted for a path matches the bytes on its link, apart from headers.
fn the_links_carried_it(world: &World, look: &Look, bytes: u64) {
    for link in world.hosts.net.report().expect("the links run") {
        let (up, down) = (link.up.stats, link.down.stats);
        let Path { bytes_sent, bytes_received, .. } = look.paths[&link.name];
        println!("{}: sent {bytes_sent}, received {bytes_received}; {up:?}, {down:?}", link.name);
        let most = up.offered_bytes - bytes_sent;
        assert!(most <= up.offered_packets * HEADERS, "{}: {most} bytes are no payload", link.name);
        let most = down.delivered_bytes - bytes_received;
        let allowed = down.delivered_packets * HEADERS + REPEATS * MESSAGE as u64;
        assert!(most <= allowed, "{}: {most} bytes are no payload, {allowed} allowed", link.name);
    }
    let all = |of: fn(&Path) -> u64| look.paths.values().map(of).sum::<u64>();
    let (sent, received) = (all(|path| path.bytes_sent), all(|path| path.bytes_received));
    assert!(sent >= bytes && received >= bytes, "{sent} and {received} of {bytes}");
}
