//! Programs that take the counts: valgrind, and the harness's runner in the matching version.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::baseline::Machine;
use crate::manifest;
use crate::run::{command, output, run};

/// Directory for a runner of the right version, below the checkout.
const OWN_TOOLS: &str = "target/tools";
const RUNNER: &str = "gungraun-runner";

/// The search path with a runner of the right version first. Installs the runner if necessary.
pub(super) fn path(root: &Path) -> Result<OsString, String> {
    if output(&mut command(root, "valgrind", &["--version"])).is_err() {
        return Err(
            "valgrind is missing: apt-get install valgrind (.ci/install-tools does)".to_owned()
        );
    }
    let wanted = read_harness_version(root)?;
    let own = root.join(OWN_TOOLS).join("bin");
    let mut places: Vec<PathBuf> = vec![own.clone()];
    places.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    places.extend(home.map(|home| home.join("bin")));
    let fits = |place: &PathBuf| {
        let program = place.join(RUNNER);
        let version =
            || output(&mut command(root, &program.to_string_lossy(), &["--version"])).ok();
        program.is_file() && version().is_some_and(|text| text.trim().ends_with(&wanted))
    };
    let place = match places.iter().find(|place| fits(place)) {
        Some(place) => place.clone(),
        None => install(root, &wanted, own)?,
    };
    places.insert(0, place);
    env::join_paths(places).map_err(|error| error.to_string())
}

fn install(root: &Path, version: &str, place: PathBuf) -> Result<PathBuf, String> {
    let package = format!("{RUNNER}@{version}");
    let line = format!("cargo install --debug --locked {package} --root {OWN_TOOLS}");
    println!("bench: installing {package} with `{line}`");
    let words = ["install", "--debug", "--locked", "-q", &package, "--root", OWN_TOOLS];
    run(&mut command(root, "cargo", &words))
        .map_err(|error| format!("{error}\nto install it manually: {line}"))?;
    Ok(place)
}

/// The harness's version in the benches, which the runner must match.
fn read_harness_version(root: &Path) -> Result<String, String> {
    let lock = manifest::read_toml(&root.join("Cargo.lock"))?;
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let mut named =
        packages.filter(|of| of.get("name").and_then(toml::Value::as_str) == Some("gungraun"));
    let version = named.next().and_then(|of| of.get("version")?.as_str());
    version.map(str::to_owned).ok_or_else(|| "Cargo.lock does not contain gungraun".to_owned())
}

/// The properties of this machine that affect counts.
pub(super) fn machine(root: &Path) -> Result<Machine, String> {
    let said = |program: &str, argument: &str| {
        let said = output(&mut command(root, program, &[argument]))?;
        Ok::<_, String>(said.trim().to_owned())
    };
    let rustc = said("rustc", "--version")?;
    let valgrind = said("valgrind", "--version")?;
    Ok(Machine {
        rustc: rustc.trim_start_matches("rustc ").to_owned(),
        processor: processor(),
        valgrind: valgrind.trim_start_matches("valgrind-").to_owned(),
        libc: said("getconf", "GNU_LIBC_VERSION")?,
    })
}

/// The processor. On x86, valgrind reports at most AVX2.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        return "x86_64 without AVX2".to_owned();
    }
    env::consts::ARCH.to_owned()
}
