//! Repository checks: applies the rules of `checks` to the files that git knows, then the rules for whole crates.

use std::fs;
use std::path::Path;

use crate::TaskResult;
use crate::checks::{self, FILE_LINES_AIM};
use crate::deps::PURE_CRATES;
use crate::manifest::{self, Crate};
use crate::names;
use crate::parameters;
use crate::phrases;
use crate::run;

const TEXT_ENDINGS: &[&str] =
    &["rs", "toml", "md", "lock", "sh", "yml", "yaml", "txt", "run", "service", "py"];

/// Bans that a pure crate's clippy.toml must have.
const PURE_BANS: &[(&str, &[&str])] = &[
    ("disallowed-methods", &["std::time::Instant::now", "std::time::SystemTime::now"]),
    (
        "disallowed-types",
        &["std::time::Instant", "std::time::SystemTime", "std::collections::HashSet"],
    ),
];
const SIZE_LIMITS: &[(&str, i64)] = &[
    ("too-many-lines-threshold", 70),
    ("too-many-arguments-threshold", 6),
    ("excessive-nesting-threshold", 6),
];

/// Words that a module header must not begin with: its first sentence is a noun phrase for the module.
const HEADER_OPENINGS: &[&str] = &["What", "Who", "Whether", "How", "Where", "When", "Why"];

/// Fails with a list of all findings. Long but allowed files are only listed.
pub(crate) fn check(root: &Path) -> TaskResult {
    let mut wrong = Vec::new();
    let mut long = Vec::new();
    let listed = list_files(root)?;
    for path in &listed {
        // Other files, and files that were removed without a commit, are skipped.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let ending = Path::new(path).extension().and_then(|ending| ending.to_str()).unwrap_or("");
        if ending.is_empty() || TEXT_ENDINGS.contains(&ending) {
            let found = checks::text(path, &text);
            wrong.extend(found.iter().map(|f| format!("{path}:{}: {}", f.line, f.message)));
            let found = phrases::check(path, &text);
            wrong.extend(found.iter().map(|f| format!("{path}:{}: {}", f.line, f.message)));
            wrong.extend(find_missing_pages(root, path, &text));
        }
        if ending == "rs" {
            let found = checks::rust(path, &text);
            wrong.extend(found.iter().map(|f| format!("{path}:{}: {}", f.line, f.message)));
            wrong.extend(find_header_opening(path, &text));
            wrong.extend(find_tuple_parameters(path, &text));
            let lines = text.lines().count();
            if (FILE_LINES_AIM + 1..=checks::FILE_LINES_MAX).contains(&lines) {
                long.push(format!("{lines:5} {path}"));
            }
        }
        if ending == "md" {
            wrong.extend(find_dead_links(root, path, &text));
        }
    }
    for of in manifest::workspace_crates(root)? {
        wrong.extend(check_crate_rules(root, &of)?);
    }
    wrong.extend(find_unlisted_pages(root, &listed));
    wrong.extend(names::check(root));
    if !long.is_empty() {
        long.sort_unstable_by(|a, b| b.cmp(a));
        println!(
            "tidy: files longer than the target of {FILE_LINES_AIM} lines:\n{}",
            long.join("\n")
        );
    }
    if wrong.is_empty() {
        println!("tidy: {} files", listed.len());
        return Ok(());
    }
    Err(format!("{} findings\n{}", wrong.len(), wrong.join("\n")))
}

/// Files that git tracks, or would track after `git add`.
fn list_files(root: &Path) -> Result<Vec<String>, String> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = run::output(&mut run::command(root, "git", &arguments))?;
    let mut files: Vec<String> = listed.lines().map(str::to_string).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

fn find_tuple_parameters(path: &str, text: &str) -> Vec<String> {
    let found = parameters::tuples(text).unwrap_or_else(|error| vec![error]);
    found.into_iter().map(|message| format!("{path}: {message}")).collect()
}

/// Finds a module header that opens with a question word.
fn find_header_opening(path: &str, text: &str) -> Option<String> {
    let (index, line) = text.lines().enumerate().find(|(_, line)| line.starts_with("//!"))?;
    let opening = line["//!".len()..].split_whitespace().next()?;
    let word = opening.split(|c: char| !c.is_alphanumeric()).next()?;
    HEADER_OPENINGS.contains(&word).then(|| {
        let line = index + 1;
        format!(
            "{path}:{line}: the module header must open with a noun phrase, not with \"{word}\""
        )
    })
}

/// Links to missing files, and to missing headings of existing files.
fn find_dead_links(root: &Path, path: &str, text: &str) -> Vec<String> {
    let page = root.join(path);
    let folder = page.parent().unwrap_or(root);
    let mut dead = Vec::new();
    for link in checks::links(text) {
        let target = if link.path.is_empty() { page.clone() } else { folder.join(link.path) };
        let (line, shown) = (link.line, link.path);
        if !target.exists() {
            dead.push(format!("{path}:{line}: no such file: {shown}"));
        } else if let Some(part) = link.part
            && target.extension().is_some_and(|ending| ending == "md")
        {
            let there = fs::read_to_string(&target).unwrap_or_default();
            if !checks::heading_anchors(&there).iter().any(|anchor| anchor == part) {
                dead.push(format!("{path}:{line}: no such heading: {shown}#{part}"));
            }
        }
    }
    dead
}

/// Missing pages that a file names by their path from the root.
fn find_missing_pages(root: &Path, path: &str, text: &str) -> Vec<String> {
    checks::find_named_pages(text)
        .into_iter()
        .filter(|(_, page)| !root.join(page).exists())
        .map(|(line, page)| format!("{path}:{line}: no such page: {page}"))
        .collect()
}

/// Pages that are missing from the list of their folder or, if it has none, from the list of all sections.
fn find_unlisted_pages(root: &Path, files: &[String]) -> Vec<String> {
    const INDEX: &str = "README.md";
    let mut unlisted = Vec::new();
    let pages = files.iter().filter(|path| path.starts_with("docs/") && path.ends_with(".md"));
    for path in pages.filter(|path| root.join(path).exists() && *path != "docs/README.md") {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let own = format!("{folder}/{INDEX}");
        let (list, link) = match name != INDEX && root.join(&own).exists() {
            true => (own, name),
            false => (format!("docs/{INDEX}"), path.strip_prefix("docs/").unwrap_or(path)),
        };
        let text = fs::read_to_string(root.join(&list)).unwrap_or_default();
        if !checks::links(&text).iter().any(|found| found.path == link) {
            unlisted.push(format!("{path}: not listed in {list}"));
        }
    }
    unlisted
}

fn check_crate_rules(root: &Path, of: &Crate) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    let dir = of.dir.strip_prefix(root).unwrap_or(&of.dir).display();
    if !of.workspace_lints {
        wrong.push(format!("{dir}/Cargo.toml:1: needs [lints] workspace = true"));
    }
    let pure = PURE_CRATES.contains(&of.name.as_str());
    for root_file in ["src/lib.rs", "src/main.rs"] {
        let Ok(text) = fs::read_to_string(of.dir.join(root_file)) else { continue };
        if !text.starts_with("//!") {
            wrong.push(format!("{dir}/{root_file}:1: does not begin with //! documentation"));
        }
        if pure && !text.contains("#![forbid(unsafe_code)]") {
            wrong.push(format!(
                "{dir}/{root_file}:1: #![forbid(unsafe_code)] is missing, which a pure crate needs"
            ));
        }
    }
    // Clippy reads only the nearest clippy.toml, so a crate's file replaces the workspace's.
    let own = of.dir.join("clippy.toml");
    if pure && !own.is_file() {
        wrong.push(format!("{dir}: clippy.toml with the bans for a pure crate is missing"));
    }
    if own.is_file() {
        let config = manifest::read_toml(&own)?;
        let missing = find_clippy_gaps(&config, pure);
        wrong.extend(missing.into_iter().map(|gap| format!("{dir}/clippy.toml:1: {gap}")));
    }
    Ok(wrong)
}

fn find_clippy_gaps(config: &toml::Table, pure: bool) -> Vec<String> {
    let mut gaps = Vec::new();
    for (key, limit) in SIZE_LIMITS {
        if config.get(*key).and_then(toml::Value::as_integer).is_none_or(|set| set > *limit) {
            gaps.push(format!("{key} must be at most {limit}"));
        }
    }
    for (list, banned) in PURE_BANS.iter().filter(|_| pure) {
        let entries = config.get(*list).and_then(toml::Value::as_array);
        let paths: Vec<&str> = entries.into_iter().flatten().filter_map(banned_path).collect();
        let missing = banned.iter().filter(|path| !paths.contains(path));
        gaps.extend(missing.map(|path| format!("{list} lacks {path}")));
    }
    gaps
}

fn banned_path(entry: &toml::Value) -> Option<&str> {
    entry.as_str().or_else(|| entry.get("path")?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLETE: &str = "too-many-lines-threshold = 70\ntoo-many-arguments-threshold = 6\n\
        excessive-nesting-threshold = 4\n\
        disallowed-methods = ['std::time::Instant::now', 'std::time::SystemTime::now']\n\
        disallowed-types = [{ path = 'std::time::Instant' }, 'std::time::SystemTime',\
        'std::collections::HashSet']";

    fn gaps(config: &str, pure: bool) -> usize {
        find_clippy_gaps(&config.parse().expect("valid TOML"), pure).len()
    }

    #[test]
    fn a_module_header_opens_with_a_noun_phrase() {
        let found = |text: &str| find_header_opening("src/a.rs", text);
        let message =
            "src/a.rs:2: the module header must open with a noun phrase, not with \"What\"";
        assert_eq!(found("// License.\n//! What a queue holds.\n"), Some(message.to_string()));
        for word in HEADER_OPENINGS {
            assert!(found(&format!("//! {word}: a queue.\n")).is_some());
        }
        assert_eq!(found("//! Queue of a subflow.\n//! What it holds is bounded.\n"), None);
        assert_eq!(found("//! Whole segments, queued.\n"), None);
        assert_eq!(found("//! `When`, a point in time.\n"), None);
        assert_eq!(found("/// What it holds.\nstruct Queue;\n"), None);
    }

    #[test]
    fn a_pure_crate_must_ban_clocks_and_hash_order() {
        assert_eq!(gaps(COMPLETE, true), 0);
        assert_eq!(gaps(&COMPLETE.replace("std::time::Instant::now", "x"), true), 1);
        assert_eq!(gaps(&COMPLETE.replace("HashSet", "X"), true), 1);
        assert_eq!(gaps(&COMPLETE.replace("HashSet", "X"), false), 0);
    }

    #[test]
    fn a_crate_may_tighten_the_sizes_but_not_loosen_them() {
        assert_eq!(gaps(&COMPLETE.replace("= 70", "= 50"), true), 0);
        assert_eq!(gaps(&COMPLETE.replace("= 70", "= 90"), true), 1);
    }
}
