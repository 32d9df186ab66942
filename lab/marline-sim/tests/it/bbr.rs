//! Tests of BBR on emulated links: it finds and keeps the rate, keeps the queue short, and ignores random loss and
//! idle phases.

use crate::cases::{at_server, link};
use marline_algos::Registry;
use marline_core::{ConnectionConfig, SubflowInfo};
use marline_sim::{Amount, App, Bulk, Pace, Paths, PathsConfig, Units, quantile};
use marline_time::{Duration, Instant, SeedTree};

const fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn scene(text: &str, congestion: &str) -> Paths {
    Paths::new(&scene_config(text, congestion), SeedTree::new(1))
}

fn scene_config(text: &str, congestion: &str) -> PathsConfig {
    let set = Registry::default().policy_set("min-rtt", "full-mesh", congestion, "rack-tlp");
    let config = ConnectionConfig::new(set.expect("built-in names"));
    PathsConfig::new(vec![link(text)], config)
}

/// An endless download.
fn download(text: &str, congestion: &str) -> Paths {
    endless(scene(text, congestion))
}

fn endless(mut paths: Paths) -> Paths {
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    paths
}

fn sender(paths: &Paths) -> SubflowInfo {
    at_server(paths).swap_remove(0)
}

/// Mbit/s that arrived.
fn goodput(paths: &Paths, from: Instant, to: Instant) -> f64 {
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    report.goodput(from, to).bits_per_s() as f64 / 1e6
}

#[test]
fn the_link_is_filled_and_its_deep_queue_stays_empty() {
    // 50 Mbit/s are 47.6 of payload. The queue has room for 500 ms.
    let link = "rate=50M,delay=20ms,queue=500ms";
    let srtt = |congestion| {
        let mut paths = download(link, congestion);
        let mut rtts = Vec::new();
        for second in 6..=30 {
            paths.world.run_until(Instant::from_secs(second));
            let srtt = sender(&paths).srtt.expect("measured");
            rtts.push(srtt.as_secs_f64() * 1e3);
        }
        (goodput(&paths, at(5_000), at(30_000)), quantile(&rtts, 0.95))
    };
    let (bbr, bbr_rtt) = srtt("bbr");
    let (reno, reno_rtt) = srtt("reno");
    println!("BBR {bbr:.1} Mbit/s, RTT {bbr_rtt:.1} ms; Reno {reno:.1} Mbit/s, {reno_rtt:.1} ms");
    assert!(bbr >= 0.97 * 47.6, "{bbr}");
    assert!(bbr_rtt <= 48.0, "{bbr_rtt}");
    assert!(reno_rtt >= 100.0, "Reno fills the queue: {reno_rtt}");
}

#[test]
fn random_loss_costs_bbr_only_the_lost_bytes() {
    for (loss, least) in [(0.1, 0.95), (1.0, 0.93), (5.0, 0.85)] {
        let link = format!("rate=50M,delay=20ms,queue=100ms,down.loss={loss}%");
        let mut paths = download(&link, "bbr");
        paths.world.run_until(at(25_000));
        let share = goodput(&paths, at(5_000), at(25_000)) / 47.6;
        println!("{loss} % loss: {:.1} % of the link's goodput", share * 100.0);
        assert!(share >= least, "{loss} %: {share}");
        assert_eq!(sender(&paths).rtos, 0, "{loss} %: repaired without timeouts");
    }
    let mut paths = download("rate=50M,delay=20ms,queue=100ms,down.loss=1%", "reno");
    paths.world.run_until(at(25_000));
    let reno = goodput(&paths, at(5_000), at(25_000)) / 47.6;
    assert!(reno < 0.3, "this loss stops a loss-based controller: {reno}");
}

#[test]
fn an_application_that_needs_little_does_not_shrink_the_model() {
    // 60 kB every 200 ms are 2.4 Mbit/s of 50: after a minute a unit still takes as long as on an idle link.
    let mut paths = scene("rate=50M,delay=20ms,queue=100ms", "bbr");
    let times: Vec<Instant> = (0..300).map(|n| at(1_000 + n * 200)).collect();
    let mut pace = Some(Pace::At { bytes: 60_000, times });
    paths.listen(Box::new(move |_| -> Box<dyn App> {
        Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, 7, 8))
    }));
    let client = Units::new(Pace::Never, 60_000, 8, 7);
    paths.connect(0, Box::new(client)).expect("a connection");
    paths.world.run_until(Instant::from_secs(65));
    let server = paths.server_report(0).expect("accepted");
    let client = paths.client_report(0).expect("connected");
    assert_eq!((client.received.len(), client.wrong_at), (300, None));
    let latency = |n: usize| client.received[n].since(server.sent[n]).as_secs_f64() * 1e3;
    let first: Vec<f64> = (5..50).map(latency).collect();
    let last: Vec<f64> = (250..300).map(latency).collect();
    let (first, last) = (quantile(&first, 0.9), quantile(&last, 0.9));
    println!("60 kB every 200 ms: p90 {first:.1} ms at the start, {last:.1} ms after a minute");
    assert!(last <= first * 1.1 && last <= 80.0, "{first} {last}");
}

/// The first delivery rate that BBR sees is a byte per RTT.
#[test]
fn a_one_byte_greeting_does_not_slow_later_data() {
    let mut paths = scene("rate=50M,delay=20ms,queue=100ms", "bbr");
    let units = vec![(at(1_000), 1), (at(1_100), 1_000_000)];
    let sizes: Vec<u64> = units.iter().map(|(_, bytes)| *bytes).collect();
    let mut pace = Some(Pace::Sized { units });
    paths.listen(Box::new(move |_| -> Box<dyn App> {
        Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, 7, 8))
    }));
    let client = Units::new(Pace::Never, 1, 8, 7).with_reads(&sizes);
    paths.connect(0, Box::new(client)).expect("a connection");
    paths.world.run_until(at(5_000));
    let client = paths.client_report(0).expect("connected");
    let done = *client.received.get(1).expect("the answer arrived");
    println!("1 MB after a greeting: {} ms", done.since(at(1_100)).as_millis());
    // 168 ms at the link's rate, plus five round trips of slow start.
    assert!(done < at(1_600), "{done:?}");
}

#[test]
fn the_round_trip_is_measured_again_after_the_path_got_longer() {
    // The first small segments have the shortest round trip, which no full segment reaches.
    let config = scene_config("rate=50M,delay=10ms,queue=100ms", "bbr").with_known_mtu();
    let mut paths = endless(Paths::new(&config, SeedTree::new(1)));
    let (up, longer) = (paths.up[0], link("rate=50M,delay=25ms,queue=100ms"));
    paths.world.run_at(at(3_000), move |world| world.set_link(up, longer.up));
    let mut least = Vec::new();
    for tick in 0..1_800_u64 {
        let now = at(2_000 + tick * 10);
        paths.world.run_until(now);
        let info = sender(&paths);
        // Segments without their own mapping have more payload than the MSS.
        if info.in_flight < 5 * u64::from(info.mss) {
            least.push(now);
        }
    }
    let (first, last) = (
        *least.first().expect("four segments in flight"),
        *least.last().expect("four segments in flight"),
    );
    println!("four segments in flight from {first:?} to {last:?}");
    // Ten seconds after the last small sample, for 200 ms and a round trip.
    assert!(first > at(12_900) && first < at(13_500), "{first:?}");
    let length = last.since(first);
    assert!(
        length >= Duration::from_millis(180) && length <= Duration::from_millis(320),
        "{length:?}"
    );
    let share = goodput(&paths, at(14_000), at(20_000)) / 47.6;
    assert!(share > 0.95, "the model fits the longer path: {share}");
}
