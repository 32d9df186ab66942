//! Repository checks and chores: `cargo xtask <task>`.
//!
//! The checks are those that rustc, clippy and rustfmt do not have: allowed dependencies between crates, lengths of
//! files, forbidden contents of the tree. Every check reports the file, the line and a remedy.
#![forbid(unsafe_code)]

mod api;
mod architecture;
mod bench;
mod call_paths;
mod checks;
mod ci;
mod dashboard;
mod deps;
mod digests;
mod dist;
mod figures;
mod flames;
mod goals;
mod manifest;
mod names;
mod nightly;
mod ownership;
mod packages;
mod parameters;
mod phrases;
mod portable;
mod python;
mod readme;
mod reference;
mod run;
mod size;
mod source;
mod spec;
mod standalone_crates;
mod test;
mod test_counts;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  tidy            checks file and function sizes, parameters, forbidden text, crate and module headers, and links
  size            counts lines, words and packages of the tree; --check compares them with the blessed values,
                  --bless stores them, --build measures a cold build of the program and its size
  deps            checks the dependencies between crates
  ownership       checks which functions write which fields of a connection or a shard, and finds circular imports
  api [--bless]   compares the public interface of crate marline with its snapshot and with the last release;
                  --bless writes the snapshot
  readme          compares the README's figures with their sources; checks files and functions in ARCHITECTURE.md
  reference       writes docs/reference, the parameters of policies and the events of traces
  spec [--write | --kernel DIR]  checks the tables of requirements (docs/spec/*.toml); --write updates their
                  totals, --kernel looks up the cited locations in Linux's source in DIR
  test [ARGS]     runs every test of the repository; ARGS are passed to `cargo test --workspace`
  fuzz [SECONDS]  runs every fuzz target for SECONDS (default 20), without sanitizer
  ci [STEP..]     runs the steps of .ci/run, or some of them, and shows the time of each
  bench [NAME..]  counts instructions of hot paths with valgrind and compares them with the baseline; --check,
                  --bless --why TEXT, --flame NAME: docs/research/bench.md
  figures [ROW..] measures the rows of docs/results.md and compares them with their goals (`memory cost clean`);
                  `handover` draws the README's figure
  flames [ROW..]  draws flame graphs of rows with real sockets, with perf: docs/research/flames.md
  digests         prints a hash for 5,000 random worlds of each family and one for each paper's runs; a change that
                  keeps the behavior keeps the hashes
  interop [ARGS]  runs the matrix against the kernel's Multipath TCP (root); --help lists its options
  compare [ARGS]  compares Marline with the kernel's TCP and Multipath TCP (root); --help lists its options
  rivals [ROW..]  compares Marline with similar software on user workloads (root): lab/rivals/README.md
  packetdrill [..] runs the scripts of PKT_DIR with PACKETDRILL against the core (root); --help lists its options
  endurance       tests churn, ten thousand streams and kill -9 (root; some minutes): docs/research/endurance.md
  dashboard [--check]  builds the dashboard's bundle with npm; --check compares it with its sources
  python          builds the Python package, installs it into target/python, and runs its tests, examples and notebooks
  nightly [STEP..]  runs the tests that are too long for ci, and records them in docs/nightly.md
  dist [program]  builds a release in target/dist: packages, an archive, a container, checksums; `program` builds only
                  the static program
";

/// Cargo arguments for the interoperability matrix.
const INTEROP: &[&str] = &["run", "--release", "-q", "-p", "marline-interop", "--"];
/// Cargo arguments for the comparison table.
const COMPARE: &[&str] = &["run", "--release", "-q", "-p", "marline-lab-cli", "--", "compare"];

/// Cargo arguments for the long tests, which run one after the other and print figures.
const ENDURANCE: &[&str] = &[
    "test",
    "--release",
    "-q",
    "-p",
    "marline-cli",
    "--test",
    "it",
    "endurance::",
    "--",
    "--include-ignored",
    "--nocapture",
    "--test-threads=1",
];

/// Result of a task: the error message is printed, with exit code 1.
type TaskResult = Result<(), String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((task, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let root = workspace_root();
    let result = match task.as_str() {
        "tidy" => tidy::check(&root),
        "size" => size::run_task(&root, rest),
        "deps" => deps::check(&root),
        "api" => api::run_task(&root, rest),
        "readme" => readme::check(&root),
        "reference" => reference::write(&root),
        "ownership" => ownership::check(&root),
        "spec" => spec::print(&root, rest),
        "test" => test::run_all(&root, rest),
        "fuzz" => ci::fuzz(&root, rest.first().map(String::as_str)),
        "python" => python::check(&root),
        "ci" => ci::all(&root, rest),
        "digests" => digests::print(&root),
        "bench" => bench::run(&root, rest),
        "flames" => flames::draw(&root, rest),
        "figures" => figures::measure(&root, rest),
        "interop" => run_release_build(&root, INTEROP, rest),
        "compare" => run_release_build(&root, COMPARE, rest),
        "rivals" => rivals(&root, rest),
        "packetdrill" => run_packetdrill(&root, rest),
        "endurance" => endurance(&root, rest),
        "nightly" => nightly::all(&root, rest),
        "dist" => dist::build(&root, rest),
        "dashboard" => dashboard::build(&root, rest),
        other => Err(format!("unknown task `{other}`\n\n{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask {task}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a release build of a workspace program with the task's arguments.
fn run_release_build(root: &Path, program: &[&str], arguments: &[String]) -> TaskResult {
    run::run(run::command(root, "cargo", program).args(arguments))
}

fn endurance(root: &Path, arguments: &[String]) -> TaskResult {
    run_release_build(root, ENDURANCE, arguments)
}

/// Builds Marline and the harness, which is a separate workspace, and measures.
fn rivals(root: &Path, arguments: &[String]) -> TaskResult {
    const OURS: &[&str] = &["build", "--release", "-p", "marline-cli", "-p", "marline-lab-cli"];
    const HARNESS: &[&str] = &["run", "--release", "--manifest-path", "lab/rivals/Cargo.toml"];
    const MEASURE: &[&str] = &["--locked", "--", "measure", "--root", "."];
    run::run(&mut run::command(root, "cargo", OURS))?;
    run::run(run::command(root, "cargo", &[HARNESS, MEASURE].concat()).args(arguments))
}

/// Builds the adapter, a library for packetdrill, and runs the scripts.
fn run_packetdrill(root: &Path, arguments: &[String]) -> TaskResult {
    const PACKAGE: &[&str] = &["-q", "-p", "packetdrill-adapter"];
    let build = [&["build"], PACKAGE].concat();
    run::run(&mut run::command(root, "cargo", &build))?;
    let runner = [&["run"], PACKAGE, &["--"]].concat();
    run::run(run::command(root, "cargo", &runner).args(arguments))
}

/// The checkout that this program was built from. Tasks work from any directory inside it.
fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
