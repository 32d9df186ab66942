//! End-to-end test of the demo, shortened.

use super::support;
use std::process::Command;

#[test]
fn the_demo_ends_well_and_its_files_are_intact() {
    let _alone = support::lock_exclusively();
    let directory = tempfile::tempdir().expect("directory");
    let json = directory.path().join("demo.json");
    let output = Command::new(env!("CARGO_BIN_EXE_marline"))
        .args(["demo", "--seconds", "6", "--file-rate", "2", "--json"])
        .arg(&json)
        .output()
        .expect("run");
    let (said, table) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    println!("{table}");
    assert!(output.status.success(), "{}\n{said}\n{table}", output.status);
    assert!(said.contains("WiFi dies") && said.contains("WiFi is back"), "{said}");
    for line in said.lines().chain(table.lines()) {
        assert!(line.chars().count() <= 80, "longer than 80 columns: {line}");
    }
    let text = std::fs::read_to_string(&json).expect("results");
    let results: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let verdict = results["verdict"].as_str().expect("a sentence");
    assert!(verdict.starts_with("WiFi died for 1.5 s"), "{verdict}");
    assert!(verdict.ends_with("the download arrived complete."), "{verdict}");
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined(&table).ends_with(verdict), "the last sentence: {table}");
    let outcomes = results["outcomes"].as_array().expect("outcomes");
    assert_eq!(outcomes.len(), 4);
    for outcome in outcomes {
        let name = &outcome["name"];
        assert_eq!(outcome["echo"]["latencies_ms"].as_array().map(Vec::len), Some(120), "{name}");
        let (wifi, lte) = (&outcome["wifi_bytes"], &outcome["lte_bytes"]);
        let used = |bytes: &serde_json::Value| bytes.as_u64().is_some_and(|bytes| bytes > 10_000);
        match name.as_str().expect("name") {
            "WiFi alone" => assert!(used(wifi) && !used(lte), "{outcome}"),
            "LTE alone" => assert!(!used(wifi) && used(lte), "{outcome}"),
            _ => {
                assert!(used(wifi) && used(lte), "{name}: {wifi} {lte}");
                assert_eq!(outcome["file"]["intact"], true, "{name}");
                assert_eq!(outcome["echo"]["unanswered"], 0, "{name}");
            }
        }
    }
}
