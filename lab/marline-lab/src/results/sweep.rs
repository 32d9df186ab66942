//! Table `sweep`: the table of runs in long form, a row for each run and measure, as plotting libraries like it.

use super::column::{Cell, Column};
use super::run_columns::RunColumns;
use super::table::Table;

/// Behind the [`RunColumns`] of a table of runs are `measure`, the name of one of its other columns that have numbers,
/// and `value`. What is unknown has no row.
#[must_use]
pub fn long(run: &RunColumns, runs: &Table) -> Table {
    let mut columns = run.columns();
    let leading = columns.len();
    columns.extend([Column::text("measure"), Column::real("value", "")]);
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
