//! Simulated applications that generate the workloads.

use std::rc::Rc;

use anyhow::Context as _;
use marline_datagram::FlowId;
use marline_sim::{DatagramApp, Messages, Paths, Plan, Pulse, PulsePlan, SERVER_PORT};
use marline_time::{Duration, Instant, SeedTree};

use super::plan::{self, End, Flows};
use super::web::{Page, Servers};
use super::{Load, START};
use crate::workload::page::HOST_COUNT;
use crate::workload::{Log, Mark, Workload};

/// Seeds of the verifiable bytes that the client and the server write.
const UP_FIRST: [u64; 2] = [5, 6];
const DOWN_FIRST: [u64; 2] = [8, 7];
/// Port of the first page's first connection.
const FIRST_PAGE_PORT: u16 = 10_000;

/// Starts a call's datagrams at both ends.
fn call(paths: &mut Paths, number: usize, load: &Load, seed: u64) {
    let Workload::Voice { bytes, frame_ms, count } = load.workload else { return };
    let gap = Duration::from_millis(frame_ms.into());
    let from = START + load.from;
    let (until, bytes) = (from + gap * count, bytes as usize);
    let plan = PulsePlan { from, until, gap: (gap, gap), group: (1, 1), bytes };
    let flow = FlowId(number as u64 + 1);
    let seeds = SeedTree::new(seed).branch("voice");
    let end =
        |name| -> Box<dyn DatagramApp> { Box::new(Pulse::new(flow, plan, seeds.stream(name))) };
    paths.add_datagram_apps([end("client"), end("server")]);
}

/// Copies the records of all calls' ends into the logs.
pub(super) fn log_calls(paths: &Paths, loads: &[Load], flows: &Flows) {
    let calls = loads.iter().enumerate();
    let calls = calls.filter(|(_, load)| matches!(load.workload, Workload::Voice { .. }));
    for (place, (number, _)) in calls.enumerate() {
        let log = |node| {
            let app = paths.world.node(node).lane()?.app(place)?;
            let report = app.as_any().downcast_ref::<Pulse>()?.report();
            let mark =
                |(index, at): (u32, Instant)| Mark { stream: 0, index, at_ns: at.as_nanos() };
            let arrived =
                (0..).zip(&report.arrived).filter_map(|(index, at)| Some((index, (*at)?)));
            let sent = (0..).zip(report.sent.iter().copied()).map(mark).collect();
            Some(Log { sent, received: arrived.map(mark).collect(), skipped: 0 })
        };
        let flow = &mut flows.borrow_mut()[number];
        flow.client = log(paths.client).unwrap_or_default();
        flow.server = log(paths.server).unwrap_or_default();
    }
}

/// Starts workloads: the server listens, and the client connects over the first path. Workloads with the same
/// connection share it.
///
/// # Errors
/// The client cannot connect.
pub fn begin(paths: &mut Paths, loads: &[Load], seed: u64) -> anyhow::Result<Flows> {
    let flows = plan::flows(loads, START, seed);
    let servers = Servers::default();
    let mut clients = Vec::new();
    for (port, group) in (SERVER_PORT..).zip(plan::connections(loads)) {
        let ends = End::both_ends(loads, &group, START, seed, &flows);
        let first = &loads[usize::from(group[0])].workload;
        let both = matches!(first, Workload::Exchange { .. });
        let seeds = if both || first.is_from_client() { UP_FIRST } else { DOWN_FIRST };
        let plans = ends.map(|end| -> Box<dyn Plan> { Box::new(end) });
        let [client, server] = Messages::pair(plans, seeds);
        servers.borrow_mut().insert(port, Box::new(server));
        clients.push((port, client));
    }
    let listening = Rc::clone(&servers);
    paths.listen_by_port(Box::new(move |port| listening.borrow_mut().remove(&port)));
    for (port, client) in clients {
        paths.connect_to(0, port, Box::new(client)).context("cannot connect")?;
    }
    let mut port = FIRST_PAGE_PORT;
    for (number, load) in loads.iter().enumerate() {
        let seed = Load::seed(seed, number);
        call(paths, number, load, seed);
        if !matches!(load.workload, Workload::Web { .. }) {
            continue;
        }
        for (page, at_ns) in (0..).zip(load.workload.times_ns(seed)) {
            let app = Page::begin(page, number as u16, port, &flows, &servers);
            let at = START + load.from + Duration::from_nanos(at_ns);
            paths.schedule_connect(at, 0, port, Box::new(app));
            port += HOST_COUNT as u16;
        }
    }
    Ok(flows)
}
