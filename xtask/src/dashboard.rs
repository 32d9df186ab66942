//! Bundle of the dashboard's page: built by npm from `crates/marline-dashboard/page` and committed, so that the
//! program builds without node. The check builds it again and compares the bytes.

use std::fs;
use std::path::Path;

use crate::TaskResult;
use crate::run::{command, run};

const PAGE: &str = "crates/marline-dashboard/page";
const FILES: [&str; 2] = ["page.css", "page.js"];

/// Builds the bundle.
pub(crate) fn build(root: &Path, arguments: &[String]) -> TaskResult {
    match arguments {
        [] => make(root, "dist"),
        [flag] if flag == "--check" => check(root),
        other => Err(format!("unknown option `{}`; known: --check", other.join(" "))),
    }
}

/// Fails if the bundle differs from a build of its sources, or the lock file names a registry's host.
pub(crate) fn check(root: &Path) -> TaskResult {
    let page = root.join(PAGE);
    let lock = read(&page.join("package-lock.json"))?;
    if lock.windows(10).any(|word| word == b"\"resolved\"") {
        return Err(format!(
            "{PAGE}/package-lock.json contains registry URLs: run npm with this directory's .npmrc"
        ));
    }
    let fresh = root.join("target/dashboard");
    make(root, &fresh.display().to_string())?;
    for name in FILES {
        if read(&fresh.join(name))? != read(&page.join("dist").join(name))? {
            return Err(format!(
                "{PAGE}/dist/{name} differs from a build of its sources: run `cargo xtask \
                    dashboard` and commit the \
                 result"
            ));
        }
    }
    println!("dashboard: the bundle matches its sources");
    Ok(())
}

fn make(root: &Path, out: &str) -> TaskResult {
    let page = root.join(PAGE);
    // Packages may have installation scripts, but none is needed.
    run(&mut command(&page, "npm", &["ci", "--ignore-scripts", "--silent"]))?;
    run(&mut command(&page, "npm", &["run", "--silent", "check"]))?;
    run(&mut command(&page, "node", &["build.mjs", out]))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
