//! Tests of coupled congestion control at a shared bottleneck: two subflows against a TCP. Published controllers are
//! always coupled, the shipped one only if it detects that its subflows share a bottleneck.

use crate::cases::{link, parallel};
use marline_core::ConnectionConfig;
use marline_sim::{Amount, Bulk, Paths, PathsConfig, median};
use marline_time::{Duration, Instant, SeedTree};

const LENGTH: Duration = Duration::from_secs(90);
/// A queue of one RTT. The jitter prevents the three flows from losing packets in lockstep.
const BOTTLENECK: &str = "rate=20M,delay=20ms,queue=40ms,jitter=1ms";

fn connection(congestion: &str) -> ConnectionConfig {
    let set =
        marline_research::registry().policy_set("min-rtt", "full-mesh", congestion, "rack-tlp");
    ConnectionConfig::new(set.expect("built-in names"))
}

/// Share of two subflows with the first congestion control against a TCP with the second.
fn share(congestion: &str, of_tcp: &str, seed: u64) -> f64 {
    let links = vec![link(BOTTLENECK), link(BOTTLENECK)];
    let mut paths =
        Paths::new(&PathsConfig::new(links, connection(congestion)), SeedTree::new(seed));
    paths.share_link(1, 0);
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    let endless = || Box::new(Bulk::new(Amount::Endless, 1, 2));
    paths.connect(0, endless()).expect("a connection");
    let tcp = ConnectionConfig { mptcp: false, ..connection(of_tcp) };
    paths.connect_as(tcp, 0, endless()).expect("a connection");
    let end = Instant::ZERO + LENGTH;
    paths.world.run_until(end);
    let goodput = |index| {
        let report = paths.server_report(index).expect("accepted");
        assert_eq!(report.wrong_at, None);
        report.goodput(Instant::ZERO + LENGTH / 3, end).bits_per_s() as f64
    };
    let (multipath, tcp) = (goodput(0), goodput(1));
    assert!(multipath + tcp >= 17e6, "the bottleneck is used: {multipath} + {tcp}");
    multipath / (multipath + tcp)
}

#[test]
fn coupled_subflows_take_one_share_and_uncoupled_ones_two() {
    let controls = ["lia", "olia", "balia", "reno"];
    let runs: Vec<(&str, u64)> =
        controls.iter().flat_map(|name| (1..=3).map(move |seed| (*name, seed))).collect();
    let shares = parallel(&runs, |(name, seed)| share(name, "reno", *seed));
    for (index, name) in controls.iter().enumerate() {
        let of = &shares[index * 3..index * 3 + 3];
        let share = median(of);
        println!("{name}: two subflows have {:.1} % against one TCP {of:.3?}", share * 100.0);
        let (least, most) = if *name == "reno" { (0.60, 0.72) } else { (0.40, 0.57) };
        assert!((least..=most).contains(&share), "{name}: {of:?}");
    }
}

#[test]
fn subflows_that_find_that_they_share_a_bottleneck_take_less_than_two_shares() {
    let runs: Vec<u64> = (1..=5).collect();
    let shares = |name: &'static str| parallel(&runs, |seed| share(name, "cubic", *seed));
    let (shipped, uncoupled) = (shares("cubic-westwood"), shares("cubic"));
    let (middle, of_uncoupled) = (median(&shipped), median(&uncoupled));
    println!(
        "against one CUBIC flow two subflows have {middle:.3} {shipped:.3?}, uncoupled {of_uncoupled:.3}"
    );
    assert!(of_uncoupled > 0.62, "{uncoupled:?}");
    assert!((0.4..=0.6).contains(&middle), "{shipped:?}");
}

/// Two links of unequal quality: all the bandwidth is still used.
#[test]
fn coupled_subflows_on_separate_paths_fill_both() {
    for name in ["lia", "olia", "balia", "cubic-westwood"] {
        let links = ["rate=20M,delay=20ms,queue=40ms", "rate=10M,delay=30ms,queue=60ms"];
        let config = PathsConfig::new(links.map(link).to_vec(), connection(name));
        let mut paths = Paths::new(&config, SeedTree::new(1));
        paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
        paths.connect(0, Box::new(Bulk::new(Amount::Endless, 1, 2))).expect("a connection");
        let end = Instant::from_secs(60);
        paths.world.run_until(end);
        let goodput =
            paths.server_report(0).expect("accepted").goodput(Instant::from_secs(10), end);
        println!("{name}: {goodput} of 28.6 Mbit/s");
        assert!(goodput.bits_per_s() > 25_000_000, "{name}: {goodput}");
    }
}
