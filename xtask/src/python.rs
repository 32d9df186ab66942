//! The step `python`: the package is built, packed, installed into an environment of its own, and tested there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::TaskResult;
use crate::run::{command, output, run};

/// The package.
const PACKAGE: &str = "lab/marline-python";
/// The environment that it is installed into.
const ENVIRONMENT: &str = "target/python";
/// What its tests, examples and notebooks need, in the versions that were tried: an environment with other ones
/// would be another test.
const NEEDS: [&str; 6] = [
    "numpy==2.4.6",
    "gymnasium==1.4.0",
    "nanoarrow==0.9.0",
    "mypy==2.4.1",
    "matplotlib==3.11.2",
    "tqdm==4.67.1",
];
/// An environment that is made anew each time, with the wheel and nothing else.
const BARE: &str = "target/python-bare";
/// The page whose words lead there.
const PAGE: &str = "docs/research/python.md";
/// That of the cluster, which is large.
const RAY_ENVIRONMENT: &str = "target/python-ray";
/// The version that was tried.
const RAY: &str = "ray==2.60.0";

/// Builds the module with what `cargo test` has compiled already, and tests the package.
pub(crate) fn check(root: &Path) -> TaskResult {
    let Some(Installed { python, wheel }) = installed(root, ENVIRONMENT, &NEEDS)? else {
        return Ok(());
    };
    first_steps(root, &python, &wheel)?;
    let package = root.join(PACKAGE);
    run(&mut command(&package, &python, &["-m", "mypy", "python/marline"]))?;
    // What is written of the module's types, beside the module.
    let stubs = ["-m", "mypy.stubtest", "--ignore-disjoint-bases", "marline._native"];
    run(&mut command(&package, &python, &stubs))?;
    let mut tests = command(&package.join("tests"), &python, &["-m", "unittest", "-q"]);
    // Matrices are small: threads that share them beside other work only wait for each other.
    tests.env("OPENBLAS_NUM_THREADS", "1");
    let program = root.join("target/debug/marline-lab");
    run(tests.env("MARLINE_PROGRAM", &program))?;
    // The figure of a paper that a notebook draws, at full length, beside the lab's own.
    let mut figure = command(&package.join("tests"), &python, &["paper_figure.py"]);
    run(figure.env("MARLINE_PROGRAM", &program))
}

/// Somebody new: an empty environment, `pip install` of the wheel with no registry to ask, and what the page begins
/// with, somewhere without this tree's sources.
fn first_steps(root: &Path, python: &str, wheel: &str) -> TaskResult {
    run(&mut command(root, "python3", &["-m", "venv", "--clear", "--without-pip", BARE]))?;
    let bare = root.join(BARE).join("bin/python").to_string_lossy().into_owned();
    let install = ["-m", "pip", "--python", &bare, "install", "-q", "--no-index", wheel];
    run(command(root, python, &install).env("PIP_DISABLE_PIP_VERSION_CHECK", "1"))?;
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let code = page.split("```python\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let code = code.ok_or_else(|| format!("{PAGE}: no code"))?;
    let printed = output(&mut command(&root.join(BARE), &bare, &["-I", "-c", code]))?;
    let table = printed.contains("p99") && printed.contains("min-rtt");
    if table { Ok(()) } else { Err(format!("{PAGE}: its first steps print\n{printed}")) }
}

/// Sweeps on a cluster of this machine, whose workers are killed.
pub(crate) fn ray(root: &Path) -> TaskResult {
    let needs = [RAY];
    let Some(Installed { python, .. }) = installed(root, RAY_ENVIRONMENT, &needs)? else {
        return Ok(());
    };
    let mut sweep = command(&root.join(PACKAGE).join("tests"), &python, &["ray_cluster.py"]);
    run(sweep.env("MARLINE_PROGRAM", root.join("target/debug/marline-lab")))
}

/// The package as it is built now.
struct Installed {
    /// The Python of the environment that has it, and what is needed.
    python: String,
    wheel: String,
}

/// Installs the package and what is needed into an environment; `None`: there is no Python.
fn installed(root: &Path, environment: &str, needs: &[&str]) -> Result<Option<Installed>, String> {
    if !has_python(root)? {
        return Ok(None);
    }
    // The features and profile of the step `test`: only what this package has for itself is compiled.
    let build = ["build", "--profile", "test", "--workspace", "--lib", "--tests", "--locked", "-q"];
    run(&mut command(root, "cargo", &build))?;
    let python = made(root, environment, needs)?;
    let wheels = root.join("target/wheels/ci");
    let module = root.join("target/ci-python/marline_native.so");
    let made = fs::create_dir_all(root.join("target/ci-python"));
    made.map_err(|error| format!("target/ci-python: {error}"))?;
    // What is for debuggers is nine tenths of it.
    let built = root.join("target/debug/libmarline_native.so");
    let mut strip = command(root, "strip", &["--strip-debug", "-o"]);
    run(strip.arg(&module).arg(&built))?;
    let mut pack = command(root, &python, &[&format!("{PACKAGE}/pack.py")]);
    let wheel = output(pack.arg(&module).arg(&wheels))?;
    let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"];
    let mut install = command(root, &python, &install);
    run(install.args(["--force-reinstall", wheel.trim()]))?;
    Ok(Some(Installed { python, wheel: wheel.trim().to_owned() }))
}

/// The Python of an environment, which is made once, with what is needed.
fn made(root: &Path, environment: &str, needs: &[&str]) -> Result<String, String> {
    let python = root.join(environment).join("bin/python");
    if !python.is_file() {
        run(&mut command(root, "python3", &["-m", "venv", environment]))?;
    }
    let python = python.to_string_lossy().into_owned();
    let install = ["-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"];
    run(command(root, &python, &install).args(needs))?;
    Ok(python)
}

/// Whether there is a Python that can do this, or a word about why this step is left out.
fn has_python(root: &Path) -> Result<bool, String> {
    let able = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    let mut python: Command = command(root, "python3", &["-c", able]);
    let able = python.stderr(Stdio::null()).status();
    if able.is_ok_and(|status| status.success()) {
        return Ok(true);
    }
    let why = "it needs python3 from 3.11 on with venv (Debian: python3-venv)".to_owned();
    if std::env::var("MARLINE_REQUIRE_ALL").is_ok_and(|value| value == "1") {
        return Err(why);
    }
    println!("SKIPPED python: {why}");
    Ok(false)
}
