//! Reproducible release: one commit built in two directories.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;
use crate::run::{command, output, run};

/// Checks out the last commit twice, in directories of different depth, builds a release in each, and compares the
/// checksums.
pub(crate) fn check(root: &Path) -> TaskResult {
    let places = [root.join("target/nightly/one"), root.join("target/nightly/another/one")];
    let mut sums = Vec::new();
    for place in &places {
        clone(root, place)?;
        // File times and the time of day must not matter.
        run(&mut command(place, "cargo", &["xtask", "dist"]))?;
        check_version_commit(place)?;
        let file = place.join("target/dist/SHA256SUMS");
        sums.push(
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?,
        );
    }
    let [one, another] = sums.as_slice() else {
        return Err("expected two lists of checksums".to_owned());
    };
    let differ: Vec<&str> = one.lines().filter(|line| !another.contains(*line)).collect();
    if one.is_empty() || !differ.is_empty() || one.lines().count() != another.lines().count() {
        return Err(format!(
            "files that differ: {}\nkept for inspection: {}",
            differ.join(", "),
            display_paths(&places)
        ));
    }
    println!("both builds are identical:\n{one}");
    let _ = fs::remove_dir_all(root.join("target/nightly"));
    Ok(())
}

/// Checks that `marline --version` of the release shows the commit.
fn check_version_commit(place: &Path) -> TaskResult {
    /// Number of commit digits in `marline --version`.
    const DIGITS: usize = 12;
    let commit = output(&mut command(place, "git", &["rev-parse", "HEAD"]))?;
    let said = output(&mut command(place, "target/dist/marline", &["--version"]))?;
    let named = format!("({})", commit.get(..DIGITS).unwrap_or(&commit));
    if said.contains(&named) { Ok(()) } else { Err(format!("`{said}` does not contain {named}")) }
}

fn clone(root: &Path, place: &PathBuf) -> TaskResult {
    let _ = fs::remove_dir_all(place);
    let parent = place.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    let (from, to) = (root.display().to_string(), place.display().to_string());
    run(&mut command(root, "git", &["clone", "-q", "--no-hardlinks", &from, &to]))?;
    let ours = output(&mut command(root, "git", &["rev-parse", "HEAD"]))?;
    run(&mut command(place, "git", &["checkout", "-q", ours.trim()]))
}

fn display_paths(places: &[PathBuf]) -> String {
    places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
}
