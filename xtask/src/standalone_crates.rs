//! Separate compilation of each published crate.
//! A build of the whole workspace gives every dependency all features that any crate requests, including
//! dev-dependencies. A crate that uses a feature without requesting it builds only in the workspace, so each crate is
//! checked separately, as a dependent program would build it.

use std::fs;
use std::path::Path;

use crate::TaskResult;
use crate::manifest::{Crate, workspace_crates};
use crate::run::{command, output, run};

/// Checks every published crate with each choice of its features, then runs the `cargo doc` commands of the pages.
/// Continues after a failure, so that all failures are reported.
pub(crate) fn check(root: &Path) -> TaskResult {
    let mut failed = Vec::new();
    let mut crates = 0;
    for member in workspace_crates(root)?.iter().filter(|member| member.is_published) {
        crates += 1;
        for features in feature_choices(member) {
            let mut cargo = command(root, "cargo", &["check", "--quiet", "--locked", "-p"]);
            failed.extend(run(cargo.arg(&member.name).args(features)).err());
        }
    }
    let documented = documented_commands(root)?;
    for line in &documented {
        println!("{line}");
        // The check opens no browser.
        let arguments: Vec<&str> =
            line.split(' ').skip(1).filter(|word| *word != "--open").collect();
        let mut cargo = command(root, "cargo", &arguments);
        failed.extend(run(cargo.arg("--quiet").env("RUSTDOCFLAGS", "-D warnings")).err());
    }
    println!(
        "{crates} crates checked separately, {} documented `cargo doc` commands",
        documented.len()
    );
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n    ")) }
}

/// Cargo arguments for each choice of features to check: the default, none, each alone, and all.
fn feature_choices(of: &Crate) -> Vec<Vec<String>> {
    let mut choices = vec![Vec::new()];
    let chosen: Vec<&String> = of.features.iter().filter(|name| *name != "default").collect();
    let has_default = chosen.len() < of.features.len();
    if has_default {
        choices.push(vec!["--no-default-features".to_owned()]);
    }
    if chosen.len() > 1 || has_default {
        let alone = |name: &&String| {
            vec!["--no-default-features".to_owned(), "--features".to_owned(), (*name).clone()]
        };
        choices.extend(chosen.iter().map(alone));
    }
    if !chosen.is_empty() {
        choices.push(vec!["--all-features".to_owned()]);
    }
    choices
}

/// The `cargo doc` commands of the pages, without duplicates.
fn documented_commands(root: &Path) -> Result<Vec<String>, String> {
    let pages = output(&mut command(root, "git", &["ls-files", "*.md"]))?;
    let mut commands = Vec::new();
    for page in pages.lines() {
        // Git lists files that were deleted only from the working tree.
        let Ok(text) = fs::read_to_string(root.join(page)) else { continue };
        commands.extend(find_commands(&text));
    }
    commands.sort();
    commands.dedup();
    if commands.is_empty() {
        return Err("no page has a `cargo doc` command to check".to_owned());
    }
    Ok(commands)
}

/// `cargo doc ...` commands of a page, in backticks or on a line of a code block.
fn find_commands(page: &str) -> Vec<String> {
    const DOC: &str = "cargo doc ";
    let ended = |rest: &str| {
        let end = rest.find(['`', '\n', '#']).unwrap_or(rest.len());
        rest[..end].split_whitespace().collect::<Vec<_>>().join(" ")
    };
    page.match_indices(DOC).map(|(at, _)| ended(&page[at..])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(features: &str) -> Crate {
        let text = format!("[package]\nname = \"a\"\n[features]\n{features}");
        let table = text.parse().expect("TOML");
        crate::manifest::parse(Path::new("."), &table).expect("a package")
    }

    fn choices(features: &str) -> Vec<String> {
        feature_choices(&package(features)).iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn a_crate_is_checked_with_every_choice_of_features_that_differs() {
        assert_eq!(choices(""), [""]);
        assert_eq!(choices("b = []"), ["", "--all-features"]);
        let each = |name: &str| format!("--no-default-features --features {name}");
        let two = [String::new(), each("b"), each("c"), "--all-features".to_owned()];
        assert_eq!(choices("b = []\nc = []"), two);
        let default = ["", "--no-default-features", &each("b"), "--all-features"];
        assert_eq!(choices("b = []\ndefault = [\"b\"]"), default);
    }

    #[test]
    fn commands_of_pages_are_found_in_text_and_in_blocks() {
        let page =
            "See `cargo doc -p a --open`.\n```sh\ncargo doc -p b   # why\n```\n`cargo test`\n";
        assert_eq!(find_commands(page), ["cargo doc -p a --open", "cargo doc -p b"]);
        let root = crate::workspace_root();
        let documented = documented_commands(&root).expect("the pages");
        assert!(documented.iter().any(|line| line.starts_with("cargo doc -p marline ")));
    }

    #[test]
    fn crates_that_are_not_published_are_left_out() {
        let members = workspace_crates(&crate::workspace_root()).expect("the manifests");
        let is_published = |name: &str| {
            members.iter().find(|member| member.name == name).expect("a member").is_published
        };
        assert!(is_published("marline") && !is_published("marline-testkit"));
    }
}
