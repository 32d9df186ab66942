//! Sweep for Python: the runs of every combination, executed piece by piece into a store on disk.

use std::path::PathBuf;

use marline::algos::Registry;
use marline_lab::experiment::Stack;
use marline_lab::results::Format;
use marline_lab::runs::{Seeds, Store, Sweep as Plan, SweepSummary};
use marline_lab::{parallel, policies, provenance};
use pyo3::prelude::*;

use crate::experiment;
use crate::experiment_error;
use crate::running::{Outputs, Running};

/// Identifies this build of the module, because the running program is the interpreter.
#[pyfunction]
pub(crate) fn identity(py: Python<'_>, module: PathBuf) -> PyResult<String> {
    py.detach(|| provenance::file_hash(&module)).map_err(|error| experiment_error(&error))
}

/// A table with its heading, the first warnings, and the number of failed runs.
type SweepTable = (Vec<Vec<String>>, Vec<String>, usize, usize);

/// The plan of a sweep, and the directory of its runs and tables.
#[pyclass(frozen, module = "marline._native")]
pub(crate) struct Sweep {
    plan: Plan,
    place: PathBuf,
    /// Program that executes the runs: the module, with Python's description of its policies.
    program: String,
    registry: Registry,
}

impl Sweep {
    fn store(&self) -> PyResult<Store> {
        let store = Store::open_for_build(&self.place.join("runs"), false, self.program.clone());
        store.map_err(|error| experiment_error(&error))
    }
}

#[pymethods]
impl Sweep {
    /// Plans all variants that run in virtual time with these seeds (without seeds: `count` from the experiment's
    /// own).
    #[new]
    #[pyo3(signature = (plan, place, program, count, seeds=None))]
    fn new(
        plan: &experiment::Plan,
        place: PathBuf,
        program: String,
        count: u32,
        seeds: Option<Vec<u64>>,
    ) -> PyResult<Sweep> {
        let seeds = seeds.map_or(Seeds::Own(count), Seeds::List);
        let registry = plan.registry().clone();
        let read = || Plan::from_file(plan.file(), &[Stack::Sim], seeds);
        let plan =
            policies::with_registry(&registry, read).map_err(|error| experiment_error(&error))?;
        Ok(Sweep { plan, place, program, registry })
    }

    /// Runs.
    #[getter]
    fn runs(&self) -> usize {
        self.plan.runs()
    }

    /// Keys and values of each combination.
    #[getter]
    fn points(&self) -> Vec<Vec<(String, String)>> {
        self.plan.points().map(<[_]>::to_vec).collect()
    }

    /// All runs in pieces of limited size, each with one variant and combination: index of the first run, and one past
    /// the last.
    fn pieces(&self, most: usize) -> Vec<(usize, usize)> {
        self.plan.pieces(most).into_iter().map(|piece| (piece.start, piece.end)).collect()
    }

    /// Starts the runs from `start` to `end` that are not in the store yet.
    #[pyo3(signature = (start, end, jobs=0))]
    fn start(&self, start: usize, end: usize, jobs: usize) -> PyResult<Running> {
        let at_once = if jobs == 0 { parallel::available() } else { jobs };
        let plan = self.plan.jobs(start..end);
        let outputs = Outputs { store: Some(self.store()?), ..Outputs::default() };
        Ok(Running::start(plan, at_once, outputs, self.registry.clone()))
    }

    /// Writes the tables of all runs in these formats, and returns a summary.
    fn collect(&self, py: Python<'_>, formats: Vec<String>) -> PyResult<SweepTable> {
        let store = self.store()?;
        let write = || {
            let formats: anyhow::Result<Vec<Format>> =
                formats.iter().map(|word| word.parse()).collect();
            store.remove_abandoned();
            self.plan.collect(&store, &self.place, &formats?)
        };
        let swept: SweepSummary = py.detach(write).map_err(|error| experiment_error(&error))?;
        Ok((swept.table(), swept.warnings, swept.warnings_count, swept.failed))
    }
}
