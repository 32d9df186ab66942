//! Rows as CSV: a header line, commas, quotes where necessary, blanks for unknown values.

use std::fmt::Write as _;

use super::column::Cell;
use super::table::Table;

/// Writes a CSV field, quoted if necessary.
#[must_use]
pub fn csv_field(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\"").replace(['\n', '\r'], " "));
    }
    text.to_owned()
}

/// The header line.
pub(super) fn heading(table: &Table) -> String {
    let names: Vec<String> =
        table.columns().iter().map(|column| csv_field(column.name())).collect();
    names.join(",") + "\n"
}

/// Appends a row. Numbers have all digits that a parser needs to restore them exactly.
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
    /// Formats the table as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = heading(self);
        (0..self.rows()).for_each(|number| row(&mut text, self, number));
        text
    }
}
