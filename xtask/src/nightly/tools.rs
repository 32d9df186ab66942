//! Installation and tests of independent programs beside Marline.

use std::fs;
use std::path::Path;

use super::run_ignored_tests;
use crate::TaskResult;
use crate::run::{command, run};

const FOLDER: &str = "target/nightly-tools";
/// Package of each program that the system's package manager installs.
const PACKAGES: [(&str, &str); 4] = [
    ("NetworkManager", "network-manager"),
    ("dbus-daemon", "dbus"),
    ("dnsmasq", "dnsmasq-base"),
    ("ffmpeg", "ffmpeg"),
];
/// Go modules in tested versions, their programs, and the names used by the tests.
const MODULES: [(&str, &str, &str); 2] = [
    ("github.com/tsenart/vegeta/v12@v12.13.0", "vegeta", "vegeta"),
    ("github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0", "server", "toxiproxy-server"),
];
const HLS: &str = "hls.js@1.7.4";

/// Installs what is missing, and runs the tests. One of a program that cannot be installed is skipped with a message.
pub(super) fn check(root: &Path) -> TaskResult {
    let folder = root.join(FOLDER);
    let programs = folder.join("bin");
    fs::create_dir_all(&programs).map_err(|error| format!("{}: {error}", programs.display()))?;
    for error in install(root, &folder) {
        eprintln!("xtask nightly: cannot install all tools: {error}");
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut tests = run_ignored_tests(root, "applications::tools::");
    tests.env("PATH", format!("{}:{path}", programs.display()));
    tests.env("NODE_PATH", folder.join("node_modules"));
    // Each test measures times.
    run(tests.args(["--test-threads", "1"]))
}

/// Returns the errors.
fn install(root: &Path, folder: &Path) -> Vec<String> {
    let mut results = vec![install_packages(root, &PACKAGES)];
    let programs = folder.join("bin");
    for (module, built, name) in MODULES {
        if !programs.join(name).exists() {
            let mut go = command(root, "go", &["install", module]);
            let installed = run(go.env("GOBIN", &programs)).and_then(|()| {
                fs::rename(programs.join(built), programs.join(name)).map_err(|e| e.to_string())
            });
            results.push(installed);
        }
    }
    if !folder.join("node_modules/hls.js").exists() {
        let prefix = folder.display().to_string();
        let npm = ["install", "--no-audit", "--no-fund", "--prefix", &prefix, HLS];
        results.push(run(&mut command(root, "npm", &npm)));
    }
    results.into_iter().filter_map(Result::err).collect()
}

/// Installs the packages of the programs that are missing. `packages` has pairs of a program and its package.
pub(super) fn install_packages(root: &Path, packages: &[(&str, &str)]) -> TaskResult {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<_> = std::env::split_paths(&path).chain(["/usr/sbin".into()]).collect();
    let is_missing =
        |program: &&(&str, &str)| !places.iter().any(|place| place.join(program.0).exists());
    let missing: Vec<&str> =
        packages.iter().filter(is_missing).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let install = ["install", "-y", "-q", "--no-install-recommends"];
    // In runlevel 1 no package starts its daemon.
    run(command(root, "apt-get", &install).args(missing).env("RUNLEVEL", "1"))
}
