//! Columns that identify a run in a row.

use super::column::{Cell, Column};
use super::swept_keys::SweptKey;
use super::table::Table;
use crate::experiment::{Experiment, Load, Measures};
use crate::runs::{Job, Record};

/// Values of a sweep, as numbers if possible, then stack, variant and seed.
#[derive(Clone, Debug)]
pub struct RunColumns {
    swept: Vec<SweptKey>,
    /// True if the runs have several workloads.
    workloads: bool,
    /// Names and units of the workloads' measures.
    measures: Vec<(&'static str, &'static str)>,
    /// True if a path has a price.
    price: bool,
}

impl RunColumns {
    /// Columns for these runs. Each run has a value for every key of the first run.
    #[must_use]
    pub fn for_jobs(jobs: &[Job]) -> RunColumns {
        let columns = RunColumns::over(jobs.iter().map(|job| job.point.as_slice()));
        jobs.first().map_or(columns.clone(), |job| columns.with_workloads(&job.experiment))
    }

    /// Adds columns that only some experiments have: the workload's name if there are several, measures of their
    /// kinds, and prices.
    #[must_use]
    pub fn with_workloads(self, experiment: &Experiment) -> RunColumns {
        let mut measures = Vec::new();
        for measure in experiment.loads.iter().flat_map(Measures::names) {
            if !measures.contains(&measure) {
                measures.push(measure);
            }
        }
        let price = experiment.scenario.paths.iter().any(|path| path.price.is_some());
        RunColumns { workloads: experiment.loads.len() > 1, measures, price, ..self }
    }

    /// The empty columns of measures and prices.
    pub(super) fn measure_columns(&self) -> Vec<Column> {
        let measures = self.measures.iter().map(|(name, unit)| Column::real_column(*name, unit));
        measures.chain(self.price.then(|| Column::real_column("price", ""))).collect()
    }

    /// Values of a record in these columns.
    pub(super) fn measure_cells(&self, record: &Record) -> Vec<Cell<'static>> {
        let of = |(name, _): &(&str, &str)| Cell::from(record.measures.of(name));
        self.measures.iter().map(of).chain(self.price.then(|| record.price().into())).collect()
    }

    /// The empty columns of a table whose rows belong to a workload.
    pub(super) fn workload_columns(&self) -> Vec<Column> {
        let mut columns = self.columns();
        columns.extend(self.workloads.then(|| Column::text("workload")));
        columns
    }

    /// Values of a run's workload in these columns.
    pub(super) fn workload_cells<'a>(&self, job: &'a Job, load: &'a Load) -> Vec<Cell<'a>> {
        let mut cells = self.cells(job);
        cells.extend(self.workloads.then_some(Cell::Text(&load.name)));
        cells
    }

    /// Columns for the combinations of a sweep.
    #[must_use]
    pub fn over<'a>(points: impl Iterator<Item = &'a [(String, String)]> + Clone) -> RunColumns {
        let first = points.clone().next().unwrap_or_default();
        let swept = first.iter().enumerate().map(|(number, (key, _))| {
            let values = points.clone().filter_map(move |point| point.get(number));
            SweptKey::of(key, values.map(|(_, value)| value.as_str()))
        });
        RunColumns { swept: swept.collect(), workloads: false, measures: Vec::new(), price: false }
    }

    /// The empty columns.
    #[must_use]
    pub fn columns(&self) -> Vec<Column> {
        let run = [Column::text("stack"), Column::text("variant"), Column::count("seed", "")];
        self.swept.iter().map(SweptKey::column).chain(run).collect()
    }

    /// Values of a run in these columns.
    #[must_use]
    pub fn cells<'a>(&self, job: &'a Job) -> Vec<Cell<'a>> {
        let value = |(number, swept): (usize, &SweptKey)| match job.point.get(number) {
            Some((_, text)) => swept.cell(text),
            None => Cell::Unknown,
        };
        let run = [
            Cell::Text(job.lane.stack.word()),
            Cell::Text(&job.lane.variant.name),
            Cell::Count(job.seed),
        ];
        self.swept.iter().enumerate().map(value).chain(run).collect()
    }

    /// Adds these columns in front of a run's table. Without a run, the result is empty.
    #[must_use]
    pub fn prepend_columns(&self, table: &Table, job: Option<&Job>) -> Table {
        let columns = self.columns();
        match job {
            Some(job) => table.with_leading_columns(&columns, &self.cells(job)),
            None => {
                let all = columns.into_iter().chain(table.columns().iter().cloned());
                Table::new(table.name(), all.collect())
            }
        }
    }
}
