//! Scene: datagrams of one size at a constant rate with a deadline, over two links that lose packets.
//!
//! Four ways over the same links with the same seeds: a lane over both, a lane over each alone, and the better of the
//! two links without any lane, as plain UDP has it.

use marline_algos::Registry;
use marline_datagram::{FlowId, LaneConfig};
use marline_link::{DuplexConfig, DuplexSpec, Link};
use marline_sim::{LanePaths, LanePathsConfig, Pulse, PulsePlan};
use marline_time::{Duration, Instant, SeedTree};

/// Bytes of a datagram: seven packets of MPEG-TS.
pub(crate) const BYTES: usize = 1_316;
const START: Instant = Instant::from_secs(2);
const HEADERS: usize = 28;

/// One cell of the table.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Cell {
    /// Mbit/s of payload.
    pub(crate) rate: f64,
    /// Random loss of each link, percent.
    pub(crate) loss: [f64; 2],
    /// Delay of each link, one way, ms.
    pub(crate) delay_ms: [u64; 2],
    pub(crate) deadline_ms: u64,
    pub(crate) seconds: u64,
}

/// Shares of the datagrams that were lost or late, percent, and the price.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) both: f64,
    pub(crate) alone: [f64; 2],
    pub(crate) plain: [f64; 2],
    /// Bytes that both links carried for a lane over both, per byte of payload.
    pub(crate) price: f64,
    /// The longest time without a datagram, ms.
    pub(crate) longest_gap_ms: f64,
}

impl Outcome {
    /// Of the better path through a lane of its own.
    pub(crate) fn better(&self) -> f64 {
        self.alone[0].min(self.alone[1])
    }
}

fn link(cell: &Cell, number: usize) -> DuplexConfig {
    let (delay, loss) = (cell.delay_ms[number], cell.loss[number]);
    let text = format!("rate=20M,delay={delay}ms,jitter=uniform:2ms,queue=100ms,loss={loss}%");
    let spec: DuplexSpec = text.parse().expect("a link");
    spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no trace")
}

fn plan(cell: &Cell) -> PulsePlan {
    let gap = Duration::from_secs_f64(BYTES as f64 * 8.0 / (cell.rate * 1e6));
    PulsePlan {
        from: START,
        until: START + Duration::from_secs(cell.seconds),
        gap: (gap, gap),
        group: (1, 1),
        bytes: BYTES,
    }
}

/// A lane over these links; what the client saw of what the server sent: lost or late, price, longest gap.
fn through_lane(cell: &Cell, policy: &str, links: &[usize], seed: u64) -> (f64, f64, f64) {
    let registry = Registry::default();
    let lane = || {
        let policy = registry.datagram_policy(policy).expect("a policy");
        LaneConfig::new(policy, registry.congestion("cubic-westwood").expect("known"))
    };
    let named = |number: &usize| (format!("link {number}"), link(cell, *number));
    let config = LanePathsConfig {
        links: links.iter().map(named).collect(),
        backup: Vec::new(),
        client: lane(),
        server: lane(),
    };
    let seeds = SeedTree::new(seed);
    let mut scene = LanePaths::new(&config, seeds.branch("links"));
    let end = |name| Box::new(Pulse::new(FlowId(1), plan(cell), seeds.stream(name)));
    scene.add_apps(end("client"), end("server"));
    scene.world.run_until(plan(cell).until + Duration::from_secs(3));
    let (from, to) = (scene.server_app::<Pulse>(0), scene.client_app::<Pulse>(0));
    let (from, to) = (from.expect("it").report(), to.expect("it").report());
    let deadline = Duration::from_millis(cell.deadline_ms);
    let mut bad = 0;
    let mut arrivals = Vec::new();
    for (number, sent) in from.sent.iter().enumerate() {
        let arrived = to.arrived.get(number).copied().flatten();
        bad += u32::from(arrived.is_none_or(|at| at.since(*sent) > deadline));
        arrivals.extend(arrived);
    }
    arrivals.sort_unstable();
    let gaps = arrivals.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64() * 1e3);
    let carried = scene.world.node(scene.server).lane().stats();
    let bytes = carried.first_frame_bytes + carried.copied_frame_bytes;
    (
        f64::from(bad) / from.sent.len() as f64 * 100.0,
        bytes as f64 / (from.sent.len() * BYTES) as f64,
        gaps.fold(0.0, f64::max),
    )
}

/// The same datagrams without a lane.
fn plain(cell: &Cell, number: usize, seed: u64) -> f64 {
    let seeds = SeedTree::new(seed).branch("links").branch(&format!("link {number}"));
    let mut link = Link::new(link(cell, number).down, &seeds.branch("down"), Instant::ZERO);
    let (mut now, mut sent, mut good) = (START, 0u32, 0u32);
    let PulsePlan { until, gap, .. } = plan(cell);
    let deadline = Duration::from_millis(cell.deadline_ms);
    let mut sent_at = Vec::new();
    let mut take = |link: &mut Link<Vec<u8>>, until: Instant, sent_at: &[Instant]| {
        while let Some((at, packet)) = link.poll_timed(until) {
            let index = u32::from_be_bytes([packet[0], packet[1], packet[2], packet[3]]) as usize;
            good += u32::from(at.since(sent_at[index]) <= deadline);
        }
    };
    while now < until {
        take(&mut link, now, &sent_at);
        let mut packet = vec![0; BYTES + HEADERS];
        packet[..4].copy_from_slice(&sent.to_be_bytes());
        link.offer(now, packet);
        sent_at.push(now);
        sent += 1;
        now += gap.0;
    }
    take(&mut link, now + Duration::from_secs(3), &sent_at);
    f64::from(sent - good) / f64::from(sent) * 100.0
}

/// Runs a cell over so many seeds; shares are means, the gap is the longest.
pub(crate) fn run(cell: &Cell, policy: &str, seeds: u64) -> Outcome {
    let mean = |of: &dyn Fn(u64) -> f64| (0..seeds).map(of).sum::<f64>() / seeds as f64;
    let both: Vec<_> = (0..seeds).map(|seed| through_lane(cell, policy, &[0, 1], seed)).collect();
    let alone = |number: usize| mean(&|seed| through_lane(cell, policy, &[number], seed).0);
    Outcome {
        both: both.iter().map(|run| run.0).sum::<f64>() / seeds as f64,
        price: both.iter().map(|run| run.1).sum::<f64>() / seeds as f64,
        longest_gap_ms: both.iter().map(|run| run.2).fold(0.0, f64::max),
        alone: [alone(0), alone(1)],
        plain: [0, 1].map(|number| mean(&|seed| plain(cell, number, seed))),
    }
}
