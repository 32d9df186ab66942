//! Verdicts as Markdown, between two marks of a page that is otherwise written by hand. For each table it has the
//! number of accepted rows and a list of the others. The verdict files, from which the pages are made, and the
//! report have every row.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::judge::Verdict;
use crate::verdicts::{KeptRow, KeptTable, KeptVerdicts};

const BEGIN: &str = "<!-- results: made by `marline-lab report --docs`, not by hand -->";
const END: &str = "<!-- end of results -->";

/// Page with these verdicts between its marks.
///
/// # Errors
/// Missing marks, or marks in the wrong order.
pub fn page_with_verdicts(page: &str, verdicts: &KeptVerdicts) -> anyhow::Result<String> {
    let mut text = format!("Master root {}, {}.\n", verdicts.master, verdicts.effort);
    for table in &verdicts.tables {
        let _ = writeln!(text, "\n**{}**{}", table.title, settled(table));
        let mut separator = "\n";
        for asked in requirements(table) {
            let rows: Vec<&KeptRow> = table.rows.iter().filter(|row| row.asked == asked).collect();
            let open = open(&rows);
            if !open.is_empty() {
                let _ = writeln!(text, "{separator}- Goal {asked}: {}", open.join(" "));
                separator = "";
            }
        }
    }
    with_text(page, &text)
}

/// Page with a line for each key between its marks: the numbers of its rows by verdict.
///
/// # Errors
/// As [`page_with_verdicts`].
pub fn page_with_summary(page: &str, all: &[(&str, KeptVerdicts)]) -> anyhow::Result<String> {
    let mut text = String::from(
        "| key | accepted | not accepted | not told apart | fitted | processor-minutes |\n\
         |---|---|---|---|---|---|\n",
    );
    for (key, verdicts) in all {
        let shown =
            [Verdict::Accepted, Verdict::NotAccepted, Verdict::NotToldApart, Verdict::Fitted];
        let counts = shown.map(|verdict| verdicts.count(verdict).to_string()).join(" | ");
        let minutes = verdicts.processor_minutes;
        let _ = writeln!(text, "| [{key}]({key}.md) | {counts} | {minutes} |");
    }
    with_text(page, &text)
}

fn with_text(page: &str, text: &str) -> anyhow::Result<String> {
    let around = || {
        let (before, rest) = page.split_once(BEGIN)?;
        Some((before, rest.split_once(END)?.1))
    };
    let (before, after) = around()
        .ok_or_else(|| anyhow::anyhow!("the page lacks the marks `{BEGIN}` and `{END}`"))?;
    Ok(format!("{before}{BEGIN}\n{text}{END}{after}"))
}

/// Distinct requirements of a table's rows, in order.
fn requirements(table: &KeptTable) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let asked = table.rows.iter().map(|row| row.asked.as_str());
    asked.filter(|asked| seen.insert(*asked)).collect()
}

/// Numbers of rows that need no attention, in parentheses. Empty if there are none.
fn settled(table: &KeptTable) -> String {
    let count = |verdict| table.rows.iter().filter(|row| row.is(verdict)).count();
    let counts = [("accepted", Verdict::Accepted), ("fitted", Verdict::Fitted)]
        .map(|(word, verdict)| (word, count(verdict)))
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(word, count)| format!("{word}: {count}"));
    let counts: Vec<String> = counts.collect();
    if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) }
}

/// Rows with one requirement that is missed or undecided, one sentence per verdict.
fn open(rows: &[&KeptRow]) -> Vec<String> {
    let with =
        |verdict| -> Vec<&KeptRow> { rows.iter().filter(|row| row.is(verdict)).copied().collect() };
    let mut open = Vec::new();
    let missed = with(Verdict::NotAccepted);
    if !missed.is_empty() {
        open.push(format!("**not accepted:** {}.", listed(&missed, short)));
    }
    let undecided = with(Verdict::NotToldApart);
    if !undecided.is_empty() {
        open.push(format!("**not told apart:** {}.", listed(&undecided, str::to_owned)));
    }
    open
}

/// Rows with their values. Consecutive rows that share the text before the first colon of their name show it once.
fn listed(rows: &[&KeptRow], shown: impl Fn(&str) -> String) -> String {
    let mut texts = Vec::new();
    let mut said = None;
    for row in rows {
        let paper = match row.asked.contains("of the paper") {
            true => format!(" (paper {})", row.paper),
            false => String::new(),
        };
        let head = row.what.split_once(": ").map(|(head, _)| head);
        let what = match head {
            Some(head) if said == Some(head) => &row.what[head.len() + 2..],
            _ => row.what.as_str(),
        };
        texts.push(format!("{what} {}{paper}", shown(&row.ours)));
        said = head;
    }
    texts.join("; ")
}

/// Our value without the interval.
fn short(ours: &str) -> String {
    match ours.split_once(" [").and_then(|(value, rest)| Some((value, rest.split_once(']')?.1))) {
        Some((value, unit)) => format!("{value}{unit}"),
        None => ours.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Estimate;
    use crate::judge::Row;
    use crate::table::{Reproduction, Table};

    #[test]
    fn open_rows_replace_the_text_between_the_marks() {
        let page = format!("# Page\n\n{BEGIN}\nstale\n{END}\n\nMore.\n");
        let estimate = Estimate { value: 1.4, low: 1.0, high: 2.0, roots: 20 };
        let rows = vec![
            Row::new("h: a").paper(1.0, "ms").ours(2.0, "ms").within(0.5),
            Row::new("h: b").paper(4.0, "ms").ours(1.0, "ms").within(0.5),
            Row::new("b").ours(1.0, "ms").at_most(1.5),
            Row::new("c").estimate(&estimate, "ms").at_most(1.5),
            Row::new("d").ours(1.2, "ms").at_most(1.5),
            Row::new("e").ours(0.2, "ms").at_most(1.5),
            Row::new("f").ours(0.2, "ms").at_most(0.5),
            Row::new("g").ours(0.2, "ms").at_most(0.1).fitted("k=2"),
        ];
        let result = Reproduction {
            tables: vec![Table::new("t", "Title", rows)],
            ..Reproduction::default()
        };
        let verdicts = KeptVerdicts::of(&result, &crate::tests::info());
        let made = page_with_verdicts(&page, &verdicts).expect("marks");
        assert!(made.starts_with("# Page\n\n<!-- results") && made.ends_with("-->\n\nMore.\n"));
        assert!(!made.contains("stale"));
        let lines: Vec<&str> = made.lines().filter(|line| line.starts_with(['-', '*'])).collect();
        assert_eq!(
            lines,
            [
                "**Title** (accepted: 4, fitted: 1)",
                "- Goal within 50 % of the paper: **not accepted:** h: a 2 ms (paper 1 ms); \
                 b 1 ms (paper 4 ms).",
                "- Goal at most 1.5 ms: **not told apart:** c 1.4 [1, 2] ms.",
            ]
        );
        assert_eq!(page_with_verdicts(&made, &verdicts).expect("marks"), made);
        let summary = page_with_summary(&page, &[("key", verdicts.clone())]).expect("marks");
        assert!(summary.contains("| [key](key.md) | 4 | 2 | 1 | 1 | 0 |\n"), "{summary}");
        assert!(page_with_verdicts("# No marks", &verdicts).is_err());
    }
}
