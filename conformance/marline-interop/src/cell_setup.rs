//! Test network of a cell: paths, sizes, faults, and time limit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use marline_lab::scenario::{Endpoint, EndpointFlag, Host, Mptcp, Path, Scenario};
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Checksum, Condition, Family, Workload};
use crate::exchange::Plan;

/// Port of the server.
pub(crate) const PORT: u16 = 7_000;
/// Another port, for addresses that are announced with a port.
pub(crate) const OTHER_PORT: u16 = 7_777;
/// Names of the paths, the first of which fails.
const PATH_NAMES: [&str; 4] = ["wifi", "lte", "wifi2", "lte2"];
/// Receive buffer of a slow reader in bytes, small so that the window fills quickly.
const SLOW_READER_BUFFER: u32 = 256 << 10;

const MIB: u64 = 1 << 20;

/// Amount of data.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Scale {
    /// Small transfers for every code change: a few seconds per cell.
    Small,
    /// The documented sizes.
    Full,
    /// 1 GiB.
    Huge,
}

/// The first path's failure: its time after the client's start, and its duration.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) after: Duration,
    pub(crate) lasts: Duration,
}

/// Complete setup of a cell except its processes.
#[derive(Debug)]
pub(crate) struct CellSetup {
    pub(crate) scenario: Scenario,
    pub(crate) server: SocketAddr,
    pub(crate) plan: Plan,
    pub(crate) receive_buffer: Option<u32>,
    pub(crate) fault: Option<Fault>,
    pub(crate) limit: Duration,
}

impl CellSetup {
    pub(crate) fn of(cell: &Cell, scale: Scale, seed: u64) -> CellSetup {
        let mut plan = plan(cell, scale, seed);
        let receive_buffer = (cell.workload == Workload::SlowReader).then_some(SLOW_READER_BUFFER);
        let fault = (cell.condition == Condition::Cut).then(|| Fault {
            after: Duration::from_millis(600),
            lasts: Duration::from_secs(if scale == Scale::Small { 1 } else { 3 }),
        });
        // A connection that starts on a dead path is a separate condition: a kernel whose SYNs get no valid answer
        // retries without options.
        plan.interval = fault.map_or(Duration::ZERO, |fault| fault.after + fault.lasts);
        // Assumes a quarter of the slow link's rate for each direction of each connection, plus time for faults.
        let slowest = plan.bytes * plan.connections() as u64 / (20_000_000 / 8 / 4);
        let limit = Duration::from_secs(60 + slowest);
        let server = SocketAddr::new(address(cell.family, 0, 1), PORT);
        CellSetup { scenario: scenario(cell, seed), server, plan, receive_buffer, fault, limit }
    }
}

fn plan(cell: &Cell, scale: Scale, seed: u64) -> Plan {
    let small = scale == Scale::Small;
    let bulk = match (scale, cell.condition) {
        (Scale::Huge, _) => 1_024 * MIB,
        (Scale::Full, Condition::Loss) => 8 * MIB,
        (Scale::Full, _) => 64 * MIB,
        // Enough data that the path fails during the transfer.
        (Scale::Small, Condition::Cut) => 8 * MIB,
        (Scale::Small, Condition::Loss) => 2 * MIB,
        (Scale::Small, _) => 4 * MIB,
    };
    let bytes = match cell.workload {
        Workload::Up | Workload::Down | Workload::Both => bulk,
        Workload::HalfClose | Workload::Abort if small => 2 * MIB,
        Workload::HalfClose | Workload::Abort | Workload::SlowReader => 4 * MIB,
        Workload::Messages => 0,
    };
    let messages = if small { 3_000 } else { 10_000 };
    let pause = Duration::from_millis(if small { 1_500 } else { 3_000 });
    let apart = Duration::ZERO;
    Plan { workload: cell.workload, bytes, messages, pause, interval: apart, seed }
}

fn scenario(cell: &Cell, seed: u64) -> Scenario {
    let fault = match cell.condition {
        Condition::Loss => ",loss=1%",
        Condition::Reordering => ",reorder=1%:20ms",
        _ => "",
    };
    let prefix = if cell.family == Family::V4 { 24 } else { 64 };
    let path = |(number, name): (usize, &&str)| {
        let link = if number % 2 == 0 { "rate=20M,delay=10ms" } else { "rate=50M,delay=30ms" };
        let net = |host| ipnet(address(cell.family, number, host), prefix);
        Path {
            name: (*name).to_owned(),
            link: format!("{link},queue=100ms{fault}"),
            client: vec![net(2)],
            server: vec![net(1)],
            mtu: None,
            family: None,
            price: None,
        }
    };
    let paths: Vec<Path> =
        PATH_NAMES[..cell.subflows.count()].iter().enumerate().map(path).collect();
    let endpoint = |number: usize| Endpoint {
        address: address(cell.family, number, 2),
        path: Some(PATH_NAMES[number].to_owned()),
        port: None,
        id: None,
        flags: vec![EndpointFlag::Subflow],
    };
    let checksum = cell.checksum == Checksum::On;
    let host = |endpoints| Host {
        mptcp: Mptcp { checksum, endpoints, ..Mptcp::default() },
        ..Host::default()
    };
    let client = host((1..paths.len()).map(endpoint).collect());
    Scenario { seed, paths, client, server: host(Vec::new()), events: Vec::new() }
}

pub(crate) fn ipnet(address: IpAddr, prefix: u8) -> marline_lab::scenario::IpNet {
    marline_lab::scenario::IpNet::new_assert(address, prefix)
}

/// The address of a host on a path.
pub(crate) fn address(family: Family, path: usize, host: u8) -> IpAddr {
    let net = path as u8 + 1;
    match family {
        Family::V4 => Ipv4Addr::new(10, 0, net, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, u16::from(net), 0, 0, 0, 0, 0, host.into()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_a_scenario_that_holds() {
        for cell in Cell::all() {
            let setup = CellSetup::of(&cell, Scale::Full, 1);
            setup.scenario.check().unwrap_or_else(|error| panic!("{cell}: {error:#}"));
            assert_eq!(setup.scenario.paths.len(), cell.subflows.count());
        }
    }
}
