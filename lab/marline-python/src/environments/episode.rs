//! Episode: one run of an experiment, advanced step by step.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use marline::algos::NamedScheduler;
use marline::algos::Registry;
use marline::policy::{Quantile, SubflowView};
use marline::time::{Duration, Instant};
use marline_lab::experiment::{Experiment, START, Variant, reinjected_bytes, stage};
use marline_lab::policies;
use marline_lab::workload::Workload;
use marline_sim::{NodeId, Paths, Report};

use super::steered_scheduler::{SteeredScheduler, SteeringAction, path_of};

/// Name of the scheduler within a run.
const STEERED_NAME: &str = "steered";
/// Time by which an episode begins before the workload, so that the first action applies to its first message. If
/// steps are as long as the interval of messages, each starts just before its message.
const EPISODE_LEAD_TIME: Duration = Duration::from_micros(1);
/// Features of each path. They are never negative, and all are 0 while the path has no subflow.
pub(super) const FEATURES_OF_PATH: [&str; 15] = [
    "active",
    "usable",
    "backup",
    "room_64kib",
    "cwnd_64kib",
    "in_flight_64kib",
    "lost_64kib",
    "srtt_s",
    "rttvar_s",
    "delivery_100mbit_per_s",
    "forecast_p50_s",
    "forecast_p90_s",
    "forecast_p99_s",
    "queued_s",
    "risk_in_100ms",
];
/// Features of the connection.
pub(super) const FEATURES_OF_ALL: [&str; 3] = ["unsent_mb", "messages_under_way", "oldest_s"];

/// Kind of reward.
#[derive(Copy, Clone, Debug)]
pub(super) enum Reward {
    /// Minus the latency in seconds of each message received in the step.
    Latency,
    /// Minus the time in seconds that each message in transit waited during the step. Over an episode, this adds up to
    /// the sum of the latencies, so each step gets its share.
    Waiting,
}

/// Settings common to all episodes of an environment.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    experiment: Experiment,
    variant: Variant,
    registry: Registry,
    step: Duration,
    reward: Reward,
    at_client: bool,
}

/// A run in progress.
pub(super) struct Episode {
    paths: Paths,
    node: NodeId,
    used: usize,
    orders: Arc<Mutex<SteeringAction>>,
    seed: u64,
    from_client: bool,
    /// Planned end of the workload, and latest end of the episode.
    end: Instant,
    deadline: Instant,
    messages: Option<usize>,
    arrived: usize,
    step: Duration,
    reward: Reward,
}

/// Result of a step.
#[derive(Debug, Default)]
pub(super) struct StepResult {
    pub(super) reward: f64,
    pub(super) terminated: bool,
    pub(super) truncated: bool,
    pub(super) latencies_s: Vec<f64>,
}

impl Scene {
    pub(super) fn new(
        experiment: &Experiment,
        variant: &Variant,
        registry: &Registry,
        step: Duration,
        reward: Reward,
        at_client: bool,
    ) -> anyhow::Result<Scene> {
        ensure!(
            !matches!(experiment.workload(), Workload::Exchange { .. }),
            "an exchange has no messages to learn from: use echo, ask, dialogue, bursts, blocks \
                or bulk"
        );
        ensure!(
            variant.mode.is_none() && !variant.plain,
            "variant `{}` has a mode or plain TCP, and therefore no scheduler to control",
            variant.name
        );
        experiment.used_paths(variant)?;
        let variant = Variant { scheduler: Some(STEERED_NAME.to_owned()), ..variant.clone() };
        let (experiment, registry) = (experiment.clone(), registry.clone());
        Ok(Scene { experiment, variant, registry, step, reward, at_client })
    }

    pub(super) fn paths(&self) -> usize {
        self.experiment.used_paths(&self.variant).map_or(0, |used| used.len())
    }

    /// Number of values in an action.
    pub(super) fn orders(&self) -> usize {
        2 * self.paths()
    }

    /// Number of features of an episode.
    pub(super) fn features(&self) -> usize {
        self.paths() * FEATURES_OF_PATH.len() + FEATURES_OF_ALL.len()
    }

    /// Creates an episode at the start of the workload.
    pub(super) fn begin(&self, seed: u64) -> anyhow::Result<Episode> {
        let orders = Arc::new(Mutex::new(SteeringAction::default()));
        let mut registry = self.registry.clone();
        let mine = Arc::clone(&orders);
        let build = move || -> Box<dyn marline::policy::Scheduler> {
            Box::new(SteeredScheduler::new(Arc::clone(&mine)))
        };
        registry
            .register_scheduler(NamedScheduler::new(STEERED_NAME, build))
            .context("invalid scheduler name")?;
        let mut experiment = self.experiment.clone();
        experiment.scenario.seed = seed;
        let mut paths =
            policies::with_registry(&registry, || stage(&experiment, &self.variant, seed))?;
        paths
            .world
            .run_until(Instant::from_nanos(START.as_nanos() - EPISODE_LEAD_TIME.as_nanos() as u64));
        let workload = experiment.workload();
        let end = START + workload.duration(seed);
        let node = if self.at_client { paths.client } else { paths.server };
        Ok(Episode {
            node,
            used: self.paths(),
            orders,
            seed,
            from_client: matches!(workload, Workload::Ask { .. } | Workload::Dialogue { .. }),
            end,
            deadline: end + experiment.patience,
            messages: workload.count().map(|count| count as usize),
            arrived: 0,
            step: self.step,
            reward: self.reward,
            paths,
        })
    }
}

impl Episode {
    pub(super) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn digest(&self) -> u64 {
        self.paths.world.digest()
    }

    /// Advances by one step. The action has a weight for each path, then for each path a value that allows copies on
    /// it if above 0.5.
    pub(super) fn step(&mut self, action: &[f32]) -> StepResult {
        let (weights, copies) = action.split_at(self.used.min(action.len()));
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.weights.clear();
        orders.weights.extend_from_slice(weights);
        orders.copies_on.clear();
        orders.copies_on.extend(copies.iter().map(|copies| *copies > 0.5));
        orders.number += 1;
        drop(orders);
        let from = self.paths.world.now();
        let to = from + self.step;
        self.paths.world.run_until(to);
        self.finish_step(from, to)
    }

    /// Number of bytes that both ends have also sent on another path.
    pub(super) fn repeated_bytes(&self) -> u64 {
        reinjected_bytes(&self.paths)
    }

    fn finish_step(&mut self, from: Instant, to: Instant) -> StepResult {
        let (sent, client) = self.reports();
        let received = client.map_or(&[][..], |report| &report.received);
        let skipped = client.map_or(0, |report| report.skipped as usize);
        let pairs = sent.iter().zip(received).skip(self.arrived);
        let latencies_s: Vec<f64> =
            pairs.clone().map(|(sent, came)| came.since(*sent).as_secs_f64()).collect();
        let reward = match self.reward {
            Reward::Latency => -latencies_s.iter().sum::<f64>(),
            Reward::Waiting => {
                let done = pairs.map(|(sent, came)| came.since(from.max(*sent)));
                let open = sent.iter().skip(received.len()).map(|sent| to.since(from.max(*sent)));
                -done.chain(open).map(|waited| waited.as_secs_f64()).sum::<f64>()
            }
        };
        let over = match self.messages {
            Some(all) => received.len() + skipped >= all,
            None => to >= self.end,
        };
        let came = received.len();
        let truncated = !over && to >= self.deadline;
        self.arrived = came;
        StepResult { reward, terminated: over, truncated, latencies_s }
    }

    /// Times at which messages were sent, and the client's observations.
    fn reports(&self) -> (&[Instant], Option<&Report>) {
        let client = self.paths.client_report(0);
        let sender = if self.from_client { client } else { self.paths.server_report(0) };
        (sender.map_or(&[], |report| &report.sent), client)
    }

    /// Appends the current features.
    pub(super) fn observe(&self, into: &mut Vec<f32>) {
        let begin = into.len();
        into.resize(begin + self.used * FEATURES_OF_PATH.len(), 0.0);
        let now = self.paths.world.now();
        let host = self.paths.world.node(self.node);
        let endpoint = host.endpoint();
        let connection = host.connections().next().and_then(|(id, _)| endpoint.info(id));
        let mut unsent = 0;
        if let Some(info) = connection {
            unsent = info.unsent;
            for subflow in &info.subflows {
                let Some(view) = endpoint.subflow_view(now, info.id, subflow.id) else { continue };
                let at = begin + path_of(&view) * FEATURES_OF_PATH.len();
                if let Some(slots) = into.get_mut(at..at + FEATURES_OF_PATH.len())
                    && path_of(&view) < self.used
                {
                    slots.copy_from_slice(&path_features(&view));
                }
            }
        }
        let (sent, client) = self.reports();
        let received = client.map_or(0, |report| report.received.len());
        let oldest = sent.get(received).map_or(0.0, |sent| now.since(*sent).as_secs_f32());
        into.extend([unsent as f32 / 1e6, sent.len().saturating_sub(received) as f32, oldest]);
    }
}

/// Features of a path, in the order of [`FEATURES_OF_PATH`].
fn path_features(view: &SubflowView) -> [f32; FEATURES_OF_PATH.len()] {
    const KIB_64: f32 = 65_536.0;
    let flag = |holds: bool| f32::from(u8::from(holds));
    let seconds = |time: Option<Duration>| time.map_or(0.0, |time| time.as_secs_f32());
    let room = match view.eligibility {
        marline::policy::Eligibility::Ready { room } => room.min(view.cwnd),
        _ => 0,
    };
    let forecast = &view.forecast;
    [
        flag(view.is_active()),
        flag(view.health.is_usable()),
        flag(view.backup),
        room as f32 / KIB_64,
        view.cwnd as f32 / KIB_64,
        view.bytes_in_flight as f32 / KIB_64,
        view.bytes_queued as f32 / KIB_64,
        seconds(view.srtt),
        view.rttvar.as_secs_f32(),
        view.delivery_rate.map_or(0.0, |rate| rate.bits_per_s() as f32 / 1e8),
        seconds(forecast.answer(Quantile::P50)),
        seconds(forecast.answer(Quantile::P90)),
        seconds(forecast.answer(Quantile::P99)),
        forecast.queued().as_secs_f32(),
        forecast.risk(Duration::from_millis(100)),
    ]
}
