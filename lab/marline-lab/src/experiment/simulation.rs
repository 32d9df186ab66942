//! Simulated runs: an experiment in virtual time.

use anyhow::Context;
use marline::monitor::{FourTuple, SubflowInfo};
use marline::policy::Role;
use marline_emulator::{LinkCommand, Side};
use marline_sim::{Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use super::plan::Flows;
use super::timeline::{Recorder, Timeline, TimelineConfig};
use super::{Calibration, Experiment, Outcome, PathTotals, TimedCommand, Variant, apps};
use crate::emulation::settings::Settings;
use crate::scenario::Side as End;
use crate::workload::Workload;

/// Start of the workload, when all paths have joined.
pub const START: Instant = Instant::from_secs(1);
/// Interval of the progress checks.
const STEP: Duration = Duration::from_millis(500);

/// Runs an experiment once. Runs with equal seeds are identical.
///
/// # Errors
/// A policy, a path, a link or an event cannot be parsed; wrong bytes arrived; or a link's trace is missing. Missing
/// messages are reported in the outcome.
pub fn simulate(experiment: &Experiment, variant: &Variant, seed: u64) -> anyhow::Result<Outcome> {
    let (mut paths, flows) = stage_observed(experiment, variant, seed, |_| {})?;
    run(&mut paths, &flows, experiment, variant, seed, &mut None)
}

/// Like [`simulate`], with time lines. The outcome is that of [`simulate`], bit for bit.
///
/// # Errors
/// The same as [`simulate`], or the interval of the samples is too short.
pub fn simulate_recorded(
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
    config: TimelineConfig,
) -> anyhow::Result<(Outcome, Timeline)> {
    let single = experiment.loads.len() == 1;
    anyhow::ensure!(single, "time lines need a single workload");
    let (mut paths, flows) = stage_observed(experiment, variant, seed, |_| {})?;
    let mut recorder = Some(Recorder::begin(&mut paths, experiment, variant, seed, config)?);
    let outcome = run(&mut paths, &flows, experiment, variant, seed, &mut recorder)?;
    let timeline = recorder.map_or_else(Timeline::empty, |recorder| recorder.finish(&paths));
    Ok((outcome, timeline))
}

/// Runs a staged world, without time lines.
pub(super) fn run_staged(
    paths: &mut Paths,
    flows: &Flows,
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
) -> anyhow::Result<Outcome> {
    run(paths, flows, experiment, variant, seed, &mut None)
}

/// Advances the world, with or without time lines.
fn advance(paths: &mut Paths, recorder: &mut Option<Recorder>, until: Instant) {
    match recorder {
        Some(recorder) => recorder.run_until(paths, until),
        None => paths.world.run_until(until),
    }
}

/// Runs a staged world.
fn run(
    paths: &mut Paths,
    flows: &Flows,
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
    recorder: &mut Option<Recorder>,
) -> anyhow::Result<Outcome> {
    let end = START + experiment.duration(seed);
    let warm_up = if variant.score_forecasts {
        advance(paths, recorder, (START + experiment.warm_up).min(end));
        calibrations(paths)
    } else {
        Vec::new()
    };
    advance(paths, recorder, end);
    let deadline = end + experiment.patience;
    while Outcome::count_missing(&flows.borrow(), experiment) > 0 && paths.world.now() < deadline {
        let next = (paths.world.now() + STEP).min(deadline);
        advance(paths, recorder, next);
    }
    let mut outcome = outcome(paths, flows, experiment, variant, seed)?;
    if variant.score_forecasts {
        let since = calibrations(paths).into_iter().zip(warm_up);
        for (path, (whole, before)) in outcome.paths.iter_mut().zip(since) {
            path.calibration = whole.map(|whole| whole.since(&before.unwrap_or_default()));
        }
    }
    Ok(outcome)
}

/// Creates the simulation of a run before its first event, for callers that observe it. The reports of the client and
/// the server have number 0.
///
/// # Errors
/// The same as [`simulate`].
pub fn stage(experiment: &Experiment, variant: &Variant, seed: u64) -> anyhow::Result<Paths> {
    stage_observed(experiment, variant, seed, |_| {}).map(|(paths, _)| paths)
}

/// Like [`stage`], for observers that must see the client's SYN, which is sent last.
pub(super) fn stage_observed(
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
    before: impl FnOnce(&mut Paths),
) -> anyhow::Result<(Paths, Flows)> {
    let seeds = SeedTree::new(seed);
    let used = experiment.used_paths(variant)?;
    let mut settings = Vec::new();
    for path in &used {
        let trace_dir = experiment.trace_dir.as_deref();
        settings.push(Settings::new(path.spec()?, trace_dir, seeds.branch(&path.name)));
    }
    let links: anyhow::Result<Vec<_>> = settings.iter().map(Settings::first).collect();
    let mut scene = PathsConfig::new(links?, variant.end(Role::Client)?);
    scene.server = variant.end(Role::Server)?;
    scene.names = used.iter().map(|path| path.name.clone()).collect();
    for path in &used {
        scene.ipv6.push(path.is_ipv6());
        scene.backup.push(variant.path_spec(&path.name)?.backup);
        scene.costs.push(variant.path_cost(&path.name)?);
    }
    let mut paths = Paths::new(&scene, seeds);
    // As with the proxy, all workloads are one user's.
    paths.world.node_mut(paths.server).authenticate_clients();
    variant.share_path_health(&mut paths)?;
    let script = experiment.script(seed)?;
    for (number, (path, settings)) in used.iter().zip(&mut settings).enumerate() {
        schedule(&mut paths, number, &path.name, &script, settings)?;
    }
    for flow in &experiment.background {
        if let Some(number) = used.iter().position(|path| path.name == flow.path) {
            flow.begin(&mut paths, number, experiment.duration(seed))?;
        }
    }
    for stop in &experiment.stops {
        let (stop, ends) = (*stop, [paths.client, paths.server]);
        let node = ends[usize::from(stop.end == End::Server)];
        paths.world.run_at(START + stop.at, move |world| world.stop_node(node, stop.lasts));
    }
    before(&mut paths);
    if experiment.loads.iter().any(|load| matches!(load.workload, Workload::Voice { .. })) {
        let (lane, all) = (variant.lane()?, used.len());
        paths.add_lanes(&lane, &lane, if variant.plain { 1 } else { all });
    }
    let flows = apps::begin(&mut paths, &experiment.loads, seed)?;
    Ok((paths, flows))
}

/// Schedules an event of a path.
fn schedule(
    paths: &mut Paths,
    number: usize,
    name: &str,
    script: &[TimedCommand],
    settings: &mut Settings,
) -> anyhow::Result<()> {
    let mine = script.iter().filter(|happening| happening.path == name);
    let orders: Vec<_> = mine.map(|mine| (mine.at, mine.order.clone())).collect();
    let (up, down) = (paths.up[number], paths.down[number]);
    for (at, command) in settings.schedule(orders).with_context(|| format!("path `{name}`"))? {
        paths.world.run_at(START + at, move |world| match command {
            LinkCommand::Break(side) | LinkCommand::Restore(side) => {
                let works = matches!(command, LinkCommand::Restore(_));
                if side != Side::Down {
                    world.set_link_up(up, works);
                }
                if side != Side::Up {
                    world.set_link_up(down, works);
                }
            }
            LinkCommand::Set(config) => {
                world.set_link(up, config.up);
                world.set_link(down, config.down);
            }
            // No address is translated here, so no flow can be rebound.
            LinkCommand::Rebind => {}
        });
    }
    Ok(())
}

fn outcome(
    paths: &Paths,
    flows: &Flows,
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
) -> anyhow::Result<Outcome> {
    for (side, node) in [("client", paths.client), ("server", paths.server)] {
        let wrong = paths.world.node(node).reports().find_map(|report| report.wrong_at);
        if let Some(byte) = wrong {
            anyhow::bail!(
                "the data that the {side} read differs from the sent data at byte {byte}"
            );
        }
    }
    apps::log_calls(paths, &experiment.loads, flows);
    let missing = Outcome::count_missing(&flows.borrow(), experiment);
    let mut totals = Vec::new();
    for (number, path) in experiment.used_paths(variant)?.iter().enumerate() {
        let stats = |link| {
            let mut stats = *paths.world.link(link).stats();
            stats.offered_bytes -= paths.world.cross_traffic_bytes(link);
            stats
        };
        let (up, down) = (stats(paths.up[number]), stats(paths.down[number]));
        let radio = paths.world.link(paths.up[number]).radio();
        let radio = radio.map(|radio| radio.reading(paths.world.now()));
        totals.push(PathTotals { name: path.name.clone(), up, down, radio, calibration: None });
    }
    let script = experiment.script(seed)?;
    let faults = script.iter().filter(|happening| happening.is_fault);
    Ok(Outcome {
        flows: flows.borrow().clone(),
        start_ns: START.as_nanos(),
        seed,
        faults_ns: faults.map(|fault| (START + fault.at).as_nanos()).collect(),
        paths: totals,
        reinjected_bytes: reinjected_bytes(paths),
        incomplete: (missing > 0).then(|| format!("{missing} messages did not arrive")),
        doubts: Vec::new(),
    })
}

/// Payload bytes that both ends also sent on another path.
#[must_use]
pub fn reinjected_bytes(paths: &Paths) -> u64 {
    subflows(paths).iter().map(|subflow| subflow.bytes_reinjected).sum()
}

/// Accuracy of both ends' forecasts so far, per path. `None` if forecasts are not scored.
fn calibrations(paths: &Paths) -> Vec<Option<Calibration>> {
    let subflows = subflows(paths);
    let of_path = |number: usize| {
        let mine = subflows.iter().filter(|subflow| path_of(subflow.path) == Some(number));
        let scores: Vec<Calibration> =
            mine.filter_map(|subflow| subflow.forecast_score.map(Calibration)).collect();
        (!scores.is_empty()).then(|| Calibration::sum(&scores))
    };
    (0..paths.up.len()).map(of_path).collect()
}

/// The index of the path between these ends.
pub(super) fn path_of(ends: FourTuple) -> Option<usize> {
    Paths::path_of(ends.local.ip()).or_else(|| Paths::path_of(ends.remote.ip()))
}

/// Subflows of both ends, and the totals of closed ones.
pub(super) fn subflows(paths: &Paths) -> Vec<SubflowInfo> {
    let mut subflows = Vec::new();
    for node in [paths.client, paths.server] {
        let host = paths.world.node(node);
        let infos = host.connections().filter_map(|(id, _)| host.endpoint().info(id));
        subflows.extend(infos.flat_map(|info| info.subflows.into_iter().chain(info.gone)));
    }
    subflows
}
