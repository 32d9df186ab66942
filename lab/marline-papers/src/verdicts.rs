//! Verdicts of a paper's rows as stored in the repository, `docs/research/papers/verdicts/KEY.toml`.
//!
//! The pages are made from these files, and results are compared with them. The comparison finds rows that were
//! removed or added, or that have a different requirement or verdict. Rows without a requirement are not stored. They
//! are in the report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use serde::Deserialize;

use crate::judge::{Row, Verdict};
use crate::output::RunInfo;
use crate::table::Reproduction;

/// Verdicts of one paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredVerdicts {
    /// Master root of the run.
    pub master: u64,
    /// Amount of work, in words.
    pub effort: String,
    /// CPU time of the run, minutes.
    pub processor_minutes: u64,
    /// Tables with at least one row.
    pub tables: Vec<StoredTable>,
}

/// Rows of one table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredTable {
    /// Name of the table, as [`Table::name`](crate::Table).
    pub name: String,
    /// Title of the table.
    pub title: String,
    /// Rows with a requirement.
    pub rows: Vec<StoredRow>,
}

/// A row: metric, the paper's value, ours, requirement, verdict, and the judged statement if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct StoredRow {
    /// Metric.
    pub what: String,
    /// The paper's value with its unit. Empty: it has none.
    pub paper: String,
    /// Our value with its interval and unit.
    pub ours: String,
    /// Requirement, as text.
    pub asked: String,
    /// Verdict in words, as [`Row::verdict_words`], but without the parameter after `fitted`.
    pub verdict: String,
    /// Identifier of the statement that the row judges. Empty: none.
    pub statement: String,
}

impl TryFrom<Vec<String>> for StoredRow {
    type Error = String;

    fn try_from(mut cells: Vec<String>) -> Result<StoredRow, String> {
        if cells.len() == 5 {
            cells.push(String::new());
        }
        let cells: [String; 6] =
            cells.try_into().map_err(|cells: Vec<String>| format!("{} cells", cells.len()))?;
        let [what, paper, ours, asked, verdict, statement] = cells;
        Ok(StoredRow { what, paper, ours, asked, verdict, statement })
    }
}

impl StoredRow {
    fn from_row(row: &Row) -> StoredRow {
        let text = |value: Option<&crate::value::Value>| {
            value.map_or_else(String::new, ToString::to_string)
        };
        StoredRow {
            what: row.what.clone(),
            paper: text(row.paper.as_ref()),
            ours: text(row.ours.as_ref()),
            asked: row.requirement.clone(),
            verdict: match row.verdict {
                Verdict::Fitted => Verdict::Fitted.name().to_owned(),
                _ => row.verdict_words(),
            },
            statement: row.statement.clone(),
        }
    }

    /// True if the row has this verdict.
    #[must_use]
    pub fn has_verdict(&self, verdict: Verdict) -> bool {
        let rest = self.verdict.strip_prefix(verdict.name());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
    }
}

impl StoredVerdicts {
    /// Verdicts of a result.
    #[must_use]
    pub fn from_result(result: &Reproduction, run: &RunInfo) -> StoredVerdicts {
        let tables = result.tables.iter().map(|table| {
            let asked = table.rows.iter().filter(|row| row.verdict != Verdict::Shown);
            StoredTable {
                name: table.name.clone(),
                title: table.title.clone(),
                rows: asked.map(StoredRow::from_row).collect(),
            }
        });
        StoredVerdicts {
            master: run.master,
            effort: run.effort.clone(),
            processor_minutes: (run.cpu_s / 60.0).round() as u64,
            tables: tables.filter(|table| !table.rows.is_empty()).collect(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The text was not written by [`text`](Self::text).
    pub fn parse(text: &str) -> anyhow::Result<StoredVerdicts> {
        toml::from_str(text).context("not a valid verdict file")
    }

    /// Text of the file, with one line for each row.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "# Made by `marline-lab report --docs`: what, paper, ours, goal, verdict, statement of each row.\n\
             master = {}\neffort = {}\nprocessor_minutes = {}\n",
            self.master,
            quote(&self.effort),
            self.processor_minutes
        );
        for StoredTable { name, title, rows } in &self.tables {
            let (name, title) = (quote(name), quote(title));
            let _ = writeln!(text, "\n[[tables]]\nname = {name}\ntitle = {title}\nrows = [");
            for StoredRow { what, paper, ours, asked, verdict, statement } in rows {
                let cells = [what, paper, ours, asked, verdict, statement].map(|cell| quote(cell));
                let used = if statement.is_empty() { &cells[..5] } else { &cells[..] };
                let _ = writeln!(text, "  [{}],", used.join(", "));
            }
            text.push_str("]\n");
        }
        text
    }

    /// Number of rows with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.tables
            .iter()
            .flat_map(|table| &table.rows)
            .filter(|row| row.has_verdict(verdict))
            .count()
    }

    /// The row that judges a statement.
    #[must_use]
    pub fn row_of(&self, statement: &str) -> Option<&StoredRow> {
        self.tables.iter().flat_map(|table| &table.rows).find(|row| row.statement == statement)
    }

    /// Differences of a result from the stored verdicts, one line each. Verdicts are compared only where the
    /// result has them. A quick run still checks that the rows and their requirements are unchanged.
    #[must_use]
    pub fn changes(&self, result: &Reproduction) -> Vec<String> {
        let mut kept = BTreeMap::new();
        for table in &self.tables {
            for row in &table.rows {
                kept.insert((table.name.as_str(), row.what.as_str()), row);
            }
        }
        let mut changes = Vec::new();
        for table in &result.tables {
            for row in table.rows.iter().filter(|row| row.verdict != Verdict::Shown) {
                let name = format!("{}: {}", table.name, row.what);
                match kept.remove(&(table.name.as_str(), row.what.as_str())) {
                    None => changes.push(format!("{name}: new row")),
                    Some(before) => {
                        changes.extend(before.change(row).map(|c| format!("{name}: {c}")))
                    }
                }
            }
        }
        changes
            .extend(kept.keys().map(|(table, what)| format!("{table}: {what}: row was removed")));
        changes
    }
}

impl StoredRow {
    /// Difference of a row with the same name. Values alone may differ.
    fn change(&self, row: &Row) -> Option<String> {
        let now = StoredRow::from_row(row);
        if now.statement != self.statement {
            return Some(format!("judges `{}`, not `{}`", now.statement, self.statement));
        }
        if now.asked != self.asked {
            return Some(format!("the goal is `{}`, not `{}`", now.asked, self.asked));
        }
        let same = row.verdict == Verdict::NotJudged || self.has_verdict(row.verdict);
        (!same)
            .then(|| format!("{}, {}; was {}, {}", now.ours, now.verdict, self.ours, self.verdict))
    }
}

/// Quoted TOML string.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    fn result(limit: f64) -> Reproduction {
        let rows = vec![
            Row::new("a \"b\" \\")
                .statement("s")
                .paper(1.0, "ms")
                .measured(2.0, "ms")
                .at_most(limit),
            Row::new("fitted").measured(2.0, "ms").at_most(3.0).mark_fitted("k=2"),
            Row::new("shown").measured(3.0, "ms"),
        ];
        Reproduction { tables: vec![Table::new("t", "Title", rows)], ..Default::default() }
    }

    #[test]
    fn changed_verdicts_goals_and_rows_are_found() {
        let kept = StoredVerdicts::from_result(&result(3.0), &crate::tests::info());
        assert_eq!(StoredVerdicts::parse(&kept.text()).expect("its own text"), kept);
        assert_eq!((kept.count(Verdict::Accepted), kept.count(Verdict::Fitted)), (1, 1));
        assert_eq!(kept.changes(&result(3.0)), Vec::<String>::new());
        let mut quick = result(3.0);
        quick.clear_verdicts();
        assert_eq!(kept.changes(&quick), Vec::<String>::new());
        let asks = kept.changes(&result(1.0));
        assert_eq!(asks, ["t: a \"b\" \\: the goal is `at most 1 ms`, not `at most 3 ms`"]);
        let mut slower = result(3.0);
        let row = Row::new("a \"b\" \\").statement("s");
        slower.tables[0].rows[0] = row.measured(4.0, "ms").at_most(3.0);
        let flipped = kept.changes(&slower);
        assert_eq!(flipped, ["t: a \"b\" \\: 4 ms, not accepted; was 2 ms, accepted"]);
        slower.tables[0].rows[0].what = "new".to_owned();
        let moved = kept.changes(&slower);
        assert_eq!(moved, ["t: new: new row", "t: a \"b\" \\: row was removed"]);
    }
}
