//! Files and functions that ARCHITECTURE.md names: `CRATE/src/FILE.rs`, `CRATE/src/FILE.rs:FUNCTION`, or `:FUNCTION`
//! in the previously named file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;
use crate::manifest::TREES;

pub(crate) const PAGE: &str = "ARCHITECTURE.md";

/// A code location that the page names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    pub(crate) line: usize,
    pub(crate) krate: &'a str,
    /// Path within the crate's folder.
    pub(crate) file: &'a str,
    pub(crate) function: Option<&'a str>,
}

/// Fails with a list of the locations that do not exist.
pub(crate) fn check(root: &Path) -> TaskResult {
    let text = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let wrong: Vec<String> =
        places(&text).into_iter().filter_map(|place| location_error(root, place)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
}

/// Locations in backticks, outside of fenced blocks.
pub(crate) fn places(text: &str) -> Vec<Place<'_>> {
    let mut found: Vec<Place<'_>> = Vec::new();
    let mut is_fenced = false;
    for (number, line) in text.lines().enumerate() {
        is_fenced ^= line.starts_with("```");
        if is_fenced {
            continue;
        }
        for code in line.split('`').skip(1).step_by(2) {
            let before = found.last().copied().filter(|_| code.starts_with(':'));
            found.extend(match before {
                Some(before) => {
                    Some(Place { line: number + 1, function: Some(&code[1..]), ..before })
                }
                None => parse_location(number + 1, code),
            });
        }
    }
    found
}

fn parse_location(line: usize, code: &str) -> Option<Place<'_>> {
    let (path, function) = match code.split_once(':') {
        Some((path, function)) => (path, Some(function)),
        None => (code, None),
    };
    let (krate, _) = path.split_once("/src/").filter(|_| path.ends_with(".rs"))?;
    Some(Place { line, krate, file: &path[krate.len() + 1..], function })
}

/// The error for a location, with the file that now has its function.
fn location_error(root: &Path, place: Place<'_>) -> Option<String> {
    let Place { line, krate, file, function } = place;
    let Some(folder) = crate_folder(root, krate) else {
        return Some(format!("{PAGE}:{line}: no crate {krate}"));
    };
    let text = fs::read_to_string(folder.join(file)).ok();
    let hint = || function.map(|name| describe_other_locations(&folder, name)).unwrap_or_default();
    match (text, function) {
        (None, _) => Some(format!("{PAGE}:{line}: no file {krate}/{file}{}", hint())),
        (Some(text), Some(name)) if !defines(&text, name) => {
            Some(format!("{PAGE}:{line}: {krate}/{file} defines no `fn {name}`{}", hint()))
        }
        _ => None,
    }
}

/// Folder of a crate.
pub(crate) fn crate_folder(root: &Path, krate: &str) -> Option<PathBuf> {
    TREES.iter().map(|tree| root.join(tree).join(krate)).find(|dir| dir.is_dir())
}

/// Returns true if a file's text defines a function of this name.
fn defines(text: &str, name: &str) -> bool {
    text.match_indices(&format!("fn {name}")).any(|(at, found)| {
        let before = text[..at].chars().next_back();
        let after = text[at + found.len()..].chars().next();
        before.is_none_or(char::is_whitespace) && matches!(after, Some('(' | '<'))
    })
}

/// Files of the crate that define the function.
fn describe_other_locations(folder: &Path, name: &str) -> String {
    let mut files = Vec::new();
    collect(&folder.join("src"), name, &mut files);
    files.sort();
    let shown = files.iter().filter_map(|file| file.strip_prefix(folder.parent()?).ok());
    let shown: Vec<String> = shown.map(|file| file.display().to_string()).collect();
    if shown.is_empty() { String::new() } else { format!("; it is in {}", shown.join(", ")) }
}

fn collect(folder: &Path, name: &str, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, name, files);
        } else if fs::read_to_string(&path).is_ok_and(|text| defines(&text, name)) {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_in_backticks_outside_blocks() {
        let text = "see `a-b/src/c/d.rs:write` and `x/`\n```\n`a/src/b.rs`\n```\n`:read` \
            `a/src/b.rs` `cargo x`\n";
        let write = Place { line: 1, krate: "a-b", file: "src/c/d.rs", function: Some("write") };
        let read = Place { line: 5, function: Some("read"), ..write };
        let file = Place { line: 5, krate: "a", file: "src/b.rs", function: None };
        assert_eq!(places(text), [write, read, file]);
    }

    #[test]
    fn a_function_is_defined_by_its_whole_name() {
        assert!(defines("    pub(crate) fn ack(&mut self)", "ack"));
        assert!(defines("fn ack<T>(x: T)", "ack"));
        assert!(!defines("fn acked()", "ack"));
        assert!(!defines("// calls fn ack", "ack"));
    }

    #[test]
    fn a_moved_function_is_reported_with_its_new_location() {
        let root = crate::workspace_root();
        let moved = |file, function| {
            location_error(
                &root,
                Place { line: 7, krate: "marline-wire", file, function: Some(function) },
            )
        };
        let message = moved("src/lib.rs", "parse").expect("the function is in another file");
        assert!(message.starts_with("ARCHITECTURE.md:7: "), "{message}");
        assert!(message.contains("it is in marline-wire/src/"), "{message}");
        let message = moved("src/gone.rs", "no_such_function").expect("no file");
        assert_eq!(message, "ARCHITECTURE.md:7: no file marline-wire/src/gone.rs");
    }

    #[test]
    fn the_architecture_page_names_existing_files() {
        let root = crate::workspace_root();
        let text = fs::read_to_string(root.join(PAGE)).expect(PAGE);
        assert!(places(&text).len() > 50, "call paths not read");
        assert_eq!(check(&root), Ok(()));
    }
}
