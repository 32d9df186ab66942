//! Test of `marline-lab compare` as a process: every variant runs, the table is made, and an interrupted run is
//! resumed. The numbers are not checked, since the machine may be busy.

use super::support;
use std::process::{Command, Output};

use marline_testkit::need;

fn compare(results: &std::path::Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    command.args(["compare", "2c-docs", "--repeats", "1", "--processors", "2", "--results"]);
    command.arg(results).args(more).output().expect("marline")
}

#[test]
fn every_variant_runs_and_the_table_is_made_once() {
    let _alone = support::lock_exclusively();
    if !need::root() || need::program("ip").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let document = dir.path().join("table.md");
    std::fs::write(&document, "<!-- compare: generated -->\n<!-- compare: end -->\n").unwrap();
    let results = dir.path().join("runs");

    let first = compare(&results, &["--write", document.to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&first.stderr);
    assert!(said.contains("5 runs, on 2 processors"), "{said}");
    assert!(!said.contains("FAILED"), "{said}");
    let table = String::from_utf8_lossy(&first.stdout);
    for who in [
        "TCP, first path",
        "TCP, second path",
        "kernel MPTCP",
        "Marline",
        "Marline, redundant-idle",
    ] {
        assert!(table.contains(&format!(" {who} | 1")), "no {who} in {table}");
    }
    assert!(table.contains("| 2c-docs | affected burst, ms |"), "{table}");
    let written = std::fs::read_to_string(&document).unwrap();
    assert!(written.contains("| 2c-docs | affected burst, ms |"), "{written}");
    assert!(!written.contains("TCP, first path"), "only the judged rows: {written}");

    let second = compare(&results, &[]);
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("0 runs"), "{said}");
    assert_eq!(String::from_utf8_lossy(&second.stdout), table);
}
