//! Plan of a random world, drawn from its seed.

use marline_core::{ConnectionConfig, Extensions};
use marline_link::{
    DuplexConfig, GilbertElliott, Jitter, LinkConfig, MiddleboxConfig, QueueLimit, RateConfig,
    Reorder,
};
use marline_policy::PathHealthConfig;
use marline_sim::{Amount, App, Bulk, PathsConfig, Random, RandomPlan};
use marline_time::{Duration, Instant, PcgRng, Rate, Rng, SeedTree};

use super::super::connection;
use super::{FAULTS_END, Family};

/// Schedulers of the worlds with coding.
const CODED: [&str; 5] = [
    "coded",
    "coded,rate=100%,window=45",
    "coded,rate=20%,every=off",
    "round-robin+coded,rate=50%",
    "redundant+coded",
];

/// Published schedulers from 2020 to 2026, with defaults and with extreme parameters.
const PUBLISHED: [&str; 10] = [
    "xlink",
    "min-rtt+xlink,near=10s,far=10s",
    "paaf",
    "paaf,backup=on,rise=1,hold=50ms",
    "peekaboo",
    "peekaboo,discount=0.3,memory=10,seed=7",
    "peekaboo,alpha=0,discount=1,adjust=off",
    "augur",
    "augur,backup=on,worth=0,budget=100%,reserve=1MB",
    "augur,worth=10ms,budget=1%,reserve=5kB",
];

/// The shipped scheduler in the modes that budget it: `balanced`, `aggregate`, `redundant`.
const SHIPPED: [&str; 3] = ["auto", "auto,budget=0", "auto,budget=unlimited"];

/// The scheduler `auto` with its default budget, without a budget, and with an unlimited one.
const AUTO: [&str; 3] = ["auto", "auto,budget=0,free=0B", "auto,budget=10,free=100MB"];

/// Schedulers, congestion controls and loss recoveries of the worlds with any policies.
const ANY: [&[&str]; 3] = [
    &[
        "lowest-rtt+tlp-std",
        "lowest-rtt+tlp-mp",
        "min-rtt+orp+tlp-mp,after=rto",
        "round-robin+tlp-mp",
        "redundant+tlp-mp",
        "min-rtt",
    ],
    &["cubic", "reno", "lia", "cubic+keep-window"],
    &[
        "rack-tlp,pto=linux",
        "rack-tlp,pto=draft-dukkipati,probes=2",
        "rack-tlp,pto=no-allowance",
        "rack-tlp,pto=off",
        "rfc6675",
        "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on",
        "rfc6675,pto=variation,early-retransmit=rfc5827,limited-transmit=off",
    ],
];

/// A world as drawn from its seed.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) paths: PathsConfig,
    pub(super) policies: String,
    /// Events, in order of time on each path.
    pub(super) outages: Vec<Outage>,
    pub(super) apps: [RandomPlan; 2],
    pub(super) bulk: bool,
    /// Connections of the client, one at least.
    pub(super) connections: usize,
    /// Configurations of the client and of the server.
    pub(super) path_health: [Option<PathHealthConfig>; 2],
    /// True if stalls are judged: of the upload, of the download.
    pub(super) judges_stalls: [bool; 2],
    /// Allowed stall beyond the time excused by faults.
    pub(super) grace: Duration,
}

/// A time in which a path is down.
#[derive(Copy, Clone, Debug)]
pub(super) struct Outage {
    pub(super) path: usize,
    pub(super) from: Instant,
    pub(super) to: Instant,
    pub(super) kind: OutageKind,
}

/// Notification of the client about an outage.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum OutageKind {
    /// Nothing.
    Silent,
    /// Its address disappears and returns.
    Told,
    /// Its address disappears, and another one is added.
    Renumbered,
}

pub(super) fn between(rng: &mut PcgRng, low: u64, high: u64) -> u64 {
    low + rng.below(high - low + 1)
}

pub(super) fn often(rng: &mut PcgRng, share: f64, most: f64) -> f64 {
    if rng.chance(share) { rng.unit() * most } else { 0.0 }
}

pub(super) fn random_link(rng: &mut PcgRng) -> LinkConfig {
    let ms = |rng: &mut PcgRng, low, high| Duration::from_millis(between(rng, low, high));
    let mut config = LinkConfig {
        rate: RateConfig::Constant(Rate::from_bits_per_s(between(rng, 500, 50_000) * 1_000)),
        queue: QueueLimit::Time(ms(rng, 10, 300)),
        ..LinkConfig::default()
    };
    config.delay.base = ms(rng, 1, 120);
    if rng.chance(0.4) {
        config.delay.jitter = Jitter::Normal(ms(rng, 1, 10));
        config.delay.overtaking = rng.chance(0.5);
    }
    config.loss.random = often(rng, 0.5, 0.03);
    if rng.chance(0.2) {
        let (good, bad) = (ms(rng, 300, 3_000), ms(rng, 5, 100));
        let loss_bad = 0.3 + 0.7 * rng.unit();
        config.loss.gilbert_elliott = Some(GilbertElliott { good, bad, loss_bad, loss_good: 0.0 });
    }
    let probability = often(rng, 0.4, 0.05);
    let extra = ms(rng, 1, 40);
    config.faults.reorder = (probability > 0.0).then_some(Reorder { probability, extra });
    config.faults.duplicate = often(rng, 0.3, 0.05);
    config.faults.corrupt = often(rng, 0.4, 0.01);
    config
}

fn random_app(rng: &mut PcgRng) -> RandomPlan {
    let pause = |rng: &mut PcgRng, most| Duration::from_millis(rng.below(most));
    let magnitude = between(rng, 0, 10);
    RandomPlan {
        write_bytes: rng.below(1_000 << magnitude),
        // Not so small that writing would take minutes.
        write_bytes_max: 1 + (2 << magnitude) + rng.below(100 << (magnitude / 2)),
        write_pause_max: pause(rng, 60),
        read_bytes_max: between(rng, 1_000, 200_000),
        read_pause_max: pause(rng, 300),
    }
}

impl Plan {
    pub(super) fn draw(seed: u64, family: Family) -> Self {
        let mut plan = Plan::plain(seed);
        if family == Family::Shipped {
            let mut rng = SeedTree::new(seed).stream("policies");
            let scheduler = SHIPPED[rng.below(SHIPPED.len() as u64) as usize];
            plan.choose(scheduler, "cubic-westwood", "rack-tlp");
            plan.policies = scheduler.to_owned();
        }
        if family == Family::Mobile {
            plan.make_mobile(seed);
        }
        if family == Family::Coded {
            let mut rng = SeedTree::new(seed).stream("policies");
            let scheduler = CODED[rng.below(CODED.len() as u64) as usize];
            plan.choose(scheduler, "cubic", "rack-tlp");
            let checksum = rng.chance(0.5);
            for side in [&mut plan.paths.client, &mut plan.paths.server] {
                side.dss_checksum = checksum;
                side.extensions = Extensions::REPAIR;
            }
            plan.policies = format!("{scheduler}, checksums {checksum}");
        }
        if family == Family::Published {
            let mut rng = SeedTree::new(seed).stream("policies");
            let scheduler = PUBLISHED[rng.below(PUBLISHED.len() as u64) as usize];
            plan.choose(scheduler, "cubic", "rack-tlp");
            plan.policies = scheduler.to_owned();
        }
        if family == Family::Auto {
            let mut rng = SeedTree::new(seed).stream("policies");
            let scheduler = AUTO[rng.below(AUTO.len() as u64) as usize];
            let congestion = if rng.chance(0.75) { "cubic-westwood" } else { "cubic" };
            plan.choose(scheduler, congestion, "rack-tlp");
            plan.policies = format!("{scheduler}, {congestion}");
        }
        if family == Family::Any {
            let mut rng = SeedTree::new(seed).stream("policies");
            let mut pick = |of: &[&'static str]| of[rng.below(of.len() as u64) as usize];
            let [scheduler, congestion, recovery] = ANY.map(&mut pick);
            plan.choose(scheduler, congestion, recovery);
            // With repairs only by the retransmission timer, stalls are longer.
            plan.judges_stalls = [recovery.starts_with("rack-tlp") && !recovery.contains("off"); 2];
            plan.policies = format!("{scheduler}, {congestion}, {recovery}");
        }
        plan
    }

    /// Both ends run with these policies.
    fn choose(&mut self, scheduler: &str, congestion: &str, recovery: &str) {
        let registry = marline_research::registry();
        let set = registry.policy_set(scheduler, "full-mesh", congestion, recovery);
        let set = set.expect("known specs");
        self.paths.client.policies = set.clone();
        self.paths.server.policies = set;
    }

    fn plain(seed: u64) -> Self {
        let mut rng = SeedTree::new(seed).stream("plan");
        let count = between(&mut rng, 1, 3) as usize;
        let links: Vec<DuplexConfig> = (0..count)
            .map(|_| DuplexConfig { up: random_link(&mut rng), down: random_link(&mut rng) })
            .collect();
        let schedulers = ["min-rtt", "round-robin", "redundant"];
        let scheduler = schedulers[rng.below(3) as usize];
        let mut config: ConnectionConfig = connection(scheduler);
        config.dss_checksum = true;
        config.receive_buffer = between(&mut rng, 16, 4_096) << 10;
        config.send_buffer = between(&mut rng, 16, 4_096) << 10;
        config.ecn = rng.chance(0.3);
        config.nagle = rng.chance(0.2);
        let mut outages = Vec::new();
        for path in 0..count {
            let mut from = Instant::from_millis(between(&mut rng, 200, 8_000));
            while rng.chance(0.5) && from < FAULTS_END {
                let length = Duration::from_millis(between(&mut rng, 10, 2_500));
                let to = (from + length).min(FAULTS_END);
                let told = rng.chance(0.5);
                let kind = if told { OutageKind::Told } else { OutageKind::Silent };
                outages.push(Outage { path, from, to, kind });
                from = to + Duration::from_millis(between(&mut rng, 300, 6_000));
            }
        }
        // A lost SYN costs its timer's second, even after a short fault, plus two round trips of the join's handshake
        // and the delay of the data.
        let round_trip = |link: &DuplexConfig| link.up.delay.base + link.down.delay.base;
        let longest = links.iter().map(round_trip).max().unwrap_or_default();
        // Without another path, a second SYN of the join after an outage may also be lost, which costs two more
        // seconds.
        let joins_alone = count == 1 && outages.iter().any(|o: &Outage| o.kind == OutageKind::Told);
        let syn_timers = Duration::from_secs(if joins_alone { 3 } else { 1 });
        let grace = Duration::from_millis(1_200).max(syn_timers + longest * 3);
        let mut paths = PathsConfig::new(links, config);
        paths.backup = (0..count).map(|path| path > 0 && rng.chance(0.2)).collect();
        let apps = [random_app(&mut rng), random_app(&mut rng)];
        let policies = scheduler.to_owned();
        let (bulk, path_health) = (rng.chance(0.2), [None, None]);
        Plan {
            paths,
            policies,
            outages,
            apps,
            bulk,
            connections: 1,
            path_health,
            judges_stalls: [true; 2],
            grace,
        }
    }

    /// The applications of one connection.
    pub(super) fn apps(&self, seeds: &SeedTree) -> [Box<dyn App>; 2] {
        if self.bulk {
            let amount = |side: usize| Amount::Bytes(self.apps[side].write_bytes * 2);
            return [
                Box::new(Bulk::new(amount(0), 11, 22)),
                Box::new(Bulk::new(amount(1), 22, 11)),
            ];
        }
        let moods = ["app/client", "app/server"].map(|name| seeds.stream(name));
        let [client, server] = moods;
        [
            Box::new(Random::new(self.apps[0], 11, 22, client)),
            Box::new(Random::new(self.apps[1], 22, 11, server)),
        ]
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {} paths", self.policies, self.paths.links.len())
    }

    pub(super) fn longest_outage(&self) -> Duration {
        let lengths = self.outages.iter().map(|outage| outage.to.since(outage.from));
        lengths.max().unwrap_or_default()
    }

    /// Adds middleboxes that change segments in transit.
    pub(super) fn has_boxes(&self) -> bool {
        let links = self.paths.links.iter().flat_map(|link| [&link.up, &link.down]);
        links.into_iter().any(|link| link.middlebox != MiddleboxConfig::default())
    }
}
