//! Licenses of third-party crates, which must accompany the program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::Release;
use crate::TaskResult;
use crate::run::{command, output};

/// Prefixes of the names of license files.
const LICENSE_PREFIXES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];

/// Writes `target/dist/THIRD-PARTY.txt`.
pub(super) fn write(release: &Release) -> TaskResult {
    let mut text =
        String::from("Third-party crates in the program `marline`, and their licenses.\n");
    let mut without = Vec::new();
    for (name, package) in packages(&release.root)? {
        text.push_str(&format!("\n{:=<100}\n{name}: {}\n", "", package.terms));
        let files = find_license_files(&package.folder);
        if files.is_empty() {
            without.push(name);
        }
        for file in files {
            let words = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            text.push_str(&format!(
                "{:-<100}\n{}\n",
                "",
                String::from_utf8_lossy(&words).trim_end()
            ));
        }
    }
    if !without.is_empty() {
        println!(
            "dist: crates without a license file, listed only by license expression: {}",
            without.join(", ")
        );
    }
    let to = release.folder.join("THIRD-PARTY.txt");
    fs::write(&to, text).map_err(|error| format!("{}: {error}", to.display()))
}

/// A third-party crate.
struct Package {
    /// License expression in the crate's manifest.
    terms: String,
    folder: PathBuf,
}

/// Crates that are linked into the program on this architecture, by name and version.
fn packages(root: &Path) -> Result<BTreeMap<String, Package>, String> {
    let arguments = ["tree", "-p", "marline-cli", "-e", "normal", "--prefix", "none", "--locked"];
    let mut tree = command(root, "cargo", &arguments);
    let linked = output(tree.args(["--format", "{p}", "--color", "never"]))?;
    let metadata =
        output(&mut command(root, "cargo", &["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut known = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let word = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        // Local crates have no source.
        if package["source"].is_null() {
            continue;
        }
        let folder = PathBuf::from(word("manifest_path")).parent().map(Path::to_path_buf);
        let package = Package { terms: word("license"), folder: folder.unwrap_or_default() };
        known.insert(format!("{} v{}", word("name"), word("version")), package);
    }
    // `name v1.2.3 (proc-macro) (*)`
    let named = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let wanted: Vec<String> = linked.lines().map(named).collect();
    known.retain(|name, _| wanted.contains(name));
    Ok(known)
}

fn find_license_files(folder: &Path) -> Vec<PathBuf> {
    let is_terms = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_ascii_uppercase();
        file.is_file() && LICENSE_PREFIXES.iter().any(|word| name.starts_with(word))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_terms).collect();
    files.sort();
    files
}
