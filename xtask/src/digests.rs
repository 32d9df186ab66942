//! Behavior digests, which a refactoring must not change.
//!
//! Each covers the delivered packets (headers with all options, and through TCP's checksum the payload) with their
//! times and links, and the times at which applications read data. It does not cover type names, debug text or the
//! wall clock. The labels of random streams are part of the simulated scenes, so they are never renamed.

use std::fs;
use std::path::Path;

use crate::run::{command, output};
use crate::{TaskResult, ci};

/// Directory of the papers' results, below the checkout.
const RESULTS: &str = "target/digests";
/// Text before the digest in a paper's `run.json`.
const DIGEST_FIELD: &str = "\"digest\": \"";

/// Prints the papers' tables as they are computed, then the digest and name of each family of random worlds and each
/// paper, one per line.
pub(crate) fn print(root: &Path) -> TaskResult {
    let results = root.join(RESULTS);
    if results.exists() {
        fs::remove_dir_all(&results).map_err(|error| format!("{RESULTS}: {error}"))?;
    }
    ci::run_quick_papers(root, RESULTS)?;
    let worlds =
        ["run", "--release", "-q", "-p", "marline-sim", "--example", "numbers", "--", "digests"];
    let worlds = output(&mut command(root, "cargo", &worlds))?;
    println!();
    for line in worlds.lines().filter(|line| line.contains(" worlds, ")) {
        println!("{line}");
    }
    let entries = fs::read_dir(&results).map_err(|error| format!("{RESULTS}: {error}"))?;
    let mut papers: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    papers.sort();
    for paper in papers {
        let name = paper.file_name().unwrap_or_default().to_string_lossy();
        let run = fs::read_to_string(paper.join("run.json"))
            .map_err(|error| format!("{RESULTS}/{name}/run.json: {error}"))?;
        let digest = run.split(DIGEST_FIELD).nth(1).and_then(|rest| rest.split('"').next());
        let digest = digest.filter(|digest| !digest.is_empty());
        println!("{}  {name}", digest.ok_or(format!("{name}: nothing was simulated"))?);
    }
    Ok(())
}
