//! Tables of requirements: docs/spec/rfcNNNN.toml lists the requirements of a document, with the code that implements
//! each and the test that checks it.
//!
//! A row is covered if its code and test are named and exist, and if the requirement has a source other than
//! memory. A row without them must give a reason. If the source is the kernel's code, `seen` names the function
//! and file, and `--kernel DIR` looks them up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::TaskResult;
use crate::manifest::TREES;

const TABLES: &str = "docs/spec";
const PAGE: &str = "docs/spec/README.md";
const BEGIN: &str = "<!-- spec: generated -->\n";
const END: &str = "<!-- spec: end -->";
const LEVELS: [&str; 3] = ["MUST", "SHOULD", "MAY"];
/// Sources of a requirement. A decision of the project needs no other source.
const SOURCES: [&str; 7] =
    ["kernel-source", "kernel", "capture", "tshark", "packetdrill", "decision", "memory"];

/// A table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    requirement: Vec<Requirement>,
}

/// A row of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    id: String,
    level: String,
    text: String,
    source: Vec<String>,
    /// Functions in the kernel's source.
    #[serde(default)]
    seen: Vec<String>,
    #[serde(default)]
    code: Vec<String>,
    #[serde(default)]
    test: Vec<String>,
    reason: Option<String>,
}

/// Status of a row.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum RowStatus {
    Covered,
    /// The code deviates, with a reason.
    Excepted,
    /// The row has no source other than memory.
    Memory,
}

impl Requirement {
    fn status(&self) -> RowStatus {
        if self.source.iter().all(|source| source == "memory") {
            RowStatus::Memory
        } else if self.reason.is_some() {
            RowStatus::Excepted
        } else {
            RowStatus::Covered
        }
    }
}

/// Totals of a table.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Totals {
    lines: usize,
    covered: usize,
    excepted: usize,
    memory: usize,
}

/// Checks every table and the totals in the page. Prints nothing on success.
pub(crate) fn check(root: &Path) -> TaskResult {
    let tables = load(root)?;
    let complaints = complaints(root, &tables)?;
    if !complaints.is_empty() {
        return Err(format!("requirements:\n  {}", complaints.join("\n  ")));
    }
    let page = std::fs::read_to_string(root.join(PAGE)).map_err(|e| format!("{PAGE}: {e}"))?;
    if !page.contains(&section(&tables)) {
        return Err(format!(
            "{PAGE}: the totals differ from the tables: run cargo xtask spec --write"
        ));
    }
    Ok(())
}

/// Prints the tables. `--write` updates the totals on the page; `--kernel DIR` looks up the cited functions in the
/// kernel's source.
pub(crate) fn print(root: &Path, arguments: &[String]) -> TaskResult {
    let tables = load(root)?;
    for (name, table) in &tables {
        println!("{name}: {}", table.title);
        for line in &table.requirement {
            let mark = match line.status() {
                RowStatus::Covered => "covered",
                RowStatus::Excepted => "EXCEPT",
                RowStatus::Memory => "memory",
            };
            let Requirement { id, level, text, source, reason, .. } = line;
            println!("  {mark:<7} {id:<22} {level:<6} {text} [{}]", source.join(", "));
            if let Some(reason) = reason {
                println!("          {:<22} because: {reason}", "");
            }
        }
    }
    println!("{}", rows(&tables));
    match arguments {
        [] => {}
        [write_it] if write_it == "--write" => write(root, &tables)?,
        [kernel, folder] if kernel == "--kernel" => {
            look_up_kernel_functions(Path::new(folder), &tables)?
        }
        _ => return Err("expected --write or --kernel DIR".to_owned()),
    }
    check(root)
}

/// Looks up every cited function of the kernel.
fn look_up_kernel_functions(kernel: &Path, tables: &BTreeMap<String, Table>) -> TaskResult {
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    let mut missing = Vec::new();
    let mut found = 0;
    for (name, table) in tables {
        for (line, place) in table
            .requirement
            .iter()
            .flat_map(|line| line.seen.iter().map(move |place| (line, place)))
        {
            let (file, item) = place.split_once(':').unwrap_or((place, ""));
            let text = texts
                .entry(file)
                .or_insert_with(|| std::fs::read_to_string(kernel.join(file)).unwrap_or_default());
            if has_word(text, item) {
                found += 1;
            } else {
                missing.push(format!("{name} {}: `{place}` was not found", line.id));
            }
        }
    }
    println!("found {found} locations in the kernel source");
    if missing.is_empty() { Ok(()) } else { Err(missing.join("\n")) }
}

fn write(root: &Path, tables: &BTreeMap<String, Table>) -> TaskResult {
    let path = root.join(PAGE);
    let page = std::fs::read_to_string(&path).map_err(|e| format!("{PAGE}: {e}"))?;
    let cut = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{}{after}", section(tables)))
    });
    let text = cut.ok_or_else(|| format!("{PAGE}: missing marker `{}`", BEGIN.trim_end()))?;
    std::fs::write(&path, text).map_err(|error| format!("{PAGE}: {error}"))
}

fn load(root: &Path) -> Result<BTreeMap<String, Table>, String> {
    let folder = root.join(TABLES);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{TABLES}: {error}"))?;
    let mut tables = BTreeMap::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
        let table = toml::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
        tables.insert(name, table);
    }
    Ok(tables)
}

/// All errors of the tables.
fn complaints(root: &Path, tables: &BTreeMap<String, Table>) -> Result<Vec<String>, String> {
    let tests = find_tests(root)?;
    let mut complaints = Vec::new();
    for (name, table) in tables {
        let mut ids = BTreeSet::new();
        for line in &table.requirement {
            let mut complain =
                |words: String| complaints.push(format!("{name} {}: {words}", line.id));
            if !ids.insert(&line.id) {
                complain("duplicate id".to_owned());
            }
            if !LEVELS.contains(&line.level.as_str()) {
                complain(format!("unknown level `{}`", line.level));
            }
            if line.source.is_empty() {
                complain("the source is missing (use `memory` if there is none)".to_owned());
            }
            for source in line.source.iter().filter(|source| !SOURCES.contains(&source.as_str())) {
                complain(format!("unknown source `{source}`"));
            }
            let by_kernel_source = line.source.iter().any(|source| source == "kernel-source");
            if by_kernel_source == line.seen.is_empty() {
                complain(
                    "source `kernel-source` without `seen` (a file and a function), or `seen` without it"
                        .to_owned(),
                );
            }
            for place in line
                .seen
                .iter()
                .filter(|place| ![".c:", ".h:"].iter().any(|end| place.contains(end)))
            {
                complain(format!("`{place}` is not a location in the kernel's source"));
            }
            if line.reason.is_none() && (line.code.is_empty() || line.test.is_empty()) {
                complain("code and test are missing, and no reason is given".to_owned());
            }
            for code in &line.code {
                find(root, code).unwrap_or_else(&mut complain);
            }
            for test in line.test.iter().filter(|test| !tests.contains(*test)) {
                complain(format!("test `{test}` does not exist"));
            }
        }
    }
    Ok(complaints)
}

/// Checks that an item or field exists: `core/connection/join.rs:accept_join` is in crates/marline-core/src.
fn find(root: &Path, code: &str) -> Result<(), String> {
    let (file, item) = code
        .split_once(':')
        .ok_or_else(|| format!("`{code}` does not name an item; expected crate/file.rs:item"))?;
    let (part, rest) = file
        .split_once('/')
        .ok_or_else(|| format!("`{code}` does not name a file; expected crate/file.rs:item"))?;
    let path: PathBuf = root.join(format!("crates/marline-{part}/src")).join(rest);
    let text = std::fs::read_to_string(&path).map_err(|_| format!("there is no file `{file}`"))?;
    let declared = |line: &str| {
        let is_item = ["fn", "struct", "enum", "const", "trait", "type"]
            .into_iter()
            .any(|kind| has_word(line, &format!("{kind} {item}")));
        is_item || has_word(line, item) && line.contains(&format!("{item}: "))
    };
    if text.lines().any(declared) { Ok(()) } else { Err(format!("`{file}` has no item `{item}`")) }
}

/// Returns true if the text contains the words as whole words.
fn has_word(text: &str, words: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !words.is_empty()
        && text.match_indices(words).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let behind = text[at + words.len()..].chars().next();
            !inside(before) && !inside(behind)
        })
}

/// Every Rust file below a folder.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> TaskResult {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Names of all tests.
fn find_tests(root: &Path) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    let mut files = Vec::new();
    for folder in TREES.iter().chain(&["xtask/src"]) {
        rust_files(&root.join(folder), &mut files)?;
    }
    for file in files {
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut announced = false;
        for line in text.lines().map(str::trim_start) {
            if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "))
            {
                let end =
                    rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                if announced {
                    names.insert(rest[..end].to_owned());
                }
                announced = false;
            } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                announced = true;
            }
        }
    }
    Ok(names)
}

fn totals(table: &Table) -> Totals {
    let mut totals = Totals { lines: table.requirement.len(), ..Totals::default() };
    for line in &table.requirement {
        match line.status() {
            RowStatus::Covered => totals.covered += 1,
            RowStatus::Excepted => totals.excepted += 1,
            RowStatus::Memory => totals.memory += 1,
        }
    }
    totals
}

fn rows(tables: &BTreeMap<String, Table>) -> String {
    let mut text = "| table | document | lines | covered | with a reason | from memory only |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    for (name, table) in tables {
        let Totals { lines, covered, excepted, memory } = totals(table);
        let title = &table.title;
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| [{name}]({name}) | {title} | {lines} | {covered} | {excepted} | {memory} |"
        );
    }
    text
}

fn section(tables: &BTreeMap<String, Table>) -> String {
    format!("{BEGIN}\n{}\n{END}", rows(tables))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Requirement {
        toml::from_str(text).expect("a requirement")
    }

    #[test]
    fn memory_and_exceptions_are_not_covered() {
        let with = |source: &str, more: &str| {
            line(&format!("id='a'\nlevel='MUST'\ntext='t'\nsource=[{source}]\n{more}"))
        };
        assert_eq!(with("'kernel'", "").status(), RowStatus::Covered);
        assert_eq!(with("'kernel'", "reason='so'").status(), RowStatus::Excepted);
        assert_eq!(with("'memory'", "reason='so'").status(), RowStatus::Memory);
        assert_eq!(with("'memory','tshark'", "").status(), RowStatus::Covered);
    }

    #[test]
    fn missing_and_duplicate_spec_entries_are_reported() {
        let root = crate::workspace_root();
        let table = |text: &str| Table {
            title: "t".to_owned(),
            requirement: text.split(';').map(line).collect(),
        };
        let head = "id='a'\nlevel='MUST'\ntext='t'\nsource=['kernel']\n";
        let good =
            "code=['core/crypto.rs:join_hmac']\ntest=['memory_and_exceptions_are_not_covered']";
        let cases = [
            (format!("{head}{good}"), ""),
            (format!("{head}{good};{head}{good}"), "duplicate id"),
            (head.to_owned(), "code and test are missing"),
            (format!("{head}code=['core/nowhere.rs:join']\ntest=['x']"), "no file"),
            (format!("{head}code=['core/connection']\ntest=['x']"), "does not name an item"),
            (format!("{head}code=['core/crypto.rs:join_hma']\ntest=['x']"), "no item"),
            (format!("{head}code=['core/crypto.rs:nothing_here']\ntest=['x']"), "no item"),
            (
                format!("{head}code=['core/crypto.rs:derive']\ntest=['no_such_test']"),
                "does not exist",
            ),
            (head.replace("kernel", "kernel-source") + good, "without `seen`"),
            (format!("{head}seen=['net/a.c:b']\n{good}"), "without `seen`"),
            (
                head.replace("kernel", "kernel-source") + "seen=['net']\n" + good,
                "is not a location",
            ),
            (head.replace("kernel", "hearsay") + good, "unknown source"),
        ];
        for (text, expected) in cases {
            let tables = BTreeMap::from([("t.toml".to_owned(), table(&text))]);
            let complaints = complaints(&root, &tables).expect("readable").join("; ");
            assert_eq!(complaints.is_empty(), expected.is_empty(), "{text}: {complaints}");
            assert!(complaints.contains(expected), "{text}: {complaints}");
        }
    }
}
