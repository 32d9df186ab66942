//! Environments for learning: several runs side by side, each advanced by one step of virtual time per call.
//!
//! A run stays on the thread that created it. A call sends each thread the actions of its runs and waits, without the
//! interpreter's lock, for the results.

mod episode;
mod steered_scheduler;
mod workers;

use std::sync::{Mutex, PoisonError};

use marline_lab::parallel;
use marline_time::Duration;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::experiment::Plan;
use crate::experiment_error;
use episode::{FEATURES_OF_ALL, FEATURES_OF_PATH, Reward, Scene};
use workers::Workers;

/// Several runs of an experiment, controlled from outside.
#[pyclass(frozen, module = "marline._native")]
pub(crate) struct Environments {
    workers: Mutex<Workers>,
    paths: usize,
    count: usize,
}

#[pymethods]
impl Environments {
    /// Creates this many runs of a variant on this many threads (0: one per processor).
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the class in Python")]
    #[pyo3(signature = (plan, variant, count, threads, step_us, reward, at_client))]
    fn new(
        plan: &Bound<'_, Plan>,
        variant: Option<&str>,
        count: usize,
        threads: usize,
        step_us: u64,
        reward: &str,
        at_client: bool,
    ) -> PyResult<Environments> {
        let plan = plan.get();
        if count == 0 || step_us == 0 {
            return Err(PyValueError::new_err("`count` and `step_us` must be at least 1"));
        }
        let reward = match reward {
            "latency" => Reward::Latency,
            "waiting" => Reward::Waiting,
            other => {
                let what = format!("reward `{other}`: expected latency or waiting");
                return Err(PyValueError::new_err(what));
            }
        };
        let variant = plan.variant(variant)?;
        let (experiment, step) = (plan.experiment(), Duration::from_micros(step_us));
        let scene = Scene::new(experiment, &variant, plan.registry(), step, reward, at_client);
        let scene = scene.map_err(|error| experiment_error(&error))?;
        let paths = scene.paths();
        let threads = if threads == 0 { parallel::available() } else { threads }.min(count);
        Ok(Environments {
            workers: Mutex::new(Workers::start(&scene, count, threads)),
            paths,
            count,
        })
    }

    /// Number of features per path, and of the connection.
    #[staticmethod]
    fn features() -> (Vec<&'static str>, Vec<&'static str>) {
        (FEATURES_OF_PATH.to_vec(), FEATURES_OF_ALL.to_vec())
    }

    /// Paths of the variant.
    #[getter]
    fn paths(&self) -> usize {
        self.paths
    }

    /// Restarts the runs that have a seed, and writes their observations.
    fn reset(
        &self,
        py: Python<'_>,
        seeds: Vec<Option<u64>>,
        observations: PyBuffer<f32>,
    ) -> PyResult<()> {
        if seeds.len() != self.count {
            return Err(PyValueError::new_err(format!(
                "got {} seeds for {} runs",
                seeds.len(),
                self.count
            )));
        }
        let made = py.detach(|| self.lock().reset(&seeds)).map_err(PyRuntimeError::new_err)?;
        observations.copy_from_slice(py, &made.observations)
    }

    /// Advances all runs by one step. `actions` contains for each run a weight for each path, then for each path a
    /// value that allows copies on it if above 0.5. Writes the observations, the rewards, two flags for ended runs
    /// (finished, timed out), and for each run the number of messages received and the sum of their latencies in
    /// seconds. If `renew` is true, a run that had already ended restarts instead. Returns the latencies of each run
    /// in seconds.
    #[expect(
        clippy::too_many_arguments,
        reason = "arrays owned by the caller, so that nothing is allocated"
    )]
    fn step<'py>(
        &self,
        py: Python<'py>,
        actions: PyBuffer<f32>,
        observations: PyBuffer<f32>,
        rewards: PyBuffer<f64>,
        over: PyBuffer<u8>,
        renew: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut wanted = vec![0.0; self.count * 2 * self.paths];
        actions.copy_to_slice(py, &mut wanted)?;
        let made =
            py.detach(|| self.lock().step(&wanted, renew)).map_err(PyRuntimeError::new_err)?;
        observations.copy_from_slice(py, &made.observations)?;
        rewards.copy_from_slice(py, &made.rewards)?;
        over.copy_from_slice(py, &made.over)?;
        PyList::new(py, made.latencies_s)
    }

    /// Returns for each run so far a hash that identifies equal runs, and the bytes that both ends also sent on
    /// another path.
    fn counts(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        py.detach(|| self.lock().counts()).map_err(PyRuntimeError::new_err)
    }
}

impl Environments {
    fn lock(&self) -> std::sync::MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
