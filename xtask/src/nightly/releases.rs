//! Tests of the last release together with this tree.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;
use crate::run::{command, output, run};

/// Number of commit digits in `marline --version`.
const DIGITS: usize = 12;
/// Environment variable with the released program and its commit, for the tests.
const PROGRAM: &str = "MARLINE_RELEASED";
const RELEASED_COMMIT_VAR: &str = "MARLINE_RELEASED_COMMIT";

/// The last release: its newest tag, and its commit.
struct Release {
    tag: String,
    commit: String,
}

impl Release {
    /// The newest tag among this commit's ancestors, if there is one.
    fn newest(root: &Path) -> Option<Release> {
        let git = |arguments: &[&str]| {
            let said = command(root, "git", arguments).output().ok()?;
            let said = said.status.success().then_some(said.stdout)?;
            Some(String::from_utf8_lossy(&said).trim().to_owned())
        };
        let tag = git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"])?;
        let commit = git(&["rev-list", "-n", "1", &tag])?;
        Some(Release { tag, commit })
    }

    fn short(&self) -> &str {
        self.commit.get(..DIGITS).unwrap_or(&self.commit)
    }
}

/// Builds the released program, unless an earlier run has built it, and runs the tests of both programs together.
/// Without a tag the step passes.
pub(crate) fn check(root: &Path) -> TaskResult {
    let Some(release) = Release::newest(root) else {
        println!("no tag v*: there is no release to test");
        return Ok(());
    };
    let program = build(root, &release)?;
    println!("last release: {}, {}", release.tag, program.display());
    let mut tests = super::run_ignored_tests(root, "releases::");
    run(tests
        .arg("--test-threads=1")
        .env(PROGRAM, &program)
        .env(RELEASED_COMMIT_VAR, release.short()))
}

/// Builds the released program as a debug build, like the program it is tested with. Its source and objects are kept
/// for the next run, separate from this tree's.
fn build(root: &Path, release: &Release) -> Result<PathBuf, String> {
    let place = root.join("target/releases").join(release.short());
    let source = place.join("source");
    if !source.exists() {
        unpack(root, &release.commit, &source)?;
    }
    let mut cargo = command(&source, "cargo", &["build", "--locked", "-p", "marline-cli"]);
    // A debug build does not find its commit, and the release pins a different toolchain.
    cargo.env("MARLINE_COMMIT", release.short()).env_remove("RUSTUP_TOOLCHAIN");
    run(cargo.env("CARGO_TARGET_DIR", place.join("target")))?;
    let program = place.join("target/debug/marline");
    let said = output(&mut command(root, &program.display().to_string(), &["--version"]))?;
    if said.contains(release.short()) {
        return Ok(program);
    }
    Err(format!("{} was not built from {}: {}", program.display(), release.short(), said.trim()))
}

/// Unpacks the files of a commit atomically.
fn unpack(root: &Path, commit: &str, to: &Path) -> TaskResult {
    let known = ["cat-file", "-e", &format!("{commit}^{{commit}}")];
    // Git's message does not say how to fix the problem.
    let known = command(root, "git", &known).output().is_ok_and(|git| git.status.success());
    if !known {
        return Err(format!(
            "commit {commit} (the last release) is not in this clone; in a shallow clone, run \
                `git fetch --unshallow` \
             or `git fetch origin {commit}`"
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
    fn the_newest_tag_is_the_last_release_and_may_be_missing() {
        let dir = std::env::temp_dir().join(format!("marline-tags-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        git(&dir, &["init", "-q"]);
        for (text, tag) in [("first", "v0.1.0"), ("second", "v0.2.0"), ("third", "")] {
            fs::write(dir.join("file"), text).expect("a file");
            git(&dir, &["add", "file"]);
            git(&dir, &["commit", "-q", "-m", text]);
            match tag {
                "" => {}
                "v0.1.0" => {
                    assert!(Release::newest(&dir).is_none());
                    git(&dir, &["tag", tag]);
                }
                tag => drop(git(&dir, &["tag", tag])),
            }
        }
        let release = Release::newest(&dir).expect("a tag");
        assert_eq!(release.tag, "v0.2.0");
        assert_eq!(release.commit, git(&dir, &["rev-parse", "HEAD~1"]).trim());
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn a_commit_is_unpacked_and_a_shallow_clone_reports_that_it_is_missing() {
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
