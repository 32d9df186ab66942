//! Values of a column, any of which may be unknown.

use std::collections::BTreeMap;

/// Optional values of one type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells<T> {
    values: Vec<T>,
    /// True for each known value. `None` if all are known.
    known: Option<Vec<bool>>,
}

impl<T: Copy + Default> Cells<T> {
    /// Appends a value. `None` is unknown.
    pub fn push(&mut self, value: Option<T>) {
        if value.is_none() && self.known.is_none() {
            self.known = Some(vec![true; self.values.len()]);
        }
        if let Some(known) = &mut self.known {
            known.push(value.is_some());
        }
        self.values.push(value.unwrap_or_default());
    }

    /// All values. An unknown one is the default of its type, such as 0.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// True for each known value. `None` if all are known.
    #[must_use]
    pub fn known(&self) -> Option<&[bool]> {
        self.known.as_deref()
    }

    /// The value of a row. `None` if it is unknown or there is no such row.
    #[must_use]
    pub fn at(&self, row: usize) -> Option<T> {
        let known = self.known.as_ref().is_none_or(|known| known.get(row) == Some(&true));
        self.values.get(row).copied().filter(|_| known)
    }

    /// Number of values, including unknown ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns true if there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        if let Some(known) = &mut self.known {
            known.truncate(rows);
        }
    }
}

/// Interned texts: each distinct text is stored once, and rows refer to it by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    words: Vec<String>,
    numbers: BTreeMap<String, u32>,
    cells: Cells<u32>,
}

impl Texts {
    /// Appends a text. `None` is unknown.
    pub fn push(&mut self, text: Option<&str>) {
        let number = text.map(|text| self.number(text));
        self.cells.push(number);
    }

    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.words.len() as u32;
        self.words.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// Distinct texts in the order of their first occurrence.
    #[must_use]
    pub fn distinct_texts(&self) -> &[String] {
        &self.words
    }

    /// Index of each row's text in [`distinct_texts`](Self::distinct_texts).
    #[must_use]
    pub fn numbers(&self) -> &Cells<u32> {
        &self.cells
    }

    /// The text of a row. `None` if it is unknown or there is no such row.
    #[must_use]
    pub fn at(&self, row: usize) -> Option<&str> {
        let number = self.cells.at(row)?;
        self.words.get(number as usize).map(String::as_str)
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.cells.truncate(rows);
    }
}
