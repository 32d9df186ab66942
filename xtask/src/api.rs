//! Public interface of crate `marline`, compared with a snapshot in the tree and with the last release.
//!
//! The interface is read from rustdoc's JSON for the crate and the crates that it re-exports. The JSON is unstable, so
//! rustdoc alone runs with `RUSTC_BOOTSTRAP=1`: if cargo had this variable, it would rebuild all crates whose build
//! scripts read it. Dependency metadata comes from the step `doc`.

mod render;
mod surface;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::TaskResult;
use crate::manifest;
use crate::run::{command, output, run};
use surface::DocumentedCrate;

const CRATE: &str = "marline";
/// Crates whose items are re-exported.
const REEXPORTED_CRATES: [&str; 7] = [
    "marline-algos",
    "marline-core",
    "marline-datagram",
    "marline-io",
    "marline-policy",
    "marline-time",
    "marline-wire",
];
const SNAPSHOT: &str = "crates/marline/public-api.txt";
/// Maximum number of names at the root of the crate.
const MAX_ROOT_NAMES: usize = 25;

/// Checks the snapshot and the version, or writes the snapshot with `--bless`.
pub(crate) fn run_task(root: &Path, arguments: &[String]) -> TaskResult {
    match arguments {
        [] => check(root),
        [flag] if flag == "--bless" => {
            let lines = lines(root)?;
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            fs::write(root.join(SNAPSHOT), text).map_err(|error| format!("{SNAPSHOT}: {error}"))?;
            println!("api: {} lines in {SNAPSHOT}", lines.len());
            Ok(())
        }
        other => Err(format!("unknown option `{}`; known: --bless", other.join(" "))),
    }
}

/// Fails if the interface differs from the snapshot, has too many names at its root, or breaks the interface of the
/// last release without a higher version.
pub(crate) fn check(root: &Path) -> TaskResult {
    let now = lines(root)?;
    let names = surface::root_names(&now, CRATE);
    if names.len() > MAX_ROOT_NAMES {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        return Err(format!(
            "{} names at the root of {CRATE}, at most {MAX_ROOT_NAMES} allowed: {}",
            names.len(),
            names.join(" ")
        ));
    }
    let stored = fs::read_to_string(root.join(SNAPSHOT));
    let stored = parse(&stored.map_err(|error| format!("{SNAPSHOT}: {error}"))?);
    let changes = changes(&stored, &now);
    if !changes.is_empty() {
        return Err(format!(
            "{SNAPSHOT} differs from the interface of {CRATE}: run `cargo xtask api --bless` and \
                commit the result\n{}",
            changes.join("\n")
        ));
    }
    println!("api: {} lines as in {SNAPSHOT}, {} names at the root", now.len(), names.len());
    check_version(root, &now)
}

/// Lines of the current interface.
fn lines(root: &Path) -> Result<BTreeSet<String>, String> {
    let wrapper = root.join("target/rustdoc-json.sh");
    fs::write(&wrapper, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")
        .and_then(|()| fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", wrapper.display()))?;
    let mut doc = command(root, "cargo", &["doc", "--no-deps", "--lib", "--all-features", "-q"]);
    for name in [CRATE].iter().chain(&REEXPORTED_CRATES) {
        doc.args(["-p", name]);
    }
    doc.env("RUSTDOC", &wrapper);
    run(doc.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow"))?;
    let mut crates = BTreeMap::new();
    for name in [CRATE].iter().chain(&REEXPORTED_CRATES) {
        let name = name.replace('-', "_");
        let path = format!("target/doc/{name}.json");
        let text =
            fs::read_to_string(root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
        let json = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
        crates.insert(name, DocumentedCrate::new(json));
    }
    match surface::lines(&crates, CRATE) {
        none if none.is_empty() => Err("rustdoc's JSON has an unsupported format".to_owned()),
        lines => Ok(lines),
    }
}

fn parse(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// Finds removed and added lines.
fn changes(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let removed = before.difference(after).map(|line| format!("- {line}"));
    removed.chain(after.difference(before).map(|line| format!("+ {line}"))).collect()
}

/// Finds changes that can break a program: removed lines, and new parts of items that other crates may match
/// exhaustively.
fn find_breaking_changes(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let closed = |line: &str| {
        let (kind, rest) = line.split_once(' ').unwrap_or_default();
        let path = match kind {
            "field" => rest.split_once(": ").and_then(|(path, _)| path.rsplit_once('.')),
            "variant" => rest.split(' ').next().and_then(|path| path.rsplit_once("::")),
            "required" => return true,
            _ => None,
        };
        path.is_some_and(|(owner, _)| {
            let owns = |line: &&String| line.split(['<', ' ']).nth(1) == Some(owner);
            let owner = before.iter().find(|line| {
                owns(line) && ["struct ", "enum ", "variant "].iter().any(|k| line.starts_with(k))
            });
            owner.is_some_and(|owner| !owner.ends_with("#[non_exhaustive]"))
        })
    };
    let removed = before.difference(after).map(|line| format!("- {line}"));
    let added = after.difference(before).filter(|line| closed(line));
    removed.chain(added.map(|line| format!("+ {line}"))).collect()
}

/// Compares the interface with the snapshot of the newest release, if there is one.
fn check_version(root: &Path, now: &BTreeSet<String>) -> TaskResult {
    let tags = output(&mut command(root, "git", &["tag", "--list", "v*", "--sort=-v:refname"]))?;
    let Some(tag) = tags.lines().next() else {
        println!("api: SKIPPED: no release is tagged, so there is no interface to compare with");
        return Ok(());
    };
    let show = |path: &str| output(&mut command(root, "git", &["show", &format!("{tag}:{path}")]));
    let (Ok(stored), Ok(released)) = (show(SNAPSHOT), show("Cargo.toml")) else {
        println!("api: SKIPPED: {tag} has no {SNAPSHOT}");
        return Ok(());
    };
    let broken = find_breaking_changes(&parse(&stored), now);
    let released = released.parse().map_err(|error| format!("{tag}: Cargo.toml: {error}"))?;
    let (before, after) =
        (version(&released)?, version(&manifest::read_toml(&root.join("Cargo.toml"))?)?);
    if !broken.is_empty() && after <= before {
        return Err(format!(
            "{} changes since {tag} can break programs: raise the version in Cargo.toml\n{}",
            broken.len(),
            broken.join("\n")
        ));
    }
    println!("api: {} breaking changes since {tag}", broken.len());
    Ok(())
}

/// The part of the workspace's version that a breaking change must raise: the first number above zero, and its index.
fn version(manifest: &toml::Table) -> Result<(u64, u64), String> {
    let version = manifest::version(manifest)?;
    let mut numbers = version.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok(if major > 0 { (major, 0) } else { (0, minor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustively_matchable_items_must_not_grow() {
        let before = parse(
            "enum m::Closed\nvariant m::Closed::A\nenum m::Open #[non_exhaustive]\nstruct m::S<T>\n\
             field m::S.a: u8\nfn m::f()\n",
        );
        let with = |line: &str| before.iter().cloned().chain([line.to_owned()]).collect();
        for line in ["variant m::Closed::B", "field m::S.b: u8", "required fn m::T::g(self: &Self)"]
        {
            assert_eq!(find_breaking_changes(&before, &with(line)), [format!("+ {line}")]);
        }
        for line in ["variant m::Open::B", "fn m::g()", "struct m::New", "field m::New.a: u8"] {
            assert!(find_breaking_changes(&before, &with(line)).is_empty(), "{line}");
        }
        let mut less = before.clone();
        less.remove("fn m::f()");
        assert_eq!(find_breaking_changes(&before, &less), ["- fn m::f()"]);
        assert_eq!(changes(&before, &with("fn m::g()")), ["+ fn m::g()"]);
    }

    #[test]
    fn a_breaking_change_raises_the_minor_version_before_one() {
        let of = |text: &str| {
            let manifest = format!("[workspace.package]\nversion = '{text}'").parse();
            version(&manifest.expect("valid TOML")).expect("a version")
        };
        assert!(of("0.3.0") > of("0.2.9") && of("0.2.1") == of("0.2.0"));
        assert!(of("1.0.0") > of("0.9.0") && of("1.4.0") == of("1.0.0"));
    }

    #[test]
    fn names_at_the_root_are_counted_once() {
        let lines = parse("mod m\nmod m::a\nstruct m::S<T>\nfn m::S::new()\nuse m::b = x::b\n");
        let names = surface::root_names(&lines, "m");
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["S", "a", "b"]);
    }
}
