//! Tests of claims of the high-speed rail study (SIGCOMM 2018) that are not in the tables of the paper's key: pauses
//! after handoffs, handshakes and short flows, with the study's stack, over two carriers with handoffs as in its
//! example: 70 % loss, a tenth of the rate, 700 ms more delay.

use marline_core::ConnectionConfig;
use marline_sim::{Amount, Bulk, Paths, PathsConfig, median};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::bursts::ms;
use crate::cases::{LINUX_314, link};

/// Medians of the study's handshake round trips on China Mobile and China Unicom.
const CARRIERS: [&str; 2] =
    ["rate=10M,delay=182ms,queue=1s,loss=0.1%", "rate=10M,delay=98ms,queue=1s,loss=0.1%"];
const IN_HANDOFF: [&str; 2] =
    ["rate=1M,delay=532ms,queue=1s,loss=70%", "rate=1M,delay=448ms,queue=1s,loss=70%"];
/// Quantiles of a handoff's length.
const LENGTHS_MS: [u64; 4] = [600, 1_000, 2_200, 3_000];

/// Two hosts with these carriers between them.
fn stage(carriers: &[usize], seed: u64) -> Paths {
    let plain = carriers.len() == 1;
    let (scheduler, congestion) =
        if plain { ("lowest-rtt", "reno") } else { ("lowest-rtt+orp", "lia") };
    let registry = marline_research::registry();
    let set =
        registry.policy_set(scheduler, "full-mesh", congestion, LINUX_314).expect("known names");
    let connection = ConnectionConfig { mptcp: !plain, ..ConnectionConfig::new(set) };
    let links = carriers.iter().map(|carrier| link(CARRIERS[*carrier])).collect();
    let mut config = PathsConfig::new(links, connection).with_known_mtu();
    config.names = carriers.iter().map(|carrier| format!("carrier {carrier}")).collect();
    Paths::new(&config, SeedTree::new(seed))
}

/// A cell change of a carrier, identified by the index of its path.
fn hand_off(paths: &mut Paths, path: usize, carrier: usize, from: Instant, lasts: Duration) {
    for (at, text) in [(from, IN_HANDOFF[carrier]), (from + lasts, CARRIERS[carrier])] {
        let (up, down) = (paths.up[path], paths.down[path]);
        let config = link(text);
        paths.world.run_at(at, move |world| {
            world.set_link(up, config.up.clone());
            world.set_link(down, config.down.clone());
        });
    }
}

/// The client sends a request over the first path at this time, and the server sends this much data.
fn ask(paths: &mut Paths, at: Instant, amount: Amount) {
    paths.listen(Box::new(move |_| Box::new(Bulk::new(amount, 1, 2))));
    paths.world.run_until(at);
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
}

/// The study: a sender stalls for 7 to 10 s because of its backed-off timer. Here it usually stalls for longer than
/// the handoff, but seldom for so long.
#[test]
fn after_a_handoff_a_sender_stands_still_by_its_backed_off_timer() {
    let mut over = Vec::new();
    for seed in 0..12 {
        for carrier in 0..2 {
            let mut paths = stage(&[carrier], seed);
            let handoffs = LENGTHS_MS.map(ms).into_iter().enumerate();
            let handoffs =
                handoffs.map(|(n, lasts)| (Instant::from_secs(10 + 20 * n as u64), lasts));
            let handoffs: Vec<_> = handoffs.collect();
            for (from, lasts) in &handoffs {
                hand_off(&mut paths, 0, carrier, *from, *lasts);
            }
            ask(&mut paths, Instant::from_secs(1), Amount::Endless);
            paths.world.run_until(Instant::from_secs(90));
            let report = paths.client_report(0).expect("connected");
            for (from, lasts) in handoffs {
                let hole =
                    report.longest_gap_within(from, from + lasts + Duration::from_secs(10)).length;
                over.push((hole.as_secs_f64(), lasts.as_secs_f64()));
            }
        }
    }
    let longer = over.iter().filter(|(pause, lasts)| pause > lasts).count();
    let long = over.iter().filter(|(pause, _)| *pause >= 7.0).count();
    let pauses: Vec<f64> = over.iter().map(|(pause, _)| *pause).collect();
    let most = pauses.iter().copied().fold(0.0, f64::max);
    println!("of {}: {longer} longer than the handoff, {long} of 7 s and more", over.len());
    println!("median {:.1} s, longest {most:.1} s", median(&pauses));
    assert!(longer * 2 > over.len(), "{over:?}");
    assert!(long * 4 < over.len(), "{over:?}");
}

/// Time until both subflows are established for a client that connects now, and the packets offered to the first path
/// until then.
fn both_stand(seed: u64, in_handoff: bool) -> (f64, f64) {
    let (mut paths, at) = (stage(&[0, 1], seed), Instant::from_secs(1));
    if in_handoff {
        hand_off(&mut paths, 0, 0, Instant::from_millis(900), ms(LENGTHS_MS[2]));
    }
    ask(&mut paths, at, Amount::Endless);
    while paths.world.now() < Instant::from_secs(60) {
        let now = paths.world.now();
        paths.world.run_until(now + ms(5));
        let host = paths.world.node(paths.server);
        let first = host.connections().next().and_then(|(id, _)| host.endpoint().info(id));
        let known =
            first.map_or(0, |info| info.subflows.iter().filter(|s| s.srtt.is_some()).count());
        if known == 2 {
            break;
        }
    }
    let packets = paths.world.link(paths.down[0]).stats().offered_packets;
    (paths.world.now().since(at).as_secs_f64(), packets as f64)
}

#[test]
fn the_second_subflow_waits_for_the_first_above_all_in_a_handoff() {
    let medians = |in_handoff: bool| {
        let all: Vec<_> = (0..25).map(|seed| both_stand(seed, in_handoff)).collect();
        let of = |pick: fn(&(f64, f64)) -> f64| median(&all.iter().map(pick).collect::<Vec<_>>());
        [of(|(seconds, _)| *seconds), of(|(_, packets)| *packets)]
    };
    let [calm, torn] = [false, true].map(medians);
    println!(
        "seconds, and packets on the first path, until both are established: {calm:.2?} {torn:.2?}"
    );
    // A round trip of the first, and then one and a half of the second.
    assert!((0.5..1.2).contains(&calm[0]), "{calm:?}");
    assert!(torn[0] > 2.0 * calm[0], "{calm:?} {torn:?}");
    assert!(calm[1] > 10.0, "data is sent before the second is established: {calm:?}");
}

/// The study's short flows: Multipath TCP gains little from two carriers, because flows are nearly complete when the
/// second subflow is established, and start on the slower carrier.
#[test]
fn a_second_carrier_does_not_speed_up_short_flows_on_a_train() {
    for kb in [64_u64, 256, 1_024] {
        let times = |carriers: &[usize]| {
            let done = (0..40).map(|seed| {
                let mut paths = stage(carriers, seed);
                // Seven handoffs a minute on each, never at once, the flow at any time between them.
                for (path, carrier) in carriers.iter().enumerate() {
                    for n in 0..5 {
                        let from = 3_000 + 8_600 * n + 4_300 * *carrier as u64;
                        let lasts = ms(LENGTHS_MS[n as usize % 4]);
                        hand_off(&mut paths, path, *carrier, Instant::from_millis(from), lasts);
                    }
                }
                let at = Instant::from_millis(1_000 + 430 * seed);
                ask(&mut paths, at, Amount::Bytes(kb * 1_024));
                paths.world.run_until(Instant::from_secs(60));
                let report = paths.client_report(0).expect("connected");
                let whole = report.arrived.filter(|_| report.read == kb * 1_024);
                whole.map_or(60.0, |(_, last)| last.since(at).as_secs_f64())
            });
            median(&done.collect::<Vec<_>>())
        };
        let [mobile, unicom, both] = [times(&[0]), times(&[1]), times(&[0, 1])];
        println!("{kb} KB: {mobile:.2} and {unicom:.2} s alone, {both:.2} s over both");
        assert!(both > 0.9 * unicom, "{kb} KB: {both} {unicom}");
        assert!(both < 1.3 * mobile, "{kb} KB: {both} {mobile}");
    }
}
