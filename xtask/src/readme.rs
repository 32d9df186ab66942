//! Comparison of the README's figures with the pages that they come from.
//!
//! Results in virtual time are compared with the page that their command writes. A test of marline-lab's example
//! `handover` compares the figure's caption. Live measurements are in docs/results.md with their command and date, and
//! the README repeats them verbatim.

use std::fs;
use std::path::Path;

use crate::TaskResult;

const README: &str = "README.md";
const RESULTS: &str = "docs/results.md";
const AUTO: &str = "docs/research/auto.md";

/// The compared pages.
struct Pages {
    readme: String,
    results: String,
    auto: String,
}

/// Fails with a list of the figures that differ from their sources.
pub(crate) fn check(root: &Path) -> TaskResult {
    let read = |page: &str| {
        fs::read_to_string(root.join(page)).map_err(|error| format!("{page}: {error}"))
    };
    let (readme, results) = (read(README)?, read(RESULTS)?);
    let mut wrong = findings(&Pages { readme, results, auto: read(AUTO)? });
    // Call paths are not checked if the page names missing locations.
    let places = crate::architecture::check(root);
    wrong.extend(places.and_then(|()| crate::call_paths::check(root)).err());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
}

fn findings(pages: &Pages) -> Vec<String> {
    let mut wrong = Vec::new();
    wrong.extend(check_worse_cases(pages).err());
    wrong.extend(compare_table(pages));
    wrong.extend(demo(pages).err());
    wrong.extend(["The demo", "Compared with the kernel"].iter().filter_map(|title| {
        let section = section(&pages.results, title)?;
        (!has_date(section) || !section.contains("`marline") && !section.contains("`sudo marline"))
            .then(|| format!("{RESULTS}: `{title}` lacks a command or a date"))
    }));
    wrong
}

/// Compares "One case of N" with the share of cases on the default scheduler's page.
fn check_worse_cases(pages: &Pages) -> TaskResult {
    const BEHIND: &str = "worse than the best single path in one of five metrics in ";
    let page = join_lines(&pages.auto);
    let share =
        page.split(BEHIND).nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let share = share.ok_or_else(|| format!("{AUTO}: no share follows `{BEHIND}`"))?;
    const NUMBERS: [&str; 11] = [
        "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    ];
    let one_of = (100.0 / share).round() as usize;
    let number = one_of.checked_sub(2).and_then(|index| NUMBERS.get(index));
    let number = number.map_or_else(|| one_of.to_string(), |word| (*word).to_owned());
    expect_text(&pages.readme, &format!("in one of {number} cases "), AUTO)
}

/// Compares every row of the README's table with the page of results.
fn compare_table(pages: &Pages) -> Vec<String> {
    let rows = section(&pages.readme, "Measured").into_iter().flat_map(table_rows);
    let rows: Vec<&str> = rows.collect();
    if rows.len() < 3 {
        return vec![format!("{README}: no table below `Measured`")];
    }
    let known: Vec<&str> = table_rows(&pages.results).collect();
    let other = rows.iter().filter(|row| !known.contains(row));
    other.map(|row| format!("{README}: this row is not in {RESULTS}: {row}")).collect()
}

/// Compares the demo's output with the page of results.
fn demo(pages: &Pages) -> TaskResult {
    let block = pages.readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let block = block.ok_or_else(|| format!("{README}: the demo output is missing"))?;
    let kept = section(&pages.results, "The demo").is_some_and(|section| section.contains(block));
    if kept { Ok(()) } else { Err(format!("{README}: the demo output differs from {RESULTS}")) }
}

fn expect_text(readme: &str, words: &str, source: &str) -> TaskResult {
    let says = join_lines(readme).contains(words);
    if says { Ok(()) } else { Err(format!("{README} does not match {source}; expected: {words}")) }
}

/// The text below a heading, up to the next.
fn section<'a>(page: &'a str, title: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!("\n## {title}\n"))?;
    Some(rest.split("\n## ").next().unwrap_or(rest))
}

/// Rows of tables, without header rows.
fn table_rows(text: &str) -> impl Iterator<Item = &str> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.filter(|line| !line.starts_with("| |"))
}

/// Returns true if a text has a date with a year.
fn has_date(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(3).any(|words| {
        let [day, month, year] = words else { return false };
        let is_year = year.get(..4).is_some_and(|digits| digits.parse::<u32>().is_ok());
        day.parse::<u32>().is_ok() && month.chars().all(char::is_alphabetic) && is_year
    })
}

fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        let root = crate::workspace_root();
        let read = |page: &str| fs::read_to_string(root.join(page)).expect(page);
        Pages { readme: read(README), results: read(RESULTS), auto: read(AUTO) }
    }

    /// The finding after a change to one page.
    fn finding(change: impl Fn(&mut Pages)) -> String {
        let mut pages = pages();
        change(&mut pages);
        findings(&pages).join("\n")
    }

    #[test]
    fn each_changed_figure_is_found() {
        assert_eq!(finding(|_| ()), "");
        let readme = |from: &'static str, to: &'static str| {
            finding(|pages| {
                assert!(pages.readme.contains(from), "{from}");
                pages.readme = pages.readme.replacen(from, to, 1);
            })
        };
        assert!(readme("one of 13 cases", "one of nine cases").contains("one of 13 cases"));
        assert!(readme("| 207 ms |", "| 27 ms |").contains("27 ms"));
        assert!(readme("WiFi alone  ", "WiFi alone 1").contains("the demo output"));
        let auto = finding(|pages| pages.auto = pages.auto.replace("7.7 % [", "20 % ["));
        assert!(auto.contains("in one of five cases "), "{auto}");
        let undated = finding(|pages| pages.results = pages.results.replace("November 2026", ""));
        assert!(undated.contains("`The demo` lacks a command or a date"), "{undated}");
    }
}
