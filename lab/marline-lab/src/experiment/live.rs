//! Live runs: an experiment with real processes over emulated links.
//!
//! Both ends are separate processes in namespaces ([`crate::net`]). Marline's processes send native TCP through raw
//! sockets, and the kernel's stacks use ordinary sockets. Links use the same random numbers as in virtual time, and
//! faults occur at the same times.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use marline_link::RateSpec;
use marline_qlog::Vantage;

use super::end::{Job, PathUse};
use super::process::End;
use super::script::TimedCommand;
use super::{
    CaptureConfig, EndCapture, EndTrace, Experiment, Flow, Load, Outcome, PathTotals, QlogConfig,
    Stack, Variant, capture,
};
use crate::net::{Net, Options};
use crate::scenario::{Endpoint, EndpointFlag, Path, Scenario, Side};
use crate::workload::{Workload, now_ns};

/// The server's port.
const PORT: u16 = 7_100;
/// Time between the start of the links and the start of the workload, which is enough to connect even if SYNs are
/// lost. It counts from the start of the links because the setup of addresses, routes and endpoints takes longer for
/// some stacks, and each stack must send the same request at the same position of a trace.
const START_DELAY: Duration = Duration::from_millis(3_500);
/// Part of [`LEAD`] that must be left when the hosts are ready.
const CONNECTING: Duration = Duration::from_millis(1_500);
/// Time to close connections after the wait for missing messages.
const CLOSING_TIME: Duration = Duration::from_secs(10);

/// Captures and traces to record of a run.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingOptions {
    /// Captures of both ends, on any stack.
    pub captures: Option<CaptureConfig>,
    /// Traces of Marline ends; the kernel writes none.
    pub traces: Option<QlogConfig>,
}

/// Captures and traces of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRecords {
    /// A capture for each end, the client's first.
    pub captures: Vec<EndCapture>,
    /// A trace for each connection of each Marline end, the client's first.
    pub traces: Vec<EndTrace>,
}

/// Runs an experiment once, in real time. Needs root, `ip`, and the program `marline` (this one) with its command
/// `lab end`. `instance` distinguishes its namespaces from those of other runs.
///
/// # Errors
/// The net cannot be created, an end failed, or a policy, path or event cannot be parsed. Missing messages are
/// reported in the outcome.
pub fn run_live(
    experiment: &Experiment,
    stack: Stack,
    variant: &Variant,
    seed: u64,
    instance: &str,
) -> anyhow::Result<Outcome> {
    let watch = RecordingOptions::default();
    Ok(run_live_recorded(experiment, stack, variant, seed, instance, &watch)?.0)
}

/// Like [`run_live`], with captures and traces. The links' thread copies each packet for them, and a Marline end
/// records each segment.
///
/// # Errors
/// The same as [`run_live`].
pub fn run_live_recorded(
    experiment: &Experiment,
    stack: Stack,
    variant: &Variant,
    seed: u64,
    instance: &str,
    watch: &RecordingOptions,
) -> anyhow::Result<(Outcome, RunRecords)> {
    let scenario = prepare_end(experiment, stack, variant, seed)?;
    let script = experiment.script(seed)?;
    let mut options = Options::new(instance);
    options.trace_dir.clone_from(&experiment.trace_dir);
    options.tap_bytes = watch.captures.map(|captures| captures.max_bytes);
    let net = Net::create(&scenario, &options)?;
    let left = START_DELAY.saturating_sub(net.started().elapsed());
    ensure!(left >= CONNECTING, "creating the hosts took too long ({:?})", net.started().elapsed());
    let start_ns = now_ns() + left.as_nanos() as u64;
    let job = |side| {
        let job = job(experiment, &scenario, stack, variant, start_ns, side)?;
        anyhow::Ok(Job { traces: watch.traces, ..job })
    };
    let mut server = End::start(&net, &job(Side::Server)?)?;
    server.ready()?;
    let mut client = End::start(&net, &job(Side::Client)?)?;
    let mut strangers = start_background(&net, experiment, &scenario, start_ns)?;
    let lasts = experiment.duration(seed) + experiment.patience;
    let faults_ns = apply_fault(&net, &script, start_ns, lasts)?;
    let left = Duration::from_nanos(start_ns.saturating_sub(now_ns()));
    let deadline = Instant::now() + left + lasts + CLOSING_TIME;
    let (client, of_client) = client.log(deadline)?;
    let paths = totals(&net, experiment, variant)?;
    let (server, of_server) = server.log(deadline)?;
    for end in &mut strangers {
        end.log(deadline)?;
    }
    let reinjected_bytes = client.reinjected_bytes + server.reinjected_bytes;
    let logs = client.flows.into_iter().zip(server.flows).enumerate();
    let flow = |(number, (client, server)): (usize, _)| {
        let from_ns = experiment.loads.get(number).map_or(0, Load::starts_ns);
        Flow { client, server, start_ns, from_ns, seed: Load::seed(seed, number) }
    };
    let flows: Vec<Flow> = logs.map(flow).collect();
    let missing = Outcome::count_missing(&flows, experiment);
    let outcome = Outcome {
        reinjected_bytes,
        flows,
        start_ns,
        seed,
        faults_ns,
        paths,
        incomplete: (missing > 0).then(|| format!("{missing} messages did not arrive")),
        doubts: net.doubts()?,
    };
    let reveal_keys = watch.captures.is_some_and(|captures| captures.reveal_keys);
    let traces = [(Vantage::Client, of_client), (Vantage::Server, of_server)];
    let traces = traces.into_iter().flat_map(|(vantage, texts)| {
        let trace = move |(connection, text)| EndTrace { vantage, connection, text };
        texts.into_iter().enumerate().map(trace)
    });
    let captures = capture::from_net(&net, reveal_keys);
    Ok((outcome, RunRecords { captures, traces: traces.collect() }))
}

/// Starts the competing traffic, all clients before their servers.
fn start_background(
    net: &Net,
    experiment: &Experiment,
    scenario: &Scenario,
    start_ns: u64,
) -> anyhow::Result<Vec<End>> {
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for (port, flow) in (PORT + 1..).zip(&experiment.background) {
        for side in [Side::Server, Side::Client] {
            let mut job = job(experiment, scenario, Stack::Tcp, &flow.variant(), start_ns, side)?;
            job.loads = vec![flow.load(experiment.duration(scenario.seed))];
            job.address.set_port(port);
            let mut end = End::start(net, &job)?;
            if side == Side::Server {
                end.ready()?;
                servers.push(end);
            } else {
                clients.push(end);
            }
        }
    }
    clients.append(&mut servers);
    Ok(clients)
}

/// Applies the script's events at their times; returns the times of the faults, ns of the monotonic clock.
fn apply_fault(
    net: &Net,
    script: &[TimedCommand],
    start_ns: u64,
    lasts: Duration,
) -> anyhow::Result<Vec<u64>> {
    let mut faults_ns = Vec::new();
    for happening in script.iter().filter(|happening| happening.at <= lasts) {
        let at_ns = start_ns + happening.at.as_nanos() as u64;
        std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
        net.order(&happening.path, &happening.order)?;
        if happening.is_fault {
            faults_ns.push(now_ns());
        }
    }
    Ok(faults_ns)
}

/// Link totals of the variant's paths.
fn totals(
    net: &Net,
    experiment: &Experiment,
    variant: &Variant,
) -> anyhow::Result<Vec<PathTotals>> {
    let reports = net.report()?;
    let total = |path: &&Path| {
        let report = reports.iter().find(|report| report.name == path.name)?;
        let (up, down) = (report.up.stats, report.down.stats);
        let name = path.name.clone();
        Some(PathTotals { name, up, down, radio: report.radio, calibration: None })
    };
    Ok(experiment.used_paths(variant)?.iter().filter_map(total).collect())
}

/// CPU demand of a real-time run in halves of a processor, estimated from the load on the links.
#[must_use]
pub fn weight(experiment: &Experiment) -> u32 {
    let is_light = |load: &Load| {
        load.workload.count().is_some() && !matches!(load.workload, Workload::Exchange { .. })
    };
    if experiment.loads.iter().all(is_light) {
        return 1;
    }
    const UNKNOWN: f64 = 50e6;
    let rate = |path: &Path| match path.spec().map(|spec| spec.down.rate) {
        Ok(RateSpec::Constant(rate)) => rate.bits_per_s() as f64,
        _ => UNKNOWN,
    };
    let total: f64 = experiment.scenario.paths.iter().map(rate).sum();
    1 + (total / 60e6).min(7.0) as u32
}

/// The scenario of a run, with the kernel's Multipath TCP settings for the variant's paths.
fn prepare_end(
    experiment: &Experiment,
    stack: Stack,
    variant: &Variant,
    seed: u64,
) -> anyhow::Result<Scenario> {
    let mut scenario = Scenario { seed, events: Vec::new(), ..experiment.hosts() };
    let said = !scenario.client.mptcp.endpoints.is_empty();
    if !(said && variant.paths.is_empty() && variant.backup.is_empty()) {
        let used = experiment.used_paths(variant)?;
        let others = used.iter().skip(1).map(|path| endpoint(&scenario, path, variant));
        scenario.client.mptcp.endpoints = others.collect::<anyhow::Result<_>>()?;
    }
    if let (Some(name), false) = (&variant.congestion, stack.is_marline()) {
        for host in [&mut scenario.client, &mut scenario.server] {
            host.sysctl.insert("net.ipv4.tcp_congestion_control".to_owned(), name.clone());
        }
    }
    Ok(scenario)
}

fn endpoint(scenario: &Scenario, path: &Path, variant: &Variant) -> anyhow::Result<Endpoint> {
    let mut flags = vec![EndpointFlag::Subflow];
    if variant.path_spec(&path.name)?.backup {
        flags.push(EndpointFlag::Backup);
    }
    let address = client_address(scenario, &path.name)?;
    Ok(Endpoint { address, path: Some(path.name.clone()), port: None, id: None, flags })
}

fn client_address(scenario: &Scenario, path: &str) -> anyhow::Result<IpAddr> {
    let path = &scenario.paths[scenario.path_number(path)?];
    Ok(path.client.first().with_context(|| format!("path `{}` has no address", path.name))?.addr())
}

fn job(
    experiment: &Experiment,
    scenario: &Scenario,
    stack: Stack,
    variant: &Variant,
    start_ns: u64,
    side: Side,
) -> anyhow::Result<Job> {
    let used = experiment.used_paths(variant)?;
    let server = |path: &Path| {
        let nets = &scenario.paths[scenario.path_number(&path.name)?].server;
        let net = nets.first().with_context(|| format!("path `{}`: no server", path.name))?;
        anyhow::Ok(SocketAddr::new(net.addr(), PORT))
    };
    let first = used.first().context("the variant does not use any path")?;
    let other = used.iter().find(|path| path.is_ipv6() != first.is_ipv6());
    let other_address = other.map(|path| server(path)).transpose()?;
    ensure!(
        other.is_none() || stack == Stack::Live,
        "paths of both address families need stack sim or live"
    );
    let only_requests =
        matches!(experiment.loads[..], [Load { workload: Workload::Ask { .. }, .. }]);
    ensure!(
        stack != Stack::Duplicate || only_requests,
        "stack duplicate needs a single workload of requests"
    );
    ensure!(experiment.stops.is_empty(), "[[stop]] needs stack sim");
    for load in &experiment.loads {
        match load.workload {
            Workload::Voice { .. } => bail!(
                "kind = \"voice\" needs stack sim: it sends datagrams over UDP, but live runs use \
                    native TCP"
            ),
            Workload::Web { .. } => {
                bail!(
                    "kind = \"web\" needs stack sim: it opens connections when it discovers objects"
                )
            }
            _ => {}
        }
    }
    let mut paths = Vec::new();
    for path in &used {
        let spec = variant.path_spec(&path.name)?.to_string();
        paths.push(PathUse { spec, address: client_address(scenario, &path.name)? });
    }
    Ok(Job {
        side,
        stack: stack.at(side),
        variant: variant.clone(),
        address: server(first)?,
        other_address,
        paths,
        loads: experiment.loads.clone(),
        start_ns,
        seed: scenario.seed,
        patience: experiment.patience,
        traces: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Family;
    use crate::workload::Gap;

    fn experiment() -> Experiment {
        let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
        let workload = Workload::Ask { request_bytes: 1, answer_bytes: 1, gap, count: 3 };
        let links = [("wifi", "rate=100M"), ("lte", "rate=100M"), ("3g", "trace=somewhere")];
        Experiment::over(&links, workload)
    }

    #[test]
    fn the_kernel_gets_its_variants_endpoints() {
        let mut variant = Variant { backup: vec!["3g".to_owned()], ..Variant::new("kernel") };
        variant.congestion = Some("reno".to_owned());
        let hosts = |stack, variant: &Variant| {
            prepare_end(&experiment(), stack, variant, 7).expect("hosts")
        };
        let kernel = hosts(Stack::Mptcp, &variant);
        kernel.check().expect("a scenario");
        let told: Vec<String> = kernel
            .client
            .mptcp
            .endpoints
            .iter()
            .map(|endpoint| format!("{} {:?}", endpoint.address, endpoint.flags))
            .collect();
        assert_eq!(told, ["10.0.2.2 [Subflow]", "10.0.3.2 [Subflow, Backup]"]);
        assert_eq!((kernel.seed, kernel.events.len()), (7, 0));
        assert_eq!(kernel.server.sysctl["net.ipv4.tcp_congestion_control"], "reno");
        // Marline's stack needs no settings of the kernel.
        assert!(hosts(Stack::Live, &variant).client.sysctl.is_empty());
        let one = Variant { paths: vec!["lte".to_owned()], ..Variant::new("one") };
        assert!(hosts(Stack::Mptcp, &one).client.mptcp.endpoints.is_empty());
        let scenario = hosts(Stack::Tcp, &one);
        let job = job(&experiment(), &scenario, Stack::Tcp, &one, 1, Side::Client);
        let job = job.expect("job");
        assert_eq!(job.address.to_string(), "10.0.2.1:7100");
        assert_eq!(job.paths.len(), 1);
    }

    #[test]
    fn the_server_has_an_address_of_each_family() {
        let mut experiment = experiment();
        experiment.scenario.paths[1].family = Some(Family::Ipv6);
        let variant = Variant::new("default");
        let job = |stack, side| {
            let scenario = prepare_end(&experiment, stack, &variant, 7).expect("hosts");
            job(&experiment, &scenario, stack, &variant, 1, side)
        };
        for side in [Side::Client, Side::Server] {
            let job = job(Stack::Live, side).expect("job");
            assert_eq!(job.address.to_string(), "10.0.1.1:7100");
            assert_eq!(
                job.other_address.map(|a| a.to_string()).as_deref(),
                Some("[fd00:2::1]:7100")
            );
            assert_eq!(job.paths[1].address.to_string(), "fd00:2::2");
        }
        let error = job(Stack::Mptcp, Side::Client).expect_err("the kernel has one").to_string();
        assert!(error.contains("both address families need stack sim or live"), "{error}");
    }

    #[test]
    fn runs_with_more_traffic_weigh_more() {
        let mut experiment = experiment();
        assert_eq!(weight(&experiment), 1);
        experiment.loads[0].workload = Workload::Blocks { bytes: 65_536, lasts_ms: 1_000 };
        assert_eq!(weight(&experiment), 1 + 250 / 60);
        experiment.scenario.paths.truncate(1);
        assert_eq!(weight(&experiment), 2);
    }
}
