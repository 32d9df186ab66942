//! Size of the tree: lines and files of each part, code excluding tests, comments and blank lines, words of the
//! documents, packages of the program, and its size in bytes.
//!
//! `cargo xtask size` prints the table, `--check` compares it with `xtask/size.toml`, and `--bless` writes that file.
//! Sizes may grow by [`ALLOWED_GROWTH`] before the check fails, so that most changes do not touch the file. Only
//! `--build` compiles for minutes: it measures the CPU time of a cold build of the program, and its stripped size.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::TaskResult;
use crate::run::{command, output, run};

const FILE: &str = "xtask/size.toml";

/// Allowed growth of a size, as a share of the blessed one.
const ALLOWED_GROWTH: f64 = 0.01;

/// Parts of the tree, by folder.
const PARTS: [(&str, &[&str]); 4] = [
    ("product", &["crates/"]),
    ("lab", &["lab/"]),
    ("conformance", &["conformance/"]),
    ("chores", &["xtask/", "fuzz/", "examples/"]),
];

/// Sizes by name.
type Figures = BTreeMap<String, u64>;

pub(crate) fn run_task(root: &Path, arguments: &[String]) -> TaskResult {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let figures = measure(root)?;
    for (name, figure) in &figures {
        println!("{name:<28} {figure:>9}");
    }
    if has("--build") {
        build(root)?;
    }
    if has("--bless") {
        let lines: String =
            figures.iter().map(|(name, figure)| format!("{name:?} = {figure}\n")).collect();
        return fs::write(root.join(FILE), lines).map_err(|error| format!("{FILE}: {error}"));
    }
    if has("--check") { compare(root, &figures) } else { Ok(()) }
}

/// Runs the check as a step of continuous integration.
pub(crate) fn check(root: &Path) -> TaskResult {
    compare(root, &measure(root)?)
}

fn compare(root: &Path, figures: &Figures) -> TaskResult {
    let blessed = crate::manifest::read_toml(&root.join(FILE))?;
    let known = |name: &str| blessed.get(name).and_then(toml::Value::as_integer);
    let grown: Vec<String> = figures
        .iter()
        .filter_map(|(name, figure)| {
            let before = known(name).unwrap_or(0);
            let most = before as f64 * (1.0 + ALLOWED_GROWTH);
            (*figure as f64 > most).then(|| format!("{name}: {figure}, was {before}"))
        })
        .collect();
    if grown.is_empty() {
        return Ok(());
    }
    Err(format!(
        "larger than {FILE} allows: remove code, or run `cargo xtask size --bless`\n{}",
        grown.join("\n")
    ))
}

fn measure(root: &Path) -> Result<Figures, String> {
    let listed = output(&mut command(root, "git", &["ls-files"]))?;
    let mut figures = Figures::new();
    let mut add = |part: &str, what: &str, count: usize| {
        *figures.entry(format!("{part} {what}")).or_default() += count as u64;
    };
    let texts: Vec<(&str, String)> = listed
        .lines()
        .filter(|path| path.ends_with(".rs") || path.ends_with(".md"))
        .filter_map(|path| Some((path, fs::read_to_string(root.join(path)).ok()?)))
        .collect();
    let of_tests: Vec<String> =
        texts.iter().flat_map(|(path, text)| test_module_prefixes(path, text)).collect();
    for (path, text) in &texts {
        let is_rust = path.ends_with(".rs");
        if !is_rust {
            add("documents", "words", text.split_whitespace().count());
            continue;
        }
        let Some((part, _)) =
            PARTS.iter().find(|(_, folders)| folders.iter().any(|folder| path.starts_with(folder)))
        else {
            continue;
        };
        add(part, "files", 1);
        add(part, "lines", text.lines().count());
        if !is_test_only(path) && !of_tests.iter().any(|module| path.starts_with(module)) {
            add(part, "lines of code", count_code_lines(text));
        }
    }
    add("program", "packages", packages(root)?);
    Ok(figures)
}

/// Returns true if a file is compiled only for tests and benchmarks.
fn is_test_only(path: &str) -> bool {
    let folders = ["/tests/", "/benches/", "/examples/"];
    folders.iter().any(|folder| path.contains(folder)) || path.ends_with("/tests.rs")
}

/// Path prefixes of the modules that a file compiles only for tests.
fn test_module_prefixes(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let below = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    };
    let behind = text.split("#[cfg(test)]\n").skip(1);
    let item = |text: &str| text.lines().find(|line| !line.starts_with("#[")).map(str::to_owned);
    let module = |line: String| {
        let (_, name) = line.strip_suffix(';')?.split_once("mod ")?;
        Some([format!("{below}/{name}.rs"), format!("{below}/{name}/")])
    };
    behind.filter_map(item).filter_map(module).flatten().collect()
}

/// Lines with code, excluding those of a test module in the file.
fn count_code_lines(text: &str) -> usize {
    let mut lines = text.lines();
    let mut count = 0;
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        if code.starts_with("#[cfg(test)]") {
            skip_item(&mut lines);
            continue;
        }
        count += 1;
    }
    count
}

/// Skips the item after an attribute, in rustfmt's layout: up to a line that ends it at its own indentation.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let mut indent = None;
    for line in lines {
        let code = line.trim_start();
        if indent.is_none() && (code.starts_with("#[") || code.starts_with("//")) {
            continue;
        }
        let own = *indent.get_or_insert(line.len() - code.len());
        let is_at_edge = line.len() - code.len() == own;
        if is_at_edge && code.ends_with([';', '}', ',']) {
            return;
        }
    }
}

/// Packages that the program depends on.
fn packages(root: &Path) -> Result<usize, String> {
    let arguments = ["tree", "-p", "marline-cli", "-e", "normal", "--prefix", "none", "--locked"];
    // Without this, the colors that continuous integration enables would hide the marker of a repeated package.
    let tree = output(command(root, "cargo", &arguments).env("CARGO_TERM_COLOR", "never"))?;
    let mut names: Vec<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)").split(" (").next().unwrap_or_default().trim())
        .filter(|name| !name.is_empty())
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names.len())
}

/// Measures a cold build of the program with the README's command, in a separate directory.
fn build(root: &Path) -> TaskResult {
    const TARGET: &str = "target/size";
    let _ = fs::remove_dir_all(root.join(TARGET));
    let begun = Instant::now();
    let before = processor_time_s()?;
    let arguments =
        ["build", "--release", "-q", "-p", "marline-cli", "--locked", "--target-dir", TARGET];
    run(&mut command(root, "cargo", &arguments))?;
    let minutes = (processor_time_s()? - before) / 60.0;
    println!("cold build: {minutes:.1} CPU-minutes, {:.0} s", begun.elapsed().as_secs_f64());
    let program = format!("{TARGET}/release/marline");
    run(&mut command(root, "strip", &[&program]))?;
    let bytes = fs::metadata(root.join(&program)).map_err(|error| error.to_string())?.len();
    println!("program, stripped: {:.1} MB", bytes as f64 / 1e6);
    Ok(())
}

/// CPU time of ended child processes in seconds, from columns 16 and 17 of `/proc/self/stat`, in hundredths.
fn processor_time_s() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/self/stat").map_err(|error| error.to_string())?;
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |at: usize| -> Option<f64> { behind_name.split_whitespace().nth(at)?.parse().ok() };
    let sum = ticks(13).zip(ticks(14)).map(|(user, system)| user + system);
    sum.map(|ticks| ticks / 100.0).ok_or_else(|| "cannot parse /proc/self/stat".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_are_not_counted() {
        let text = "//! Head.\n\nuse a;\n/// Says.\nfn f() {\n    g(); // \
            why\n}\n\n#[cfg(test)]\nmod tests {\n    \
                    #[test]\n    fn t() {\n        f();\n    }\n}\nconst A: u8 = 1;\n";
        assert_eq!(count_code_lines(text), 5);
        let outside = "#[cfg(test)]\nmod tests;\nfn f() {}\n";
        assert_eq!(count_code_lines(outside), 1);
        let field = "struct S {\n    #[cfg(test)]\n    seen: u8,\n    at: u8,\n}\n";
        assert_eq!(count_code_lines(field), 3);
    }

    #[test]
    fn test_only_modules_are_recognized_by_their_path() {
        assert!(
            is_test_only("crates/a/tests/it/main.rs") && is_test_only("crates/a/src/b/tests.rs")
        );
        assert!(!is_test_only("crates/a/src/b.rs"));
        let text = "mod a;\n#[cfg(test)]\nmod reference;\n#[cfg(test)]\nfn f() {}\n";
        let below =
            |folder: &str| [format!("{folder}/reference.rs"), format!("{folder}/reference/")];
        assert_eq!(test_module_prefixes("crates/a/src/lib.rs", text), below("crates/a/src"));
        assert_eq!(test_module_prefixes("crates/a/src/b.rs", text), below("crates/a/src/b"));
    }
}
