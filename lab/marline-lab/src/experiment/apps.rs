//! Applications of workloads in virtual time.

use std::collections::BTreeMap;

use anyhow::Context as _;
use marline_sim::{App, Messages, Paths, Plan, SERVER_PORT};

use super::plan::{self, End, Flows};
use super::{Load, START};
use crate::workload::Workload;

/// Seeds of the verifiable bytes that the client and the server write.
const UP_FIRST: [u64; 2] = [5, 6];
const DOWN_FIRST: [u64; 2] = [8, 7];

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
    Ok(flows)
}
