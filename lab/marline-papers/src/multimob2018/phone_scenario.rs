//! Simulated phone with WiFi and LTE, a server, and the delays that an application observes.

use std::path::Path;

use anyhow::Context as _;
use marline_lab::emulation::settings::Settings;
use marline_lab::experiment::{Load, START, apps};
use marline_lab::figure::{Segment, SegmentLog};
use marline_lab::wifi_mobility::mobility_run;
use marline_lab::workload::Workload;
use marline_link::DuplexConfig;
use marline_link::radio::Energy;
use marline_sim::{ExchangeSizes, Paths, PathsConfig, RequestResponse, ResponseServer};
use marline_time::{Duration, Instant, Rng, SeedTree};

use super::radios::{Meter, Metered};
use super::systems::System;
use crate::roots::Root;

/// Indexes of the paths.
pub(super) const WIFI: usize = 0;
pub(super) const LTE: usize = 1;
pub(super) const NAMES: [&str; 2] = ["wifi", "lte"];
/// How long an interface keeps its address after the signal is lost (docs/research/wifi-mobility.md).
const ADDRESS_LINGER: Duration = Duration::from_secs(4);
/// Time before and after WiFi falls silent within which a handover's gap is searched for.
const GAP_SEARCH_WINDOW: Duration = Duration::from_secs(5);
/// Size of a GET, bytes.
const REQUEST: u64 = 200;
/// Maximum time for which a run continues after the last request is due.
const DRAIN_TIME: Duration = Duration::from_secs(20);

/// A download by GET during which WiFi dies.
#[derive(Copy, Clone, Debug)]
pub(super) struct Download {
    pub(super) bytes: u64,
    /// Time after the first SYN from which WiFi drops everything.
    pub(super) dead: Duration,
    /// End of the run. Missing bytes count as never received.
    pub(super) limit: Instant,
}

/// A download that completed or was given up.
pub(super) struct Fetched {
    pub(super) paths: Paths,
    pub(super) segments: Vec<Segment>,
    /// True if all bytes arrived.
    pub(super) is_complete: bool,
    /// Time of the last arrival.
    pub(super) last: Instant,
}

/// The links, and the changes of the WiFi address.
#[derive(Clone, Debug)]
pub(super) struct PhoneScenario {
    pub(super) links: [DuplexConfig; 2],
    /// Times after the links' start at which the client loses (false) or regains (true) its WiFi address.
    pub(super) address: Vec<(Duration, bool)>,
    /// When WiFi falls silent for good or for a long time, after the links' start.
    pub(super) silent: Option<Duration>,
}

impl PhoneScenario {
    /// Scenario over links of these descriptions.
    ///
    /// # Errors
    /// Invalid description, or missing trace.
    pub(super) fn experiment_over_links(
        wifi: &str,
        lte: &str,
        traces: Option<&Path>,
        seed: u64,
    ) -> anyhow::Result<PhoneScenario> {
        let link = |name: &str, text: &str| -> anyhow::Result<DuplexConfig> {
            let spec = text.parse().with_context(|| format!("link `{text}`"))?;
            Settings::new(spec, traces, SeedTree::new(seed).branch(name)).first()
        };
        Ok(PhoneScenario {
            links: [link(NAMES[WIFI], wifi)?, link(NAMES[LTE], lte)?],
            address: Vec::new(),
            silent: None,
        })
    }

    /// A walk with LTE from a recorded drive. `leaves` selects a walk that leaves the WiFi's range.
    ///
    /// # Errors
    /// Missing trace.
    pub(super) fn walk(traces: &Path, seed: u64, leaves: bool) -> anyhow::Result<PhoneScenario> {
        let run = mobility_run(seed, leaves, true);
        let links = run.links(Some(traces))?;
        let links =
            links.try_into().map_err(|_| anyhow::anyhow!("expected two links: WiFi and LTE"))?;
        let changes = |(gone, back): (Duration, Option<Duration>)| {
            [Some((gone, false)), back.map(|back| (back, true))]
        };
        let away = if leaves { run.absence_periods()? } else { Vec::new() };
        let address: Vec<(Duration, bool)> = away.into_iter().flat_map(changes).flatten().collect();
        let first = address.first().map(|(at, _)| *at);
        Ok(PhoneScenario {
            links,
            address,
            silent: first.map(|at| at.saturating_sub(ADDRESS_LINGER)),
        })
    }

    /// Names and links of the paths.
    pub(super) fn named(&self) -> Vec<(&'static str, DuplexConfig)> {
        NAMES.into_iter().zip(self.links.iter().cloned()).collect()
    }

    /// Maximum length of a run with this workload, after the start.
    pub(super) fn duration(&self, workload: &Workload, seed: u64) -> Duration {
        workload.duration(seed) + last_gap(workload) + DRAIN_TIME
    }

    /// Simulated world before its first event, without applications.
    ///
    /// # Errors
    /// Unknown policy.
    pub(super) fn stage(&self, system: &System, seed: u64) -> anyhow::Result<Paths> {
        let (client, server) = system.configs()?;
        let used = if system.cellular { 2 } else { 1 };
        // The hosts of the paper ran kernels, which use the interface MTU as the path MTU.
        let mut config = PathsConfig::new(self.links[..used].to_vec(), client).with_known_mtu();
        config.server = server;
        config.names = NAMES[..used].iter().map(|name| (*name).to_owned()).collect();
        config.backup = vec![false, system.backup];
        let mut paths = Paths::new(&config, SeedTree::new(seed));
        system.set_up_hosts(&mut paths);
        for (at, up) in &self.address {
            paths.schedule_address_change(Instant::ZERO + *at, WIFI, *up);
        }
        Ok(paths)
    }

    /// Runs a download on a system, during which WiFi dies.
    ///
    /// # Errors
    /// Unknown policy, or a corrupted byte.
    pub(super) fn fetch(
        &self,
        system: &System,
        download: Download,
        seed: u64,
    ) -> anyhow::Result<Fetched> {
        let Download { bytes, dead, limit } = download;
        let mut paths = self.stage(system, seed)?;
        let sizes = ExchangeSizes { request_bytes: REQUEST, answer_bytes: bytes };
        paths.listen(Box::new(move |_| Box::new(ResponseServer::new(sizes, 6, 5))));
        let client = RequestResponse::new(1, sizes, Duration::ZERO, 5, 6);
        paths.connect(WIFI, Box::new(client)).context("cannot connect")?;
        paths.schedule_path_change(Instant::ZERO + dead, WIFI, false);
        let log = SegmentLog::for_paths(&paths);
        paths.world.observe(Box::new(log));
        let read = |paths: &Paths| paths.client_report(0).map_or(0, |report| report.read);
        while read(&paths) < bytes && paths.world.now() < limit {
            paths.world.run_until(paths.world.now() + Duration::from_millis(100));
        }
        let report = paths.client_report(0).context("cannot find the connection")?;
        if let Some(byte) = report.wrong_at {
            anyhow::bail!("received data differs from sent data at byte {byte}");
        }
        let log = paths.world.observer::<SegmentLog>().context("the simulation has no observer")?;
        Ok(Fetched {
            segments: log.segments().to_vec(),
            is_complete: report.read == bytes,
            last: report.arrivals.last().map_or(limit, |(at, _)| *at),
            paths,
        })
    }

    /// Runs a workload on a system.
    ///
    /// # Errors
    /// Unknown policy, or a corrupted byte.
    pub(super) fn talk(
        &self,
        system: &System,
        workload: &Workload,
        seed: u64,
    ) -> anyhow::Result<WorkloadResult> {
        let mut paths = self.stage(system, seed)?;
        apps::begin(&mut paths, &[Load::new(*workload)], seed)?;
        if let Some(meter) = Meter::for_path(&paths, LTE) {
            paths.world.observe(Box::new(meter));
        }
        let end = START + workload.duration(seed) + last_gap(workload);
        paths.world.run_until(end);
        let joules = joules(&paths, end);
        let metered = paths.world.observer::<Meter>().map(|meter| meter.read(end));
        let awake = end.since(Instant::ZERO).saturating_sub(joules[LTE].idle_time);
        let due = workload.count().unwrap_or(0) as usize;
        let open = |paths: &Paths| {
            paths.client_report(0).is_some_and(|r| r.received.len() + (r.skipped as usize) < due)
        };
        while open(&paths) && paths.world.now() < end + DRAIN_TIME {
            paths.world.run_until(paths.world.now() + Duration::from_millis(100));
        }
        let report = paths.client_report(0).context("cannot find the connection")?;
        if let Some(byte) = report.wrong_at {
            anyhow::bail!("received data differs from sent data at byte {byte}");
        }
        let over = paths.world.now();
        let delay = |(index, sent): (usize, &Instant)| {
            // An answer that never arrived took at least until the end of the run.
            let came = report.received.get(index).copied().unwrap_or(over);
            (ms(sent.since(START)), ms(came.since(*sent)))
        };
        Ok(WorkloadResult {
            silent_ms: self.silent.map(|at| ms(at) - ms(START.since(Instant::ZERO))),
            delays: report.sent.iter().enumerate().map(delay).collect(),
            unanswered: report.sent.len() - report.received.len(),
            missed: report.skipped,
            gap_ms: ms(report.longest_gap_within(START, over).length),
            opened: count_opened(&paths, LTE),
            joules,
            lte_awake_s: metered.as_ref().map_or(0.0, |_| awake.as_secs_f64()),
            metered,
        })
    }
}

/// Links of a stationary phone, drawn for a root. WiFi has 10 to 40 Mbit/s and 5 to 20 ms one way, LTE has 5 to 25
/// Mbit/s and 20 to 40 ms. (Medians in 2012: 13 Mbit/s. Round trips of three carriers in 2025: 51 to 60 ms.)
#[derive(Clone, Debug)]
pub(super) struct DrawnLinks {
    pub(super) wifi: String,
    pub(super) lte: String,
    /// Round-trip time of LTE for a full packet and a small answer.
    pub(super) lte_rtt: Duration,
}

impl DrawnLinks {
    pub(super) fn draw(root: &Root) -> DrawnLinks {
        let mut rng = root.rng("links");
        let mut draw = |least: f64, most: f64| (most - least).mul_add(rng.unit(), least);
        let (wifi_mbit, wifi_ms) = (draw(10.0, 40.0), draw(5.0, 20.0));
        let (lte_mbit, lte_ms) = (draw(5.0, 25.0), draw(20.0, 40.0));
        let link = |mbit: f64, delay_ms: f64, rest: &str| {
            format!("rate={:.0}k,delay={delay_ms:.2}ms,{rest}", mbit * 1e3)
        };
        let packet_s = 1_500.0 * 8.0 / (lte_mbit * 1e6);
        DrawnLinks {
            wifi: link(wifi_mbit, wifi_ms, "queue=100ms,radio=wifi"),
            lte: link(lte_mbit, lte_ms, "queue=300ms,radio=lte"),
            lte_rtt: Duration::from_secs_f64(2.0 * lte_ms / 1e3 + packet_s),
        }
    }
}

/// Pause after the last request. The run lasts until the next request would be due.
fn last_gap(workload: &Workload) -> Duration {
    match workload {
        Workload::Ask { gap, .. } | Workload::Dialogue { gap, .. } => {
            Duration::from_nanos((gap.most_ms * 1e6) as u64)
        }
        _ => Duration::ZERO,
    }
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Results of a workload: the delays of the application, and the cost.
#[derive(Clone, Debug)]
pub(super) struct WorkloadResult {
    /// When WiFi fell silent, ms after the start.
    silent_ms: Option<f64>,
    /// For each request: when it was sent, and how long its answer took, ms.
    pub(super) delays: Vec<(f64, f64)>,
    /// Requests without an answer.
    pub(super) unanswered: usize,
    /// Requests that were due but not sent, because too many were unanswered.
    pub(super) missed: u64,
    /// The longest time between two answers, ms.
    pub(super) gap_ms: f64,
    /// Number of cellular subflows that the client opened.
    pub(super) opened: usize,
    /// Energy of WiFi and LTE while the application was active.
    pub(super) joules: [Energy; 2],
    /// Time for which the LTE radio was awake while the application was active, s.
    pub(super) lte_awake_s: f64,
    /// Energy of LTE with other constants. `None`: there is no LTE.
    pub(super) metered: Option<Metered>,
}

impl WorkloadResult {
    /// The longest delay, ms.
    pub(super) fn worst_ms(&self) -> f64 {
        self.delays.iter().map(|(_, delay)| *delay).fold(0.0, f64::max)
    }
}

impl WorkloadResult {
    /// The longest delay of a request that was sent around the time at which WiFi fell silent, ms. `None` if WiFi did
    /// not fall silent while the application was active.
    pub(super) fn hole_ms(&self) -> Option<f64> {
        let silent = self.silent_ms.filter(|at| *at < self.delays.last().map_or(0.0, |d| d.0))?;
        let near = |(sent, _): &&(f64, f64)| (sent - silent).abs() <= ms(GAP_SEARCH_WINDOW);
        Some(self.delays.iter().filter(near).map(|(_, delay)| *delay).fold(0.0, f64::max))
    }
}

/// Energy used by the radios of WiFi and LTE.
pub(super) fn joules(paths: &Paths, now: Instant) -> [Energy; 2] {
    [WIFI, LTE].map(|path| {
        let radio = paths.up.get(path).and_then(|link| paths.world.link(*link).radio());
        radio.map_or(Energy::NONE, |radio| radio.energy(now))
    })
}

/// Number of subflows over a path that were ever established, for all connections of the client.
pub(super) fn count_opened(paths: &Paths, path: usize) -> usize {
    let address = Paths::address(path, 0);
    let monitor = paths.world.node(paths.client).monitor().iter();
    monitor
        .filter(|event| match &event.kind {
            marline::monitor::MonitorKind::SubflowEstablished { path, .. } => {
                path.local.ip() == address
            }
            _ => false,
        })
        .count()
}
