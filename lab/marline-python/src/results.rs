//! Results of runs: the lab's tables, exported as Arrow C streams.

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator,
    StringArray, UInt64Array,
};
use arrow_schema::{ArrowError, Field, Schema};
use marline_lab::experiment::Timeline;
use marline_lab::results::{self, Cell, Column, RunColumns, Table, Values};
use marline_lab::runs::{Job, Record, Summary};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};

/// Results of one run.
pub(crate) struct RunResult {
    pub(crate) record: Record,
    pub(crate) timeline: Timeline,
    /// Hash of every delivered packet, with its time and link, and of all data received by applications.
    pub(crate) digest: u64,
}

/// Results of a series of runs, in the order of the plan.
#[pyclass(frozen, module = "marline._native")]
pub(crate) struct Results {
    jobs: Vec<Job>,
    records: Vec<Record>,
    digests: Vec<u64>,
    subflows: Table,
    copies: Table,
    left_out: u64,
}

impl Results {
    pub(crate) fn new(jobs: Vec<Job>, made: Vec<RunResult>) -> Results {
        let empty = Timeline::empty();
        let run = RunColumns::for_jobs(&jobs);
        let (mut subflows, mut copies) =
            (run.prepend_columns(&empty.subflows, None), run.prepend_columns(&empty.copies, None));
        let (mut records, mut digests, mut left_out) = (Vec::new(), Vec::new(), 0);
        for (job, made) in jobs.iter().zip(made) {
            let RunResult { record, timeline, digest } = made;
            for (to, from) in [(&mut subflows, &timeline.subflows), (&mut copies, &timeline.copies)]
            {
                let rows = run.prepend_columns(from, Some(job));
                to.append(&rows, 0..rows.rows());
            }
            left_out += timeline.subflows_left_out + timeline.copies_left_out;
            records.push(record);
            digests.push(digest);
        }
        Results { jobs, records, digests, subflows, copies, left_out }
    }

    fn runs(&self) -> Vec<(&Job, &Record)> {
        self.jobs.iter().zip(&self.records).collect()
    }

    fn table(&self, name: &str) -> PyResult<Table> {
        let run = RunColumns::for_jobs(&self.jobs);
        Ok(match name {
            "messages" => results::messages(&run, &self.runs()),
            "runs" => results::runs(&run, &self.runs()),
            "subflows" => self.subflows.clone(),
            "copies" => self.copies.clone(),
            other => {
                let what =
                    format!("unknown table `{other}`; known: messages, runs, subflows, copies");
                return Err(PyKeyError::new_err(what));
            }
        })
    }
}

#[pymethods]
impl Results {
    /// Returns a table as a capsule of Arrow's C stream.
    fn arrow<'py>(&self, py: Python<'py>, table: &str) -> PyResult<Bound<'py, PyCapsule>> {
        let batch = batch(&self.table(table)?).map_err(|e| PyValueError::new_err(e.to_string()))?;
        let schema = batch.schema();
        let reader = RecordBatchIterator::new([Ok::<_, ArrowError>(batch)], schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Returns a table as lists by column name. `None` stands for unknown values.
    fn columns<'py>(&self, py: Python<'py>, table: &str) -> PyResult<Bound<'py, PyDict>> {
        let table = self.table(table)?;
        let columns = PyDict::new(py);
        for column in table.columns() {
            let cell = |row| match column.at(row) {
                Cell::Unknown => Ok(py.None().into_bound(py)),
                Cell::Text(value) => value.into_bound_py_any(py),
                Cell::Count(value) => value.into_bound_py_any(py),
                Cell::Integer(value) => value.into_bound_py_any(py),
                Cell::Real(value) => value.into_bound_py_any(py),
                Cell::Flag(value) => value.into_bound_py_any(py),
            };
            let cells: PyResult<Vec<_>> = (0..table.rows()).map(cell).collect();
            columns.set_item(column.name(), PyList::new(py, cells?)?)?;
        }
        Ok(columns)
    }

    /// Returns a table as `marline-lab run` writes it to a file.
    fn csv(&self, table: &str) -> PyResult<String> {
        Ok(self.table(table)?.csv())
    }

    /// The table that `marline-lab run` prints, with its heading.
    fn summary(&self) -> Vec<Vec<String>> {
        Summary::from_runs(&self.jobs, &self.records).table()
    }

    /// Warnings about unreliable or missing results, one per line.
    fn warnings(&self) -> Vec<String> {
        Summary::from_runs(&self.jobs, &self.records).warnings()
    }

    /// Error of the first failed run.
    fn error(&self) -> Option<String> {
        self.runs().into_iter().find_map(|(job, record)| {
            let error = record.error.as_ref()?;
            Some(format!("{} seed {}: {error}", job.lane.variant.name, job.seed))
        })
    }

    /// Returns for each run a hash of every delivered packet and of all data received by applications.
    #[getter]
    fn digests(&self) -> Vec<u64> {
        self.digests.clone()
    }

    /// Number of time-line rows that were dropped because of the limit.
    #[getter]
    fn left_out(&self) -> u64 {
        self.left_out
    }
}

fn batch(table: &Table) -> Result<RecordBatch, ArrowError> {
    let columns = table.columns();
    let fields: Vec<Field> = columns.iter().map(field).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.iter().map(array).collect())
}

/// Creates an Arrow field: name, kind and (as metadata) unit.
fn field(column: &Column) -> Field {
    let field = Field::new(column.name(), array(column).data_type().clone(), true);
    match column.unit() {
        "" => field,
        unit => field.with_metadata([("unit".to_owned(), unit.to_owned())]),
    }
}

fn array(column: &Column) -> ArrayRef {
    let cells = || {
        let rows = match column.values() {
            Values::Text(texts) => texts.numbers().len(),
            Values::Count(cells) => cells.len(),
            Values::Integer(cells) => cells.len(),
            Values::Real(cells) => cells.len(),
            Values::Flag(cells) => cells.len(),
        };
        (0..rows).map(|row| column.at(row))
    };
    match column.values() {
        Values::Text(_) => Arc::new(StringArray::from_iter(cells().map(|cell| match cell {
            Cell::Text(text) => Some(text),
            _ => None,
        }))),
        Values::Count(_) => Arc::new(UInt64Array::from_iter(cells().map(|cell| match cell {
            Cell::Count(value) => Some(value),
            _ => None,
        }))),
        Values::Integer(_) => Arc::new(Int64Array::from_iter(cells().map(|cell| match cell {
            Cell::Integer(value) => Some(value),
            _ => None,
        }))),
        Values::Real(_) => Arc::new(Float64Array::from_iter(cells().map(|cell| match cell {
            Cell::Real(value) => Some(value),
            _ => None,
        }))),
        Values::Flag(_) => Arc::new(BooleanArray::from_iter(cells().map(|cell| match cell {
            Cell::Flag(value) => Some(value),
            _ => None,
        }))),
    }
}
