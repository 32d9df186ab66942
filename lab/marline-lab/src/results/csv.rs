//! Rows as CSV: a heading, commas, quotes where they must be; what is unknown is blank.

use std::fmt::Write as _;

use super::column::Cell;
use super::table::Table;

/// A field of a CSV file: quoted if it must be.
#[must_use]
pub fn csv_field(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\"").replace(['\n', '\r'], " "));
    }
    text.to_owned()
}

/// The line with the names of the columns.
pub(super) fn heading(table: &Table) -> String {
    let names: Vec<String> =
        table.columns().iter().map(|column| csv_field(column.name())).collect();
    names.join(",") + "\n"
}

/// Appends a row. Numbers have as many digits as tell them from all others, so that nothing is lost.
pub(super) fn row(text: &mut String, table: &Table, row: usize) {
    for (number, cell) in table.row(row).enumerate() {
        if number > 0 {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _ = match cell {
            Cell::Unknown => Ok(()),
            Cell::Text(value) => text.write_str(&csv_field(value)),
            Cell::Count(value) => write!(text, "{value}"),
            Cell::Integer(value) => write!(text, "{value}"),
            Cell::Real(value) => write!(text, "{value}"),
            Cell::Flag(value) => text.write_str(if value { "1" } else { "0" }),
        };
    }
    text.push('\n');
}

impl Table {
    /// The whole as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = heading(self);
        (0..self.rows()).for_each(|number| row(&mut text, self, number));
        text
    }
}
