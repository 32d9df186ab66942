//! Results of a reproduction: tables, grids, figures, notes.

use marline_lab::figure::Figure;
use serde::{Deserialize, Serialize};

use crate::judge::{Row, Verdict};
use crate::value::Value;

/// Rows that are judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Name of its file: letters, digits, `-`.
    pub name: String,
    /// Title, with the meaning of intervals.
    pub title: String,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// A table of these rows.
    #[must_use]
    pub fn new(name: &str, title: impl Into<String>, rows: Vec<Row>) -> Table {
        Table { name: name.to_owned(), title: title.into(), rows }
    }
}

/// A column of a [`Grid`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Name of its contents.
    pub name: String,
    /// The unit of its numbers, `""` without.
    pub unit: String,
}

/// Measurements without a counterpart in the paper: any columns, nothing is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Name of its file: letters, digits, `-`.
    pub name: String,
    /// Title.
    pub title: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows: a cell for each column; numbers in the column's unit (their own is ignored).
    pub rows: Vec<Vec<Value>>,
}

impl Grid {
    /// An empty grid with columns of these names and units.
    #[must_use]
    pub fn new(name: &str, title: impl Into<String>, columns: &[(&str, &str)]) -> Grid {
        let column = |(name, unit): &(&str, &str)| Column {
            name: (*name).to_owned(),
            unit: (*unit).to_owned(),
        };
        let columns = columns.iter().map(column).collect();
        Grid { name: name.to_owned(), title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row that begins with words and goes on with numbers.
    ///
    /// # Panics
    /// When it has not one cell for each column.
    pub fn push(&mut self, words: &[&str], numbers: &[f64]) {
        assert_eq!(words.len() + numbers.len(), self.columns.len(), "cells of a row of {self:?}");
        let words = words.iter().map(|word| Value::Text((*word).to_owned()));
        let numbers = numbers.iter().map(|value| Value::new(*value, ""));
        self.rows.push(words.chain(numbers).collect());
    }
}

/// Results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// Tables with verdicts.
    pub tables: Vec<Table>,
    /// Tables for information.
    pub grids: Vec<Grid>,
    /// Drawings.
    pub figures: Vec<Figure>,
    /// Notes, a paragraph each.
    pub notes: Vec<String>,
}

/// How many rows have which verdict.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Verdict::Accepted`].
    pub accepted: usize,
    /// [`Verdict::NotAccepted`].
    pub not_accepted: usize,
    /// [`Verdict::NotToldApart`].
    pub not_told_apart: usize,
    /// [`Verdict::NotJudged`].
    pub not_judged: usize,
    /// [`Verdict::Fitted`].
    pub fitted: usize,
    /// [`Verdict::Shown`].
    pub shown: usize,
}

impl Reproduction {
    /// Rows of all tables by verdict.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for row in self.tables.iter().flat_map(|table| &table.rows) {
            *match row.verdict {
                Verdict::Accepted => &mut counts.accepted,
                Verdict::NotAccepted => &mut counts.not_accepted,
                Verdict::NotToldApart => &mut counts.not_told_apart,
                Verdict::NotJudged => &mut counts.not_judged,
                Verdict::Fitted => &mut counts.fitted,
                Verdict::Shown => &mut counts.shown,
            } += 1;
        }
        counts
    }

    /// What the rows say together: not accepted if one of them is, not told apart if one of the others is,
    /// not judged if none is judged.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let counts = self.counts();
        match counts {
            Counts { not_accepted: 1.., .. } => Verdict::NotAccepted,
            Counts { not_told_apart: 1.., .. } => Verdict::NotToldApart,
            Counts { accepted: 1.., .. } => Verdict::Accepted,
            _ => Verdict::NotJudged,
        }
    }

    /// Takes back all verdicts: what was run was for a look.
    pub(crate) fn clear_verdicts(&mut self) {
        for row in self.tables.iter_mut().flat_map(|table| &mut table.rows) {
            if row.verdict.is_judged() {
                (row.verdict, row.needed) = (Verdict::NotJudged, None);
            }
        }
    }
}
