//! Test that docs/concepts/policy-list.md matches the registry: every name, key and default, nothing else,
//! and which of the names are this crate's.

use marline_algos::{PolicyKind, Registry};

const PAGE: &str = include_str!("../../../docs/concepts/policy-list.md");

/// The kinds and the headings of their tables.
const SECTIONS: [(PolicyKind, &str); 7] = [
    (PolicyKind::Scheduler, "## Schedulers"),
    (PolicyKind::SchedulerWrapper, "## Around a scheduler"),
    (PolicyKind::PathManager, "## Path managers"),
    (PolicyKind::Congestion, "## Congestion controls"),
    (PolicyKind::CongestionWrapper, "## Around a congestion control"),
    (PolicyKind::Recovery, "## Loss recovery"),
    (PolicyKind::Datagrams, "## Datagram policies"),
];

/// Names and parameters (`key=default`) in the table below a heading.
fn table(heading: &str) -> Vec<(String, Vec<String>)> {
    let (_, rest) = PAGE.split_once(heading).unwrap_or_else(|| panic!("no heading `{heading}`"));
    let section = rest.split("\n## ").next().unwrap_or_default();
    let codes = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.split('|').collect();
        (codes(cells[1]).concat(), codes(cells[cells.len() - 2]))
    })
    .collect()
}

#[test]
fn the_page_lists_what_there_is() {
    let registry = marline_research::registry();
    for (kind, heading) in SECTIONS {
        let mut listed = table(heading);
        listed.sort();
        let known: Vec<(String, Vec<String>)> = registry
            .names(kind)
            .into_iter()
            .map(|name| {
                let parameters = registry.parameters(kind, name).expect("it is known");
                let texts = parameters.iter().map(|p| format!("{}={}", p.key, p.default));
                (name.to_owned(), texts.collect())
            })
            .collect();
        assert_eq!(listed, known, "docs/concepts/policy-list.md, `{heading}`");
    }
}

#[test]
fn the_page_says_which_of_them_must_be_asked_for() {
    let (all, built_in) = (marline_research::registry(), Registry::default());
    for (kind, _) in SECTIONS {
        let known = built_in.names(kind);
        let own: Vec<&str> = all.names(kind).into_iter().filter(|n| !known.contains(n)).collect();
        let line = PAGE.lines().find(|line| line.starts_with(&format!("| {kind} | ")));
        let listed =
            line.map_or_else(Vec::new, |line| line.split('`').skip(1).step_by(2).collect());
        assert_eq!(
            listed, own,
            "docs/concepts/policy-list.md, of the crate marline-research: {kind}"
        );
    }
}
