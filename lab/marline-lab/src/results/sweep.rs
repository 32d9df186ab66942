//! Table `sweep`: the table of runs in long form for plotting libraries, with a row for each run and measure.

use super::column::{Cell, Column};
use super::run_columns::RunColumns;
use super::table::Table;

/// Builds the table from a table of runs. After the [`RunColumns`] follow `measure`, the name of a numeric column,
/// and `value`. Unknown values have no row.
#[must_use]
pub fn sweep_table(run: &RunColumns, runs: &Table) -> Table {
    let mut columns = run.workload_columns();
    let leading = columns.len();
    columns.extend([Column::text("measure"), Column::real_column("value", "")]);
    let mut table = Table::new("sweep", columns);
    for row in 0..runs.rows() {
        let head: Vec<Cell<'_>> = runs.row(row).take(leading).collect();
        for column in &runs.columns()[leading..] {
            let value = match column.at(row) {
                Cell::Real(value) => value,
                Cell::Count(value) => value as f64,
                Cell::Integer(value) => value as f64,
                Cell::Unknown | Cell::Text(_) | Cell::Flag(_) => continue,
            };
            table.push(head.iter().copied().chain([column.name().into(), value.into()]));
        }
    }
    table
}
