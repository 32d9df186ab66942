//! What continuous integration runs, so that one can run it before pushing.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::run::{command, run};
use crate::{TaskResult, deps, manifest, tidy};

const FUZZ_SECONDS: u64 = 20;
/// Larger inputs only slow the fuzzer down: no packet is longer.
const FUZZ_INPUT_BYTES: u32 = 2048;
const OUTSIDE_POLICY: &str = "examples/outside-policy/Cargo.toml";
const FUZZ_MANIFEST: &str = "fuzz/Cargo.toml";

type Step<'a> = (&'a str, &'a dyn Fn(&Path) -> TaskResult);

/// Every step in order; the first that fails ends the run. The times are printed either way.
pub(crate) fn all(root: &Path) -> TaskResult {
    let steps: [Step<'_>; 8] = [
        ("format", &|root| cargo(root, &["fmt", "--all", "--check"])),
        ("clippy", &clippy),
        ("tidy", &tidy::check),
        ("deps", &deps::check),
        ("deny", &|root| cargo(root, &["deny", "check", "licenses", "bans", "sources"])),
        ("doc", &doc),
        ("test", &|root| test(root, &[])),
        ("fuzz", &|root| fuzz(root, None)),
    ];
    let mut times: Vec<(&str, Duration)> = Vec::new();
    let mut result = Ok(());
    for (name, step) in steps {
        println!("=== {name}");
        let start = Instant::now();
        result = step(root).map_err(|error| format!("step {name}: {error}"));
        times.push((name, start.elapsed()));
        if result.is_err() {
            break;
        }
    }
    println!("=== times");
    for (name, time) in times {
        println!("{name:8} {:7.1} s", time.as_secs_f64());
    }
    result
}

/// Every test of the repository: the workspace's, then those of the policy that lives outside it.
pub(crate) fn test(root: &Path, arguments: &[String]) -> TaskResult {
    let mut workspace = command(root, "cargo", &["test", "--workspace"]);
    run(workspace.args(arguments))?;
    if root.join(OUTSIDE_POLICY).is_file() && arguments.is_empty() {
        cargo(root, &["test", "--manifest-path", OUTSIDE_POLICY])?;
    }
    Ok(())
}

/// Runs every fuzz target of `fuzz/` for a while.
///
/// Without a sanitizer: the crates under test forbid unsafe code, so it would find nothing that a
/// panic does not show, and so the stable compiler is enough.
pub(crate) fn fuzz(root: &Path, seconds: Option<&str>) -> TaskResult {
    let seconds = match seconds {
        None => FUZZ_SECONDS,
        Some(text) => text.parse().map_err(|error| format!("`{text}` seconds: {error}"))?,
    };
    for target in fuzz_targets(root)? {
        println!("--- {target}");
        let mut fuzzer = command(root, "cargo", &["fuzz", "run", "--sanitizer", "none", &target]);
        fuzzer.arg("--");
        fuzzer.arg(format!("-max_total_time={seconds}"));
        fuzzer.arg(format!("-max_len={FUZZ_INPUT_BYTES}"));
        fuzzer.args(["-verbosity=0", "-print_funcs=0", "-print_final_stats=1"]);
        run(&mut fuzzer)?;
    }
    Ok(())
}

fn fuzz_targets(root: &Path) -> Result<Vec<String>, String> {
    let manifest = manifest::read_toml(&root.join(FUZZ_MANIFEST))?;
    let bins = manifest.get("bin").and_then(toml::Value::as_array).into_iter().flatten();
    let names: Vec<String> =
        bins.filter_map(|bin| Some(bin.get("name")?.as_str()?.to_string())).collect();
    if names.is_empty() {
        return Err(format!("{FUZZ_MANIFEST} names no [[bin]]"));
    }
    Ok(names)
}

fn clippy(root: &Path) -> TaskResult {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn doc(root: &Path) -> TaskResult {
    let mut doc = command(root, "cargo", &["doc", "--workspace", "--no-deps", "--quiet"]);
    run(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

fn cargo(root: &Path, arguments: &[&str]) -> TaskResult {
    let mut cargo: Command = command(root, "cargo", arguments);
    run(&mut cargo)
}
