//! Tests of RTO bounds by kind of interface: a path with a sleeping radio has its own bounds, both at the client and
//! at the server, which is notified.

use marline_core::ConnectionConfig;
use marline_policy::{PathCost, RttConfig};
use marline_sim::{Paths, PathsConfig};
use marline_time::{Duration, SeedTree};

use crate::cases::bursts::{START, latencies, ms};
use crate::cases::{at_server, link};

const RADIO: PathCost = PathCost { tail_ms: 11_600, ..PathCost::NONE };
const CALM: &str = "rate=50M,delay=20ms";

/// A WLAN retransmits 50 ms after a round trip, a cellular radio after 400 ms.
fn by_kind() -> [Option<RttConfig>; 2] {
    let floor = |min_ms| RttConfig { min_rto: ms(min_ms), ..RttConfig::default() };
    [Some(floor(50)), Some(floor(400))]
}

/// One path with this cost between two hosts that retransmit only by timer.
fn scene(text: &str, cost: PathCost, [rtt, radio_rtt]: [Option<RttConfig>; 2]) -> Paths {
    let set = marline_research::registry().policy_set(
        "lowest-rtt",
        "full-mesh",
        "cubic+keep-window",
        "rfc6675,pto=off",
    );
    let mut connection = ConnectionConfig::new(set.expect("known names"));
    (connection.rtt, connection.radio_rtt) = (rtt.unwrap_or_default(), radio_rtt);
    let mut config = PathsConfig::new(vec![link(text)], connection);
    config.costs = vec![cost];
    Paths::new(&config, SeedTree::new(1))
}

/// One-packet messages from the server, the last of which is lost. Returns its delay, and how often the server's timer
/// fired.
fn repaired_after(cost: PathCost, bounds: [Option<RttConfig>; 2]) -> (Duration, u64) {
    let mut paths = scene(CALM, cost, bounds);
    let at_ms: Vec<u64> = (0..20).map(|n| n * 100).collect();
    let down = paths.down[0];
    paths.world.run_at(START + ms(1_850), move |world| {
        let mut config = link(CALM).down;
        config.loss.pattern = vec![world.link(down).stats().offered_packets + 1];
        world.set_link(down, config);
    });
    let latencies = latencies(&mut paths, 500, &at_ms);
    (latencies[19], timeouts(&paths))
}

fn timeouts(paths: &Paths) -> u64 {
    at_server(paths).iter().map(|subflow| subflow.rtos).sum()
}

#[test]
fn a_radio_has_its_own_bounds_and_only_if_it_is_asked_for() {
    // 40 ms round trip, the minimum, and 20 ms for the retransmission.
    for (cost, bounds, least_ms) in [
        (PathCost::NONE, [None, None], 260),
        (RADIO, [None, None], 260),
        (PathCost::NONE, by_kind(), 110),
        (RADIO, by_kind(), 460),
    ] {
        let (took, timeouts) = repaired_after(cost, bounds);
        assert!(took >= ms(least_ms) && took < ms(least_ms + 20), "{cost:?} {bounds:?}: {took:?}");
        assert_eq!(timeouts, 1, "{cost:?}");
    }
}

/// Twice a second all packets wait for 150 ms, as in a handover, without losses.
#[test]
fn a_timeout_that_knows_the_radio_is_not_fooled_by_its_pauses() {
    let pauses = "rate=50M,delay=20ms,down.rate=0s:50M+400ms:0+550ms:50M/600ms,down.queue=1000ms";
    let spurious = |bounds| {
        let mut paths = scene(pauses, RADIO, bounds);
        latencies(&mut paths, 500, &(0..600).map(|n| n * 50).collect::<Vec<_>>());
        timeouts(&paths)
    };
    let [wlan, radio] = by_kind();
    let [short, own] = [[wlan, None], [wlan, radio]].map(spurious);
    println!("{short} timeouts with the bounds of a WLAN, {own} with its own");
    assert!(short >= 10 && own == 0, "{short} {own}");
}
