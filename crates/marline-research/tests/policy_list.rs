//! Tests that docs/concepts/policy-list.md matches the registry: every name, key and default, nothing else, and which
//! of the names belong to this crate. `cargo xtask reference` makes them write keys and defaults.

use std::path::Path;

use marline_algos::{PolicyKind, Registry};

const PAGE: &str = include_str!("../../../docs/concepts/policy-list.md");

/// Environment variable that makes the tests write the page.
const WRITE: &str = "MARLINE_WRITE_REFERENCE";

/// Policy kinds, and the headings of their tables.
const SECTIONS: [(PolicyKind, &str); 7] = [
    (PolicyKind::Scheduler, "## Schedulers"),
    (PolicyKind::SchedulerWrapper, "## Around a scheduler"),
    (PolicyKind::PathManager, "## Path managers"),
    (PolicyKind::Congestion, "## Congestion controls"),
    (PolicyKind::CongestionWrapper, "## Around a congestion control"),
    (PolicyKind::Recovery, "## Loss recovery"),
    (PolicyKind::Datagrams, "## Datagram policies"),
];

/// Returns the policy kind of a heading.
fn kind_of(heading: &str) -> Option<PolicyKind> {
    SECTIONS.iter().find(|(_, start)| heading.starts_with(start)).map(|(kind, _)| *kind)
}

/// Returns the name in the first cell of a row, or `None` for other lines.
fn name_in(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split('`').next()
}

/// Returns the keys and defaults of a policy, as in the last cell of its row.
fn cell(registry: &Registry, kind: PolicyKind, name: &str) -> Option<String> {
    let of = |kind| {
        let parameters = registry.parameters(kind, name)?;
        Some(parameters.iter().map(|p| format!(" `{}={}`", p.key, p.default)).collect::<String>())
    };
    let own = of(kind)?;
    let is_like_scheduler = kind == PolicyKind::SchedulerWrapper
        && of(PolicyKind::Scheduler).is_some_and(|scheduler| scheduler == own);
    Some(if is_like_scheduler { String::new() } else { own })
}

/// Returns the page with the last cells of its rows as in the registry.
fn page(registry: &Registry) -> String {
    let mut kind = None;
    let mut text = String::new();
    for line in PAGE.lines() {
        if line.starts_with("## ") {
            kind = kind_of(line);
        }
        match kind.zip(name_in(line)).and_then(|(kind, name)| cell(registry, kind, name)) {
            Some(cell) => {
                let about = line.trim_end_matches('|').rsplit_once('|').map_or(line, |(a, _)| a);
                text += &format!("{about}|{cell} |\n");
            }
            None => text += &format!("{line}\n"),
        }
    }
    text
}

#[test]
fn the_page_lists_every_registered_policy() {
    let registry = marline_research::registry();
    for (kind, heading) in SECTIONS {
        let (_, rest) =
            PAGE.split_once(heading).unwrap_or_else(|| panic!("no heading `{heading}`"));
        let section = rest.split("\n## ").next().unwrap_or_default();
        let mut listed: Vec<&str> = section.lines().filter_map(name_in).collect();
        listed.sort_unstable();
        assert_eq!(listed, registry.names(kind), "docs/concepts/policy-list.md, `{heading}`");
    }
    let wanted = page(&registry);
    if std::env::var_os(WRITE).is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/concepts/policy-list.md");
        std::fs::write(file, wanted).expect("the page can be written");
    } else {
        let differing = wanted.lines().zip(PAGE.lines()).find(|(wanted, found)| wanted != found);
        assert!(differing.is_none(), "policy-list.md: run `cargo xtask reference`; {differing:?}");
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
