//! Table: a name, and columns of equal length.

use super::column::{Cell, Column};

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    name: &'static str,
    columns: Vec<Column>,
    rows: usize,
}

impl Table {
    /// Creates an empty table with this name. Its columns must be empty.
    #[must_use]
    pub fn new(name: &'static str, columns: Vec<Column>) -> Table {
        let columns = columns.iter().map(Column::empty_copy).collect();
        Table { name, columns, rows: 0 }
    }

    /// Name of the table, and base name of its files.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Columns, each with [`rows`](Self::rows) values.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The column with this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name() == name)
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns true if there are no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Appends a row.
    ///
    /// # Panics
    /// The number or kinds of the cells differ from the columns, which is a bug in the caller.
    pub fn push<'a>(&mut self, cells: impl IntoIterator<Item = Cell<'a>>) {
        let mut filled = 0;
        for cell in cells {
            self.columns[filled].push(cell);
            filled += 1;
        }
        assert_eq!(
            filled,
            self.columns.len(),
            "expected a value for each column of `{}`",
            self.name
        );
        self.rows += 1;
    }

    /// The values of a row, in the order of the columns.
    pub fn row(&self, row: usize) -> impl Iterator<Item = Cell<'_>> {
        self.columns.iter().map(move |column| column.at(row))
    }

    /// Appends a range of rows of a table with the same columns.
    ///
    /// # Panics
    /// The other table has different columns.
    pub fn append(&mut self, other: &Table, rows: std::ops::Range<usize>) {
        for row in rows {
            self.push(other.row(row));
        }
    }

    /// Keeps only the first rows.
    pub fn truncate(&mut self, rows: usize) {
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
        self.rows = self.rows.min(rows);
    }

    /// Copies the table, with constant columns added at the front.
    ///
    /// # Panics
    /// The numbers of cells and columns differ.
    #[must_use]
    pub fn with_leading_columns(&self, columns: &[Column], cells: &[Cell<'_>]) -> Table {
        assert_eq!(columns.len(), cells.len(), "expected a value for each column");
        let mut all: Vec<Column> = columns.iter().map(Column::empty_copy).collect();
        for (column, cell) in all.iter_mut().zip(cells) {
            (0..self.rows).for_each(|_| column.push(*cell));
        }
        all.extend(self.columns.iter().cloned());
        Table { name: self.name, columns: all, rows: self.rows }
    }
}
