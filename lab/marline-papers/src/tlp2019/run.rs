//! One run: a trace up to the completion of the burst that the failure hits.

use std::time::Duration;

use anyhow::Context as _;
use marline_lab::bound::Bound;
use marline_lab::experiment::{START, Variant};
use marline_sim::{App, Pace, Paths, PathsConfig, Units};
use marline_time::{Instant, SeedTree};
use serde::{Deserialize, Serialize};

use super::traffic::{LTE, Repetition, Trace, WLAN};
use super::watch::{BurstObserver, Repeats, rounded};

/// How long packets are counted after WLAN dies or the burst is written, whichever is later.
const COUNTED: Duration = Duration::from_secs(3);
/// Time from the start of the observation to the last burst before the failure.
const OBSERVATION_LEAD: Duration = Duration::from_millis(20);
/// Time to wait for a burst.
const BURST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time from the loss of WLAN to a connection over 4G (Lescuyer and Lucidarme 2008).
pub(super) const RECONNECT: Duration = Duration::from_secs(3);

/// Results of the burst that the failure hit.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct AffectedBurst {
    /// Time from writing the burst until all of it was read, ms.
    pub(super) completion_ms: f64,
    /// Lower bound of the completion time, ms.
    pub(super) bound_ms: f64,
    /// Position of the first loss in the burst, as a share. 1 if WLAN died before any of the burst was sent.
    pub(super) position: f64,
    /// Packets with data of the burst that the server sent on either path, including retransmissions.
    pub(super) air_packets: u64,
    /// Bytes of these packets, including headers.
    pub(super) air_bytes: u64,
    /// True if WLAN lost data of the burst. Otherwise only an ACK of the previous burst was lost.
    pub(super) lost: bool,
    /// Data of the burst that was sent again.
    pub(super) repeats: Repeats,
    /// Share of the data packets that were on 4G before WLAN died, counted from the start of the last burst before
    /// that.
    pub(super) lte_share: f64,
    /// Smoothed round trip of WLAN when it died, ms.
    pub(super) srtt_ms: f64,
}

/// Paths and applications of a trace.
pub(super) fn scene(
    trace: &Trace,
    repetition: &Repetition,
    variant: &Variant,
) -> anyhow::Result<Paths> {
    let seeds = SeedTree::new(repetition.seed);
    let experiment = trace.experiment(repetition.death_time);
    let mut links = Vec::new();
    let mut names = Vec::new();
    for path in experiment.used_paths(variant)? {
        links.push(path.spec()?.resolve(&seeds.branch(&path.name), &mut |_| None)?);
        names.push(path.name.clone());
    }
    // The hosts of the paper ran kernels, which use the interface MTU as the path MTU.
    let mut config = PathsConfig::new(links, variant.connection()?).with_known_mtu();
    config.names = names;
    let mut paths = Paths::new(&config, seeds);
    let units = trace.bursts.iter().map(|(at, bytes)| (START + *at, *bytes)).collect();
    let sizes: Vec<u64> = trace.bursts.iter().map(|(_, bytes)| *bytes).collect();
    let mut server: Option<Box<dyn App>> =
        Some(Box::new(Units::new(Pace::Sized { units }, 1, 7, 8)));
    let silent = || -> Box<dyn App> { Box::new(Units::new(Pace::Never, 1, 7, 8)) };
    paths.listen(Box::new(move |_| server.take().unwrap_or_else(silent)));
    paths.connect(WLAN, Box::new(Units::new(Pace::Never, 1, 8, 7).with_reads(&sizes)))?;
    paths.schedule_path_change(START + repetition.death_time, WLAN, false);
    Ok(paths)
}

/// Runs until the client has read the burst of this index.
fn until_read(paths: &mut Paths, number: usize, limit: Instant) -> anyhow::Result<Instant> {
    loop {
        let report = paths.client_report(0).context("cannot find the connection")?;
        if let Some(read) = report.received.get(number) {
            return Ok(*read);
        }
        anyhow::ensure!(paths.world.now() < limit, "the affected burst never arrived");
        paths.world.run_until(paths.world.now() + Duration::from_millis(100));
    }
}

/// Runs a repetition of a trace.
pub(super) fn run(
    trace: &Trace,
    repetition: &Repetition,
    variant: &Variant,
) -> anyhow::Result<AffectedBurst> {
    let mut paths = scene(trace, repetition, variant)?;
    let dies = START + repetition.death_time;
    let begun = trace.bursts.partition_point(|(at, _)| START + *at < dies);
    let last = begun.checked_sub(1).context("WLAN dies before the first burst")?;
    paths.world.run_until(START + trace.bursts[last].0 - OBSERVATION_LEAD);
    let watch = BurstObserver::new(&paths);
    paths.world.observe(Box::new(watch));
    // Packets in flight from earlier bursts are not observed, because pauses are long.
    paths.world.run_until(dies);
    let srtt_ms = wlan_srtt_ms(&paths);
    // The burst in flight, or else the next one.
    let hit = paths.client_report(0).context("cannot find the connection")?.received.len();
    anyhow::ensure!(hit >= last, "a burst before the failure is still incomplete");
    let (at, bytes) = *trace.bursts.get(hit).context("the trace has no burst after the failure")?;
    let from = dies.max(START + at);
    let read = until_read(&mut paths, hit, from + BURST_TIMEOUT)?;
    paths.world.run_until(read.max(from + COUNTED));
    let report = paths.client_report(0).context("cannot find the connection")?;
    if let Some(byte) = report.wrong_at {
        anyhow::bail!("received data differs from sent data at byte {byte}");
    }
    let watch =
        paths.world.observer::<BurstObserver>().context("the simulation has no observer")?;
    let before: u64 = trace.bursts[last..hit].iter().map(|(_, bytes)| *bytes).sum();
    let first_lost = watch.first_lost(before, bytes);
    let (air_packets, air_bytes) = watch.sent_on_air_until(before, bytes, from + COUNTED);
    let undelivered = watch.first_undelivered(before, bytes);
    let position = if START + at >= dies { 1.0 } else { undelivered as f64 / bytes as f64 };
    Ok(AffectedBurst {
        completion_ms: rounded(read.since(START + at)),
        bound_ms: bound_ms(trace, repetition, at, bytes)?,
        position: (position * 1e4).round() / 1e4,
        air_packets,
        air_bytes,
        lost: first_lost < bytes,
        repeats: watch.repeats(before, bytes, from, from + COUNTED),
        lte_share: (watch.lte_share_until(dies) * 1e4).round() / 1e4,
        srtt_ms,
    })
}

/// Smoothed round trip of the server's first subflow, ms. 0 without one.
fn wlan_srtt_ms(paths: &Paths) -> f64 {
    let host = paths.world.node(paths.server);
    let info = host.connections().find_map(|(id, _)| host.endpoint().info(id));
    info.and_then(|info| info.subflows.first()?.srtt).map_or(0.0, rounded)
}

/// Time at which this share of the burst that starts at `begins` would have arrived without a failure.
pub(super) fn time_of_share(
    trace: &Trace,
    seed: u64,
    variant: &Variant,
    begins: Duration,
    share: f64,
) -> anyhow::Result<Duration> {
    let near = |at: Duration| at.abs_diff(begins) < Duration::from_millis(1);
    let number = trace
        .bursts
        .iter()
        .position(|(at, _)| near(*at))
        .context("no burst begins at this time")?;
    let (at, bytes) = trace.bursts[number];
    let never = begins + 2 * BURST_TIMEOUT;
    let mut paths = scene(trace, &Repetition { seed, death_time: never }, variant)?;
    paths.world.run_until(START + at - OBSERVATION_LEAD);
    let watch = BurstObserver::new(&paths);
    paths.world.observe(Box::new(watch));
    until_read(&mut paths, number, START + at + BURST_TIMEOUT)?;
    let watch =
        paths.world.observer::<BurstObserver>().context("the simulation has no observer")?;
    let wanted = (share * bytes as f64).ceil().max(1.0) as u64;
    Ok(watch.time_of(wanted).context("the burst never arrived")?.since(START))
}

/// Lower bound of the completion time of a burst, ms.
fn bound_ms(
    trace: &Trace,
    repetition: &Repetition,
    at: Duration,
    bytes: u64,
) -> anyhow::Result<f64> {
    let mut experiment = trace.experiment(repetition.death_time);
    if at >= repetition.death_time {
        // A permanently failed path is removed, so that the bound does not search it.
        experiment.faults.clear();
        experiment.scenario.paths.remove(WLAN);
    }
    let bound = Bound::for_experiment(&experiment, repetition.seed)?;
    let bound_ms = bound.latency_ms(at.as_secs_f64() * 1e3, u32::try_from(bytes)?);
    Ok((bound_ms * 1e3).round() / 1e3)
}

pub(super) fn duplicates(paths: &Paths) -> u64 {
    let host = paths.world.node(paths.client);
    let infos = host.connections().filter_map(|(id, _)| host.endpoint().info(id));
    let subflows = infos.flat_map(|info| info.subflows.into_iter().chain(info.gone));
    subflows.map(|subflow| subflow.bytes_duplicate).sum()
}

/// Handover with one path at a time. WLAN dies, and three seconds later the client has a connection over 4G and
/// requests the burst again.
pub(super) fn reconnect(
    trace: &Trace,
    repetition: &Repetition,
    variant: &Variant,
) -> anyhow::Result<f64> {
    let mut paths = scene(trace, repetition, variant)?;
    let dies = START + repetition.death_time;
    paths.world.run_until(dies);
    let hit = paths.client_report(0).context("cannot find the connection")?.received.len();
    let (at, bytes) = *trace.bursts.get(hit).context("the trace has no burst after the failure")?;
    let again = dies + RECONNECT;
    paths.world.run_until(again);
    let units = vec![(Instant::max(again, START + at), bytes)];
    let mut server: Option<Box<dyn App>> =
        Some(Box::new(Units::new(Pace::Sized { units }, 1, 7, 8)));
    let silent = || -> Box<dyn App> { Box::new(Units::new(Pace::Never, 1, 7, 8)) };
    paths.listen(Box::new(move |_| server.take().unwrap_or_else(silent)));
    paths.connect(LTE, Box::new(Units::new(Pace::Never, bytes, 8, 7)))?;
    paths.world.run_until(again.max(START + at) + BURST_TIMEOUT);
    let report = paths.client_report(1).context("the client did not open a second connection")?;
    let read = report.received.first().context("the burst never arrived")?;
    Ok(rounded(read.since(START + at)))
}
