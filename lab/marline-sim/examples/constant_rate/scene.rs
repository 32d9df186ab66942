//! Scene: datagrams of one size at a constant rate with a deadline, over two links that lose packets.
//!
//! Four variants over the same links with the same seeds: a lane over both links, a lane over each link alone, and
//! the better of the two links as plain UDP.

use marline_algos::Registry;
use marline_datagram::{FlowId, LaneConfig};
use marline_link::{DuplexConfig, DuplexSpec, Link};
use marline_sim::{LanePaths, LanePathsConfig, Pulse, PulsePlan};
use marline_time::{Duration, Instant, SeedTree};

/// Datagram size in bytes: seven MPEG-TS packets.
pub(crate) const BYTES: usize = 1_316;
const START: Instant = Instant::from_secs(2);
const HEADERS: usize = 28;

/// One scene, which has a cell of the table for each deadline.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Scene {
    /// Payload rate in Mbit/s.
    pub(crate) rate: f64,
    /// Random loss of each link in percent.
    pub(crate) loss: [f64; 2],
    /// One-way delay of each link in ms.
    pub(crate) delay_ms: [u64; 2],
    pub(crate) seconds: u64,
}

/// Percentages of lost or late datagrams by seed, and the cost.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) both: Vec<f64>,
    /// Through Marline over each path alone, and as plain UDP over each path.
    pub(crate) single: [Vec<f64>; 4],
    /// Bytes carried by both links for a lane over both, per byte of payload.
    pub(crate) price: f64,
    /// The longest time without a datagram in ms.
    pub(crate) longest_gap_ms: f64,
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

impl Outcome {
    /// Difference in percentage points between both paths and the best single path, and half of its confidence
    /// interval (95 %, over the seeds, which all variants share). Infinite for one seed.
    pub(crate) fn difference_to_best(&self) -> (f64, f64) {
        let best = self.single.iter().min_by(|one, other| mean(one).total_cmp(&mean(other)));
        let best = best.expect("four single-path runs");
        let by: Vec<f64> = self.both.iter().zip(best).map(|(both, best)| both - best).collect();
        let (mean, count) = (mean(&by), by.len() as f64);
        let variance = by.iter().map(|by| (by - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let half = student(by.len()) * (variance / count).sqrt();
        (mean, if half.is_nan() { f64::INFINITY } else { half })
    }

    /// True if both paths are significantly worse than the best single one. Half a datagram in ten thousand is
    /// ignored.
    pub(crate) fn is_worse(&self) -> bool {
        let (by, half) = self.difference_to_best();
        by > half + 0.005
    }
}

/// The 97.5th percentile of Student's distribution for this many samples.
fn student(samples: usize) -> f64 {
    const QUANTILES: [f64; 10] =
        [f64::INFINITY, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
    QUANTILES.get(samples.saturating_sub(1)).copied().unwrap_or(2.262)
}

fn link(scene: &Scene, number: usize) -> DuplexConfig {
    let (delay, loss) = (scene.delay_ms[number], scene.loss[number]);
    let text = format!("rate=20M,delay={delay}ms,jitter=uniform:2ms,queue=100ms,loss={loss}%");
    let spec: DuplexSpec = text.parse().expect("a link");
    spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no trace")
}

fn plan(scene: &Scene) -> PulsePlan {
    let gap = Duration::from_secs_f64(BYTES as f64 * 8.0 / (scene.rate * 1e6));
    PulsePlan {
        from: START,
        until: START + Duration::from_secs(scene.seconds),
        gap: (gap, gap),
        group: (1, 1),
        bytes: BYTES,
    }
}

/// Delay of each datagram that arrived.
type Delays = Vec<Option<Duration>>;

/// Runs a lane over these links. Returns the client's observations of the server's datagrams, the cost, and the
/// longest gap in ms.
fn lane_delays(scene: &Scene, policy: &str, links: &[usize], seed: u64) -> (Delays, f64, f64) {
    let registry = Registry::default();
    let lane = || {
        let policy = registry.datagram_policy(policy).expect("a policy");
        LaneConfig::new(policy, registry.congestion("cubic-westwood").expect("known"))
    };
    let named = |number: &usize| (format!("link {number}"), link(scene, *number));
    let config = LanePathsConfig {
        links: links.iter().map(named).collect(),
        backup: Vec::new(),
        client: lane(),
        server: lane(),
    };
    let seeds = SeedTree::new(seed);
    let mut paths = LanePaths::new(&config, seeds.branch("links"));
    let end = |name| Box::new(Pulse::new(FlowId(1), plan(scene), seeds.stream(name)));
    paths.add_apps(end("client"), end("server"));
    paths.world.run_until(plan(scene).until + Duration::from_secs(3));
    let (from, to) = (paths.server_app::<Pulse>(0), paths.client_app::<Pulse>(0));
    let (from, to) = (from.expect("it").report(), to.expect("it").report());
    let arrival = |number: usize| to.arrived.get(number).copied().flatten();
    let delay = |(number, sent): (usize, &Instant)| Some(arrival(number)?.since(*sent));
    let delays: Delays = from.sent.iter().enumerate().map(delay).collect();
    let mut arrivals: Vec<_> = (0..from.sent.len()).filter_map(arrival).collect();
    arrivals.sort_unstable();
    let gaps = arrivals.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64() * 1e3);
    let carried = paths.world.node(paths.server).lane().stats();
    let bytes = carried.first_frame_bytes + carried.copied_frame_bytes;
    (delays, bytes as f64 / (from.sent.len() * BYTES) as f64, gaps.fold(0.0, f64::max))
}

/// Delays of the same datagrams without a lane.
fn plain_udp_delays(scene: &Scene, number: usize, seed: u64) -> Delays {
    let seeds = SeedTree::new(seed).branch("links").branch(&format!("link {number}"));
    let mut link = Link::new(link(scene, number).down, &seeds.branch("down"), Instant::ZERO);
    let mut now = START;
    let PulsePlan { until, gap, .. } = plan(scene);
    let (mut sent_at, mut delays) = (Vec::new(), Delays::new());
    let take =
        |link: &mut Link<Vec<u8>>, until: Instant, sent_at: &[Instant], delays: &mut Delays| {
            while let Some((at, packet)) = link.poll_timed(until) {
                let index =
                    u32::from_be_bytes([packet[0], packet[1], packet[2], packet[3]]) as usize;
                delays[index] = Some(at.since(sent_at[index]));
            }
        };
    while now < until {
        take(&mut link, now, &sent_at, &mut delays);
        let mut packet = vec![0; BYTES + HEADERS];
        packet[..4].copy_from_slice(&(sent_at.len() as u32).to_be_bytes());
        link.offer(now, packet);
        sent_at.push(now);
        delays.push(None);
        now += gap.0;
    }
    take(&mut link, now + Duration::from_secs(3), &sent_at, &mut delays);
    delays
}

/// Percentage of lost or late datagrams.
fn lost_or_late_share(delays: &Delays, deadline_ms: u64) -> f64 {
    let deadline = Duration::from_millis(deadline_ms);
    let bad = delays.iter().filter(|delay| delay.is_none_or(|delay| delay > deadline)).count();
    bad as f64 / delays.len() as f64 * 100.0
}

/// Runs a scene with this many seeds and evaluates it for each deadline. The gap is the longest one.
pub(crate) fn run(scene: &Scene, policy: &str, seeds: u64, deadlines_ms: &[u64]) -> Vec<Outcome> {
    let both: Vec<_> = (0..seeds).map(|seed| lane_delays(scene, policy, &[0, 1], seed)).collect();
    let prices: Vec<f64> = both.iter().map(|run| run.1).collect();
    let alone =
        |number| (0..seeds).map(|seed| lane_delays(scene, policy, &[number], seed).0).collect();
    let udp = |number| (0..seeds).map(|seed| plain_udp_delays(scene, number, seed)).collect();
    let single: [Vec<Delays>; 4] = [alone(0), alone(1), udp(0), udp(1)];
    let judged = |deadline_ms: &u64| Outcome {
        both: both.iter().map(|run| lost_or_late_share(&run.0, *deadline_ms)).collect(),
        single: single
            .each_ref()
            .map(|runs| runs.iter().map(|run| lost_or_late_share(run, *deadline_ms)).collect()),
        price: mean(&prices),
        longest_gap_ms: both.iter().map(|run| run.2).fold(0.0, f64::max),
    };
    deadlines_ms.iter().map(judged).collect()
}
