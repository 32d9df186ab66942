//! Applications of workloads in virtual time.

use std::collections::BTreeMap;

use anyhow::Context as _;
use marline_datagram::FlowId;
use marline_sim::{App, DatagramApp, Messages, Paths, Plan, Pulse, PulsePlan, SERVER_PORT};
use marline_time::{Duration, Instant, SeedTree};

use super::plan::{self, End, Flows};
use super::{Load, START};
use crate::workload::{Log, Mark, Workload};

/// Seeds of the verifiable bytes that the client and the server write.
const UP_FIRST: [u64; 2] = [5, 6];
const DOWN_FIRST: [u64; 2] = [8, 7];

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

/// Copies what the ends of all calls have seen into the logs.
pub(super) fn note_calls(paths: &Paths, loads: &[Load], flows: &Flows) {
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
    let mut servers: BTreeMap<u16, Box<dyn App>> = BTreeMap::new();
    let mut clients = Vec::new();
    for (port, group) in (SERVER_PORT..).zip(plan::connections(loads)) {
        let ends = End::both(loads, &group, START, seed, &flows);
        let first = &loads[usize::from(group[0])].workload;
        let both = matches!(first, Workload::Exchange { .. });
        let seeds = if both || first.is_from_client() { UP_FIRST } else { DOWN_FIRST };
        let plans = ends.map(|end| -> Box<dyn Plan> { Box::new(end) });
        let [client, server] = Messages::pair(plans, seeds);
        servers.insert(port, Box::new(server));
        clients.push((port, client));
    }
    paths.listen_by_port(Box::new(move |port| servers.remove(&port)));
    for (port, client) in clients {
        paths.connect_to(0, port, Box::new(client)).context("connect")?;
    }
    for (number, load) in loads.iter().enumerate() {
        call(paths, number, load, Load::seed(seed, number));
    }
    Ok(flows)
}
