//! Results of a reproduction: tables, grids, figures, notes.

use marline_lab::figure::Figure;
use serde::{Deserialize, Serialize};

use crate::judge::{Row, Verdict};
use crate::value::Value;

/// Rows with verdicts.
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
    /// What the column contains.
    pub name: String,
    /// Unit of its numbers. Empty: none.
    pub unit: String,
}

/// Measurements without a counterpart in the paper. Any columns are allowed, and nothing is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Name of its file: letters, digits, `-`.
    pub name: String,
    /// Title.
    pub title: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// Rows with a cell for each column. Numbers are in the column's unit, and the unit of the cell is ignored.
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

    /// Adds a row of words followed by numbers.
    ///
    /// # Panics
    /// The number of cells differs from the number of columns.
    pub fn push(&mut self, words: &[&str], numbers: &[f64]) {
        assert_eq!(
            words.len() + numbers.len(),
            self.columns.len(),
            "number of cells in a row of {self:?}"
        );
        let words = words.iter().map(|word| Value::Text((*word).to_owned()));
        let numbers = numbers.iter().map(|value| Value::new(*value, ""));
        self.rows.push(words.chain(numbers).collect());
    }
}

/// Results of a reproduction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// Tables with verdicts.
    pub tables: Vec<Table>,
    /// Tables for information.
    pub grids: Vec<Grid>,
    /// Drawings.
    pub figures: Vec<Figure>,
    /// Notes, one paragraph each.
    pub notes: Vec<String>,
}

/// Numbers of rows by verdict.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Verdict::Accepted`].
    pub accepted: usize,
    /// [`Verdict::NotAccepted`].
    pub not_accepted: usize,
    /// [`Verdict::Inconclusive`].
    pub inconclusive: usize,
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
                Verdict::Inconclusive => &mut counts.inconclusive,
                Verdict::NotJudged => &mut counts.not_judged,
                Verdict::Fitted => &mut counts.fitted,
                Verdict::Shown => &mut counts.shown,
            } += 1;
        }
        counts
    }

    /// Combined verdict of the rows. It is `NotAccepted` if any row is, else `Inconclusive` if any row is, else
    /// `Accepted` if any row is, and `NotJudged` otherwise.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let counts = self.counts();
        match counts {
            Counts { not_accepted: 1.., .. } => Verdict::NotAccepted,
            Counts { inconclusive: 1.., .. } => Verdict::Inconclusive,
            Counts { accepted: 1.., .. } => Verdict::Accepted,
            _ => Verdict::NotJudged,
        }
    }

    /// Resets all verdicts after a quick run.
    pub(crate) fn clear_verdicts(&mut self) {
        for row in self.tables.iter_mut().flat_map(|table| &mut table.rows) {
            if row.verdict.is_judged() {
                (row.verdict, row.needed) = (Verdict::NotJudged, None);
            }
        }
    }
}
