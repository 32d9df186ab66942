//! Results as Markdown, between two marks of a page that is otherwise written by hand.
//!
//! The closing mark carries a hash of what stands between them, so that a number changed by hand is
//! found: pages say what was measured, and nothing else.

use std::fmt::Write as _;

use marline_lab::figure::number;
use marline_time::fnv1a;

use crate::judge::{Row, Verdict};
use crate::output::RunInfo;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const BEGIN: &str = "<!-- results: made by `marline-lab report --docs`, not by hand -->";
const END: &str = "<!-- end of results, ";
const END_OF_MARK: &str = " -->";
/// Grids with more rows stand in the results only.
const LONGEST_GRID: usize = 40;

/// The page with these results between its marks.
///
/// # Errors
/// It has no marks, or they are in disorder.
pub fn page_with_results(
    page: &str,
    result: &Reproduction,
    run: &RunInfo,
) -> anyhow::Result<String> {
    with_text(page, &results(result, run))
}

/// The page with a line for each key between its marks: how many of its rows have which verdict. Of keys in `order`
/// that have no results here, what the page says of them stays.
///
/// # Errors
/// As [`page_with_results`].
pub fn page_with_summary(
    page: &str,
    order: &[&str],
    all: &[(&str, &Reproduction, &RunInfo)],
) -> anyhow::Result<String> {
    let (_, (before, _), _) = split(page)?;
    let known = |key: &str| all.iter().find(|(known, ..)| *known == key);
    let mut text = String::new();
    text.push_str(
        "| key | accepted | not accepted | not told apart | fitted, not judged | master root | processor-minutes |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for key in order {
        let start = format!("| [{key}]({key}.md) |");
        match known(key) {
            Some((_, result, run)) => {
                let counts = result.counts();
                let _ = writeln!(
                    text,
                    "{start} {} | {} | {} | {} | {} | {:.0} |",
                    counts.accepted,
                    counts.not_accepted,
                    counts.not_told_apart,
                    counts.fitted,
                    run.master,
                    run.cpu_s / 60.0
                );
            }
            None => keep(&mut text, before.lines().filter(|line| line.starts_with(&start))),
        }
    }
    for (title, verdict) in
        [("Not accepted", Verdict::NotAccepted), ("Not told apart", Verdict::NotToldApart)]
    {
        let title = format!("{title}:");
        let _ = write!(text, "\n{title}\n\n");
        for key in order {
            let start = format!("- {key}: ");
            match known(key) {
                Some((_, result, _)) => {
                    for row in result.tables.iter().flat_map(|table| &table.rows) {
                        if row.verdict == verdict {
                            let ours = value(row.ours.as_ref());
                            let (what, asked) = (cell(&row.what), cell(&row.requirement));
                            let _ = writeln!(text, "{start}{what}: {ours}, asked: {asked}");
                        }
                    }
                }
                None => {
                    let listed = before.lines().skip_while(|line| *line != title).skip(2);
                    let listed = listed.take_while(|line| line.starts_with("- "));
                    keep(&mut text, listed.filter(|line| line.starts_with(&start)));
                }
            }
        }
    }
    with_text(page, &text)
}

fn keep<'a>(text: &mut String, lines: impl Iterator<Item = &'a str>) {
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
}

fn with_text(page: &str, text: &str) -> anyhow::Result<String> {
    let (before, _, after) = split(page)?;
    Ok(format!("{before}{BEGIN}\n{text}{END}{}{END_OF_MARK}{after}", hash(text)))
}

/// Whether somebody changed what stands between the marks of a page; `None`: it has no marks.
#[must_use]
pub fn results_were_edited(page: &str) -> Option<bool> {
    let (_, (text, mark), _) = split(page).ok()?;
    Some(mark != hash(text))
}

/// Before the first mark; what stands between them, and the hash in the second; after it.
fn split(page: &str) -> anyhow::Result<(&str, (&str, &str), &str)> {
    let parts = || {
        let (before, rest) = page.split_once(BEGIN)?;
        let (text, rest) = rest.split_once(END)?;
        let (mark, after) = rest.split_once(END_OF_MARK)?;
        Some((before, (text.strip_prefix('\n').unwrap_or(text), mark), after))
    };
    parts().ok_or_else(|| anyhow::anyhow!("the page lacks the marks `{BEGIN}` and `{END}...`"))
}

/// Against slips, not against forgers.
fn hash(text: &str) -> String {
    format!("{:016x}", fnv1a(text))
}

fn results(result: &Reproduction, run: &RunInfo) -> String {
    let mut text = String::new();
    let counts = result.counts();
    let _ = writeln!(
        text,
        "Master root {}, {}; {} rows accepted, {} not accepted, {} not told apart{}; {:.0} processor-minutes. \
         Intervals hold the true value with 99 %.\n",
        run.master,
        run.effort,
        counts.accepted,
        counts.not_accepted,
        counts.not_told_apart,
        match counts.fitted {
            0 => String::new(),
            fitted => format!(", {fitted} not judged because they were fitted"),
        },
        run.cpu_s / 60.0,
    );
    for one in &result.tables {
        table(&mut text, one);
    }
    for one in result.grids.iter().filter(|grid| grid.rows.len() <= LONGEST_GRID) {
        grid(&mut text, one);
    }
    for note in &result.notes {
        let _ = writeln!(text, "{note}\n");
    }
    text
}

/// A cell: a bar would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn value(value: Option<&Value>) -> String {
    value.map_or_else(String::new, |value| cell(&value.to_string()))
}

fn table(text: &mut String, table: &Table) {
    let bound = table.rows.iter().any(|row| row.bound_ratio.is_some());
    let (head, rule) = if bound { (" to the bound |", "---|") } else { ("", "") };
    let _ = writeln!(text, "**{}**\n", table.title);
    let _ =
        writeln!(text, "| | paper | ours |{head} asked | verdict |\n|---|---|---|{rule}---|---|");
    for row in &table.rows {
        let Row { what, paper, ours, bound_ratio, requirement, remark, .. } = row;
        let ratio = match bound {
            true => format!(" {} |", bound_ratio.map_or_else(String::new, number)),
            false => String::new(),
        };
        let mut verdict = row.verdict_words();
        if matches!(row.verdict, Verdict::NotAccepted | Verdict::NotToldApart) {
            verdict = format!("**{verdict}**");
        }
        if !remark.is_empty() {
            let _ = write!(verdict, "{}{remark}", if verdict.is_empty() { "" } else { "; " });
        }
        let _ = writeln!(
            text,
            "| {} | {} | {} |{ratio} {} | {} |",
            cell(what),
            value(paper.as_ref()),
            value(ours.as_ref()),
            cell(requirement),
            cell(&verdict)
        );
    }
    text.push('\n');
}

fn grid(text: &mut String, grid: &Grid) {
    let _ = writeln!(text, "**{}**\n", grid.title);
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = grid.columns.iter().map(|column| match column.unit.as_str() {
        "" => cell(&column.name),
        unit => cell(&format!("{} ({unit})", column.name)),
    });
    text.push_str(&line(head.collect()));
    text.push_str(&format!("|{}\n", "---|".repeat(grid.columns.len())));
    for row in &grid.rows {
        text.push_str(&line(row.iter().map(|one| value(Some(one))).collect()));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_replace_what_stood_between_the_marks_and_edits_are_found() {
        let page = format!("# Page\n\n{BEGIN}\nstale\n{END}0{END_OF_MARK}\n\nMore.\n");
        let rows = vec![Row::new("a|b").paper(1.0, "ms").ours(2.0, "ms").at_most(1.5)];
        let result = Reproduction {
            tables: vec![Table::new("t", "Title", rows)],
            ..Reproduction::default()
        };
        let made = page_with_results(&page, &result, &crate::tests::info()).expect("marks");
        assert!(
            made.contains("| a\\|b | 1 ms | 2 ms | at most 1.5 ms | **not accepted** |"),
            "{made}"
        );
        assert!(made.starts_with("# Page\n\n<!-- results") && made.ends_with("-->\n\nMore.\n"));
        assert!(!made.contains("stale"));
        assert_eq!(results_were_edited(&made), Some(false));
        assert_eq!(results_were_edited(&made.replace("2 ms", "1 ms")), Some(true));
        assert_eq!(page_with_results(&made, &result, &crate::tests::info()).unwrap(), made);
        let all = [("key", &result, &crate::tests::info())];
        let summary = page_with_summary(&page, &["key"], &all).expect("marks");
        assert!(summary.contains("| [key](key.md) | 0 | 1 | 0 | 0 | 1 | 0 |\n"), "{summary}");
        assert!(summary.contains("Not accepted:\n\n- key: a\\|b: 2 ms, asked: at most 1.5 ms\n"));
        // Where there are no results of a key, what was said of it stays; where there are, it goes.
        let twice = page_with_summary(&summary, &["other", "key"], &[]).expect("marks");
        assert_eq!(twice, summary);
        let other = [("other", &result, &crate::tests::info())];
        let both = page_with_summary(&summary, &["other", "key"], &other).expect("marks");
        let lists = "Not accepted:\n\n- other: a\\|b: 2 ms, asked: at most 1.5 ms\n- key: a";
        assert!(both.contains(lists) && both.matches("](key.md) |").count() == 1, "{both}");
        assert_eq!(page_with_summary(&both, &["key"], &all).expect("marks"), summary);
        assert_eq!(results_were_edited("# No marks"), None);
        assert!(page_with_results("# No marks", &result, &crate::tests::info()).is_err());
    }
}
