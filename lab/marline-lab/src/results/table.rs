//! Table: columns of equal length, with a name.

use super::column::{Cell, Column};

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    name: &'static str,
    columns: Vec<Column>,
    rows: usize,
}

impl Table {
    /// A table of this name, still without a row; its columns are empty.
    #[must_use]
    pub fn new(name: &'static str, columns: Vec<Column>) -> Table {
        let columns = columns.iter().map(Column::emptied).collect();
        Table { name, columns, rows: 0 }
    }

    /// Its name, and that of its files without the ending.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its columns, all with as many values as there are [`rows`](Self::rows).
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The column of this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name() == name)
    }

    /// How many rows there are.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// No row at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Appends a row.
    ///
    /// # Panics
    /// It has not a value for each column, or one of another kind: a mistake of the one who fills it.
    pub fn push<'a>(&mut self, cells: impl IntoIterator<Item = Cell<'a>>) {
        let mut filled = 0;
        for cell in cells {
            self.columns[filled].push(cell);
            filled += 1;
        }
        assert_eq!(filled, self.columns.len(), "a value for each column of `{}`", self.name);
        self.rows += 1;
    }

    /// The values of a row, in the order of the columns.
    pub fn row(&self, row: usize) -> impl Iterator<Item = Cell<'_>> {
        self.columns.iter().map(move |column| column.at(row))
    }

    /// Appends the rows of another with the same columns, from one row on and so many.
    ///
    /// # Panics
    /// It has other columns.
    pub fn append(&mut self, other: &Table, rows: std::ops::Range<usize>) {
        for row in rows {
            self.push(other.row(row));
        }
    }

    /// Keeps the first rows only.
    pub fn truncate(&mut self, rows: usize) {
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
        self.rows = self.rows.min(rows);
    }

    /// The same rows behind columns that have one value for all of them.
    ///
    /// # Panics
    /// There are not as many values as columns.
    #[must_use]
    pub fn behind(&self, columns: &[Column], cells: &[Cell<'_>]) -> Table {
        assert_eq!(columns.len(), cells.len(), "a value for each column");
        let mut all: Vec<Column> = columns.iter().map(Column::emptied).collect();
        for (column, cell) in all.iter_mut().zip(cells) {
            (0..self.rows).for_each(|_| column.push(*cell));
        }
        all.extend(self.columns.iter().cloned());
        Table { name: self.name, columns: all, rows: self.rows }
    }
}
