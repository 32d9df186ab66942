//! The last release beside this tree.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;
use crate::run::{command, output, run};

/// Version and commit of the last release: the only place that names it, changed when a release is made.
const VERSION: &str = "0.2.0";
const COMMIT: &str = "18bc277b15b1a145270a9bf2cb640b1db79d476d";
/// As many digits as `marline --version` shows.
const DIGITS: usize = 12;
/// Tells the tests where the released program is, and the commit that it must name.
const PROGRAM: &str = "MARLINE_RELEASED";
const NAMED: &str = "MARLINE_RELEASED_COMMIT";

/// Builds the released program, unless an earlier run has, and runs the tests of both programs together.
pub(crate) fn check(root: &Path) -> TaskResult {
    let program = build(root)?;
    println!("the last release: {VERSION}, {}", program.display());
    let mut tests = super::long_tests(root, "releases::");
    run(tests.arg("--test-threads=1").env(PROGRAM, &program).env(NAMED, short()))
}

fn short() -> &'static str {
    COMMIT.get(..DIGITS).unwrap_or(COMMIT)
}

/// The released program, built for debugging like the one it is tested with. Source and objects stay for the next
/// run, apart from those of this tree.
fn build(root: &Path) -> Result<PathBuf, String> {
    let place = root.join("target/releases").join(short());
    let source = place.join("source");
    if !source.exists() {
        unpack(root, COMMIT, &source)?;
    }
    let mut cargo = command(&source, "cargo", &["build", "--locked", "-p", "marline-cli"]);
    // A program for debugging does not look for its commit; and the release has a toolchain of its own.
    cargo.env("MARLINE_COMMIT", short()).env_remove("RUSTUP_TOOLCHAIN");
    run(cargo.env("CARGO_TARGET_DIR", place.join("target")))?;
    let program = place.join("target/debug/marline");
    let said = output(&mut command(root, &program.display().to_string(), &["--version"]))?;
    if said.contains(VERSION) && said.contains(short()) {
        return Ok(program);
    }
    Err(format!("{} is not {VERSION} of {}: {}", program.display(), short(), said.trim()))
}

/// The files of a commit, whole or not at all.
fn unpack(root: &Path, commit: &str, to: &Path) -> TaskResult {
    let known = ["cat-file", "-e", &format!("{commit}^{{commit}}")];
    // Git's own words would not say what to do.
    let known = command(root, "git", &known).output().is_ok_and(|git| git.status.success());
    if !known {
        return Err(format!(
            "commit {commit} (the last release, {VERSION}) is not in this clone; a shallow one gets it by \
             `git fetch --unshallow` or `git fetch origin {commit}`"
        ));
    }
    let failed = |path: &Path, error| format!("{}: {error}", path.display());
    let part = to.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).map_err(|error| failed(&part, error))?;
    let archive = part.with_extension("tar");
    let file = archive.display().to_string();
    run(&mut command(root, "git", &["archive", "--format=tar", "--output", &file, commit]))?;
    run(&mut command(&part, "tar", &["--extract", "--file", &file]))?;
    let _ = fs::remove_file(&archive);
    fs::rename(&part, to).map_err(|error| failed(to, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(dir: &Path, arguments: &[&str]) -> String {
        let name = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        output(&mut command(dir, "git", &[&name, arguments].concat())).expect("git")
    }

    #[test]
    fn a_commit_is_unpacked_and_a_shallow_clone_says_that_it_lacks_it() {
        let dir = std::env::temp_dir().join(format!("marline-releases-{}", std::process::id()));
        let (from, shallow) = (dir.join("from"), dir.join("shallow"));
        fs::create_dir_all(&from).expect("a folder");
        git(&from, &["init", "-q"]);
        for text in ["first", "second"] {
            fs::write(from.join("file"), text).expect("a file");
            git(&from, &["add", "file"]);
            git(&from, &["commit", "-q", "-m", text]);
        }
        let first = git(&from, &["rev-parse", "HEAD~1"]);
        unpack(&from, first.trim(), &dir.join("source")).expect("unpacked");
        assert_eq!(fs::read_to_string(dir.join("source/file")).expect("a file"), "first");

        let url = format!("file://{}", from.display());
        git(&dir, &["clone", "-q", "--depth", "1", &url, &shallow.display().to_string()]);
        let error = unpack(&shallow, first.trim(), &dir.join("another")).expect_err("not there");
        assert!(error.contains(first.trim()) && error.contains("--unshallow"), "{error}");
        assert!(!dir.join("another").exists());
        let _ = fs::remove_dir_all(&dir);
    }
}
