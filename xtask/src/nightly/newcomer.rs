//! First steps of a new user with the pages' commands: in an archive of the tree, with an empty Python
//! environment, and with a policy in a separate crate next to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TaskResult;
use crate::manifest::TREES;
use crate::run::{command, run};

const FOLDER: &str = "target/nightly-newcomer";
const PYTHON_PAGE: &str = "docs/research/python.md";
const TEMPLATE: &str = "examples/outside-policy";
/// Packages that read tables of results and run notebooks, in tested versions.
const READER_PACKAGES: [&str; 6] = [
    "pandas==3.1.1",
    "pyarrow==26.0.1",
    "polars==2.1.0",
    "duckdb==2.0.1",
    "nbclient==0.11.0",
    "ipykernel==7.4.0",
];

/// Installs the Python package as its page says, runs the page and the notebooks, and tests a crate made as
/// docs/research/policies.md says. Compiled files of the previous run are kept.
pub(crate) fn check(root: &Path) -> TaskResult {
    let folder = root.join(FOLDER);
    let tree = archive(root, &folder)?;
    python(&tree, &folder)?;
    test_copied_template(&tree, &folder)
}

/// Unpacks an archive of the tree into a directory `marline`.
fn archive(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    let tree = folder.join("marline");
    let _ = fs::remove_dir_all(&tree);
    fs::create_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    let file = folder.join("tree.tar").display().to_string();
    run(&mut command(root, "git", &["archive", "--output", &file, "HEAD"]))?;
    run(&mut command(&tree, "tar", &["--extract", "--file", &file]))?;
    Ok(tree)
}

fn python(tree: &Path, folder: &Path) -> TaskResult {
    let environment = folder.join("python");
    let made = ["-m", "venv", "--clear", &environment.display().to_string()];
    run(&mut command(folder, "python3", &made))?;
    let page = fs::read_to_string(tree.join(PYTHON_PAGE));
    let page = page.map_err(|error| format!("{PYTHON_PAGE}: {error}"))?;
    for (number, block) in blocks(&page, "sh").into_iter().enumerate() {
        for line in block.lines() {
            run(&mut shell_command(tree, folder, line))?;
            // The installed packages must not come from the tree.
            if number == 0 {
                run(&mut shell_command(
                    folder,
                    folder,
                    "python -I -c 'import marline; print(marline.__file__)'",
                ))?;
            }
        }
    }
    run(&mut shell_command(
        tree,
        folder,
        &format!("pip install -q {}", READER_PACKAGES.join(" ")),
    ))?;
    run(&mut shell_command(folder, folder, "python marline/lab/marline-python/tests/newcomer.py"))
}

/// Creates a shell command with the Python environment.
fn shell_command(place: &Path, folder: &Path, line: &str) -> Command {
    println!("$ {line}");
    let mut shell = command(place, "bash", &["-euo", "pipefail", "-c", line]);
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", folder.join("python/bin").display()));
    shell.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("CARGO_TARGET_DIR", folder.join("target"));
    shell
}

/// Copies the template out of the tree, and tests the copy.
fn test_copied_template(tree: &Path, folder: &Path) -> TaskResult {
    let own = folder.join("outside-policy");
    let _ = fs::remove_dir_all(&own);
    let from = tree.join(TEMPLATE).display().to_string();
    run(&mut command(folder, "cp", &["--recursive", &from, "."]))?;
    let manifest = own.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|error| error.to_string())?;
    fs::write(&manifest, make_local_template(&text)).map_err(|error| error.to_string())?;
    run(&mut shell_command(&own, folder, "cargo test -p outside-policy"))
}

/// The template's manifest for a crate next to a checkout.
fn make_local_template(manifest: &str) -> String {
    TREES.iter().fold(manifest.to_owned(), |text, tree| {
        text.replace(&format!("\"../../{tree}/"), &format!("\"../marline/{tree}/"))
    })
}

/// The code blocks of a page in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    page.split(begin.as_str()).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/research/policies.md");

    /// Reduces white space to single spaces, so that indentation does not matter.
    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn documented_policy_matches_the_template() {
        let source = words(include_str!("../../../examples/outside-policy/src/lib.rs"));
        let code = blocks(PAGE, "rust");
        assert!(code.len() >= 6, "the page has no examples");
        for block in code {
            assert!(source.contains(&words(block)), "not in src/lib.rs:\n{block}");
        }
    }

    #[test]
    fn documented_program_matches_the_template() {
        let source = words(include_str!("../../../examples/outside-policy/src/main.rs"));
        let program = blocks(PAGE, "text").into_iter().find(|block| block.starts_with("fn main()"));
        let program = program.expect("a program");
        assert!(source.contains(&words(program)), "not in src/main.rs:\n{program}");
        assert!(program.lines().count() <= 10);
    }

    #[test]
    fn dependencies_in_the_documentation_match_a_template_next_to_a_checkout() {
        let manifest =
            make_local_template(include_str!("../../../examples/outside-policy/Cargo.toml"));
        let [told] = blocks(PAGE, "toml")[..] else { panic!("the page has one block") };
        let lines = told.lines().map(|line| line.split('#').next().unwrap_or_default().trim_end());
        let lines: Vec<&str> = lines.filter(|line| line.contains(" = ")).collect();
        assert!(lines.len() >= 7, "{told}");
        for line in lines {
            assert!(manifest.lines().any(|mine| mine == line), "not in Cargo.toml: {line}");
        }
    }

    #[test]
    fn documented_commands_match_the_template_tests() {
        let tests = include_str!("../../../examples/outside-policy/tests/mylab.rs");
        let lines = PAGE.lines().filter_map(|line| {
            line.strip_prefix("mylab ").or_else(|| line.strip_prefix("mymarline "))
        });
        let commands: Vec<&str> =
            lines.map(|line| line.split('#').next().unwrap_or_default().trim_end()).collect();
        assert!(commands.len() >= 5, "{commands:?}");
        for command in commands {
            assert!(tests.contains(&format!("\"{command}\"")), "no test runs {command}");
        }
    }
}
