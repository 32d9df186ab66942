//! Agreement of verdicts under several master roots. A claim that one root accepts and another rejects is not a
//! result.

use std::collections::BTreeMap;

use crate::judge::{Row, Verdict};
use crate::table::Reproduction;

/// Maximum share of the judged rows that may be undecided, percent.
const MAX_UNDECIDED_PERCENT: f64 = 10.0;

/// Verdicts of the same rows under several master roots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Rows that are judged under every root.
    pub rows: usize,
    /// Numbers of undecided rows and of judged rows, over all roots.
    pub undecided: (usize, usize),
    /// Rows that one root accepts and another rejects, with key, row and each measured value.
    pub contradictions: Vec<String>,
    /// Rows that are undecided under some root.
    pub open: Vec<String>,
}

impl Agreement {
    /// Undecided rows as a percentage of the judged rows.
    #[must_use]
    pub fn undecided_percent(&self) -> f64 {
        let (undecided, judged) = self.undecided;
        100.0 * undecided as f64 / judged.max(1) as f64
    }

    /// True if there are no contradictions and few undecided rows.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.contradictions.is_empty()
            && self.rows > 0
            && self.undecided_percent() <= MAX_UNDECIDED_PERCENT
    }
}

/// Compares results of the same keys under several master roots.
#[must_use]
pub fn agreement(of: &[BTreeMap<String, Reproduction>]) -> Agreement {
    let mut by_row: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    for results in of {
        for (key, result) in results {
            for table in &result.tables {
                for row in table.rows.iter().filter(|row| row.verdict.is_judged()) {
                    let name = format!("{key}, {}: {}", table.name, row.what);
                    by_row.entry(name).or_default().push(row);
                }
            }
        }
    }
    let mut all = Agreement::default();
    for (name, rows) in by_row {
        let with = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
        let undecided = with(Verdict::Inconclusive);
        let told = || {
            let one = |row: &&Row| {
                let ours = row.ours.as_ref().map_or("-".to_owned(), ToString::to_string);
                format!("{ours} {}", row.verdict_words())
            };
            format!(
                "{name} ({}): {}",
                rows[0].requirement,
                rows.iter().map(one).collect::<Vec<_>>().join("; ")
            )
        };
        all.rows += usize::from(rows.len() == of.len());
        all.undecided.0 += undecided;
        all.undecided.1 += rows.len();
        if with(Verdict::Accepted) > 0 && with(Verdict::NotAccepted) > 0 {
            all.contradictions.push(told());
        } else if undecided > 0 {
            all.open.push(told());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Estimate;
    use crate::table::Table;

    fn result(rows: &[(&str, f64)]) -> BTreeMap<String, Reproduction> {
        let row = |(what, value): &(&str, f64)| {
            let estimate =
                Estimate { value: *value, low: value - 1.0, high: value + 1.0, roots: 20 };
            Row::new(*what).estimate(&estimate, "ms").at_most(10.0)
        };
        let table = Table::new("main", "T", rows.iter().map(row).collect());
        BTreeMap::from([(
            "k".to_owned(),
            Reproduction { tables: vec![table], ..Default::default() },
        )])
    }

    #[test]
    fn a_row_that_one_root_accepts_and_another_refuses_is_a_contradiction() {
        let many: Vec<(&str, f64)> = vec![("a", 1.0), ("b", 20.0), ("c", 2.0)];
        let same = agreement(&[result(&many), result(&many)]);
        assert!(same.holds() && same.rows == 3, "{same:?}");
        let other = agreement(&[result(&many), result(&[("a", 1.0), ("b", 2.0), ("c", 2.0)])]);
        assert_eq!(other.contradictions.len(), 1);
        assert!(other.contradictions[0].starts_with("k, main: b (at most 10 ms): 20 [19, 21] ms"));
        let open = agreement(&[result(&many), result(&[("a", 9.5), ("b", 20.0), ("c", 2.0)])]);
        assert!(open.contradictions.is_empty() && !open.holds(), "{open:?}");
        assert_eq!((open.undecided, open.open.len()), ((1, 6), 1));
        assert!(!agreement(&[]).holds());
    }
}
