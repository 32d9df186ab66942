//! The step `python`, which builds the package, installs it into a separate environment, and tests it there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::TaskResult;
use crate::run::{command, output, run, skip};

/// Directory of the package.
const PACKAGE: &str = "lab/marline-python";
/// Environment for the installation.
const ENVIRONMENT: &str = "target/python";
/// Packages for the tests, examples and notebooks, in tested versions.
const REQUIREMENTS: [&str; 6] = [
    "numpy==2.4.6",
    "gymnasium==1.4.0",
    "nanoarrow==0.9.0",
    "mypy==2.4.1",
    "matplotlib==3.11.2",
    "tqdm==4.67.1",
];
/// Environment with only the wheel, created again each time.
const BARE_ENVIRONMENT: &str = "target/python-bare";
/// Page with the first steps.
const PAGE: &str = "docs/research/python.md";
/// Environment of the cluster, which needs much disk space.
const RAY_ENVIRONMENT: &str = "target/python-ray";
/// Tested version of Ray.
const RAY: &str = "ray==2.60.0";

/// Builds the module from the objects of `cargo test`, and tests the package.
pub(crate) fn check(root: &Path) -> TaskResult {
    let Some(InstalledPackage { python, wheel }) =
        install_package(root, ENVIRONMENT, &REQUIREMENTS)?
    else {
        return Ok(());
    };
    test_first_steps(root, &python, &wheel)?;
    let package = root.join(PACKAGE);
    run(&mut command(&package, &python, &["-m", "mypy", "python/marline"]))?;
    // Compares the type stubs with the module.
    let stubs = ["-m", "mypy.stubtest", "--ignore-disjoint-bases", "marline._native"];
    run(&mut command(&package, &python, &stubs))?;
    let mut tests = command(&package.join("tests"), &python, &["-m", "unittest", "-q"]);
    // The matrices are so small that several threads would only wait for each other.
    tests.env("OPENBLAS_NUM_THREADS", "1");
    let program = root.join("target/debug/marline-lab");
    run(tests.env("MARLINE_PROGRAM", &program))?;
    // Compares the full-length figure of a paper that a notebook draws with the lab's figure.
    let mut figure = command(&package.join("tests"), &python, &["paper_figure.py"]);
    run(figure.env("MARLINE_PROGRAM", &program))
}

/// Takes the first steps of a new user: an empty environment, `pip install` of the wheel without a registry, and the
/// page's first commands, in a directory without this tree's sources.
fn test_first_steps(root: &Path, python: &str, wheel: &str) -> TaskResult {
    run(&mut command(
        root,
        "python3",
        &["-m", "venv", "--clear", "--without-pip", BARE_ENVIRONMENT],
    ))?;
    let bare = root.join(BARE_ENVIRONMENT).join("bin/python").to_string_lossy().into_owned();
    let install = ["-m", "pip", "--python", &bare, "install", "-q", "--no-index", wheel];
    run(command(root, python, &install).env("PIP_DISABLE_PIP_VERSION_CHECK", "1"))?;
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let code = page.split("```python\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let code = code.ok_or_else(|| format!("{PAGE}: contains no Python code block"))?;
    let printed = output(&mut command(&root.join(BARE_ENVIRONMENT), &bare, &["-I", "-c", code]))?;
    let table = printed.contains("p99") && printed.contains("min-rtt");
    if table {
        Ok(())
    } else {
        Err(format!(
            "{PAGE}: the first example does not print the expected table (p99, min-rtt); output:\n{printed}"
        ))
    }
}

/// Tests sweeps on a local cluster whose workers are killed.
pub(crate) fn ray(root: &Path) -> TaskResult {
    let needs = [RAY];
    let Some(InstalledPackage { python, .. }) = install_package(root, RAY_ENVIRONMENT, &needs)?
    else {
        return Ok(());
    };
    let mut sweep = command(&root.join(PACKAGE).join("tests"), &python, &["ray_cluster.py"]);
    run(sweep.env("MARLINE_PROGRAM", root.join("target/debug/marline-lab")))
}

/// The installed package.
struct InstalledPackage {
    /// Python interpreter of the environment with the package and its requirements.
    python: String,
    wheel: String,
}

/// Installs the package and its requirements into an environment. `None` without Python.
fn install_package(
    root: &Path,
    environment: &str,
    needs: &[&str],
) -> Result<Option<InstalledPackage>, String> {
    if !has_python(root)? {
        return Ok(None);
    }
    // The features and profile of the step `test`, so that only this package's own crates are compiled.
    let build = ["build", "--profile", "test", "--workspace", "--lib", "--tests", "--locked", "-q"];
    run(&mut command(root, "cargo", &build))?;
    let python = prepare_environment(root, environment, needs)?;
    let wheels = root.join("target/wheels/ci");
    let module = root.join("target/ci-python/marline_native.so");
    let made = fs::create_dir_all(root.join("target/ci-python"));
    made.map_err(|error| format!("target/ci-python: {error}"))?;
    // Debugging information makes up nine tenths of the file.
    let built = root.join("target/debug/libmarline_native.so");
    let mut strip = command(root, "strip", &["--strip-debug", "-o"]);
    run(strip.arg(&module).arg(&built))?;
    let mut pack = command(root, &python, &[&format!("{PACKAGE}/pack.py")]);
    let wheel = output(pack.arg(&module).arg(&wheels))?;
    let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"];
    let mut install = command(root, &python, &install);
    run(install.args(["--force-reinstall", wheel.trim()]))?;
    Ok(Some(InstalledPackage { python, wheel: wheel.trim().to_owned() }))
}

/// The Python interpreter of an environment, which is created once with its requirements.
fn prepare_environment(root: &Path, environment: &str, needs: &[&str]) -> Result<String, String> {
    let python = root.join(environment).join("bin/python");
    if !python.is_file() {
        run(&mut command(root, "python3", &["-m", "venv", environment]))?;
    }
    let python = python.to_string_lossy().into_owned();
    let install = ["-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"];
    run(command(root, &python, &install).args(needs))?;
    Ok(python)
}

/// Returns true if a suitable Python is present. Otherwise prints why this step is skipped.
fn has_python(root: &Path) -> Result<bool, String> {
    let able = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    let mut python: Command = command(root, "python3", &["-c", able]);
    let able = python.stderr(Stdio::null()).status();
    if able.is_ok_and(|status| status.success()) {
        return Ok(true);
    }
    let why = "python3 3.11 or later with venv is required (Debian: python3-venv)".to_owned();
    skip("python", why).map(|()| false)
}
