//! Commit in the output of `marline --version`.
//!
//! Sources in this order: the variable `MARLINE_COMMIT` (for packagers who build from a tarball), the file that cargo
//! puts into a published crate, git. A debug build has no commit; otherwise it would be rebuilt after every commit.
//! Nothing else that differs between machines is included, so that each commit yields one program.

use std::path::Path;
use std::process::Command;

/// Number of digits that keep the commit unique.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MARLINE_COMMIT");
    let version = env!("CARGO_PKG_VERSION");
    let commit = commit().map(|commit| format!(" ({commit})")).unwrap_or_default();
    println!("cargo::rustc-env=MARLINE_VERSION={version}{commit}");
}

fn commit() -> Option<String> {
    if let Ok(named) = std::env::var("MARLINE_COMMIT") {
        let plain =
            !named.is_empty() && named.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        return plain.then_some(named);
    }
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        return None;
    }
    published_commit().or_else(from_git)
}

/// Returns the commit from `{"git": {"sha1": "..", "dirty": true}, ..}`, written by `cargo package`.
fn published_commit() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let digits = text.split("\"sha1\"").nth(1)?.split('"').nth(1)?.get(..DIGITS)?;
    Some(version_suffix(digits, text.contains("\"dirty\": true")))
}

fn from_git() -> Option<String> {
    // The commit of a repository into which this crate was unpacked does not count.
    if git(&["rev-parse", "--show-prefix"])? != "crates/marline-cli/" {
        return None;
    }
    for watched in ["logs/HEAD", "HEAD"] {
        let file = git(&["rev-parse", "--git-path", watched])?;
        if Path::new(&file).exists() {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    println!("cargo::rerun-if-changed=src");
    let commit = git(&["rev-parse", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(version_suffix(commit.get(..DIGITS)?, changed))
}

fn version_suffix(commit: &str, changed: bool) -> String {
    if changed { format!("{commit}-changed") } else { commit.to_owned() }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim().to_owned())
}
