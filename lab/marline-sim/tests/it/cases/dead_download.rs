//! Download whose only path dies: the client opens the cellular path because nothing arrives.

use crate::cases::oracle::stream;
use marline_algos::Registry;
use marline_core::{ConnectionConfig, Extensions, MonitorEvent, MonitorKind, ReceiveTimer};
use marline_policy::UnreachableCause;
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use super::{connection, link};

/// The cellular path, whose radio sleeps until the first packet wakes it (260 ms).
pub const LTE: &str = "rate=20M,delay=30ms,queue=100ms,radio=lte";
/// The path that dies.
pub const WIFI: &str = "rate=20M,delay=10ms,queue=50ms";

/// Extensions that the client may request.
#[derive(Copy, Clone, Debug)]
pub struct Setting {
    pub timer: ReceiveTimer,
    /// The server agrees to announce idle times and its timeout.
    pub helped: bool,
    pub fast: bool,
}

/// The parts of the gap, in order; they add up to it.
#[derive(Copy, Clone, Debug)]
pub struct Hole {
    /// From the last byte before the gap to the verdict.
    pub notice: Duration,
    /// Cause of the verdict.
    pub cause: UnreachableCause,
    /// From the verdict to the established cellular subflow: promotion and a round trip.
    pub open: Duration,
    /// From there to the first new byte.
    pub resume: Duration,
    /// Longest time without arrivals.
    pub total: Duration,
    /// When all bytes had arrived.
    pub finished: Instant,
}

/// A client whose LTE sleeps until it is needed: with MultiMob's path manager and its timer, or with ours.
fn client(setting: Setting) -> ConnectionConfig {
    let mut client = connection("min-rtt");
    let manager = if setting.timer.probing.is_some() { "break-before-make" } else { "multimob" };
    client.policies.path_manager = Registry::default().path_manager(manager).expect("built in");
    client.receive_timer = Some(setting.timer);
    client.extensions = extensions(setting);
    client
}

/// Downloads 20 MB over this WiFi, which may die at a given time. Runs until all bytes arrived.
///
/// # Panics
/// If bytes are wrong or do not all arrive within two minutes.
fn download(setting: Setting, wifi: &str, dies_at: Option<Instant>, seed: u64) -> (Paths, Instant) {
    let mut config = PathsConfig::new(vec![link(wifi), link(LTE)], client(setting));
    config.server = connection("min-rtt");
    config.backup = vec![false, true];
    if !setting.helped {
        config.server.allow_extensions = Extensions::NONE;
    }
    let mut paths = Paths::new(&config, SeedTree::new(seed));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(20_000_000), 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    if let Some(dies_at) = dies_at {
        paths.schedule_path_change(dies_at, 0, false);
    }
    let limit = Instant::from_secs(120);
    let finished = paths.world.run_while(limit, |world| {
        let eof = |node| {
            let report = world.node(node).report(0);
            report.is_some_and(|report: &marline_sim::Report| report.eof_at.is_some())
        };
        !(eof(paths.client) && eof(paths.server))
    });
    let (reader, writer) = (paths.client_report(0), paths.server_report(0));
    let (reader, writer) = (reader.expect("connected"), writer.expect("accepted"));
    let complete = stream::complete(writer, reader);
    assert!(finished && complete.is_ok(), "{setting:?}, seed {seed}: {complete:?}");
    let finished = reader.arrived.expect("bytes arrived").1;
    (paths, finished)
}

/// Verdicts of the receive timer on a bad but working path.
pub fn false_alarms(setting: Setting, wifi: &str, seed: u64) -> Vec<(Instant, UnreachableCause)> {
    let (paths, _) = download(setting, wifi, None, seed);
    let events = paths.world.node(paths.client).monitor().iter();
    let silent = events.filter_map(|event| match event.kind {
        MonitorKind::SubflowSilent { cause, .. } => Some((event.at, cause)),
        _ => None,
    });
    silent.collect()
}

/// 20 MB to the client; WiFi loses everything after `dies_at`.
pub fn run(setting: Setting, dies_at: Instant, seed: u64) -> Hole {
    let (paths, finished) = download(setting, WIFI, Some(dies_at), seed);
    let reader = paths.client_report(0).expect("connected");
    let hole = reader.longest_gap_within(dies_at, finished);
    let events = paths.world.node(paths.client).monitor();
    let (silent_at, cause) = first(events, |kind| match kind {
        MonitorKind::SubflowSilent { cause, .. } => Some(*cause),
        _ => None,
    });
    let (open_at, ()) =
        first(events, |kind| matches!(kind, MonitorKind::SubflowEstablished { .. }).then_some(()));
    let end = hole.from + hole.length;
    Hole {
        notice: silent_at.since(hole.from),
        cause,
        open: open_at.since(silent_at),
        resume: end.since(open_at),
        total: hole.length,
        finished,
    }
}

fn extensions(setting: Setting) -> Extensions {
    let helped = Extensions::IDLE.union(Extensions::RTO);
    if setting.fast { helped.union(Extensions::FAST_JOIN) } else { helped }
}

fn first<T>(events: &[MonitorEvent], wanted: impl Fn(&MonitorKind) -> Option<T>) -> (Instant, T) {
    let found = events.iter().find_map(|event| Some((event.at, wanted(&event.kind)?)));
    found.unwrap_or_else(|| panic!("never happened; the client reported {events:#?}"))
}
