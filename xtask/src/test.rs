//! Task that runs every test of the repository, in two parallel sequences of test programs.
//!
//! Cargo runs one test program after the other. Those of `marline-cli` take half of the time and mostly wait for
//! timers and links, while the others hardly wait. The others therefore run in parallel, with a lower priority so
//! that they do not delay timed measurements.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use crate::TaskResult;
use crate::run::{FailedLines, command, output, run_watched};
use crate::test_counts::{Skipped, TestCounts};

/// The package whose test programs run in a separate sequence.
const LIVE: &str = "marline-cli";

/// A test program.
#[derive(Clone, Debug, PartialEq)]
struct Program {
    package: String,
    /// Folder of the package, which is the tests' working directory.
    folder: PathBuf,
    executable: PathBuf,
}

/// Results of several test programs.
#[derive(Default)]
struct Outcome {
    counts: TestCounts,
    failed: Vec<String>,
    failed_lines: FailedLines,
}

/// Runs every test, or those that `arguments` of `cargo test` select, and ends with one line of counts.
pub(crate) fn run_all(root: &Path, arguments: &[String]) -> TaskResult {
    // In the build directory, because test programs run in different directories.
    let skipped = root.join("target/skipped-tests");
    let _ = std::fs::remove_file(&skipped);
    let mut outcome = Outcome::default();
    let result = if arguments.is_empty() {
        run_in_rows(root, &skipped, &mut outcome)
    } else {
        let mut selected = command(root, "cargo", &["test", "--workspace", "--no-fail-fast"]);
        set_environment(selected.args(arguments), &skipped);
        run_watched(&mut selected, |line| outcome.counts.read(line))
    };
    let skipped = Skipped::read(&std::fs::read_to_string(&skipped).unwrap_or_default());
    let tools = std::fs::read_to_string(root.join(".ci/install-tools")).unwrap_or_default();
    let summary = outcome.counts.summary(&skipped, &tools, result.is_ok());
    match result {
        Ok(()) => {
            println!("{summary}");
            Ok(())
        }
        // Printed last, because the end of a long log is the part that is read.
        Err(error) => Err(format!("{error}\n{summary}")),
    }
}

/// Four tests at a time on two processors, unless `RUST_TEST_THREADS` says otherwise: most live tests wait.
fn set_environment(command: &mut Command, skipped: &Path) {
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        command.env("RUST_TEST_THREADS", (2 * processors).to_string());
    }
    command.env("MARLINE_SKIPPED", skipped);
}

fn run_in_rows(root: &Path, skipped: &Path, outcome: &mut Outcome) -> TaskResult {
    let (live, others) = build(root)?.into_iter().partition(|program| program.package == LIVE);
    let outcome = Mutex::new(outcome);
    let run_row = |programs: Vec<Program>, is_nice: bool| {
        for program in programs {
            run_one(&program, skipped, is_nice, &outcome);
        }
    };
    std::thread::scope(|rows| {
        rows.spawn(|| run_row(live, false));
        rows.spawn(|| run_row(others, true));
    });
    let outcome = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut documentation =
        command(root, "cargo", &["test", "--workspace", "--doc", "--no-fail-fast"]);
    set_environment(&mut documentation, skipped);
    if let Err(error) = run_watched(&mut documentation, |line| outcome.counts.read(line)) {
        outcome.failed.push(error);
    }
    if outcome.failed.is_empty() {
        return Ok(());
    }
    Err(format!("failed: {}\n    {}", outcome.failed.join(", "), outcome.failed_lines.text()))
}

/// Compiles the test programs and lists them.
fn build(root: &Path) -> Result<Vec<Program>, String> {
    const BUILD: [&str; 4] =
        ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let messages = output(&mut command(root, "cargo", &BUILD))?;
    let programs: Vec<Program> = messages.lines().filter_map(read_message).collect();
    if programs.is_empty() {
        Err("cargo reported no compiled test programs".into())
    } else {
        Ok(programs)
    }
}

/// The test program named in a cargo message, if there is one.
fn read_message(line: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_test = message.pointer("/profile/test")?.as_bool()?;
    let executable = message.get("executable")?.as_str()?.into();
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    is_test.then_some(Program { package, folder, executable })
}

/// Runs a test program as cargo would, and prints its output when it has exited, so that outputs do not mix.
fn run_one(program: &Program, skipped: &Path, is_nice: bool, outcome: &Mutex<&mut Outcome>) {
    let executable = program.executable.to_string_lossy();
    let mut tests = match is_nice {
        true => command(&program.folder, "nice", &["-n", "10", &executable]),
        false => command(&program.folder, &executable, &[]),
    };
    tests.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
    set_environment(&mut tests, skipped);
    let begun = Instant::now();
    let ended = tests.stderr(Stdio::inherit()).output();
    let seconds = begun.elapsed().as_secs_f64();
    let mut outcome = outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let name = format!(
        "{} ({})",
        program.package,
        program.executable.file_name().unwrap_or_default().display()
    );
    println!("     Running {name}: {seconds:.0} s");
    let failure = match ended {
        Ok(ended) => {
            for line in String::from_utf8_lossy(&ended.stdout).lines() {
                println!("{line}");
                outcome.counts.read(line);
                outcome.failed_lines.read(line);
            }
            (!ended.status.success()).then(|| format!("{name}: {}", ended.status))
        }
        Err(error) => Some(format!("{name}: {error}")),
    };
    outcome.failed.extend(failure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_distinguished_from_others() {
        let message = |is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/m/crates/marline-io/Cargo.toml",
                "profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let program = read_message(&message(true, "\"/m/target/debug/deps/it-1\""))
            .expect("this is a test program");
        assert_eq!(
            (program.package.as_str(), program.folder.as_path()),
            ("marline-io", Path::new("/m/crates/marline-io"))
        );
        assert_eq!(program.executable, Path::new("/m/target/debug/deps/it-1"));
        for other in [
            message(false, "\"/m/target/debug/marline\""),
            message(true, "null"),
            "warning: x".into(),
        ] {
            assert_eq!(read_message(&other), None, "{other}");
        }
    }

    #[test]
    fn failed_programs_are_named_and_counted() {
        let outcome = &mut Outcome::default();
        let folder = std::env::temp_dir();
        let program = Program { package: "some".into(), folder, executable: "/bin/false".into() };
        for is_nice in [true, false] {
            run_one(&program, Path::new("/dev/null"), is_nice, &Mutex::new(outcome));
        }
        assert_eq!(outcome.failed, ["some (false): exit status: 1"; 2]);
    }
}
