//! Handover by radio signal: phones that walk out of WiFi range, with and without hints about the signal once a
//! second, with three path managers. The numbers are in docs/concepts/path-health.md.

use marline_core::ConnectionConfig;
use marline_link::{PhoneMobility, PhoneMobilityProfile};
use marline_policy::{AddressId, LocalAddress, PathCost, SignalMonitor, SignalThresholds};
use marline_sim::{Echo, EchoServer, Paths, PathsConfig, median, quantile};
use marline_time::{Duration, Instant, Rate, SeedTree};
use marline_wire::mptcp::Extensions;

use crate::cases::traced_link;

const WIFI: &str = "rate=leaving:40M,delay=10ms,jitter=uniform:2ms,queue=100kB";
const STAYS: &str = "rate=staying:40M,delay=10ms,jitter=uniform:2ms,queue=100kB";
const LTE: &str = "rate=20M,delay=30ms,jitter=uniform:3ms,queue=300kB";
/// Thermal noise of 20 MHz plus the receiver's noise, dBm.
const NOISE_DBM: f64 = -92.0;
const SEEDS: u64 = 12;
const LASTS_S: u64 = 75;
const MESSAGES: u64 = LASTS_S * 20;

/// Use of the paths.
#[derive(Copy, Clone)]
struct PathUse {
    path_manager: &'static str,
    lte_is_backup: bool,
}

const BALANCED: PathUse = PathUse { path_manager: "full-mesh", lte_is_backup: false };
const HANDOVER: PathUse = PathUse { path_manager: "backup", lte_is_backup: true };
const INTERACTIVE: PathUse = PathUse { path_manager: "break-before-make", lte_is_backup: true };

/// Results of the messages of all seeds.
#[derive(Debug, Default)]
struct Outcome {
    latencies_ms: Vec<f64>,
    longest_ms: Vec<f64>,
    over_lte: u64,
    missing: u64,
    hints: u64,
}

impl Outcome {
    fn quantile(&self, share: f64) -> f64 {
        let mut all = self.latencies_ms.clone();
        all.extend(std::iter::repeat_n(f64::INFINITY, self.missing as usize));
        quantile(&all, share)
    }

    fn median_longest(&self) -> f64 {
        median(&self.longest_ms)
    }

    fn line(&self) -> String {
        format!(
            "p50 {:.0}, p99 {:.0}, p99.9 {:.0} ms; longest of a walk {:.0} (median); \
             missing {}; over LTE {} kB; {} hints",
            self.quantile(0.5),
            self.quantile(0.99),
            self.quantile(0.999),
            self.median_longest(),
            self.missing,
            self.over_lte / 1_000,
            self.hints,
        )
    }
}

fn connection(path_manager: &str) -> ConnectionConfig {
    let mut policies = marline_algos::default_policies();
    let registry = marline_algos::Registry::default();
    policies.path_manager = registry.path_manager(path_manager).expect("a built-in manager");
    let mut config = ConnectionConfig::new(policies);
    config.extensions = config.extensions.union(Extensions::PATH_COST);
    config
}

fn is_away(profile: &PhoneMobilityProfile, at: Duration) -> bool {
    let within =
        |(from, to): &(Duration, Option<Duration>)| *from <= at && to.is_none_or(|to| at < to);
    profile.away_periods.iter().any(within)
}

/// Passes the WiFi signal of the interface to the client.
fn tell(paths: &mut Paths, up: bool, fading: bool) {
    let address = LocalAddress {
        up,
        cost: PathCost { fading, ..PathCost::NONE },
        ..LocalAddress::new(AddressId(0), (Paths::address(0, 0), 0).into())
    };
    let (now, client) = (paths.world.now(), paths.client);
    paths.world.node_mut(client).endpoint_mut().set_local_address(now, None, address);
}

/// One walk: 300 bytes in each direction every 50 ms.
fn walk(outcome: &mut Outcome, seed: u64, wifi: &str, path_use: PathUse, hinted: bool) {
    let seeds = SeedTree::new(seed);
    let leaves = wifi == WIFI;
    let profile = PhoneMobility { peak: Rate::from_mbit(40), leaves }.draw(&seeds);
    let links = vec![traced_link(wifi, &seeds, None), traced_link(LTE, &seeds, None)];
    let mut config = PathsConfig::new(links, connection(path_use.path_manager));
    config.backup = vec![false, path_use.lte_is_backup];
    let mut paths = Paths::new(&config, seeds);
    for (from, to) in &profile.away_periods {
        paths.schedule_address_change(Instant::ZERO + *from, 0, false);
        to.iter().for_each(|to| paths.schedule_address_change(Instant::ZERO + *to, 0, true));
    }
    let mut judge = SignalMonitor::new(SignalThresholds::default());
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    let echo = Echo::new(300, Duration::from_millis(50), MESSAGES, 7);
    paths.connect(0, Box::new(echo)).expect("a connection");
    for second in 1..=LASTS_S + 10 {
        let (at, now) = (Duration::from_secs(second), Instant::from_secs(second));
        paths.world.run_until(now);
        let up = !is_away(&profile, at);
        let level = up.then(|| (NOISE_DBM + profile.signal_db.value_at(at).0) as f32);
        if judge.read(now, level).is_some() && hinted {
            outcome.hints += 1;
        }
        if hinted {
            tell(&mut paths, up, judge.is_fading());
        }
    }
    note(outcome, &paths);
}

fn note(outcome: &mut Outcome, paths: &Paths) {
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    let ms = |latency: &Duration| latency.as_secs_f64() * 1e3;
    let latencies: Vec<f64> = report.latencies.iter().map(ms).collect();
    let longest = latencies.iter().copied().fold(0.0, f64::max);
    let missing = MESSAGES - latencies.len() as u64;
    outcome.longest_ms.push(if missing > 0 { f64::INFINITY } else { longest });
    outcome.missing += missing;
    outcome.latencies_ms.extend(latencies);
    let link = |id| paths.world.link(id).stats().delivered_bytes;
    if let (Some(up), Some(down)) = (paths.up.get(1), paths.down.get(1)) {
        outcome.over_lte += link(*up) + link(*down);
    }
}

/// LTE alone.
fn alone() -> Outcome {
    let mut outcome = Outcome::default();
    for seed in 1..=SEEDS {
        let seeds = SeedTree::new(seed);
        let links = vec![traced_link(LTE, &seeds, None)];
        let mut paths = Paths::new(&PathsConfig::new(links, connection("full-mesh")), seeds);
        paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
        let echo = Echo::new(300, Duration::from_millis(50), MESSAGES, 7);
        paths.connect(0, Box::new(echo)).expect("a connection");
        paths.world.run_until(Instant::from_secs(LASTS_S + 10));
        note(&mut outcome, &paths);
    }
    outcome
}

fn walks(wifi: &str, path_use: PathUse, hinted: bool) -> Outcome {
    let mut outcome = Outcome::default();
    for seed in 1..=SEEDS {
        walk(&mut outcome, seed, wifi, path_use, hinted);
    }
    outcome
}

#[test]
fn a_hint_moves_outstanding_data_to_lte_before_wifi_dies() {
    println!("LTE alone: {}", alone().line());
    let modes = [("balanced", BALANCED), ("handover", HANDOVER), ("interactive", INTERACTIVE)];
    for (name, path_use) in modes {
        let [without, with] = [false, true].map(|hint| walks(WIFI, path_use, hint));
        println!("{name}, without: {}", without.line());
        println!("{name}, with:    {}", with.line());
        assert!(with.hints >= SEEDS, "{name}: {} hints", with.hints);
        assert_eq!((with.missing, without.missing), (0, 0), "{name}");
        // The cost: seconds in which WiFi would still have carried most data.
        assert!(with.over_lte * 4 < without.over_lte * 5, "{name}: {}", with.line());
        if path_use.lte_is_backup {
            assert!(
                with.quantile(0.999) * 2.0 < without.quantile(0.999),
                "{name}: {}",
                with.line()
            );
            assert!(with.median_longest() * 3.0 < without.median_longest(), "{name}");
        } else {
            // Copies on LTE have already replaced WiFi's losses, so the hint adds nothing.
            assert!(with.quantile(0.999) < without.quantile(0.999) * 1.1, "{name}");
        }
    }
}

#[test]
fn a_stationary_phone_gets_no_hint() {
    let outcome = walks(STAYS, BALANCED, true);
    assert_eq!(outcome.hints, 0, "{}", outcome.line());
}

/// The server's view of WiFi's subflow.
fn seen_by_server(paths: &Paths) -> (String, bool) {
    let host = paths.world.node(paths.server);
    let (id, _) = host.connections().next().expect("a connection");
    let info = host.endpoint().info(id).expect("known");
    let wifi = |s: &&marline_core::SubflowInfo| s.path.remote.ip() == Paths::address(0, 0);
    let subflow = info.subflows.iter().find(wifi).expect("a subflow over WiFi");
    (subflow.health.to_string(), subflow.backup)
}

#[test]
fn a_peer_gets_the_hint_by_path_cost_or_mp_prio() {
    for (agreed, said) in [(true, ("degraded (fading)", false)), (false, ("usable", true))] {
        let mut config = connection("full-mesh");
        if !agreed {
            config.extensions = config.extensions.difference(Extensions::PATH_COST);
        }
        let seeds = SeedTree::new(1);
        let links = [STAYS, LTE].map(|link| traced_link(link, &seeds, None)).to_vec();
        let mut paths = Paths::new(&PathsConfig::new(links, config), seeds);
        paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
        let echo = Echo::new(300, Duration::from_millis(50), 100, 7);
        paths.connect(0, Box::new(echo)).expect("a connection");
        let usable = ("usable".to_owned(), false);
        for (second, fading) in [(1, false), (2, true), (3, false)] {
            paths.world.run_until(Instant::from_secs(second));
            tell(&mut paths, true, fading);
            paths.world.run_until(Instant::from_millis(1_000 * second + 500));
            let wanted = if fading { (said.0.to_owned(), said.1) } else { usable.clone() };
            assert_eq!(seen_by_server(&paths), wanted, "agreed: {agreed}, second {second}");
        }
    }
}
