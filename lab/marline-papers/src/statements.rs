//! Statements of a paper, and the rows that judge them: one row for each statement, and no other.

use std::collections::BTreeMap;

use crate::file::Statement;
use crate::judge::Verdict;
use crate::mechanism::Mechanism;
use crate::table::Reproduction;

/// Faults of a paper's statements and rows, one line each. A statement has exactly one row or a text that says what
/// stands in for it. If there are statements, each row with a requirement judges one of them. Identifiers are unique.
#[must_use]
pub fn statement_faults(statements: &[Statement], result: &Reproduction) -> Vec<String> {
    if statements.is_empty() {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for statement in statements {
        if rows.insert(&statement.id, 0).is_some() {
            faults.push(format!("two statements have the id `{}`", statement.id));
        }
        if let Some(other) = &statement.contradicts
            && !statements.iter().any(|one| one.id == *other)
        {
            faults.push(format!("`{}` contradicts `{other}`, which is missing", statement.id));
        }
    }
    for statement in statements {
        for name in statement.claims.iter().chain(statement.affected_by.keys()) {
            if let Err(error) = Mechanism::find(name) {
                faults.push(format!("`{}`: {error}", statement.id));
            }
        }
    }
    for row in result.tables.iter().flat_map(|table| &table.rows) {
        match rows.get_mut(row.statement.as_str()) {
            Some(count) => *count += 1,
            None if row.statement.is_empty() && row.verdict == Verdict::Shown => {}
            None => faults.push(format!(
                "`{}` judges `{}`, which is not a statement",
                row.what, row.statement
            )),
        }
    }
    for statement in statements {
        let (id, count) = (&statement.id, rows[statement.id.as_str()]);
        match (&statement.stands_in, count) {
            (None, 1) | (Some(_), 0) => {}
            (None, _) => faults.push(format!("expected one row for `{id}`, found {count}")),
            (Some(_), _) => faults.push(format!("`{id}` has both a row and a stand-in")),
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Row;
    use crate::table::Table;

    fn statement(id: &str, stands_in: Option<&str>) -> Statement {
        let stands_in = stands_in.map(str::to_owned);
        Statement { stands_in, ..Statement::new(id, "figure 1", "S") }
    }

    #[test]
    fn a_statement_without_its_row_and_a_row_without_its_statement_are_found() {
        let row = |id: &str| Row::new("r").measured(1.0, "").at_most(2.0).statement(id);
        let result =
            |rows| Reproduction { tables: vec![Table::new("t", "T", rows)], ..Default::default() };
        let all = [statement("a", None), statement("b", Some("a simulation"))];
        let shown = Row::new("shown").measured(1.0, "");
        assert!(statement_faults(&all, &result(vec![row("a"), shown])).is_empty());
        let said = |rows| statement_faults(&all, &result(rows)).join("; ");
        assert_eq!(said(vec![]), "expected one row for `a`, found 0");
        assert_eq!(said(vec![row("a"), row("a")]), "expected one row for `a`, found 2");
        assert_eq!(said(vec![row("a"), row("b")]), "`b` has both a row and a stand-in");
        assert_eq!(said(vec![row("a"), row("")]), "`r` judges ``, which is not a statement");
        assert_eq!(said(vec![row("a"), row("c")]), "`r` judges `c`, which is not a statement");
        let twice = [statement("a", None), statement("a", None)];
        assert!(statement_faults(&twice, &result(vec![row("a")]))[0].starts_with("two statements"));
        assert!(statement_faults(&[], &result(vec![row("")])).is_empty());
    }
}
