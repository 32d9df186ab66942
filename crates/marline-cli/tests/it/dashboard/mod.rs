//! Tests of the dashboard in a real browser: the page must show a scripted outage correctly.

mod chromium;
mod cost;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support;
use crate::support::{Running, run_err, start_server, write_private};
use chromium::Browser;
use marline_testkit::need;

/// Duration of the outage.
const OUTAGE: Duration = Duration::from_millis(1_500);
/// Allowed difference between the application's measurement and the page, in addition to the delays of this
/// machine.
const TRUTH: Duration = Duration::from_millis(50);

/// A controllable link to the server.
struct Link {
    _process: Running,
    control: PathBuf,
    address: SocketAddr,
}

impl Link {
    fn start(dir: &Path, name: &str, to: SocketAddr, spec: &str) -> Link {
        let control = dir.join(format!("{name}.sock"));
        let (to, shown) = (to.to_string(), control.display().to_string());
        let args = ["link", "--listen", "127.0.0.1:0", "--to", &to, "--control", &shown, spec];
        let mut process = Running::start_command(support::marline_lab(dir, &args), "link");
        let address = process.address_after("listening on ");
        Link { _process: process, control, address }
    }

    fn tell(&self, order: &str) {
        let mut control = BufReader::new(UnixStream::connect(&self.control).expect("the link"));
        writeln!(control.get_mut(), "{order}").expect("order");
        let mut line = String::new();
        control.read_line(&mut line).expect("answer");
        assert!(line.contains("\"ok\":true"), "{order}: {line}");
    }
}

/// Pause between two messages.
const EVERY: Duration = Duration::from_millis(20);

/// An application that sends messages at this interval and receives their echoes. It ends with the test.
struct Chatter {
    ends: Arc<AtomicBool>,
    heard: Arc<AtomicU64>,
    longest: Arc<Mutex<Duration>>,
    /// Largest delay of its wakeups.
    late: Arc<Mutex<Duration>>,
}

impl Chatter {
    fn start(socks: SocketAddr) -> Chatter {
        let echo = echo_target();
        let mut stream = through(socks, echo);
        let mut reader = stream.try_clone().expect("a second handle");
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let late = Arc::<Mutex<Duration>>::default();
        let worst = Arc::clone(&late);
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) && stream.write_all(&[7; 200]).is_ok() {
                let begun = Instant::now();
                std::thread::sleep(EVERY);
                let mut worst = worst.lock().expect("unpoisoned");
                *worst = worst.max(begun.elapsed().saturating_sub(EVERY));
            }
        });
        let (heard, longest) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Duration>>::default());
        let (count, hole) = (Arc::clone(&heard), Arc::clone(&longest));
        std::thread::spawn(move || {
            let mut last = Instant::now();
            let mut buffer = [0; 4_096];
            while reader.read(&mut buffer).is_ok_and(|count| count > 0) {
                let mut longest = hole.lock().expect("unpoisoned");
                *longest = longest.max(last.elapsed());
                last = Instant::now();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Chatter { ends, heard, longest, late }
    }

    /// Restarts the measurement, and waits until answers arrive.
    fn listen_afresh(&self) {
        let before = self.heard.load(Ordering::Relaxed);
        while self.heard.load(Ordering::Relaxed) < before + 20 {
            std::thread::sleep(Duration::from_millis(10));
        }
        *self.longest.lock().expect("unpoisoned") = Duration::ZERO;
        *self.late.lock().expect("unpoisoned") = Duration::ZERO;
    }

    fn longest_gap(&self) -> Duration {
        *self.longest.lock().expect("unpoisoned")
    }

    fn late(&self) -> Duration {
        *self.late.lock().expect("unpoisoned")
    }
}

impl Drop for Chatter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn echo_target() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut out = stream.try_clone().expect("a second handle");
                let _ = std::io::copy(&mut stream, &mut out);
            });
        }
    });
    address
}

/// Returns a connection through a SOCKS5 port.
fn through(socks: SocketAddr, target: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(socks).expect("the port");
    stream.set_nodelay(true).expect("nodelay");
    stream.write_all(&[5, 1, 0]).expect("greeting");
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).expect("method");
    let mut request = vec![5, 1, 0, 1, 127, 0, 0, 1];
    request.extend(target.port().to_be_bytes());
    stream.write_all(&request).expect("request");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).expect("answer");
    assert_eq!(answer[1], 0, "{answer:?}");
    stream
}

/// Collects events from the control socket as they arrive.
fn events_told(dir: &Path, control: &str) -> Arc<Mutex<Vec<Value>>> {
    let mut monitor = support::marline(dir, &["monitor", "--json", "--control", control]);
    monitor.stdout(std::process::Stdio::piped());
    let mut child = monitor.spawn().expect("marline monitor");
    let out = BufReader::new(child.stdout.take().expect("its output"));
    let all = Arc::<Mutex<Vec<Value>>>::default();
    let into = Arc::clone(&all);
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            let event: Value = serde_json::from_str(&line).expect("an event");
            into.lock().expect("unpoisoned").push(event);
        }
        // The monitor ends with the client.
        let _ = child.wait();
    });
    all
}

/// Delivery gaps on the page: connection, direction, start and end in microseconds.
const GAPS: &str = "[...document.querySelectorAll('#hole-rows tbody tr')].map(row => ({ \
    connection: Number(row.dataset.connection), since_us: Number(row.dataset.sinceUs), \
    at_us: Number(row.dataset.atUs), text: row.innerText }))";

fn state(path: &str, state: &str) -> String {
    format!("document.querySelector('tr[data-path={path}]')?.dataset.state === '{state}'")
}

fn length(hole: &Value) -> Duration {
    let us = |of: &str| hole[of].as_u64().expect("microseconds");
    Duration::from_micros(us("at_us") - us("since_us"))
}

/// A client with two paths, WiFi and LTE, and a dashboard.
struct TwoPaths {
    wifi: Link,
    lte: Link,
    _server: support::ServerSide,
    _client: Running,
    control: String,
    url: String,
    socks: SocketAddr,
}

impl TwoPaths {
    fn start(dir: &Path) -> TwoPaths {
        let server = start_server(dir, &["--allow", "127.0.0.0/8"]);
        let wifi = Link::start(dir, "wifi", server.address, "rate=20M,delay=8ms");
        let lte = Link::start(dir, "lte", server.address, "rate=10M,delay=25ms");
        let control = dir.join("client.sock").display().to_string();
        let paths = [(&wifi, "WiFi"), (&lte, "LTE")]
            .map(|(link, name)| format!("127.0.0.1={},name={name}", link.address));
        let flags = ["--path", &paths[0], "--path", &paths[1], "--control", &control];
        let (client, url, socks) = client(dir, &server, &flags);
        TwoPaths { wifi, lte, _server: server, _client: client, control, url, socks }
    }

    fn both(&self, order: &str) {
        self.wifi.tell(order);
        self.lte.tell(order);
    }
}

/// Returns a client with a dashboard: its process, the page's address, its SOCKS5 port.
fn client(
    dir: &Path,
    server: &support::ServerSide,
    flags: &[&str],
) -> (Running, String, SocketAddr) {
    let invite = server.invite_file.to_str().expect("text");
    // A fixed port, free a moment ago, because the order of the two outputs is unknown.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let shown = free.expect("a port").to_string();
    let mut args = vec!["client", "--invite-file", invite, "--socks5", "127.0.0.1:0"];
    args.extend_from_slice(&["--dashboard", &shown]);
    args.extend_from_slice(flags);
    let mut process = Running::start(dir, &args);
    let socks = process.address_after("socks5 listening on ");
    let url = format!("http://{shown}/");
    (process, url, socks)
}

#[test]
fn the_page_shows_a_scripted_outage_as_it_was() {
    let _alone = support::lock_exclusively();
    let Some(program) = need::program("chromium") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let dir = directory.path();
    let world = TwoPaths::start(dir);
    let mut browser = Browser::start(&program, dir);
    let page = browser.open(&world.url, 1_100, false);
    let told = events_told(dir, &world.control);
    let chatter = Chatter::start(world.socks);
    for path in ["WiFi", "LTE"] {
        browser.wait_for(&page, &state(path, "usable"));
    }
    browser.wait_for(&page, "document.querySelectorAll('#charts canvas').length === 5");
    chatter.listen_afresh();

    // One path fails. The page immediately reports this path alone, and later that nothing answers there.
    world.wifi.tell("down");
    browser.wait_for(&page, &format!("!({})", state("WiFi", "usable")));
    browser.wait_for(&page, &state("WiFi", "unreachable"));
    assert_eq!(browser.see(&page, &state("LTE", "usable")), true);
    let news = "document.querySelector('#news').textContent";
    browser.wait_for(&page, &format!("{news}.startsWith('WiFi is unreachable')"));
    let happened = "document.querySelector('#events').innerText";
    browser.wait_for(&page, &format!("{happened}.includes('WiFi is unreachable')"));
    wait_until(|| told.lock().expect("unpoisoned").iter().any(|e| e["event"] == "SF_UNREACHABLE"));
    world.wifi.tell("up");
    browser.wait_for(&page, &state("WiFi", "usable"));

    // Both paths fail, which causes a gap.
    chatter.listen_afresh();
    let before = browser.see(&page, "Number(document.body.dataset.atUs)").as_u64().expect("a time");
    let died = Instant::now();
    world.both("down");
    std::thread::sleep(OUTAGE.saturating_sub(died.elapsed()));
    world.both("up");
    wait_until(|| chatter.longest_gap() > OUTAGE - Duration::from_millis(500));
    let felt = chatter.longest_gap();
    browser.wait_for(&page, &format!("{GAPS}.some(hole => hole.at_us - hole.since_us >= 800000)"));
    let mut shown = browser.see(&page, GAPS).as_array().expect("rows").clone();
    shown.retain(|hole| hole["since_us"].as_u64() >= Some(before));
    let hole = shown.iter().max_by_key(|hole| length(hole)).expect("a gap");
    let allowed = TRUTH + chatter.late();
    println!("shown {hole}, felt {felt:?}, {allowed:?} allowed");
    assert!(
        length(hole).abs_diff(felt) < allowed,
        "shown {hole}, felt {felt:?}, {allowed:?} allowed"
    );
    for words in ["sent", "continued over"] {
        assert!(hole["text"].as_str().is_some_and(|text| text.contains(words)), "{hole}");
    }
    // Each displayed gap matches an event of the event stream, to the microsecond.
    for hole in &shown {
        let same = |event: &Value| {
            event["event"] == "HOLE"
                && ["connection", "since_us", "at_us"].iter().all(|of| event[of] == hole[of])
        };
        wait_until(|| told.lock().expect("unpoisoned").iter().any(same));
    }
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

/// Selects the connection of the application, which is the busiest.
const CHOOSE: &str = "(() => { const row = document.querySelector('#connections tbody tr'); \
    const read = row.cells[4].textContent; \
    if (!(parseFloat(read) >= 10 && read.includes('kB'))) return false; \
    const of = document.querySelector('#places-of'); of.value = row.dataset.key; \
    of.dispatchEvent(new Event('change')); return of.value !== '' })()";

#[test]
fn places_in_the_stream_are_drawn_of_the_connection_that_is_chosen() {
    let _alone = support::lock_exclusively();
    let Some(program) = need::program("chromium") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let dir = directory.path();
    let world = TwoPaths::start(dir);
    let mut browser = Browser::start(&program, dir);
    let page = browser.open(&world.url, 1_100, false);
    let chatter = Chatter::start(world.socks);
    for path in ["WiFi", "LTE"] {
        browser.wait_for(&page, &state(path, "usable"));
    }
    browser.wait_for(&page, "document.querySelectorAll('#places-of option').length > 1");
    let data = |of: &str| format!("Number(document.querySelector('#places').dataset.{of} ?? 0)");
    assert_eq!(browser.see(&page, &data("new")), 0, "positions are collected only on request");
    browser.wait_for(&page, CHOOSE);
    browser.wait_for(&page, &format!("{} > 1000", data("new")));
    // Switch to the other direction by its button.
    let sent = "document.querySelector('#places-way button[data-way=sent]').click()";
    browser.see(&page, sent);
    let words = "document.querySelector('#places-words').textContent";
    browser.wait_for(&page, &format!("{words}.includes('WiFi: ')"));
    let drawn = "(() => { const c = document.querySelector('#places canvas'); \
        return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(b => b !== 0) })()";
    browser.wait_for(&page, drawn);
    // WiFi fails, and its data is sent over LTE, as a reinjection or as an earlier copy.
    chatter.listen_afresh();
    world.wifi.tell("down");
    let twice = format!("{} + {} > 0", data("reinjection"), data("copy"));
    browser.wait_for(&page, &twice);
    browser.wait_for(&page, &format!("{words}.includes('LTE: ')"));
    // Both fail, which is a gap in the picture.
    world.both("down");
    std::thread::sleep(OUTAGE);
    world.both("up");
    browser.wait_for(&page, &format!("{} > 0", data("holes")));
    let aloud = browser.see(&page, "document.querySelector('#places').getAttribute('aria-label')");
    let aloud = aloud.as_str().expect("words");
    println!("{aloud}");
    assert!(
        aloud.starts_with("Positions in the stream, sent. ") && aloud.contains(" gaps"),
        "{aloud}"
    );
    // After the selection is removed, nothing more is reported.
    let none = "(() => { const of = document.querySelector('#places-of'); of.value = ''; \
        of.dispatchEvent(new Event('change')); return document.querySelector('#places').hidden })()";
    browser.wait_for(&page, none);
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

fn wait_until(is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_page_supports_phones_dark_mode_keyboard_and_screen_readers() {
    let _alone = support::lock_exclusively();
    let Some(program) = need::program("chromium") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let dir = directory.path();
    let server = start_server(dir, &["--allow", "127.0.0.0/8"]);
    let token_file = dir.join("token");
    write_private(&token_file, "0123456789abcdef-xyz\n");
    let token = token_file.display().to_string();
    let path = format!("127.0.0.1={},name=WiFi", server.address);
    let flags = ["--path", &path, "--dashboard-token-file", &token];
    let (_client, url, socks) = client(dir, &server, &flags);
    let _chatter = Chatter::start(socks);
    let mut browser = Browser::start(&program, dir);

    let stranger = browser.open(&url, 1_100, false);
    browser.wait_for(&stranger, "document.querySelector('#link').textContent.startsWith('401')");
    assert_eq!(browser.see(&stranger, "document.querySelectorAll('#paths tbody tr').length"), 0);

    let url = format!("{url}#token=0123456789abcdef-xyz");
    let mut papers = Vec::new();
    for (width, dark) in [(360, false), (360, true), (1_100, false)] {
        let page = browser.open(&url, width, dark);
        browser.wait_for(&page, &state("WiFi", "usable"));
        browser.wait_for(&page, "document.querySelectorAll('#charts canvas').length === 5");
        let fits = "document.documentElement.scrollWidth <= innerWidth";
        browser.wait_for(&page, fits);
        papers.push(browser.see(&page, "getComputedStyle(document.body).backgroundColor"));
        let origins =
            "performance.getEntriesByType('resource').every(e => e.name.startsWith(origin))";
        let from = browser.see(&page, origins);
        assert_eq!(from, true, "no resource is from another origin");
    }
    assert_ne!(papers[0], papers[1], "the dark page differs from the light one");

    let page = browser.open(&url, 1_100, false);
    browser.wait_for(&page, "document.querySelectorAll('#charts figure[aria-label]').length === 5");
    // Navigation by keyboard: past the lines, then the buttons.
    browser.press(&page, "Tab");
    assert_eq!(browser.see(&page, "document.activeElement.className"), "skip");
    browser.press(&page, "Tab");
    browser.press(&page, "Tab");
    assert_eq!(browser.see(&page, "document.activeElement.dataset.s"), "300");
    let outline = browser.see(&page, "getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "focus is visible");
    browser.press(&page, "Enter");
    browser.wait_for(&page, "document.activeElement.getAttribute('aria-pressed') === 'true'");
    // Content for a screen reader.
    let aloud = browser.read_aloud(&page);
    let says =
        |role: &str, text: &str| aloud.iter().any(|(r, name)| r == role && name.contains(text));
    assert!(says("heading", "Marline client") && says("heading", "Delivery gaps"), "{aloud:?}");
    assert!(says("columnheader", "RTT") && says("rowheader", "WiFi"), "{aloud:?}");
    assert!(says("image", "RTT. WiFi: now ") || says("img", "RTT. WiFi: now "), "{aloud:?}");
    let complaints: Vec<_> =
        browser.complaints().iter().filter(|text| !text.contains("401")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn an_invalid_dashboard_token_is_reported_at_startup() {
    let directory = tempfile::tempdir().expect("directory");
    let dir = directory.path();
    let server = start_server(dir, &[]);
    let invite = server.invite_file.to_str().expect("text").to_owned();
    let file = dir.join("token");
    let name = file.display().to_string();
    let args = [
        "client",
        "--invite-file",
        &invite,
        "--dashboard",
        "127.0.0.1:0",
        "--dashboard-token-file",
        &name,
    ];
    write_private(&file, "short");
    assert!(run_err(dir, &args).contains("a token must be 16 to 256 letters"));
    std::fs::write(&file, "0123456789abcdef0123").expect("write");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("mode");
    let said = run_err(dir, &args);
    assert!(said.contains(&name) && !said.contains("0123456789abcdef"), "{said}");
    // On an address other than loopback, a token is created and printed once.
    let mut open =
        Running::start(dir, &["client", "--invite-file", &invite, "--dashboard", "0.0.0.0:0"]);
    let line = open.line_with("dashboard at ");
    let token = line.split("#token=").nth(1).expect("a token");
    assert_eq!(token.len(), 32, "{line}");
}
