//! Tests of handover to a path that was not opened before, with and without Fast JOIN: how long the
//! stream stalls, in round trips of the new path, and that no middlebox or peer makes it worse than an ordinary join.

use std::sync::Arc;

use crate::cases::{connection, link};
use marline_core::{ConnectionConfig, Counters, Extensions};
use marline_policy::{PathAction, PathContext, PathEvent, PathManager, PathManagerFactory};
use marline_sim::{Amount, App, Bulk, Pace, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, SeedTree};

const WIFI: &str = "rate=20M,delay=10ms,queue=50ms";
const LTE: &str = "rate=20M,delay=30ms,queue=100ms";
const LTE_RTT: Duration = Duration::from_millis(60);
const DIES_AT: Instant = Instant::from_millis(1_500);

/// Opens the second path only when the first one's address disappears.
#[derive(Debug)]
struct BreakBeforeMake {
    wanted: Option<PathAction>,
    fast: bool,
}

impl PathManager for BreakBeforeMake {
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        if matches!(event, PathEvent::LocalDown(_)) {
            let local = cx.local.iter().find(|local| local.up).map(|local| local.id);
            self.wanted = local.map(|local| PathAction::OpenSubflow {
                local,
                remote: cx.remote[0].id,
                backup: false,
                fast: self.fast,
            });
        }
    }

    fn poll_action(&mut self) -> Option<PathAction> {
        self.wanted.take()
    }
}

#[derive(Debug)]
struct Factory {
    fast: bool,
}

impl PathManagerFactory for Factory {
    fn name(&self) -> &'static str {
        "break-before-make-test"
    }

    fn build(&self) -> Box<dyn PathManager> {
        Box::new(BreakBeforeMake { wanted: None, fast: self.fast })
    }
}

/// Data in flight when the path dies.
#[derive(Copy, Clone, Debug)]
enum Traffic {
    /// 8 MB, mostly sent over the second path.
    Bulk,
    /// 100 bytes every 100 ms; the path dies 2 ms after a message left.
    Keystrokes,
}

impl Traffic {
    fn app(self, sends: bool, write: u64, read: u64) -> Box<dyn App> {
        match (self, sends) {
            (Traffic::Bulk, true) => Box::new(Bulk::new(Amount::Bytes(8_000_000), write, read)),
            (Traffic::Bulk, false) => Box::new(Bulk::new(Amount::Nothing, write, read)),
            (Traffic::Keystrokes, true) => {
                let times = (1..40).map(|n| Instant::from_millis(98 + 100 * n)).collect();
                let pace = Pace::At { bytes: 100, times };
                Box::new(Units::new(pace, 100, write, read))
            }
            (Traffic::Keystrokes, false) => Box::new(Units::new(Pace::Never, 100, write, read)),
        }
    }
}

#[derive(Copy, Clone, Debug)]
struct Setting<'a> {
    traffic: Traffic,
    upload: bool,
    fast: bool,
    /// Middleboxes on the second path.
    boxes: &'a str,
    /// True if the server supports the extensions.
    known: bool,
}

impl Setting<'_> {
    const PLAIN: Setting<'static> =
        Setting { traffic: Traffic::Bulk, upload: true, fast: false, boxes: "", known: true };
}

struct Handover {
    /// From the loss of the address to the first new byte.
    hole: Duration,
    client: Counters,
    server: Counters,
}

fn run(setting: Setting<'static>) -> Handover {
    let mut client: ConnectionConfig = connection("min-rtt");
    client.policies.path_manager = Arc::new(Factory { fast: setting.fast });
    client.extensions = Extensions::FAST_JOIN;
    let lte = [LTE, setting.boxes].join(if setting.boxes.is_empty() { "" } else { "," });
    let mut config = PathsConfig::new(vec![link(WIFI), link(&lte)], client);
    config.server = connection("min-rtt");
    if !setting.known {
        config.server.allow_extensions = Extensions::NONE;
    }
    let mut paths = Paths::new(&config, SeedTree::new(3));
    let upload = setting.upload;
    let app = move |sends, write, read| setting.traffic.app(sends, write, read);
    paths.listen(Box::new(move |_| app(!upload, 1, 2)));
    paths.connect(0, app(upload, 2, 1)).expect("a connection");
    paths.schedule_address_change(DIES_AT, 0, false);
    paths.schedule_path_change(DIES_AT, 0, false);
    paths.world.run_until(DIES_AT + Duration::from_secs(30));
    let (here, there) = (paths.client_report(0), paths.server_report(0));
    let (here, there) = (here.expect("connected"), there.expect("accepted"));
    let (writer, reader) = if upload { (here, there) } else { (there, here) };
    assert_eq!(reader.read, writer.written, "{setting:?}");
    assert_eq!(reader.wrong_at, None, "{setting:?}");
    let first = reader.arrivals.iter().map(|(at, _)| *at).find(|at| *at > DIES_AT);
    let counters = |node| paths.world.node(node).endpoint().counters();
    Handover {
        hole: first.expect("bytes arrived").since(DIES_AT),
        client: counters(paths.client),
        server: counters(paths.server),
    }
}

fn in_rtts(time: Duration) -> f64 {
    time.as_secs_f64() / LTE_RTT.as_secs_f64()
}

/// Results without and with Fast JOIN in round trips, which are also printed.
fn compare(name: &str, setting: Setting<'static>) -> (f64, f64) {
    let plain = run(setting);
    let fast = run(Setting { fast: true, ..setting });
    let (before, after) = (in_rtts(plain.hole), in_rtts(fast.hole));
    let saved = before - after;
    println!("{name}: {before:.2} RTT with MP_JOIN, {after:.2} with Fast JOIN, saved {saved:.2}");
    assert_eq!((fast.client.fast_join_syn_tx, fast.server.fast_join_syn_rx), (1, 1), "{name}");
    assert_eq!((fast.client.fast_join_syn_ack_rx, fast.client.fast_join_fallback), (1, 0));
    assert_eq!(plain.client.fast_join_syn_tx, 0, "{name}");
    (before, after)
}

/// Data with the SYN arrives half a round trip after the address disappeared; after an ordinary join it takes two and
/// a half (SYN, SYN/ACK, third ACK, fourth ACK, data).
#[test]
fn a_message_on_its_way_up_saves_the_whole_handshake() {
    let setting = Setting { traffic: Traffic::Keystrokes, ..Setting::PLAIN };
    let (before, after) = compare("keystroke up", setting);
    assert!((2.5..2.6).contains(&before), "{before}");
    assert!((0.5..0.6).contains(&after), "{after}");
}

/// With a full pipe the oldest data has already arrived; only its ACKs were lost with the path. The SYN/ACK reports
/// this, and the missing data follows.
#[test]
fn an_upload_saves_a_round_trip() {
    let (before, after) = compare("upload", Setting::PLAIN);
    assert!((2.5..2.6).contains(&before), "{before}");
    assert!((1.5..1.6).contains(&after), "{after}");
}

/// The server sends after the third ACK in both cases. The difference is the first data: with Fast JOIN it is the
/// missing data, without waiting to detect that the first path is dead.
#[test]
fn a_download_resumes_with_the_third_ack() {
    let download = Setting { upload: false, ..Setting::PLAIN };
    let (before, after) = compare("download", download);
    assert!((2.0..2.1).contains(&after) && after < before - 0.9, "{after} and {before}");
    let (before, after) =
        compare("keystroke down", Setting { traffic: Traffic::Keystrokes, ..download });
    assert!((2.0..2.1).contains(&after) && after <= before, "{after} and {before}");
}

/// A rejection costs one round trip, an unanswered SYN one timeout.
#[test]
fn any_middlebox_costs_a_fast_join_one_retry() {
    let boxes = [
        ("strip=mp_experimental:syn", 1),
        ("strip=mp_experimental:synack", 1),
        ("mangle=mp_experimental:syn", 1),
        ("mangle=mp_experimental:synack", 1),
        ("block=mp_experimental:syn", 0),
        ("block=mp_experimental:synack", 0),
    ];
    for upload in [true, false] {
        let plain = run(Setting { upload, ..Setting::PLAIN });
        for (boxes, round_trips) in boxes {
            let fast = run(Setting { upload, fast: true, boxes, ..Setting::PLAIN });
            let extra = in_rtts(fast.hole) - in_rtts(plain.hole);
            println!("{boxes}, upload {upload}: {:.2} RTT, {extra:.2} more", in_rtts(fast.hole));
            assert_eq!(fast.client.fast_join_fallback, 1, "{boxes}, upload {upload}");
            let timeout = if round_trips == 0 { in_rtts(Duration::from_secs(1)) } else { 0.0 };
            let allowed = timeout + f64::from(round_trips) + 0.2;
            assert!(extra <= allowed, "{boxes}, upload {upload}: {extra} round trips more");
        }
    }
}

#[test]
fn a_server_without_extensions_gets_an_ordinary_join() {
    for upload in [true, false] {
        let plain = run(Setting { upload, ..Setting::PLAIN });
        let unknown = Setting { upload, fast: true, known: false, ..Setting::PLAIN };
        let unknown = run(unknown);
        assert_eq!(unknown.hole, plain.hole, "upload {upload}");
        assert_eq!(unknown.client.fast_join_syn_tx, 0);
    }
}
