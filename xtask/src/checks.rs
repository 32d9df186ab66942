//! Rules that `tidy` applies to one file: each takes the file's text and returns its findings.

use std::iter;

use crate::source;

/// Maximum length of a source file in lines. A longer file covers two subjects.
pub(crate) const FILE_LINES_MAX: usize = 600;
/// Exceptions: a file that defines the order of events covers one subject, and separate files that share its state
/// would be harder to follow.
const LONG_FILES: &[&str] = &[
    "crates/marline-core/src/connection.rs",
    "crates/marline-core/src/connection/subflow_context.rs",
    "crates/marline-core/src/connection/sender.rs",
];
/// Length above which a file is reported, but does not fail the check.
pub(crate) const FILE_LINES_AIM: usize = 400;
/// Maximum length of a function body in lines of code. Clippy's `too_many_lines` has the same limit, but an attribute
/// silences it, and it does not check crates outside the workspace.
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum line length. rustfmt limits code to 100; this limit is for comments, tables and strings.
const LINE_CHARS_MAX: usize = 120;

/// Macros for unfinished work and for debugging.
const FORBIDDEN_MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];
/// File names that do not describe the contents.
const FORBIDDEN_FILE_NAMES: &[&str] =
    &["utils.rs", "util.rs", "helpers.rs", "helper.rs", "misc.rs", "common.rs"];
/// Paths that are specific to a developer's machine, written in two halves so that this file passes.
const MACHINE_PATHS: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Use", "rs/"),
    concat!("/tmp/", "target"),
    concat!("/tmp/", "brief"),
];

/// A violation of a rule in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Line, from 1.
    pub(crate) line: usize,
    pub(crate) message: String,
}

pub(crate) fn finding(line: usize, message: impl Into<String>) -> Finding {
    Finding { line, message: message.into() }
}

/// Rules for any text file.
pub(crate) fn text(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.ends_with([' ', '\t', '\r']) {
            found.push(finding(number, "trailing spaces"));
        }
        for fragment in MACHINE_PATHS.iter().filter(|fragment| contains_path(line, fragment)) {
            found.push(finding(number, format!("a path specific to one machine: {fragment}")));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found.push(finding(text.lines().count(), "no newline at the end of the file"));
    }
    if path.ends_with("Cargo.lock") {
        found.extend(find_foreign_sources(text));
    }
    found
}

/// Returns true if `fragment` occurs at the beginning of a path, unlike in `crates/x/homework/`.
fn contains_path(line: &str, fragment: &str) -> bool {
    line.match_indices(fragment).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '~' | '}'))
    })
}

/// Finds crates from sources other than the public index, because a mirror's name in the lock file breaks builds on
/// other machines.
fn find_foreign_sources(lock: &str) -> Vec<Finding> {
    let official = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    lock.lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with("source = ") && *line != official)
        .map(|(index, line)| {
            finding(index + 1, format!("source is not the public registry: {line}"))
        })
        .collect()
}

/// Rules for Rust source.
pub(crate) fn rust(path: &str, text: &str) -> Vec<Finding> {
    let blanked = source::blank(text);
    let mut found = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX && !LONG_FILES.contains(&path) {
        let message =
            format!("{lines} lines, at most {FILE_LINES_MAX} allowed: split the file by subject");
        found.push(finding(lines, message));
    }
    let file_name = path.rsplit('/').next().unwrap_or(path);
    if FORBIDDEN_FILE_NAMES.contains(&file_name) {
        found.push(finding(1, "the file name does not describe its contents"));
    }
    for function in source::functions(&blanked) {
        if function.code_lines > FUNCTION_LINES_MAX {
            let (name, lines) = (&function.name, function.code_lines);
            let message =
                format!("fn {name}: {lines} lines of code, at most {FUNCTION_LINES_MAX} allowed");
            found.push(finding(function.line, message));
        }
    }
    for (index, (line, code)) in text.lines().zip(blanked.lines()).enumerate() {
        let number = index + 1;
        if line.chars().count() > LINE_CHARS_MAX {
            found.push(finding(number, format!("more than {LINE_CHARS_MAX} characters")));
        }
        if line.contains('\t') {
            found.push(finding(number, "a tab: write four spaces, or \\t in a string"));
        }
        for name in FORBIDDEN_MACROS.iter().filter(|name| has_macro(code, name)) {
            found.push(finding(number, format!("{name} is not allowed in the tree")));
        }
    }
    found
}

fn has_macro(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        !code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// A relative link of a Markdown file: `[text](path#part)`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    /// Line, from 1.
    pub(crate) line: usize,
    /// Path of the file. Empty for the page itself.
    pub(crate) path: &'a str,
    /// A heading, in the form of [`heading_anchors`].
    pub(crate) part: Option<&'a str>,
}

/// Relative links of a Markdown file, outside of code blocks.
pub(crate) fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (line, mut rest) in lines_outside_code(text) {
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = rest[..end].split(' ').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                let (path, part) = match target.split_once('#') {
                    Some((path, part)) => (path, Some(part)),
                    None => (target, None),
                };
                found.push(Link { line, path, part });
            }
            rest = &rest[end..];
        }
    }
    found
}

/// Possible link targets in a Markdown file: its headings in GitHub's anchor form.
pub(crate) fn heading_anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, line) in lines_outside_code(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        // Only the text of a link in a heading counts.
        let shown = strip_link_targets(heading.trim());
        let kept = shown.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let name = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let again = found.iter().filter(|known| **known == name).count();
        found.push(if again == 0 { name } else { format!("{name}-{again}") });
    }
    found
}

/// A heading without the targets of its links.
fn strip_link_targets(heading: &str) -> String {
    let mut pieces = heading.split("](");
    let first = pieces.next().unwrap_or_default();
    let behind = pieces.map(|piece| piece.split_once(')').map_or(piece, |(_, after)| after));
    iter::once(first).chain(behind).collect()
}

/// Lines outside of code blocks, with their numbers.
fn lines_outside_code(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut kept = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            kept.push((index + 1, line));
        }
    }
    kept
}

/// Pages that a text names by their path from the root (`docs/README.md`), with their lines: in comments, messages of
/// programs, and URLs of this project. `docs/research/papers/KEY.md` is a pattern and not a page.
pub(crate) fn find_named_pages(text: &str) -> Vec<(usize, &str)> {
    const ENDINGS: [&str; 4] = [".md", ".toml", ".svg", ".html"];
    let in_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("docs/") {
            // Otherwise this is a path in another tree.
            let before = &line[..at];
            let from_root = !before.ends_with(in_path)
                || before.ends_with("../")
                || before.ends_with("/blob/main/");
            let rest = &line[at..];
            let path = rest.split(|c| !in_path(c)).next().unwrap_or_default();
            let complete = !rest[path.len()..].starts_with(['*', '{', '<']);
            let path = path.trim_end_matches('.');
            let name = path.rsplit('/').next().unwrap_or_default();
            let a_page = ENDINGS.iter().any(|ending| name.ends_with(ending));
            let a_pattern = name != "README.md" && name.contains(|c: char| c.is_ascii_uppercase());
            if from_root && complete && a_page && !a_pattern {
                found.push((index + 1, path));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(found: &[Finding]) -> String {
        found.iter().map(|f| format!("{}:{}\n", f.line, f.message)).collect()
    }

    #[test]
    fn blanks_machine_paths_and_a_missing_newline_are_found() {
        let bad = format!("ok\nblank \nsee {}x\nlast", MACHINE_PATHS[0]);
        let found = text("README.md", &bad);
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(text("a.md", "fine\nsrc/homework/x ~/work/y frame/work/\n"), []);
    }

    #[test]
    fn a_mirror_in_the_lock_file_is_found() {
        let lock = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
                    source = \"sparse+https://mirror.example/index/\"\n";
        assert_eq!(text("Cargo.lock", lock).len(), 1);
        assert_eq!(text("other.txt", lock), []);
    }

    #[test]
    fn sizes_are_limited() {
        let long_file = "// x\n".repeat(FILE_LINES_MAX + 1);
        assert!(messages(&rust("src/a.rs", &long_file)).contains("601 lines"));
        assert_eq!(rust("src/a.rs", &"// x\n".repeat(FILE_LINES_MAX)), []);
        let body = |lines| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines));
        assert!(messages(&rust("src/a.rs", &body(71))).starts_with("1:fn f: 71 lines"));
        assert_eq!(rust("src/a.rs", &body(70)), []);
    }

    #[test]
    fn unfinished_work_is_found_only_in_code() {
        let code = format!("fn f() {{ {}() }}\n", FORBIDDEN_MACROS[0]);
        assert_eq!(rust("src/a.rs", &code).len(), 1);
        let comment = format!("// {} is forbidden\n", FORBIDDEN_MACROS[0]);
        assert_eq!(rust("src/a.rs", &comment), []);
        assert_eq!(rust("src/a.rs", "fn f() { my_todo!() }\n"), []);
        assert_eq!(rust("src/utils.rs", "").len(), 1);
    }

    #[test]
    fn links_are_read_outside_code_only() {
        let page = "[a](b.md#part) [c](https://x.y) [d](#e)\n```\n[f](g)\n```\n![h](i.svg)\n";
        let link = |line, path, part| Link { line, path, part };
        let expected =
            [link(1, "b.md", Some("part")), link(1, "", Some("e")), link(5, "i.svg", None)];
        assert_eq!(links(page), expected);
    }

    #[test]
    fn headings_are_named_as_in_addresses() {
        let page = "# `marline demo`\n## 8. Stopping, upgrades\n```\n# no\n```\n## A [b](c.md) \
            d\n# x\n# x\n";
        let expected = ["marline-demo", "8-stopping-upgrades", "a-b-d", "x", "x-1"];
        assert_eq!(heading_anchors(page), expected);
    }

    #[test]
    fn pages_are_found_wherever_they_are_named() {
        let page = concat!("do", "cs/a/b.md");
        let lines = [
            format!("// see {page}."),
            format!("\"({page}#c)\" x{page} of/{page} {page}x"),
            format!("https://h.example/marline/blob/main/{page} ../../{page}"),
            page.replace('b', "KEY"),
        ];
        let text = lines.join("\n");
        assert_eq!(find_named_pages(&text), [(1, page), (2, page), (3, page), (3, page)]);
    }
}
