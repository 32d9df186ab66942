//! Experiment for Python: a checked document, and a registry with the policies that are Python classes.

use std::path::PathBuf;
use std::time::Duration;

use marline::algos::Registry;
use marline_lab::experiment::file::{ExperimentFile, Lane};
use marline_lab::experiment::{Experiment, Stack, TimelineConfig, Variant};
use marline_lab::runs::Job;
use marline_lab::{parallel, policies as lab_policies};
use pyo3::prelude::*;

use crate::experiment_error;
use crate::policies::{self, PolicyClass};
use crate::running::{Outputs, Running};

/// An experiment that has been read and checked.
#[pyclass(frozen, module = "marline._native")]
pub(crate) struct Plan {
    file: ExperimentFile,
    text: String,
    registry: Registry,
}

#[pymethods]
impl Plan {
    /// Reads an experiment from a text with this name. `classes`: kind, name, class, and the text of each parameter's
    /// default.
    #[new]
    #[pyo3(signature = (name, text, trace_dir=None, classes=Vec::new()))]
    fn new(
        name: &str,
        text: &str,
        trace_dir: Option<PathBuf>,
        classes: Vec<PolicyClass>,
    ) -> PyResult<Plan> {
        let mut registry = lab_policies::registry();
        for class in classes {
            policies::register(&mut registry, class)?;
        }
        let read = lab_policies::with_registry(&registry, || ExperimentFile::from_toml(name, text));
        let file = read.map_err(|error| experiment_error(&error))?.with_traces(trace_dir);
        Ok(Plan { file, text: text.to_owned(), registry })
    }

    /// The document.
    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    /// Title of the experiment.
    #[getter]
    fn title(&self) -> &str {
        &self.file.title
    }

    /// Seed of the first run.
    #[getter]
    fn seed(&self) -> u64 {
        self.file.experiment.scenario.seed
    }

    /// Names of the paths.
    #[getter]
    fn paths(&self) -> Vec<String> {
        self.file.experiment.scenario.paths.iter().map(|path| path.name.clone()).collect()
    }

    /// Names of the variants that run in virtual time.
    #[getter]
    fn variants(&self) -> PyResult<Vec<String>> {
        Ok(self.lanes()?.into_iter().map(|lane| lane.variant.name).collect())
    }

    /// Starts the runs on their own threads: all seeds of the first variant, then of the next. `files`: directories
    /// for captures and for traces.
    #[pyo3(signature = (seeds, jobs=0, variants=None, timelines_us=None, files=(None, None)))]
    fn start(
        &self,
        seeds: Vec<u64>,
        jobs: usize,
        variants: Option<Vec<String>>,
        timelines_us: Option<u64>,
        files: (Option<PathBuf>, Option<PathBuf>),
    ) -> PyResult<Running> {
        let mut lanes = self.lanes()?;
        if let Some(wanted) = variants {
            let known: Vec<&str> = lanes.iter().map(|lane| &*lane.variant.name).collect();
            if let Some(unknown) = wanted.iter().find(|name| !known.contains(&name.as_str())) {
                let error =
                    anyhow::anyhow!("unknown variant `{unknown}`; known: {}", known.join(", "));
                return Err(experiment_error(&error));
            }
            lanes.retain(|lane| wanted.contains(&lane.variant.name));
        }
        let config = timelines_us.map(Duration::from_micros).or(self.file.timelines);
        let config = config.map(TimelineConfig::with_interval).transpose();
        let config = config.map_err(|error| experiment_error(&error))?;
        let jobs_at_once = if jobs == 0 { parallel::available() } else { jobs };
        let jobs = Job::with_seeds(&self.file.experiment, &lanes, seeds.iter().copied());
        let (pcap, qlog) = files;
        let outputs = Outputs { timelines: config, pcap, qlog, store: None };
        Ok(Running::start(jobs, jobs_at_once, outputs, self.registry.clone()))
    }
}

impl Plan {
    fn lanes(&self) -> PyResult<Vec<Lane>> {
        self.file.lanes(&[Stack::Sim]).map_err(|error| experiment_error(&error))
    }

    /// The document.
    pub(crate) fn file(&self) -> &ExperimentFile {
        &self.file
    }

    /// Links and workload.
    pub(crate) fn experiment(&self) -> &Experiment {
        &self.file.experiment
    }

    /// All policies that the experiment may name.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Finds a variant by name. Without a name, the first one.
    pub(crate) fn variant(&self, name: Option<&str>) -> PyResult<Variant> {
        let lanes = self.lanes()?;
        let found = lanes.iter().find(|lane| name.is_none_or(|name| lane.variant.name == name));
        found.map(|lane| lane.variant.clone()).ok_or_else(|| {
            let error = anyhow::anyhow!("unknown variant `{}`", name.unwrap_or_default());
            experiment_error(&error)
        })
    }
}
