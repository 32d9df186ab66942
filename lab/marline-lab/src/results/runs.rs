//! Table `runs`: one row per run.

use super::column::{Cell, Column};
use super::run_columns::RunColumns;
use super::table::Table;
use crate::experiment::Load;
use crate::runs::{Job, PathBytes, Record, Statistics};

/// Builds a row for each run, in order.
///
/// After the [`RunColumns`] follow the statistics of the counted messages (`messages`, `mean_ms`, `p50_ms`, `p95_ms`,
/// `p99_ms`, `max_ms`), messages that did not arrive (`missing`), `goodput_mbit_per_s` and `reinjected_bytes`, measures
/// of videos, pages, deadlines and prices; for each path the bytes in both directions, lost packets and the energy of
/// its radio (blank without a radio); `doubts`, and the reason for a failure (`error`).
#[must_use]
pub fn runs(run: &RunColumns, runs: &[(&Job, &Record)]) -> Table {
    runs_table(run, &path_names(runs), runs)
}

/// Like [`runs`], with columns for these paths.
#[must_use]
pub fn runs_table(run: &RunColumns, paths: &[impl AsRef<str>], runs: &[(&Job, &Record)]) -> Table {
    let paths = || paths.iter().map(AsRef::as_ref);
    let mut columns = run.workload_columns();
    columns.extend([
        Column::count("messages", ""),
        Column::count("missing", ""),
        Column::real_column("mean_ms", "ms"),
        Column::real_column("p50_ms", "ms"),
        Column::real_column("p95_ms", "ms"),
        Column::real_column("p99_ms", "ms"),
        Column::real_column("max_ms", "ms"),
        Column::real_column("goodput_mbit_per_s", "Mbit/s"),
        Column::count("reinjected_bytes", "B"),
    ]);
    columns.extend(run.measure_columns());
    for path in paths() {
        columns.extend([
            Column::count(format!("{path}_up_bytes"), "B"),
            Column::count(format!("{path}_down_bytes"), "B"),
            Column::count(format!("{path}_dropped_packets"), ""),
            Column::real_column(format!("{path}_traffic_j"), "J"),
            Column::real_column(format!("{path}_idle_j"), "J"),
        ]);
    }
    columns.extend([Column::text("doubts"), Column::text("error")]);
    let mut table = Table::new("runs", columns);
    for (job, load, record) in run_workloads(runs) {
        let of = Statistics::from_latencies(&record.latencies_ms());
        let doubts = record.doubts.join("; ");
        let mut row = run.workload_cells(job, load);
        row.extend([Cell::from(of.count), Cell::from(record.missing)]);
        let shown = [of.mean_ms, of.p50_ms, of.p95_ms, of.p99_ms, of.max_ms];
        row.extend(shown.map(Cell::from));
        row.extend([Cell::from(record.goodput_mbit_per_s), Cell::from(record.reinjected_bytes)]);
        row.extend(run.measure_cells(record));
        for name in paths() {
            row.extend(path_cells(record.paths.iter().find(|path| path.name == name)));
        }
        row.push((!doubts.is_empty()).then_some(doubts.as_str()).into());
        row.push(record.error.as_deref().into());
        table.push(row);
    }
    table
}

fn path_cells(path: Option<&PathBytes>) -> [Cell<'static>; 5] {
    let radio = path.and_then(|path| path.radio.as_ref());
    [
        path.map(|path| path.up_bytes).into(),
        path.map(|path| path.down_bytes).into(),
        path.map(|path| path.dropped_packets).into(),
        radio.map(|radio| radio.traffic_j).into(),
        radio.map(|radio| radio.idle_j).into(),
    ]
}

/// Each workload of each run. A failed run has only its first workload.
pub(super) fn run_workloads<'a>(
    runs: &'a [(&'a Job, &'a Record)],
) -> impl Iterator<Item = (&'a Job, &'a Load, &'a Record)> {
    runs.iter().flat_map(|(job, record)| {
        let loads = job.experiment.loads.iter().zip(record.workloads());
        loads.map(|(load, record)| (*job, load, record))
    })
}

/// Paths in the order of their first occurrence.
fn path_names<'a>(runs: &[(&Job, &'a Record)]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for path in runs.iter().flat_map(|(_, record)| &record.paths) {
        if !names.contains(&path.name.as_str()) {
            names.push(path.name.as_str());
        }
    }
    names
}
