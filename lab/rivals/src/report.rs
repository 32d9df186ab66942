//! The results as a table and as docs/compare.md.

use std::collections::BTreeMap;

use anyhow::Context;

use crate::results::Results;
use crate::stats::Summary;
use crate::systems::{ALL, System};

/// A line of the table: metric, title, and true if larger values are better.
struct Line(&'static str, &'static str, bool);

const LINES: [Line; 35] = [
    Line("idle p50", "idle echo, p50, ms", false),
    Line("idle p99", "idle echo, p99, ms", false),
    Line("idle lte", "LTE traffic during idle echoes, kbit/s", false),
    Line("idle udp p99", "idle UDP echo, p99, ms", false),
    Line("idle udp lost", "UDP echoes lost, %", false),
    Line("death10 20 gap", "10 s dead, echo every 20 ms: gap, ms", false),
    Line("death10 20 back", "10 s dead, echo every 20 ms: recovery, s", false),
    Line("death10 50 gap", "10 s dead, echo every 50 ms: gap, ms", false),
    Line("death10 50 back", "10 s dead, echo every 50 ms: recovery, s", false),
    Line("death10 200 gap", "10 s dead, echo every 200 ms: gap, ms", false),
    Line("death10 200 back", "10 s dead, echo every 200 ms: recovery, s", false),
    Line("death10 udp gap", "10 s dead, UDP every 50 ms: gap, ms", false),
    Line("death10 udp back", "10 s dead, UDP: recovery, s", false),
    Line("death30 50 gap", "30 s dead, echo every 50 ms: gap, ms", false),
    Line("death30 50 back", "30 s dead: recovery, s", false),
    Line("death30 udp gap", "30 s dead, UDP: gap, ms", false),
    Line("death30 udp back", "30 s dead, UDP: recovery, s", false),
    Line("signaled gap", "interface down for 5 s: gap, ms", false),
    Line("signaled back", "interface down: recovery, s", false),
    Line("loss 1 p99", "1 % loss on both paths: echo p99, ms", false),
    Line("loss 1 down", "1 % loss: download, Mbit/s", true),
    Line("loss 5 p99", "5 % loss on both paths: echo p99, ms", false),
    Line("loss 5 down", "5 % loss: download, Mbit/s", true),
    Line("loaded down p95", "echo p95 during a download, ms", false),
    Line("loaded down rate", "download with echoes, Mbit/s", true),
    Line("loaded up p95", "echo p95 during an upload, ms", false),
    Line("loaded up rate", "upload with echoes, Mbit/s", true),
    Line("bulk down", "download alone, Mbit/s", true),
    Line("bulk up", "upload alone, Mbit/s", true),
    Line("page clean", "page, ms", false),
    Line("page dying", "page during WiFi failure, ms", false),
    Line("call bad", "call during WiFi failure: late or lost, %", false),
    Line("cpu gigabyte", "CPU-s per GB, both ends", false),
    Line("cpu minute", "CPU-s per minute of idle echoes", false),
    Line("memory memory", "memory per 1,000 connections, MB", false),
];

fn format_value(value: f64) -> String {
    match value {
        value if value.is_infinite() => "never".into(),
        value if value >= 1e4 => {
            let whole = value.round() as u64;
            format!("{},{:03}", whole / 1_000, whole % 1_000)
        }
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        value => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

fn cell(summary: Summary) -> String {
    let [median, least, most] = [summary.median, summary.least, summary.most].map(format_value);
    if least == most { median } else { format!("{median}({least}-{most})") }
}

/// Systems with results, in order.
fn systems(results: &Results) -> Vec<System> {
    ALL.into_iter().filter(|system| results.values.contains_key(system.name)).collect()
}

/// The system with the best median.
fn find_best(results: &Results, line: &Line, among: &[System]) -> Option<(System, Summary)> {
    let known =
        among.iter().filter_map(|system| Some((*system, results.summary(system.name, line.0)?)));
    known.min_by(|(_, one), (_, other)| match line.2 {
        true => other.median.total_cmp(&one.median),
        false => one.median.total_cmp(&other.median),
    })
}

/// Names of the best system in a line and of the systems whose ranges overlap its range.
fn winner(results: &Results, line: &Line, systems: &[System]) -> String {
    let Some((winner, summary)) = find_best(results, line, systems) else { return String::new() };
    let near = systems.iter().filter(|system| system.name != winner.name).filter(|system| {
        results.summary(system.name, line.0).is_some_and(|other| other.overlaps(summary))
    });
    let near: Vec<&str> = near.map(|system| system.name).collect();
    if near.is_empty() {
        winner.name.into()
    } else {
        format!("{} (~ {})", winner.name, near.join(","))
    }
}

/// The table: a line per metric, a column per system.
pub fn table(results: &Results) -> String {
    let systems = systems(results);
    let names: Vec<&str> = systems.iter().map(|system| system.name).collect();
    let mut text = format!("||{}|\n|---|{}\n", names.join("|"), "---|".repeat(names.len()));
    for line in &LINES {
        let Some((winner, _)) = find_best(results, line, &systems) else { continue };
        let cells = systems.iter().map(|system| match results.summary(system.name, line.0) {
            Some(summary) if system.name == winner.name => format!("**{}**", cell(summary)),
            Some(summary) => cell(summary),
            None => String::new(),
        });
        let cells: Vec<String> = cells.collect();
        text += &format!("|{}|{}|\n", line.1, cells.join("|"));
    }
    text
}

/// Joins the names that have the same text.
fn group_texts(texts: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, text) in texts {
        names.entry(text).or_default().push(name);
    }
    names.into_iter().map(|(text, names)| (names.join(", "), text.to_owned())).collect()
}

/// Systems with a column in docs/compare.md, and its title: what a user would choose between.
const COLUMNS: [(&str, &str); 6] = [
    ("marline", "Marline"),
    ("kernel", "kernel MPTCP"),
    ("kernel-backup", "kernel, LTE as backup"),
    ("mqvpn", "mqvpn"),
    ("noq", "noq"),
    ("wireguard-twice", "WireGuard twice"),
];

/// Metrics of the README's table.
const IN_README: [&str; 10] = [
    "idle p99",
    "idle lte",
    "death10 50 gap",
    "death10 50 back",
    "loaded down p95",
    "loaded down rate",
    "page clean",
    "page dying",
    "call bad",
    "cpu gigabyte",
];

/// A row: what a user would choose between. Bold: the best, and what its range overlaps.
fn row(results: &Results, line: &Line) -> Option<String> {
    let columns = systems(results).into_iter().filter(|system| column(system).is_some());
    let columns: Vec<System> = columns.collect();
    let (_, best) = find_best(results, line, &columns)?;
    let cells = COLUMNS.iter().map(|(name, _)| match results.summary(name, line.0) {
        Some(summary) if summary.overlaps(best) => format!("**{}**", cell(summary)),
        Some(summary) => cell(summary),
        None => String::new(),
    });
    let cells: Vec<String> = cells.collect();
    Some(format!("|{}|{}|", line.1, cells.join("|")))
}

fn column(system: &System) -> Option<&'static str> {
    COLUMNS.iter().find(|(name, _)| *name == system.name).map(|(_, title)| *title)
}

/// The head of a table of rows, with another column if `last` is its title.
fn table_head(last: Option<&str>) -> String {
    let titles: Vec<&str> = COLUMNS.iter().map(|(_, title)| *title).chain(last).collect();
    format!("||{}|\n|---|{}\n", titles.join("|"), "---|".repeat(titles.len()))
}

/// The README with its table replaced.
///
/// # Errors
/// A mark is missing.
pub fn readme(results: &Results, before: &str) -> anyhow::Result<String> {
    const BEGIN: &str = "<!-- rivals: written by `cargo xtask rivals --write` -->\n";
    const END: &str = "<!-- rivals: end -->";
    let (head, rest) = before.split_once(BEGIN).context("README.md lacks the rivals' mark")?;
    let (_, tail) = rest.split_once(END).context("README.md lacks the end of the rivals' table")?;
    let mut table = table_head(None);
    let lines = LINES.iter().filter(|line| IN_README.contains(&line.0));
    for row in lines.filter_map(|line| row(results, line)) {
        table += &format!("{row}\n");
    }
    Ok(format!("{head}{BEGIN}\n{table}\n{END}{tail}"))
}

/// The contents of docs/compare.md.
pub fn page(results: &Results) -> String {
    let mut text = include_str!("page-head.txt").to_owned();
    text += &table_head(Some("best of all systems (~ ranges overlap)"));
    let all = systems(results);
    for line in &LINES {
        if let Some(row) = row(results, line) {
            text += &format!("{row}{}|\n", winner(results, line, &all));
        }
    }
    text += "\n## Versions and conditions\n\n";
    for (systems, version) in group_texts(&results.versions) {
        text += &format!("- {systems}: {version}\n");
    }
    if !results.order.is_empty() {
        text += &format!("- {}\n", results.order);
    }
    for (systems, why) in group_texts(&results.skipped) {
        text += &format!("- **not measured**: {systems}: {why}\n");
    }
    for (rows, condition) in group_texts(&results.conditions) {
        text += &format!("- {rows}: {condition}\n");
    }
    for (name, remarks) in &results.remarks {
        let mut remarks = remarks.clone();
        remarks.dedup();
        text += &format!("- {name}: {}\n", remarks.join("; "));
    }
    text
}
