//! Random worlds: everything a link can do to packets, paths that come and go, and applications that
//! write, read and close as they like. After a while the faults stop, and then all must come to its
//! end: first safety, then progress.

use marline_algos::Registry;
use marline_core::{ConnectionConfig, Extensions};
use marline_link::{
    DuplexConfig, GilbertElliott, Jitter, LinkConfig, QueueLimit, RateConfig, Reorder,
};
use marline_sim::oracle::{Conservation, Liveness, StreamState, Windows, stream};
use marline_sim::{Amount, App, Bulk, Capture, Paths, PathsConfig, Random, RandomPlan};
use marline_time::{Duration, Instant, PcgRng, Rate, Rng, SeedTree};

use super::connection;

/// Faults happen before this time only.
const FAULTS_END: Instant = Instant::from_secs(15);
/// A world that is not finished by then never will be.
const LIMIT: Instant = Instant::from_secs(300);
/// How often stalls are looked for.
const SAMPLING: Duration = Duration::from_millis(10);

/// What a world was like and what came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Its description, for a failure message.
    pub plan: String,
    /// Longest stall of any direction.
    pub stall: Duration,
    /// When everything was finished.
    pub finished: Instant,
    /// Digest of the run.
    pub digest: u64,
    /// What was wrong, if anything.
    pub complaint: Option<String>,
}

/// Whose policies the worlds run with.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Family {
    /// Those that are shipped, with three schedulers.
    Shipped,
    /// Any specs of [`ANY`].
    Any,
    /// Repairs by coding, both ways, over the schedulers of [`CODED`].
    Coded,
}

/// Schedulers of the worlds with coding.
const CODED: [&str; 5] = [
    "coded",
    "coded,rate=100%,window=45",
    "coded,rate=20%,every=off",
    "round-robin+coded,rate=50%",
    "redundant+coded",
];

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

/// A world as its seed draws it.
struct Plan {
    paths: PathsConfig,
    policies: String,
    /// (path, from, to, whether the client is told)
    outages: Vec<(usize, Instant, Instant, bool)>,
    apps: [RandomPlan; 2],
    bulk: bool,
}

fn between(rng: &mut PcgRng, low: u64, high: u64) -> u64 {
    low + rng.below(high - low + 1)
}

fn often(rng: &mut PcgRng, share: f64, most: f64) -> f64 {
    if rng.chance(share) { rng.unit() * most } else { 0.0 }
}

fn random_link(rng: &mut PcgRng) -> LinkConfig {
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
        // Not so small that writing takes minutes.
        write_bytes_max: 1 + (2 << magnitude) + rng.below(100 << (magnitude / 2)),
        write_pause_max: pause(rng, 60),
        read_bytes_max: between(rng, 1_000, 200_000),
        read_pause_max: pause(rng, 300),
    }
}

impl Plan {
    fn draw(seed: u64, family: Family) -> Self {
        let mut plan = Plan::shipped(seed);
        if family == Family::Coded {
            let mut rng = SeedTree::new(seed).stream("policies");
            let scheduler = CODED[rng.below(CODED.len() as u64) as usize];
            let set = Registry::default().policy_set(scheduler, "full-mesh", "cubic", "rack-tlp");
            let checksum = rng.chance(0.5);
            for side in [&mut plan.paths.client, &mut plan.paths.server] {
                side.policies = set.clone().expect("built-in specs");
                side.dss_checksum = checksum;
                side.extensions = Extensions::REPAIR;
            }
            plan.policies = format!("{scheduler}, checksums {checksum}");
        }
        if family == Family::Any {
            let mut rng = SeedTree::new(seed).stream("policies");
            let mut pick = |of: &[&'static str]| of[rng.below(of.len() as u64) as usize];
            let [scheduler, congestion, recovery] = ANY.map(&mut pick);
            let set = Registry::default().policy_set(scheduler, "full-mesh", congestion, recovery);
            let set = set.expect("built-in specs");
            plan.paths.client.policies = set.clone();
            plan.paths.server.policies = set;
            plan.policies = format!("{scheduler}, {congestion}, {recovery}");
        }
        plan
    }

    fn shipped(seed: u64) -> Self {
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
                outages.push((path, from, to, rng.chance(0.5)));
                from = to + Duration::from_millis(between(&mut rng, 300, 6_000));
            }
        }
        let mut paths = PathsConfig::new(links, config);
        paths.backup = (0..count).map(|path| path > 0 && rng.chance(0.2)).collect();
        let apps = [random_app(&mut rng), random_app(&mut rng)];
        let policies = scheduler.to_owned();
        Plan { paths, policies, outages, apps, bulk: rng.chance(0.2) }
    }

    fn apps(&self, seeds: &SeedTree) -> [Box<dyn App>; 2] {
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
            Box::new(Random::new(self.apps[0], (11, 22), client)),
            Box::new(Random::new(self.apps[1], (22, 11), server)),
        ]
    }

    fn name(&self) -> String {
        format!("{}, {} paths", self.policies, self.paths.links.len())
    }

    fn longest_outage(&self) -> Duration {
        let lengths = self.outages.iter().map(|(_, from, to, _)| to.since(*from));
        lengths.max().unwrap_or_default()
    }
}

/// Lets the faults of the links end.
fn heal(config: &LinkConfig) -> LinkConfig {
    let mut healed = config.clone();
    healed.loss = Default::default();
    healed.faults = Default::default();
    healed
}

/// Runs the world of a seed. A panic in it becomes its complaint, so that the seed is known.
pub fn run(seed: u64, family: Family) -> Outcome {
    std::panic::catch_unwind(|| run_unguarded(seed, family)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let words = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Outcome {
            seed,
            plan: Plan::draw(seed, family).name(),
            stall: Duration::ZERO,
            finished: Instant::ZERO,
            digest: 0,
            complaint: Some(format!("panicked: {}", words.unwrap_or_default())),
        }
    })
}

/// The first seconds of a world as the client's packets, for Wireshark.
pub fn capture(seed: u64, length: Duration) -> Vec<u8> {
    let (mut paths, _) = build(seed, Family::Shipped);
    let addresses: Vec<_> = (0..paths.up.len()).map(|path| Paths::address(path, 0)).collect();
    paths.world.observe(Box::new(Capture::new(paths.client, &addresses, 256 << 20)));
    paths.world.run_until(Instant::ZERO + length);
    paths.world.observer::<Capture>().map(|capture| capture.bytes().to_vec()).unwrap_or_default()
}

/// The world of a seed before anything has happened, and the complaint of its connecting.
pub fn build(seed: u64, family: Family) -> (Paths, Option<String>) {
    let plan = Plan::draw(seed, family);
    let seeds = SeedTree::new(seed);
    let mut paths = Paths::new(&plan.paths, seeds);
    paths.world.observe(Box::new(Windows::new()));
    paths.world.observe(Box::new(Conservation::new()));
    let [client_app, server_app] = plan.apps(&seeds);
    let mut server_app = Some(server_app);
    paths.listen(Box::new(move |_| {
        // A client connects once; a second connection would be the stack's mistake.
        server_app.take().unwrap_or_else(|| Box::new(Bulk::new(Amount::Nothing, 0, 0)))
    }));
    for (path, from, to, told) in &plan.outages {
        paths.at_set_path_up(*from, *path, false);
        paths.at_set_path_up(*to, *path, true);
        if *told {
            paths.at_set_address(*from, *path, false);
            paths.at_set_address(*to, *path, true);
        }
    }
    for (path, link) in plan.paths.links.iter().enumerate() {
        let (up, down) = (paths.up[path], paths.down[path]);
        let (up_config, down_config) = (heal(&link.up), heal(&link.down));
        paths.world.at(FAULTS_END, move |world| {
            world.set_link(up, up_config);
            world.set_link(down, down_config);
        });
    }
    let connected = paths.connect(0, client_app);
    let complaint = connected.err().map(|error| format!("connect: {error}"));
    (paths, complaint)
}

fn run_unguarded(seed: u64, family: Family) -> Outcome {
    let plan = Plan::draw(seed, family);
    let (mut paths, mut complaint) = build(seed, family);
    let oracle = Liveness::new(plan.longest_outage(), Duration::from_secs(1));
    let mut directions = [oracle; 2];
    let finished = watch(&mut paths, &mut directions);
    let stall = directions.map(|oracle| oracle.longest().length).into_iter().max();
    complaint = complaint.or_else(|| judge(&paths, finished));
    // Who leaves all repairs to the retransmission timer stands still for longer than is allowed here.
    let worst = directions.iter().find_map(Liveness::worst);
    if let Some(worst) = worst.filter(|_| family == Family::Shipped) {
        complaint.get_or_insert(format!("stalled {:?} from {}", worst.length, worst.from));
    }
    Outcome {
        seed,
        plan: plan.name(),
        stall: stall.unwrap_or_default(),
        finished: paths.world.now(),
        digest: paths.world.digest(),
        complaint,
    }
}

/// Runs to the end of both streams, looking for stalls; whether it came to that.
fn watch(paths: &mut Paths, directions: &mut [Liveness; 2]) -> bool {
    while paths.world.now() < LIMIT {
        let next = paths.world.now() + SAMPLING;
        paths.world.run_until(next);
        let Some((client, server)) = paths.client_report(0).zip(paths.server_report(0)) else {
            continue;
        };
        let (client_eof, server_eof) = (client.eof_at.is_some(), server.eof_at.is_some());
        let closed = client.closed.is_some() && server.closed.is_some();
        if (client_eof && server_eof) || closed {
            return true;
        }
        let last_fault = last_fault(paths);
        directions[0].sample(next, StreamState::between(client, server), last_fault);
        directions[1].sample(next, StreamState::between(server, client), last_fault);
    }
    false
}

/// When the network last did harm on the path on which it was longest ago.
fn last_fault(paths: &Paths) -> Instant {
    let at = |link| paths.world.link(link).stats().last_fault_at.unwrap_or_default();
    let links = paths.up.iter().zip(&paths.down);
    links.map(|(up, down)| at(*up).max(at(*down))).min().unwrap_or_default()
}

/// What is wrong with the end of a run.
fn judge(paths: &Paths, finished: bool) -> Option<String> {
    let Some((client, server)) = paths.client_report(0).zip(paths.server_report(0)) else {
        return Some(format!("never connected: {:?}", paths.client_report(0)?.closed));
    };
    let both = stream::complete(client, server)
        .map_err(|words| format!("upload: {words}"))
        .and(stream::complete(server, client).map_err(|words| format!("download: {words}")));
    let windows = paths.world.verdict();
    let in_time = if finished { Ok(()) } else { Err("not finished in time".to_owned()) };
    both.and(windows).and(conserved(paths)).and(in_time).err()
}

/// Nothing came out of a link that was not put in.
fn conserved(paths: &Paths) -> Result<(), String> {
    let Some(oracle) = paths.world.observer::<Conservation>() else { return Ok(()) };
    let stats = || paths.up.iter().chain(&paths.down).map(|link| paths.world.link(*link).stats());
    let corrupted = stats().map(|stats| stats.corrupted).sum();
    oracle.check(corrupted, stats().map(|stats| stats.duplicated).sum())
}
