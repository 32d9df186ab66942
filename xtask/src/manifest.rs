//! Crate manifests for the checks, read once.

use std::fs;
use std::path::{Path, PathBuf};

/// A crate of the workspace.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Folder of the crate.
    pub(crate) dir: PathBuf,
    /// Dependencies of the crate and its build script, without dev-dependencies.
    pub(crate) dependencies: Vec<String>,
    /// True if the crate uses the workspace's lints.
    pub(crate) workspace_lints: bool,
    /// False if the manifest has `publish = false`.
    pub(crate) is_published: bool,
    /// Features that can be enabled, including `default`. Optional dependencies without `dep:` are left out.
    pub(crate) features: Vec<String>,
}

/// Folders with crates: the product, the lab, and the conformance tests.
pub(crate) const TREES: [&str; 3] = ["crates", "lab", "conformance"];

/// The crates under [`TREES`] and `xtask`, by name.
pub(crate) fn workspace_crates(root: &Path) -> Result<Vec<Crate>, String> {
    let mut dirs = vec![root.join("xtask")];
    for tree in TREES {
        let folder = root.join(tree);
        let entries =
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        dirs.extend(entries.flatten().map(|entry| entry.path()));
    }
    dirs.retain(|dir| dir.join("Cargo.toml").is_file());
    dirs.sort();
    dirs.iter().map(|dir| read(dir)).collect()
}

/// Parses a TOML file.
pub(crate) fn read_toml(file: &Path) -> Result<toml::Table, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    text.parse().map_err(|error| format!("{}: {error}", file.display()))
}

fn read(dir: &Path) -> Result<Crate, String> {
    let file = dir.join("Cargo.toml");
    parse(dir, &read_toml(&file)?)
        .ok_or_else(|| format!("{}: missing package name", file.display()))
}

/// Parses a manifest. `None` if it has no package.
pub(crate) fn parse(dir: &Path, manifest: &toml::Table) -> Option<Crate> {
    let package = manifest.get("package")?;
    let name = package.get("name")?.as_str()?.to_string();
    let is_published = package.get("publish").and_then(toml::Value::as_bool) != Some(false);
    let features = manifest.get("features").and_then(toml::Value::as_table);
    let features = features.into_iter().flat_map(|table| table.keys().cloned()).collect();
    let mut dependencies = Vec::new();
    collect(manifest, &mut dependencies);
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    for target in targets.into_iter().flatten().filter_map(|(_, target)| target.as_table()) {
        collect(target, &mut dependencies);
    }
    dependencies.sort();
    dependencies.dedup();
    let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    let workspace_lints = lints.and_then(toml::Value::as_bool) == Some(true);
    let dir = dir.to_path_buf();
    Some(Crate { name, dir, dependencies, workspace_lints, is_published, features })
}

fn collect(table: &toml::Table, into: &mut Vec<String>) {
    for section in ["dependencies", "build-dependencies"] {
        let Some(listed) = table.get(section).and_then(toml::Value::as_table) else { continue };
        for (key, value) in listed {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            into.push(renamed.unwrap_or(key).to_string());
        }
    }
}

/// Version of the workspace, from its root manifest.
pub(crate) fn version(manifest: &toml::Table) -> Result<&str, String> {
    let package = manifest.get("workspace").and_then(|workspace| workspace.get("package"));
    let version = package.and_then(|package| package.get("version")?.as_str());
    version.ok_or_else(|| "Cargo.toml: missing workspace.package.version".to_owned())
}
