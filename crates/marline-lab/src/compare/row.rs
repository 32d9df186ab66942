//! The rows: links, what is done on them, what is measured.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::contestant::Contestant::{
    self, Duplicate, FirstPath, Kernel, Marline, Redundant, SecondPath,
};
use crate::scenario::{Endpoint, EndpointFlag, Host, Mptcp, Path, Scenario};
use crate::workload::{Gap, Workload};

/// What of a run is looked at.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Measure {
    /// Time from a request to its answer.
    Answers,
    /// Time from a block being taken to its being read, and goodput.
    Blocks,
    /// Time from the start of a burst to its being read: before the fault, the one that it hits,
    /// the ones after.
    Bursts,
    /// Goodput.
    Goodput,
    /// The longest time without an answer, and the longest wait for one, through a fault.
    Handover,
}

/// When the first path dies.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Fault {
    /// Between so many ms after the start.
    Between(f64, f64),
    /// In this burst, between so many ms after its beginning.
    InBurst(usize, f64, f64),
    /// Somewhere between this burst's beginning and the next's.
    AroundBurst(usize),
}

/// Buffers, bytes; `None`: they tune themselves.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Buffers {
    /// What the kernel is told (SO_SNDBUF): it doubles it, for its own needs.
    pub kernel_send: Option<usize>,
    /// SO_RCVBUF likewise.
    pub kernel_receive: Option<usize>,
    /// What Marline is told: payload.
    pub marline_send: Option<u64>,
    /// Likewise.
    pub marline_receive: Option<u64>,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its short name.
    pub key: String,
    /// What it is.
    pub title: String,
    /// Hosts and links.
    pub scenario: Scenario,
    /// What is done.
    pub workload: Workload,
    /// What is looked at.
    pub measure: Measure,
    /// What happens.
    pub fault: Option<Fault>,
    /// Buffers of both ends.
    pub buffers: Buffers,
    /// At the start so much is not looked at, ms.
    pub warm_up_ms: f64,
    /// Who takes part.
    pub contestants: Vec<Contestant>,
    /// Runs, unless asked otherwise.
    pub repeats: u32,
    /// How much of the machine it needs, in halves of a processor.
    pub weight: u32,
}

/// How much is run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Enough for an hour.
    Cover,
    /// Ten runs of everything.
    Full,
}

/// Runs of what stands for itself.
const REPEATS: u32 = 10;
/// The small windows, cover only: each row takes half a minute of two processors per run.
const SMALL_WINDOW_REPEATS: u32 = 3;

/// Every row.
#[must_use]
pub fn rows(extent: Extent) -> Vec<Row> {
    let mut rows = vec![
        echo("2a-a", "no jitter", "", ""),
        echo("2a-b", "jitter 5 / 12 ms", ",jitter=normal:5ms", ",jitter=normal:12ms"),
        blocks(),
        bursts("2c-docs", 400, (300.0, 1_000.0), 8, Fault::AroundBurst(8)),
        bursts("2c-maps", 100_000, (1_000.0, 1_000.0), 6, Fault::InBurst(6, 0.0, 45.0)),
        bursts("2c-netflix", 1_000_000, (2_000.0, 2_000.0), 4, Fault::InBurst(4, 0.0, 180.0)),
        handover(),
        bulk(),
        loss(),
    ];
    rows.extend(small_windows(extent));
    rows
}

fn row(key: &str, title: String, scenario: Scenario, workload: Workload, measure: Measure) -> Row {
    Row {
        key: key.to_owned(),
        title,
        scenario,
        workload,
        measure,
        fault: None,
        buffers: Buffers::default(),
        warm_up_ms: 1_500.0,
        contestants: vec![Kernel, Marline],
        repeats: REPEATS,
        weight: 1,
    }
}

fn address(net: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, net, host).into()
}

/// Two paths; the server is reachable at one address over both.
fn two_paths(links: [(&str, &str); 2], flags: &[EndpointFlag]) -> Scenario {
    let path = |(number, (name, link)): (u8, (&str, &str))| Path {
        name: name.to_owned(),
        link: link.to_owned(),
        client: vec![IpNet::new_assert(address(number, 2), 24)],
        server: vec![IpNet::new_assert(address(number, 1), 24)],
        mtu: None,
    };
    let [first, second] = links;
    let endpoint = Endpoint {
        address: address(2, 2),
        path: Some(second.0.to_owned()),
        port: None,
        id: None,
        flags: flags.to_vec(),
    };
    Scenario {
        seed: 1,
        paths: vec![path((1, first)), path((2, second))],
        client: Host {
            mptcp: Mptcp { endpoints: vec![endpoint], ..Mptcp::default() },
            ..Host::default()
        },
        ..Scenario::default()
    }
}

fn echo(key: &str, what: &str, wifi: &str, lte: &str) -> Row {
    let wifi = format!("rate=20M,delay=45ms,loss=1.5%{wifi}");
    let lte = format!("rate=10M,delay=52.5ms,loss=0.1%{lte}");
    let scenario = two_paths([("wifi", &wifi), ("lte", &lte)], &[EndpointFlag::Subflow]);
    let gap = Gap { least_ms: 100.0, most_ms: 200.0 };
    let ask = Workload::Ask { request_bytes: 200, answer_bytes: 200, gap, count: 200 };
    let title = format!("echo of 200 bytes under loss, {what}");
    let contestants = vec![Duplicate, Kernel, Marline, Redundant];
    Row { contestants, ..row(key, title, scenario, ask, Measure::Answers) }
}

fn blocks() -> Row {
    let links = [("wifi", "rate=8M,delay=10ms,queue=80ms"), ("3g", "rate=2M,delay=75ms,queue=2s")];
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: 30_000 };
    let title = "blocks of 8 KiB, send buffer of 100k".to_owned();
    Row {
        // What the kernel held of payload when it was told 100k.
        buffers: Buffers {
            kernel_send: Some(100_000),
            marline_send: Some(152_000),
            ..Buffers::default()
        },
        warm_up_ms: 8_000.0,
        contestants: vec![FirstPath, SecondPath, Kernel, Marline],
        ..row("2b", title, two_paths(links, &[EndpointFlag::Subflow]), workload, Measure::Blocks)
    }
}

/// WiFi and LTE as of the path failures.
const FAILING: [(&str, &str); 2] =
    [("wifi", "rate=50M,delay=6.5ms,queue=100ms"), ("lte", "rate=20M,delay=42.5ms,queue=300ms")];

/// Bursts after the one that is hit.
const AFTER: u32 = 4;

fn bursts(key: &str, bytes: u32, gap: (f64, f64), hit: u32, fault: Fault) -> Row {
    let gap = Gap { least_ms: gap.0, most_ms: gap.1 };
    let workload = Workload::Bursts { bytes, gap, count: hit + AFTER + 1 };
    let title = format!("bursts of {bytes} bytes, WiFi dies");
    Row {
        fault: Some(fault),
        contestants: vec![FirstPath, SecondPath, Kernel, Marline],
        ..row(key, title, two_paths(FAILING, &[EndpointFlag::Subflow]), workload, Measure::Bursts)
    }
}

fn handover() -> Row {
    let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
    let ask = Workload::Ask { request_bytes: 100, answer_bytes: 1_000, gap, count: 200 };
    let scenario = two_paths(FAILING, &[EndpointFlag::Subflow, EndpointFlag::Backup]);
    let title = "ten requests a second, WiFi dies, LTE is a backup".to_owned();
    let fault = Some(Fault::Between(7_000.0, 8_000.0));
    Row { fault, ..row("2e", title, scenario, ask, Measure::Handover) }
}

fn bulk() -> Row {
    let links =
        [("wifi", "rate=50M,delay=10ms,queue=100ms"), ("lte", "rate=20M,delay=30ms,queue=100ms")];
    let workload = Workload::Blocks { bytes: 65_536, lasts_ms: 15_000 };
    let scenario = two_paths(links, &[EndpointFlag::Subflow]);
    let title = "bulk over 50 and 20 Mbit/s".to_owned();
    Row {
        warm_up_ms: 3_000.0,
        weight: 2,
        ..row("bulk", title, scenario, workload, Measure::Goodput)
    }
}

/// One path: how TCP itself stands beside the kernel's.
fn loss() -> Row {
    let link = ("wifi", "rate=50M,delay=10ms,queue=100ms,loss=0.1%");
    let mut scenario = two_paths([link, link], &[]);
    scenario.paths.truncate(1);
    scenario.client.mptcp.endpoints.clear();
    let workload = Workload::Blocks { bytes: 65_536, lasts_ms: 30_000 };
    let title = "bulk over one path of 50 Mbit/s, RTT 20 ms, 0.1 % loss each way".to_owned();
    Row {
        warm_up_ms: 3_000.0,
        weight: 2,
        contestants: vec![FirstPath, Marline],
        ..row("loss", title, scenario, workload, Measure::Goodput)
    }
}

/// RTT of the second path, ms, and its loss, %.
const SMALL_WINDOWS: [(u32, &str); 10] = [
    (100, "0.1"),
    (100, "1"),
    (150, "0"),
    (150, "0.01"),
    (150, "0.1"),
    (150, "1"),
    (200, "0"),
    (200, "0.01"),
    (200, "0.1"),
    (200, "1"),
];

fn small_windows(extent: Extent) -> Vec<Row> {
    let window = 660 << 10;
    let one = |key: &str, title: String, rtt_ms: u32, loss: &str, contestants: Vec<Contestant>| {
        let second = format!(
            "rate=100M,delay={}us,queue=20ms{}",
            rtt_ms * 500,
            if loss == "0" { String::new() } else { format!(",loss={loss}%") }
        );
        let first = "rate=100M,delay=25ms,queue=20ms";
        let scenario = two_paths([("one", first), ("two", &second)], &[EndpointFlag::Subflow]);
        let workload = Workload::Blocks { bytes: 65_536, lasts_ms: 25_000 };
        Row {
            buffers: Buffers {
                kernel_send: Some(4_000_000),
                kernel_receive: Some(window),
                marline_send: Some(4_000_000),
                marline_receive: Some(window as u64),
            },
            warm_up_ms: 8_000.0,
            weight: 4,
            contestants,
            repeats: if extent == Extent::Cover { SMALL_WINDOW_REPEATS } else { REPEATS },
            ..row(key, title, scenario, workload, Measure::Goodput)
        }
    };
    let alone = "window of 660 KiB, the better path alone".to_owned();
    let mut rows = vec![one("2d-alone", alone, 200, "0", vec![FirstPath])];
    rows.extend(SMALL_WINDOWS.map(|(rtt_ms, loss)| {
        let title = format!("window of 660 KiB, second path {rtt_ms} ms, loss {loss} %");
        one(&format!("2d-{rtt_ms}-{loss}"), title, rtt_ms, loss, vec![Kernel, Marline])
    }));
    rows
}

impl Row {
    /// How often a contestant runs.
    #[must_use]
    pub fn repeats_of(&self, contestant: Contestant) -> u32 {
        let measured = self.contestants.iter().all(|other| *other != Contestant::Kernel);
        let few = contestant.is_reference() && !measured;
        if few { self.repeats.min(3) } else { self.repeats }
    }

    /// Its scenario with other chances.
    #[must_use]
    pub fn seeded(&self, seed: u64) -> Scenario {
        Scenario { seed, ..self.scenario.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_links_that_can_be_made() {
        for row in rows(Extent::Full) {
            row.scenario.check().unwrap_or_else(|error| panic!("{}: {error:#}", row.key));
        }
    }

    #[test]
    fn rows_are_told_apart_by_their_keys() {
        let rows = rows(Extent::Cover);
        let keys: std::collections::BTreeSet<&str> = rows.iter().map(|r| r.key.as_str()).collect();
        assert_eq!(keys.len(), rows.len());
    }
}
