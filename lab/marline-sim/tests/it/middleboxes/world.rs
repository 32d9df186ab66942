//! Connection through middleboxes: its data, its end, and the result of plain TCP through the same middleboxes.

#![allow(unreachable_pub, reason = "a module of a test binary")]

use crate::cases::oracle::stream;
use marline_algos::Registry;
use marline_core::{CloseReason, ConnectionConfig, FallbackReason, MonitorKind};
use marline_link::DuplexConfig;
use marline_sim::{Amount, Bulk, EchoServer, Host, Pace, Paths, PathsConfig, Report, Units};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases;

/// Time after which a run counts as hanging.
const LIMIT: Instant = Instant::from_secs(900);
/// Link properties, without middleboxes.
pub const LINK: &str = "rate=8M,delay=20ms";
/// Bytes that each side sends: about two seconds of the link, longer than the delays of all middleboxes.
pub const BYTES: u64 = 2_500_000;

/// How a run is set up.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Additional link items of each path, after [`LINK`].
    pub boxes: &'a [&'a str],
    /// Multipath TCP, or plain TCP over the first path.
    pub mptcp: bool,
    /// DSS checksums.
    pub checksum: bool,
    pub seed: u64,
    /// Bytes to the server and to the client.
    pub bytes: [u64; 2],
}

impl<'a> Run<'a> {
    pub fn new(boxes: &'a [&'a str]) -> Self {
        Run { boxes, mptcp: true, checksum: false, seed: 1, bytes: [BYTES; 2] }
    }
}

/// How it ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time at which all data had arrived on both sides.
    pub complete: Option<Duration>,
    /// Reason and time of the end of each side's connection, if it ended.
    pub closed: [Option<(Instant, CloseReason)>; 2],
    /// Reason why each side is plain TCP, if it is.
    pub fallback: [Option<FallbackReason>; 2],
    /// True if wrong bytes arrived.
    pub wrong: Option<String>,
    /// Subflows that the client lost, with reasons.
    pub lost: Vec<CloseReason>,
    /// Statistics of the links.
    pub faults: u64,
    /// Packets whose payload a middlebox changed.
    pub rewritten: u64,
    /// True if the middlebox changes sequence numbers, which no counter shows.
    pub moved: bool,
}

impl Outcome {
    /// Returns true if both streams ended, regardless of the bytes.
    pub fn has_ended(&self) -> bool {
        self.complete.is_some() || self.wrong.is_some() || self.closed.iter().all(Option::is_some)
    }

    /// Outcome and time of the end, in words.
    pub fn ends(&self) -> String {
        let end = |closed: &Option<(Instant, CloseReason)>| match closed {
            Some((at, reason)) => format!("{reason} after {:.0} s", seconds_of(*at)),
            None => "no data received".to_owned(),
        };
        format!("client: {}; server: {}", end(&self.closed[0]), end(&self.closed[1]))
    }

    /// Checks that all bytes arrived intact, or that both applications got an error.
    pub fn is_clear(&self) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        if self.complete.is_some() {
            return Ok(());
        }
        let told = |closed: &Option<(Instant, CloseReason)>| {
            closed.is_some_and(|(_, reason)| reason != CloseReason::Finished)
        };
        match self.closed.iter().all(told) {
            true => Ok(()),
            false => Err(format!("neither complete nor an error on both sides: {self:?}")),
        }
    }
}

pub fn link(boxes: &str) -> DuplexConfig {
    let text = if boxes.is_empty() { LINK.to_owned() } else { format!("{LINK},{boxes}") };
    cases::link(&text)
}

pub fn config(mptcp: bool, checksum: bool) -> ConnectionConfig {
    let mut policies = marline_algos::reference_policies();
    policies.path_manager = Registry::default().path_manager("full-mesh").expect("built in");
    let mut config = ConnectionConfig::new(policies);
    config.mptcp = mptcp;
    config.dss_checksum = checksum;
    config
}

pub fn run(run: &Run<'_>) -> Outcome {
    let links: Vec<DuplexConfig> = run.boxes.iter().map(|boxes| link(boxes)).collect();
    let setup = PathsConfig::new(links, config(run.mptcp, run.checksum));
    let mut paths = Paths::new(&setup, SeedTree::new(run.seed));
    let [up, down] = run.bytes;
    paths.listen(Box::new(move |_| Box::new(Bulk::new(Amount::Bytes(down), 22, 11))));
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(up), 11, 22))).expect("a connection");
    let ends = |paths: &Paths| {
        let over = |report: Option<&Report>| {
            report.is_some_and(|report| report.eof_at.is_some() || report.closed.is_some())
        };
        // A client that never reached the server has no counterpart.
        let client_gave_up = paths.client_report(0).is_some_and(|report| report.closed.is_some());
        let server = paths.server_report(0);
        over(paths.client_report(0)) && (over(server) || server.is_none() && client_gave_up)
    };
    while paths.world.now() < LIMIT && !ends(&paths) {
        let next = paths.world.now() + Duration::from_millis(10);
        paths.world.run_until(next);
    }
    let moved = run.boxes.iter().any(|boxes| boxes.contains("renumber") || boxes.contains("thin"));
    Outcome { moved, ..outcome(&paths) }
}

/// Messages of 120 bytes, each echoed, over one path with middleboxes. All must return within `worst`. They are sent 3
/// ms apart or, with `pairs`, as pairs that are 100 ms apart.
pub fn messages(boxes: &str, checksum: bool, pairs: bool, worst: Duration) -> Result<(), String> {
    let setup = PathsConfig::new(vec![link(boxes)], config(true, checksum));
    let mut paths = Paths::new(&setup, SeedTree::new(1));
    let count = if pairs { 100 } else { 1_000 };
    let at = |number: u64| match pairs {
        true => Instant::from_millis(200 + 100 * (number / 2) + number % 2),
        false => Instant::from_millis(200 + 3 * number),
    };
    let times: Vec<Instant> = (0..count).map(at).collect();
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    let pace = Pace::At { bytes: 120, times: times.clone() };
    paths.connect(0, Box::new(Units::new(pace, 120, 7, 7))).expect("a connection");
    paths.world.run_until(Instant::from_secs(60));
    let end = outcome(&paths);
    let client = paths.client_report(0).expect("it connected");
    if let Some(wrong) = end.wrong {
        return Err(wrong);
    }
    let late = client.received.iter().zip(&times).map(|(came, went)| came.since(*went));
    let slowest = late.max().unwrap_or_default();
    let back = client.received.len();
    if back as u64 != count {
        return Err(format!("{back} echoed: {end:?}"));
    }
    if slowest > worst { Err(format!("one took {slowest:?}")) } else { Ok(()) }
}

pub fn outcome(paths: &Paths) -> Outcome {
    let now = paths.world.now();
    let nobody = Report::default();
    let client = paths.client_report(0).expect("it connected");
    let server = paths.server_report(0).unwrap_or(&nobody);
    let both = stream::complete(client, server).and(stream::complete(server, client));
    let wrong = stream::prefix(client, server).and(stream::prefix(server, client)).err();
    let links = paths.up.iter().chain(&paths.down);
    let faults = |stats: &marline_link::LinkStats| {
        let reshaped = stats.split + stats.coalesced + stats.rewritten;
        stats.dropped() + stats.stripped + reshaped
    };
    Outcome {
        complete: both.is_ok().then(|| now.since(Instant::ZERO)),
        closed: [client.closed, server.closed],
        fallback: [paths.client, paths.server].map(|node| fallback(paths.world.node(node))),
        wrong,
        lost: lost(paths.world.node(paths.client)),
        moved: false,
        rewritten: links.clone().map(|link| paths.world.link(*link).stats().rewritten).sum(),
        faults: links.map(|link| faults(paths.world.link(*link).stats())).sum(),
    }
}

/// Connections that an application knows, without those created by SYNs on other paths.
fn fallback(host: &Host) -> Option<FallbackReason> {
    let known = |id| host.connections().any(|(known, _)| known == id);
    host.monitor().iter().find_map(|event| match event.kind {
        MonitorKind::Fallback(reason) if known(event.connection) => Some(reason),
        _ => None,
    })
}

fn lost(host: &Host) -> Vec<CloseReason> {
    let closed = host.monitor().iter().filter_map(|event| match event.kind {
        MonitorKind::SubflowClosed { reason, .. } => Some(reason),
        _ => None,
    });
    closed.collect()
}

fn seconds_of(at: Instant) -> f64 {
    at.since(Instant::ZERO).as_secs_f64()
}

/// A duration for tables.
pub fn seconds(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
}
