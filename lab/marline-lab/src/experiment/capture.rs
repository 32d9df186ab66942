//! Captures of runs: every packet of either end as pcapng, which Wireshark reads as native TCP.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use marline_emulator::TappedPacket;
use marline_qlog::Vantage;
use marline_sim::Capture;
use marline_wire::pcapng::{self, Direction, PacketInfo};

use super::simulation::{run_staged, stage_observed};
use super::{Experiment, Outcome, Variant};
use crate::net::Net;

/// Packets sent and received by one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndCapture {
    /// Client or server.
    pub vantage: Vantage,
    /// Contents of the pcapng file.
    pub bytes: Vec<u8>,
    /// Number of packets beyond the size limit.
    pub left_out: u64,
}

/// Runs an experiment once and captures each end, the client's first, up to a number of bytes. Each address is an
/// interface, and the client has one for each path. The outcome is that of [`simulate`](super::simulate), bit for bit.
///
/// # Errors
/// The same as [`simulate`](super::simulate).
pub fn simulate_captured(
    experiment: &Experiment,
    variant: &Variant,
    seed: u64,
    max_bytes: usize,
) -> anyhow::Result<(Outcome, Vec<EndCapture>)> {
    let count = experiment.used_paths(variant)?.len();
    let mut ends = Vec::new();
    let (mut paths, flows) = stage_observed(experiment, variant, seed, |paths| {
        // The server has one address per family.
        let addresses: Vec<_> = (0..count).map(|path| paths.ends(path)).collect();
        let of_client: Vec<IpAddr> = addresses.iter().map(|[client, _]| *client).collect();
        let of_server: BTreeSet<IpAddr> = addresses.iter().map(|[_, server]| *server).collect();
        let of_server: Vec<IpAddr> = of_server.into_iter().collect();
        let both = [
            (paths.client, Vantage::Client, of_client),
            (paths.server, Vantage::Server, of_server),
        ];
        for (node, vantage, addresses) in both {
            paths.world.observe(Box::new(Capture::new(node, &addresses, max_bytes)));
            ends.push((node, vantage));
        }
    })?;
    let outcome = run_staged(&mut paths, &flows, experiment, variant, seed)?;
    let capture = |(node, vantage): &(_, Vantage)| {
        let capture = paths.world.observers::<Capture>().find(|capture| capture.node() == *node)?;
        let (bytes, left_out) = (capture.bytes().to_vec(), capture.left_out());
        Some(EndCapture { vantage: *vantage, bytes, left_out })
    };
    Ok((outcome, ends.iter().filter_map(capture).collect()))
}

/// Settings of captures in real time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Maximum total size of the packets at an end in bytes.
    pub max_bytes: u64,
    /// Keeps MPTCP's keys in the packets: Wireshark needs them to assign subflows to connections. If false, the
    /// keys are replaced by zeros.
    pub reveal_keys: bool,
}

/// Captures of both ends of a network with packet copies, the client's first. Each path is an interface, and
/// timestamps are wall-clock time.
pub(super) fn from_net(net: &Net, reveal_keys: bool) -> Vec<EndCapture> {
    let Some(tapped) = net.take_tapped() else { return Vec::new() };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let zero_ns = since_1970.saturating_sub(net.started().elapsed()).as_nanos() as u64;
    let names: Vec<&str> = net.scenario().paths.iter().map(|path| path.name.as_str()).collect();
    let mut ends = [Vantage::Client, Vantage::Server].map(|vantage| {
        let mut bytes = Vec::new();
        let writer = pcapng::Capture::begin(&mut bytes, "marline-lab", &names, reveal_keys);
        let left_out = tapped.left_out(vantage == Vantage::Client);
        (writer, EndCapture { vantage, bytes, left_out })
    });
    for TappedPacket { link, at_client, sent, at, bytes } in tapped.packets() {
        let [client, server] = &mut ends;
        let (writer, capture) = if at_client { client } else { server };
        let info = PacketInfo {
            interface: link,
            time_ns: zero_ns + at.as_nanos() as u64,
            direction: if sent { Direction::Outbound } else { Direction::Inbound },
            comment: None,
        };
        writer.write_ip_packet(&mut capture.bytes, &info, &bytes);
    }
    ends.map(|(_, capture)| capture).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::simulate;
    use crate::workload::{Gap, Workload};

    #[test]
    fn captures_of_both_ends_do_not_change_the_run() {
        let gap = Gap { least_ms: 50.0, most_ms: 50.0 };
        let workload = Workload::Bursts { bytes: 20_000, gap, count: 20 };
        let links = [("wifi", "rate=20M,delay=5ms,loss=2%"), ("lte", "rate=10M,delay=40ms")];
        let experiment = Experiment::over(&links, workload);
        let variant = Variant::new("auto");
        let (outcome, captures) =
            simulate_captured(&experiment, &variant, 3, 1 << 20).expect("run");
        assert_eq!(outcome, simulate(&experiment, &variant, 3).expect("run"));
        for capture in &captures {
            assert_eq!(
                capture.bytes[..4],
                [0x0a, 0x0d, 0x0d, 0x0a],
                "the file starts with a section"
            );
            // All payload passed through each end.
            assert!(
                capture.bytes.len() > 400_000 && capture.left_out == 0,
                "{:?}",
                capture.left_out
            );
        }
        let (_, cut) = simulate_captured(&experiment, &variant, 3, 10_000).expect("run");
        assert!(cut.iter().all(|capture| capture.bytes.len() <= 11_000 && capture.left_out > 300));
    }
}
