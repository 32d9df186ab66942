//! Packaging of the crates as for a registry.

use std::fs;
use std::path::Path;

use crate::TaskResult;
use crate::manifest::{read_toml, workspace_crates};
use crate::run::{command, output, run};

/// Fields of a manifest that describe a crate to its users.
const REQUIRED_FIELDS: [&str; 6] =
    ["description", "license", "repository", "readme", "keywords", "categories"];

/// Packs every published crate, builds each from the packages alone in the order of publication, and installs the
/// program from them.
pub(crate) fn check(root: &Path) -> TaskResult {
    let published = published_crates(root)?;
    let mut pack = command(root, "cargo", &["package", "--locked"]);
    for name in &published {
        pack.args(["-p", name]);
    }
    run(&mut pack)?;
    install(root, &published)
}

/// Names of the crates that are published.
fn published_crates(root: &Path) -> Result<Vec<String>, String> {
    let (mut names, mut wrong) = (Vec::new(), Vec::new());
    for member in workspace_crates(root)? {
        let manifest = read_toml(&member.dir.join("Cargo.toml"))?;
        let package = manifest.get("package").and_then(toml::Value::as_table);
        let package = package.ok_or_else(|| format!("{}: missing [package]", member.name))?;
        if !member.is_published {
            continue;
        }
        let missing = REQUIRED_FIELDS.iter().filter(|key| !package.contains_key(**key));
        wrong.extend(missing.map(|key| format!("{}: missing {key}", member.name)));
        names.push(member.name);
    }
    if wrong.is_empty() { Ok(names) } else { Err(wrong.join("\n")) }
}

/// Runs `cargo install` with the packages only, without the checkout.
fn install(root: &Path, published: &[String]) -> TaskResult {
    let folder = root.join("target/nightly-crates");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let version = crate::dist::version(root)?;
    let target = folder.join("target").display().to_string();
    let mut cargo =
        command(&folder, "cargo", &["install", "--debug", "--locked", "--target-dir", &target]);
    for name in published {
        let package = root.join(format!("target/package/{name}-{version}.crate"));
        let unpack = ["--extract", "--gzip", "--file", &package.display().to_string()];
        run(&mut command(&folder, "tar", &unpack))?;
        let from = folder.join(format!("{name}-{version}"));
        cargo.arg("--config");
        cargo.arg(format!("patch.crates-io.{name}.path={:?}", from.display().to_string()));
    }
    let program = folder.join("installed");
    cargo.arg("--root").arg(&program).arg("--path").arg(format!("marline-cli-{version}"));
    run(&mut cargo)?;
    let said = output(&mut command(&program, "bin/marline", &["--version"]))?;
    println!("installed from packages: {}", said.trim());
    if said.contains(&version) {
        Ok(())
    } else {
        Err(format!("expected version {version}, got {said}"))
    }
}
