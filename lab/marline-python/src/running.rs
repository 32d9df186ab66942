//! Runs in progress: threads that take one job after another, and a handle to wait for, inspect and cancel the runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use marline::algos::Registry;
use marline_lab::experiment::{QlogConfig, Timeline, TimelineConfig, simulate, simulate_recorded};
use marline_lab::policies;
use marline_lab::runs::{Captures, Job, Qlogs, Record, Store};
use marline_sim::digest;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::guard;
use crate::results::{Results, RunResult};

/// State shared by the threads.
struct SharedState {
    jobs: Vec<Job>,
    registry: Registry,
    outputs: Outputs,
    parallel_runs: usize,
    next: AtomicUsize,
    canceled: Arc<AtomicBool>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Destination of the results of runs, and additional files to write.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) timelines: Option<TimelineConfig>,
    /// Directory of captures, as `marline-lab run` writes them.
    pub(crate) pcap: Option<PathBuf>,
    /// Directory of traces, as `marline-lab run` writes them.
    pub(crate) qlog: Option<PathBuf>,
    /// Store of runs, whose existing runs are not repeated. Without a store, runs are held for [`Running::results`].
    pub(crate) store: Option<Store>,
}

struct State {
    /// Warnings about files that reached their limit.
    cut: Vec<String>,
    results: Vec<Option<RunResult>>,
    done: usize,
    threads: usize,
    failure: Option<PyErr>,
}

/// Handle to runs in progress. Dropping it cancels them.
#[pyclass(frozen, module = "marline._native")]
pub(crate) struct Running {
    shared: Arc<SharedState>,
}

impl Running {
    /// Starts this many threads.
    pub(crate) fn start(
        jobs: Vec<Job>,
        at_once: usize,
        outputs: Outputs,
        registry: Registry,
    ) -> Running {
        let threads = at_once.clamp(1, jobs.len().max(1));
        let made = jobs.iter().map(|_| None).collect();
        let state = State { cut: Vec::new(), results: made, done: 0, threads, failure: None };
        let shared = Arc::new(SharedState {
            jobs,
            registry,
            outputs,
            parallel_runs: threads,
            next: AtomicUsize::new(0),
            canceled: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.run_jobs());
        }
        Running { shared }
    }
}

impl SharedState {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_jobs(&self) {
        // The order in which jobs are taken does not affect the visibility of other memory.
        while !self.canceled.load(Ordering::Relaxed)
            && let at = self.next.fetch_add(1, Ordering::Relaxed)
            && let Some(job) = self.jobs.get(at)
        {
            let result = match &self.outputs.store {
                Some(store) => self.run_into(store, job).map(|()| None),
                None => self.run_guarded(job).map(Some),
            };
            let mut state = self.lock();
            match result {
                Ok(made) => {
                    state.results[at] = made;
                    state.done += 1;
                }
                Err(failure) => {
                    self.canceled.store(true, Ordering::Relaxed);
                    state.failure.get_or_insert(failure);
                }
            }
            drop(state);
            self.changed.notify_all();
        }
        // The last thread writes the files, when all runs are finished.
        let last = self.lock().threads == 1;
        if last && !self.canceled.load(Ordering::Relaxed) {
            let written = policies::with_registry(&self.registry, || self.write_files());
            let mut state = self.lock();
            match written {
                Ok(cut) => state.cut = cut,
                Err(error) => {
                    state.failure.get_or_insert(PyOSError::new_err(format!("{error:#}")));
                }
            }
        }
        self.lock().threads -= 1;
        self.changed.notify_all();
    }

    /// Captures and traces, as the program writes them, and warnings about those omitted.
    fn write_files(&self) -> anyhow::Result<Vec<String>> {
        let go_on = || !self.canceled.load(Ordering::Relaxed);
        let mut cut = Vec::new();
        if let Some(directory) = &self.outputs.pcap {
            let captures = Captures { jobs: self.parallel_runs, max_bytes: Captures::MAX_BYTES };
            cut.extend(captures.write_while(&self.jobs, directory, &go_on)?.omission_notes());
        }
        if let Some(directory) = &self.outputs.qlog {
            let qlogs = Qlogs { jobs: self.parallel_runs, config: QlogConfig::default() };
            cut.extend(qlogs.write_while(&self.jobs, directory, &go_on)?.omission_notes());
        }
        Ok(cut)
    }

    /// A run that is not in the store yet.
    fn run_into(&self, store: &Store, job: &Job) -> PyResult<()> {
        if store.read(job).is_some() {
            return Ok(());
        }
        let RunResult { record, .. } = self.run_guarded(job)?;
        // Python policies saw only part of a canceled run.
        if self.canceled.load(Ordering::Relaxed) {
            return Ok(());
        }
        store.save(job, &record).map_err(|error| PyOSError::new_err(format!("{error:#}")))
    }

    /// Makes one run, and returns it or the exception that a policy raised in it.
    fn run_guarded(&self, job: &Job) -> PyResult<RunResult> {
        let (made, failure) = guard::run(&self.canceled, || self.make(job));
        failure.map_or(Ok(made), Err)
    }

    /// Executes one run. A panic becomes an error of that run and does not end the interpreter.
    fn make(&self, job: &Job) -> RunResult {
        let run = || {
            policies::with_registry(&self.registry, || {
                digest::digest_of_runs(|| self.simulate(job))
            })
        };
        let (outcome, digest) = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().map_or("panicked", String::as_str);
            (Err(anyhow::anyhow!("a bug in Marline: {what}")), digest::Digest::default())
        });
        let (record, timeline) = match outcome {
            Ok((record, timeline)) => (record, timeline),
            Err(error) => (Record::failed(format!("{error:#}")), Timeline::empty()),
        };
        RunResult { record, timeline, digest: digest.value() }
    }

    fn simulate(&self, job: &Job) -> anyhow::Result<(Record, Timeline)> {
        let (experiment, variant, seed) = (&job.experiment, &job.lane.variant, job.seed);
        let (outcome, timeline) = match self.outputs.timelines {
            Some(config) => simulate_recorded(experiment, variant, seed, config)?,
            None => (simulate(experiment, variant, seed)?, Timeline::empty()),
        };
        Ok((Record::from_outcome(experiment, &outcome)?, timeline))
    }
}

#[pymethods]
impl Running {
    /// Waits until all runs are finished, up to a limit, without the interpreter's lock. Returns true if all are
    /// finished. Raises the exception of a policy.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        let (over, failure) = py.detach(|| {
            let state = self.shared.lock();
            let waiting = |state: &mut State| state.threads > 0 && state.failure.is_none();
            let waited = self.shared.changed.wait_timeout_while(state, limit, waiting);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            (state.threads == 0, state.failure.take())
        });
        failure.map_or(Ok(over), Err)
    }

    /// Number of finished runs, and number of all runs.
    fn progress(&self) -> (usize, usize) {
        (self.shared.lock().done, self.shared.jobs.len())
    }

    /// Starts no further runs. Runs in progress continue to their end.
    fn cancel(&self) {
        self.shared.canceled.store(true, Ordering::Relaxed);
    }

    /// Warnings about files that reached their limit, one per line.
    fn cut(&self) -> Vec<String> {
        self.shared.lock().cut.clone()
    }

    /// Results of all runs.
    fn results(&self) -> PyResult<Results> {
        let mut state = self.shared.lock();
        let made: Option<Vec<RunResult>> = state.results.iter_mut().map(Option::take).collect();
        let made = made.ok_or_else(|| PyRuntimeError::new_err("some runs are missing"))?;
        Ok(Results::new(self.shared.jobs.clone(), made))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel();
    }
}
