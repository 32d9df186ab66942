//! Table `messages`: one row per message that arrived.

use super::column::{Cell, Column};
use super::run_columns::RunColumns;
use super::runs::run_workloads;
use super::table::Table;
use crate::runs::{Job, Record};

/// Builds the table of all messages that arrived in these runs, including those of the warm-up, in the order of the
/// runs.
///
/// After the [`RunColumns`] follow `index` (number of the message), `bytes` (length), `counted` (true if sent after
/// the warm-up and part of the statistics), `sent_ms` (send time after the start of the workload), `latency_ms`, and
/// `least_ms` (lower bound on the latency: [`crate::bound`], only for counted messages).
#[must_use]
pub fn messages(run: &RunColumns, runs: &[(&Job, &Record)]) -> Table {
    let mut columns = run.workload_columns();
    columns.extend([
        Column::count("index", ""),
        Column::count("bytes", "B"),
        Column::flag("counted"),
        Column::real_column("sent_ms", "ms"),
        Column::real_column("latency_ms", "ms"),
        Column::real_column("least_ms", "ms"),
    ]);
    let mut table = Table::new("messages", columns);
    for (job, load, record) in run_workloads(runs) {
        let head = run.workload_cells(job, load);
        for (number, message) in record.messages.iter().enumerate() {
            let counted = number.checked_sub(record.warm_up);
            let least_ms = counted.and_then(|number| record.least_ms.get(number)).copied();
            let own: [Cell<'_>; 6] = [
                message.index.into(),
                message.bytes.into(),
                counted.is_some().into(),
                message.sent_ms.into(),
                message.latency_ms.into(),
                least_ms.into(),
            ];
            table.push(head.iter().copied().chain(own));
        }
    }
    table
}
