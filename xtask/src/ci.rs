//! Continuous integration steps, which also run locally before a push.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use crate::run::{build_test_program, command, run, run_and_report_failure};
use crate::{
    TaskResult, api, bench, dashboard, deps, manifest, ownership, packages, portable, python,
    readme, size, spec, standalone_crates, test, tidy,
};

const FUZZ_SECONDS: u64 = 5;
/// Maximum input size of the fuzzer in bytes. No packet is longer, and larger inputs only slow the fuzzer down.
const FUZZ_INPUT_BYTES: u32 = 2048;
const FUZZ_MANIFEST: &str = "fuzz/Cargo.toml";

type Step<'a> = (&'a str, &'a dyn Fn(&Path) -> TaskResult);

/// Steps that run in parallel with the live tests of step `test`, which mostly wait for timers and peers.
const PARALLEL_STEPS: [&str; 3] = ["bench", "fuzz", "papers"];
/// Log of the parallel steps, below the checkout.
const PARALLEL_LOG: &str = "target/ci-beside.log";

/// Process that runs [`PARALLEL_STEPS`] with the lowest priority, so that tests are not delayed.
struct ParallelSteps(Child);

impl ParallelSteps {
    fn start(root: &Path) -> Result<ParallelSteps, String> {
        let failed = |error: &dyn core::fmt::Display| format!("{PARALLEL_LOG}: {error}");
        let log = root.join(PARALLEL_LOG);
        fs::create_dir_all(root.join("target")).map_err(|error| failed(&error))?;
        let log = fs::File::create(log).map_err(|error| failed(&error))?;
        let errors = log.try_clone().map_err(|error| failed(&error))?;
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's path: {error}"))?;
        let mut child = command(root, "nice", &["-n", "19"]);
        child.arg(program).arg("ci").args(PARALLEL_STEPS).stdout(log).stderr(errors);
        Ok(ParallelSteps(child.spawn().map_err(|error| format!("cannot run nice: {error}"))?))
    }

    /// Waits for the parallel steps, and shows their output.
    fn finish(mut self, root: &Path) -> TaskResult {
        let status = self.0.wait().map_err(|error| format!("{PARALLEL_LOG}: {error}"))?;
        let log = fs::read(root.join(PARALLEL_LOG))
            .map_err(|error| format!("{PARALLEL_LOG}: {error}"))?;
        println!("{}", String::from_utf8_lossy(&log));
        if status.success() {
            Ok(())
        } else {
            Err(format!("parallel steps failed ({status}); see the log above"))
        }
    }
}

/// Runs the named steps, or all, in order. After a failure the other steps still run, so that the log shows all
/// failures.
pub(crate) fn all(root: &Path, wanted: &[String]) -> TaskResult {
    let steps: [Step<'_>; 22] = [
        ("format", &|root| cargo(root, &["fmt", "--all", "--check"])),
        ("tidy", &tidy::check),
        ("size", &size::check),
        ("deps", &deps::check),
        ("ownership", &ownership::check),
        ("readme", &readme::check),
        ("spec", &spec::check),
        ("deny", &|root| cargo(root, &["deny", "check", "licenses", "bans", "sources"])),
        ("dashboard", &dashboard::check),
        ("clippy", &clippy),
        ("portable", &portable::check),
        ("doc", &check_docs),
        // After `check_docs`, whose dependency metadata it uses.
        ("api", &api::check),
        ("alone", &standalone_crates::check),
        ("test", &|root| test::run_all(root, &[])),
        // Runs `PARALLEL_STEPS` if all steps run.
        ("bench", &|root| bench::run(root, &["--check".to_owned()])),
        ("fuzz", &|root| fuzz(root, None)),
        ("papers", &papers),
        ("python", &python::check),
        // Runs two nodes of a cluster, with the package built by `python`.
        ("ray", &python::ray),
        // Packs the program that `test` has built, and links a static one from its objects.
        ("packages", &packages::check),
        // Last, so that the end of the log shows the failed cells.
        ("interop", &interop),
    ];
    if let Some(unknown) = wanted.iter().find(|name| steps.iter().all(|(step, _)| step != name)) {
        return Err(format!("unknown step `{unknown}`; known: {}", steps.map(|s| s.0).join(", ")));
    }
    run_steps(root, &steps, wanted)
}

fn run_steps(root: &Path, steps: &[Step<'static>], wanted: &[String]) -> TaskResult {
    let (mut summary, mut failed) = (Vec::new(), Vec::new());
    let mut record = |name: &'static str, start: Instant, result: TaskResult| {
        let seconds = start.elapsed().as_secs_f64();
        let state = if result.is_ok() { "ok    " } else { "FAILED" };
        summary.push(format!("{seconds:7.1} s  {state}  {name}"));
        if let Err(error) = result {
            eprintln!("xtask ci: step {name}: {error}");
            // Repeated at the end, which is the part of a long log that is read, and perhaps the only part stored.
            summary.push(format!("    {error}"));
            failed.push(name);
        }
    };
    for &(name, step) in steps {
        let runs_here = match wanted {
            [] => !PARALLEL_STEPS.contains(&name),
            _ => wanted.iter().any(|word| word == name),
        };
        if !runs_here {
            continue;
        }
        println!("=== {name}");
        let start = Instant::now();
        if wanted.is_empty() && name == "test" {
            let beside = ParallelSteps::start(root);
            record(name, start, step(root));
            println!("=== {}", PARALLEL_STEPS.join(", "));
            let result = beside.and_then(|beside| beside.finish(root));
            record("bench, fuzz, papers, in parallel with test", start, result);
        } else {
            record(name, start, step(root));
        }
    }
    println!("=== summary\n{}", summary.join("\n"));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs every fuzz target of `fuzz/` for a limited time.
///
/// No sanitizer is used, because the crates under test forbid unsafe code, so a sanitizer would find nothing that a
/// panic does not show. The stable compiler is therefore enough.
pub(crate) fn fuzz(root: &Path, seconds: Option<&str>) -> TaskResult {
    let seconds = match seconds {
        None => FUZZ_SECONDS,
        Some(text) => {
            text.parse().map_err(|error| format!("invalid number of seconds `{text}`: {error}"))?
        }
    };
    // Without seeds, the fuzzer spends its time finding the format of a segment.
    let mut seeds = command(
        root,
        "cargo",
        &["test", "-q", "-p", "marline-testkit", "--test", "it", "corpus::"],
    );
    run(seeds.env("MARLINE_WRITE_CORPUS", "1"))?;
    for target in fuzz_targets(root)? {
        println!("--- {target}");
        if !root.join("fuzz/corpus").join(&target).is_dir() {
            return Err(format!("no seeds were written for {target}"));
        }
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
        return Err(format!("{FUZZ_MANIFEST} does not contain a [[bin]]"));
    }
    Ok(names)
}

/// Runs the part of the matrix against the kernel that covers all pairs of values.
fn interop(root: &Path) -> TaskResult {
    let program = build_test_program(root, "marline-interop")?;
    let with = |more: &[&str]| {
        run_and_report_failure(&mut command(root, &program, &[&["--small"], more].concat()))
    };
    // Two cells at a time share this machine with their peers, and some depend on a kernel's timers. Failed cells
    // therefore run again alone, and fail only if they fail twice. Both attempts print their reasons.
    with(&["--fresh"]).or_else(|error| {
        println!("interop: {error}; running the failed cells again, one at a time");
        with(&["--jobs", "1"])
    })
}

/// Runs every paper in virtual time as a quick run, and builds the report. Results are not judged. The step shows that
/// every paper runs, and that each row with a stored verdict still exists with the same criterion.
fn papers(root: &Path) -> TaskResult {
    const OUT: &str = "target/ci-papers";
    const KEPT: &str = "docs/research/papers";
    let program = run_quick_papers(root, OUT)?;
    run_page_commands(root, &program, OUT)?;
    run(&mut command(root, &program, &["report", "--out", OUT, "--check", KEPT]))
}

/// Runs the commands of docs/research/README.md that begin with `marline-lab`, word for word, with results in a
/// directory of the checkout. They reuse the runs of [`run_quick_papers`].
fn run_page_commands(root: &Path, program: &str, out: &str) -> TaskResult {
    const PAGE: &str = "docs/research/README.md";
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let quoted = page.split('`').skip(1).step_by(2);
    let commands: Vec<&str> = quoted.filter_map(|text| text.strip_prefix("marline-lab ")).collect();
    if commands.len() != 5 {
        return Err(format!(
            "{PAGE}: expected five `marline-lab` commands, found {}",
            commands.len()
        ));
    }
    for line in commands {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["--out", out]);
        run(&mut command(root, program, &words)).map_err(|error| format!("{line}: {error}"))?;
    }
    Ok(())
}

/// Runs every paper in virtual time as a quick run, with results in a directory of the checkout. Returns the program.
pub(crate) fn run_quick_papers(root: &Path, out: &str) -> Result<String, String> {
    let program = build_test_program(root, "marline-lab")?;
    let mut small = command(root, &program, &["paper", "all", "--quick", "--out", out]);
    let status = small.status().map_err(|error| format!("paper: {error}"))?;
    // A quick run has no verdicts.
    if status.success() { Ok(program) } else { Err(format!("paper: {status}")) }
}

fn clippy(root: &Path) -> TaskResult {
    cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn check_docs(root: &Path) -> TaskResult {
    let mut doc = command(root, "cargo", &["doc", "--workspace", "--no-deps", "--quiet"]);
    run(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

fn cargo(root: &Path, arguments: &[&str]) -> TaskResult {
    let mut cargo: Command = command(root, "cargo", arguments);
    run(&mut cargo)
}
