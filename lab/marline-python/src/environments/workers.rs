//! Threads that run episodes, and the requests to them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::episode::{Episode, Scene, StepResult};

/// Request to a thread, with a value for each of its episodes in order.
enum WorkerRequest {
    /// Restart the episodes that have a seed.
    Reset(Vec<Option<u64>>),
    /// Advance by these actions. Finished episodes restart if requested.
    Step(Vec<f32>, bool),
    Count,
}

/// Result of a request.
#[derive(Default)]
pub(super) struct WorkerResult {
    pub(super) observations: Vec<f32>,
    pub(super) rewards: Vec<f64>,
    /// For each episode, true if it finished, and true if it timed out.
    pub(super) over: Vec<u8>,
    pub(super) latencies_s: Vec<Vec<f64>>,
    /// For each episode, on request: a hash of its events, and the bytes also sent on another path.
    pub(super) counts: Vec<(u64, u64)>,
}

struct Worker {
    orders: Sender<WorkerRequest>,
    results: Receiver<Result<WorkerResult, String>>,
    episodes: usize,
}

/// All threads. They end when this is dropped.
pub(super) struct Workers {
    all: Vec<Worker>,
    per_episode: usize,
}

impl Workers {
    /// Starts this many episodes on this many threads, in order.
    pub(super) fn start(scene: &Scene, count: usize, threads: usize) -> Workers {
        let threads = threads.clamp(1, count.max(1));
        let worker = |number: usize| {
            let episodes = count / threads + usize::from(number < count % threads);
            let (orders, ordered) = channel();
            let (answer, made) = channel();
            let scene = scene.clone();
            thread::spawn(move || {
                let mut held = Episodes { scene, all: Vec::new(), step: count as u64 };
                held.all.resize_with(episodes, || None);
                for order in ordered {
                    if answer.send(held.execute(order)).is_err() {
                        break;
                    }
                }
            });
            Worker { orders, results: made, episodes }
        };
        Workers { all: (0..threads).map(worker).collect(), per_episode: scene.orders() }
    }

    pub(super) fn reset(&self, seeds: &[Option<u64>]) -> Result<WorkerResult, String> {
        self.request_all(|from, episodes| {
            WorkerRequest::Reset(seeds[from..from + episodes].to_vec())
        })
    }

    pub(super) fn step(&self, actions: &[f32], renew: bool) -> Result<WorkerResult, String> {
        let each = self.per_episode;
        self.request_all(|from, episodes| {
            WorkerRequest::Step(actions[from * each..(from + episodes) * each].to_vec(), renew)
        })
    }

    /// Returns for each episode a hash of its events so far, and the bytes also sent on another path.
    pub(super) fn counts(&self) -> Result<Vec<(u64, u64)>, String> {
        self.request_all(|_, _| WorkerRequest::Count).map(|made| made.counts)
    }

    /// Sends a request to all threads and combines their results.
    fn request_all(
        &self,
        order: impl Fn(usize, usize) -> WorkerRequest,
    ) -> Result<WorkerResult, String> {
        const GONE: &str = "a thread of the environment has ended: this is a bug in Marline";
        let mut from = 0;
        for worker in &self.all {
            worker.orders.send(order(from, worker.episodes)).map_err(|_| GONE.to_owned())?;
            from += worker.episodes;
        }
        // All results are received before any is evaluated, so that none is left for the next request.
        let answers: Vec<_> = self.all.iter().map(|worker| worker.results.recv()).collect();
        let mut all = WorkerResult::default();
        for made in answers {
            let made = made.map_err(|_| GONE.to_owned())??;
            all.observations.extend(made.observations);
            all.rewards.extend(made.rewards);
            all.over.extend(made.over);
            all.latencies_s.extend(made.latencies_s);
            all.counts.extend(made.counts);
        }
        Ok(all)
    }
}

/// Episodes of a thread.
struct Episodes {
    scene: Scene,
    all: Vec<Option<(Episode, bool)>>,
    /// Derives the seed of the next episode.
    step: u64,
}

impl Episodes {
    fn execute(&mut self, order: WorkerRequest) -> Result<WorkerResult, String> {
        let mut made = WorkerResult::default();
        match order {
            WorkerRequest::Reset(seeds) => {
                for (held, seed) in self.all.iter_mut().zip(seeds) {
                    if let Some(seed) = seed {
                        *held = Some((begin(&self.scene, seed)?, false));
                    }
                    observe(&self.scene, held.as_ref(), &mut made.observations);
                }
            }
            WorkerRequest::Step(actions, renew) => {
                let each = self.scene.orders();
                for (held, action) in self.all.iter_mut().zip(actions.chunks(each)) {
                    let stepped = match held {
                        None => return Err("reset the environment first".to_owned()),
                        Some((episode, true)) if renew => {
                            let next = episode.seed().wrapping_add(self.step);
                            *held = Some((begin(&self.scene, next)?, false));
                            StepResult::default()
                        }
                        Some((_, true)) => {
                            return Err("the episode has ended: reset the environment".to_owned());
                        }
                        Some((episode, over)) => {
                            let stepped = episode.step(action);
                            *over = stepped.terminated || stepped.truncated;
                            stepped
                        }
                    };
                    observe(&self.scene, held.as_ref(), &mut made.observations);
                    made.rewards.push(stepped.reward);
                    made.over.extend([stepped.terminated, stepped.truncated].map(u8::from));
                    made.latencies_s.push(stepped.latencies_s);
                }
            }
            WorkerRequest::Count => {
                let count = |held: &Option<(Episode, bool)>| {
                    let counted = |(episode, _): &(Episode, bool)| {
                        (episode.digest(), episode.repeated_bytes())
                    };
                    held.as_ref().map(counted).unwrap_or_default()
                };
                made.counts = self.all.iter().map(count).collect();
            }
        }
        Ok(made)
    }
}

fn begin(scene: &Scene, seed: u64) -> Result<Episode, String> {
    scene.begin(seed).map_err(|error| format!("{error:#}"))
}

fn observe(scene: &Scene, held: Option<&(Episode, bool)>, into: &mut Vec<f32>) {
    match held {
        Some((episode, _)) => episode.observe(into),
        None => into.resize(into.len() + scene.features(), 0.0),
    }
}
