//! Comparison of docs/research/papers/coverage.md with the program. Every item that a line names must exist, every
//! policy and every paper in virtual time must be named, every absence needs a reason, and the counts at the top must
//! be right.

use std::collections::BTreeSet;
use std::path::Path;

use marline_algos::{PolicyKind, Registry};
use marline_papers::all;

const PAGE: &str = include_str!("../../../docs/research/papers/coverage.md");
const NAME: &str = "docs/research/papers/coverage.md";

/// Header of the tables of the documents.
const LINES: &str = "|kind|what|where|";
/// Header of the table of policies that no document names.
const OTHERS: &str = "|policy|source|";
/// Header of the counts.
const COUNTS: &str = "|section|there|partly|not here|lines|";
/// Allowed values of the first cell of a line.
const LINE_KINDS: [&str; 7] =
    ["mechanism", "set-up", "table", "figure", "claim", "cited", "future work"];
/// Kinds of policies, each with its wrappers if it has any.
const POLICIES: [PolicyKind; 7] = [
    PolicyKind::Scheduler,
    PolicyKind::SchedulerWrapper,
    PolicyKind::PathManager,
    PolicyKind::Congestion,
    PolicyKind::CongestionWrapper,
    PolicyKind::Recovery,
    PolicyKind::Datagrams,
];

/// Kind of a name in backticks. The words before the name state it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Policy(PolicyKind),
    /// A paper.
    Key,
    /// A file, by its path from the root of the repository.
    File,
    Scenario,
}

impl Kind {
    /// Kind at the end of a text. The longest match wins, because `scheduler wrapper` is not a scheduler.
    fn at_end_of(text: &str) -> Option<Kind> {
        let text = text.trim_end().to_lowercase();
        let text = text.strip_suffix('s').unwrap_or(&text);
        let policies = POLICIES.map(|kind| (kind.to_string(), Kind::Policy(kind)));
        let others = [("key", Kind::Key), ("file", Kind::File), ("scenario", Kind::Scenario)];
        let others = others.map(|(word, kind)| (word.to_owned(), kind));
        let fits = |word: &str| {
            text.strip_suffix(word).is_some_and(|rest| !rest.ends_with(char::is_alphanumeric))
        };
        policies
            .into_iter()
            .chain(others)
            .filter(|(word, _)| fits(word))
            .max_by_key(|(word, _)| word.len())
            .map(|(_, kind)| kind)
    }

    /// Reason why the named item does not exist. `None`: it exists.
    fn lacks(self, name: &str, registry: &Registry) -> Option<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file =
            |name: &str| (!root.join(name).is_file()).then(|| format!("there is no file `{name}`"));
        let policy = |kind| match kind {
            PolicyKind::Scheduler => registry.scheduler(name).err(),
            PolicyKind::SchedulerWrapper => registry.scheduler(&format!("lowest-rtt+{name}")).err(),
            PolicyKind::PathManager => registry.path_manager(name).err(),
            PolicyKind::Congestion => registry.congestion(name).err(),
            PolicyKind::CongestionWrapper => registry.congestion(&format!("cubic+{name}")).err(),
            PolicyKind::Recovery => registry.recovery(name).err(),
            PolicyKind::Datagrams => registry.datagram_policy(name).err(),
        };
        match self {
            Kind::Policy(kind) => policy(kind).map(|error| error.to_string()),
            Kind::Key => (!all().iter().any(|paper| paper.key() == name))
                .then(|| format!("there is no paper `{name}`")),
            Kind::File => file(name),
            Kind::Scenario if name.starts_with("scenarios/") => file(name),
            Kind::Scenario => Some(format!("`{name}` is not in scenarios/")),
        }
    }
}

/// Names in backticks in a cell. Items of a list have the kind of the first one.
fn named(cell: &str) -> Result<Vec<(Kind, &str)>, String> {
    let pieces: Vec<&str> = cell.split('`').collect();
    if pieces.len().is_multiple_of(2) {
        return Err("unpaired backtick".to_owned());
    }
    let mut kind = None;
    let mut found = Vec::new();
    for (index, pair) in pieces.chunks_exact(2).enumerate() {
        let goes_on = index > 0 && matches!(pair[0].trim(), "," | "and" | "or" | ", and");
        if !goes_on {
            kind = Kind::at_end_of(pair[0]);
        }
        let kind = kind.ok_or_else(|| format!("no kind before `{}`", pair[1]))?;
        found.push((kind, pair[1]));
    }
    Ok(found)
}

/// State of an item in the program.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    There,
    Partly,
    /// Absent, and the line says why.
    NotHere,
    /// Absent without a reason. No line may be in this state.
    Missing,
}

/// A line of a document's table.
struct Line<'a> {
    number: usize,
    kind: &'a str,
    what: &'a str,
    place: &'a str,
}

impl Line<'_> {
    fn state(&self) -> State {
        match self.place {
            place if place.starts_with("**missing**") => State::Missing,
            place if place.starts_with("**not here**") => State::NotHere,
            place if place.starts_with("partly:") => State::Partly,
            _ => State::There,
        }
    }

    /// Error in the text of the line, independent of the names.
    fn complaint(&self) -> Option<&'static str> {
        let names_something = self.place.contains('`');
        let why = self.place.strip_prefix("**not here**, because").map(str::trim);
        let state = self.state();
        if !LINE_KINDS.contains(&self.kind) {
            Some("unknown kind")
        } else if self.what.is_empty() {
            Some("`what` is empty")
        } else if self.place.is_empty() {
            Some("`where` is empty")
        } else if state == State::Missing {
            Some("`missing` is not allowed: name the item, or say why it is not here")
        } else if state == State::NotHere && why.is_none_or(str::is_empty) {
            Some("why is it not here?")
        } else if state != State::NotHere && !names_something {
            Some("`where` names nothing")
        } else {
            None
        }
    }
}

/// The parsed page.
#[derive(Default)]
struct Page<'a> {
    /// Sections with their lines. The name of a section is its heading up to a colon.
    sections: Vec<(&'a str, Vec<Line<'a>>)>,
    /// Policies that no document names, with their source and line number.
    others: Vec<(&'a str, &'a str, usize)>,
    /// The counts on the page.
    counts: Vec<Vec<&'a str>>,
    /// Rows with a different number of cells than their table's header.
    torn: Vec<String>,
}

fn parse(text: &str) -> Page<'_> {
    let mut page = Page::default();
    let (mut heading, mut header) = ("", "");
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.split(':').next().unwrap_or_default();
        }
        if !line.starts_with('|') {
            header = "";
        } else if header.is_empty() {
            header = line;
            if header == LINES {
                page.sections.push((heading, Vec::new()));
            }
        } else if !line.starts_with("|---") {
            let inner = line.trim_matches('|');
            let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
            match (header, cells.as_slice()) {
                (LINES, &[kind, what, place]) => {
                    if let Some((_, lines)) = page.sections.last_mut() {
                        lines.push(Line { number, kind, what, place });
                    }
                }
                (OTHERS, &[policy, source]) => page.others.push((policy, source, number)),
                (COUNTS, _) => page.counts.push(cells),
                _ => page.torn.push(format!("{NAME}:{number}: not a row of its table")),
            }
        }
    }
    page
}

/// The counts computed from the lines.
fn counts(page: &Page<'_>) -> Vec<Vec<String>> {
    let of = |lines: &[&Line<'_>]| {
        let count = |state| lines.iter().filter(|line| line.state() == state).count();
        let counts =
            [count(State::There), count(State::Partly), count(State::NotHere), lines.len()];
        counts.map(|count| count.to_string()).to_vec()
    };
    let row = |name: &str, lines: &[&Line<'_>]| [vec![name.to_owned()], of(lines)].concat();
    let sections = page.sections.iter();
    let mut rows: Vec<Vec<String>> =
        sections.map(|(name, lines)| row(name, &lines.iter().collect::<Vec<_>>())).collect();
    let every: Vec<&Line<'_>> = page.sections.iter().flat_map(|(_, lines)| lines).collect();
    rows.push(row("all", &every));
    rows
}

/// Everything that the page names in valid places, and the errors of the page.
fn names<'a>(page: &Page<'a>, registry: &Registry) -> (Vec<(Kind, &'a str)>, Vec<String>) {
    let mut complaints = page.torn.clone();
    let mut found = Vec::new();
    let mut cells = Vec::new();
    for line in page.sections.iter().flat_map(|(_, lines)| lines) {
        let wrong = line.complaint().map(|why| format!("{NAME}:{}: {why}", line.number));
        complaints.extend(wrong);
        cells.push((line.place, line.number));
    }
    for (policy, source, number) in &page.others {
        if source.is_empty() {
            complaints.push(format!("{NAME}:{number}: no source"));
        }
        cells.push((policy, *number));
    }
    for (cell, number) in cells {
        let names = named(cell).unwrap_or_else(|why| {
            complaints.push(format!("{NAME}:{number}: {why}"));
            Vec::new()
        });
        for (kind, name) in names {
            let why = kind.lacks(name, registry);
            complaints.extend(why.map(|why| format!("{NAME}:{number}: {why}")));
            found.push((kind, name));
        }
    }
    (found, complaints)
}

/// Policies that specs name. `a,x=1+b` is the scheduler `a` and the wrapper `b`.
fn policies(found: &[(Kind, &str)]) -> BTreeSet<(String, String)> {
    let mut policies = BTreeSet::new();
    for (kind, spec) in found {
        let Kind::Policy(mut kind) = *kind else { continue };
        for part in spec.split('+') {
            let name = part.split(',').next().unwrap_or_default();
            policies.insert((kind.to_string(), name.to_owned()));
            kind = match kind {
                PolicyKind::Scheduler => PolicyKind::SchedulerWrapper,
                PolicyKind::Congestion => PolicyKind::CongestionWrapper,
                other => other,
            };
        }
    }
    policies
}

/// Policies and papers that the page must name but does not.
fn unnamed(found: &[(Kind, &str)], registry: &Registry) -> Vec<String> {
    let there = policies(found);
    let mut unnamed = Vec::new();
    for kind in POLICIES {
        let known = registry.names(kind).into_iter();
        let left = known.filter(|name| !there.contains(&(kind.to_string(), (*name).to_owned())));
        unnamed.extend(left.map(|name| format!("{NAME} does not name the {kind} `{name}`")));
    }
    let papers = all().into_iter().filter(|paper| paper.is_virtual_time());
    let left = papers.map(|paper| paper.key()).filter(|key| !found.contains(&(Kind::Key, key)));
    unnamed.extend(left.map(|key| format!("{NAME} does not name the key `{key}`")));
    unnamed
}

#[test]
fn the_coverage_page_and_the_registry_agree() {
    let registry = marline_lab::policies::registry();
    let page = parse(PAGE);
    let (found, mut complaints) = names(&page, &registry);
    complaints.extend(unnamed(&found, &registry));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn the_counts_are_those_of_the_lines() {
    let page = parse(PAGE);
    assert!(page.sections.len() >= 6, "the five documents, and the study of one of them");
    let counted = counts(&page);
    let written: Vec<Vec<&str>> = page
        .counts
        .into_iter()
        .map(|mut row| {
            // The name of a section may be a link.
            row[0] = row[0].trim_start_matches('[').split(']').next().unwrap_or_default();
            row
        })
        .collect();
    let rows: Vec<String> = counted.iter().map(|row| format!("|{}|", row.join("|"))).collect();
    assert_eq!(written, counted, "the counts should be\n{}", rows.join("\n"));
}

#[test]
fn a_wrong_line_is_found() {
    let registry = marline_lab::policies::registry();
    let wrong = |row: &str| {
        let text = format!("## document: a title\n\n{LINES}\n|---|---|---|\n{row}\n");
        names(&parse(&text), &registry).1.len()
    };
    assert_eq!(wrong("| cited | ECF | scheduler `ecf,beta=0.5` and file `Cargo.toml` |"), 0);
    assert_eq!(wrong("| claim | all | partly: schedulers `ecf`, `blest`; key `hsr2018` |"), 0);
    assert_eq!(wrong("| claim | all | **not here**, because it was never published |"), 0);
    for row in [
        "| cited | ECF | scheduler `efc` |",
        "| cited | ECF | scheduler `ecf,gamma=1` |",
        "| cited | ECF | scheduler wrapper `ecf` |",
        "| cited | ECF | by `ecf` |",
        "| cited | ECF | scheduler `ecf |",
        "| cited | ECF | path manager `ecf` |",
        "| cited | ECF | scheduler `ecf`, `hsr2018` |",
        "| cited | ECF | key `hsr2017` |",
        "| cited | ECF | file `crates/ecf.rs` |",
        "| cited | ECF | scenario `Cargo.toml` |",
        "| cited | ECF | it is there |",
        "| cited | ECF | **missing**: it |",
        "| cited | ECF | **not here**, because |",
        "| cited | ECF | **not here** |",
        "| cited | ECF |  |",
        "| cited |  | scheduler `ecf` |",
        "| quoted | ECF | scheduler `ecf` |",
        "| cited | ECF |",
    ] {
        assert_eq!(wrong(row), 1, "{row}");
    }
}

#[test]
fn an_unlisted_policy_is_found() {
    let registry = marline_lab::policies::registry();
    let text = format!("{OTHERS}\n|---|---|\n| scheduler `ecf+orp` | its paper |\n");
    let (found, complaints) = names(&parse(&text), &registry);
    assert_eq!(complaints, Vec::<String>::new());
    let unnamed = unnamed(&found, &registry);
    let says = |end: &str| unnamed.iter().any(|line| line.ends_with(end));
    assert!(says("the scheduler `blest`") && says("the key `hsr2018`"), "{unnamed:?}");
    assert!(!says("the scheduler `ecf`") && !says("the scheduler wrapper `orp`"), "{unnamed:?}");
}
