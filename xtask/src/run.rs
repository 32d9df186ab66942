//! Execution of other programs.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Creates a command in `dir` with this process's streams.
pub(crate) fn command(dir: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdin(Stdio::null());
    // Cargo sets these variables for xtask. A nested cargo of another workspace must not inherit them. In a nested
    // cargo of this workspace they would repeat the build script of `ring` and rebuild all crates that depend on it
    // whenever `cargo xtask` and cargo are used alternately.
    for (variable, _) in std::env::vars_os().filter(|(name, _)| is_set_by_cargo(name)) {
        command.env_remove(variable);
    }
    command
}

/// Returns true if cargo sets this variable for the package that it runs.
fn is_set_by_cargo(variable: &OsStr) -> bool {
    let name = variable.to_string_lossy();
    name == "CARGO" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Runs `command` and returns a message if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status =
        command.status().map_err(|error| format!("{}: {error}", display_command(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", display_command(command))) }
}

/// Builds a program of the workspace as `cargo test --workspace` does, with overflow checks and debug assertions, so
/// that almost nothing is compiled again. A release build takes ten minutes (`cargo xtask dist`).
pub(crate) fn build_test_program(root: &Path, program: &str) -> Result<String, String> {
    const BUILD: [&str; 8] =
        ["build", "--profile", "test", "--workspace", "--bins", "--tests", "--locked", "-q"];
    run(&mut command(root, "cargo", &BUILD))?;
    Ok(root.join("target/debug").join(program).to_string_lossy().into_owned())
}

/// Runs `command` and returns what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", display_command(command)))?;
    if !output.status.success() {
        return Err(format!("{}: {}", display_command(command), output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| format!("{}: {error}", display_command(command)))
}

/// Runs `command`, shows its standard output as it arrives, and returns it.
pub(crate) fn run_and_show(command: &mut Command) -> Result<String, String> {
    let failed =
        |words: &dyn Display, command: &Command| format!("{}: {words}", display_command(command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| failed(&error, command))?;
    let mut text = String::new();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(|error| failed(&error, command))?;
        println!("{line}");
        text += &line;
        text.push('\n');
    }
    let status = child.wait().map_err(|error| failed(&error, command))?;
    if status.success() { Ok(text) } else { Err(failed(&status, command)) }
}

/// Number of lines kept for a failure, and number of lines that explain a panic.
const KEPT_LIMIT: usize = 120;
const LINES_AFTER_PANIC: usize = 5;

/// Runs `command` and shows its standard output as it arrives. On failure, the message contains the lines that show
/// the failed tests, because they are far above the end of a long log.
pub(crate) fn run_and_report_failure(command: &mut Command) -> Result<(), String> {
    run_watched(command, |_| ())
}

/// Like [`run_and_report_failure`], and calls `watch` with each line.
pub(crate) fn run_watched(
    command: &mut Command,
    mut watch: impl FnMut(&str),
) -> Result<(), String> {
    let failed =
        |words: &dyn Display, command: &Command| format!("{}: {words}", display_command(command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| failed(&error, command))?;
    let mut failed_lines = FailedLines::default();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(|error| failed(&error, command))?;
        println!("{line}");
        watch(&line);
        failed_lines.read(&line);
    }
    let status = child.wait().map_err(|error| failed(&error, command))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{}\n    {}", failed(&status, command), failed_lines.text()))
}

/// Lines of a test log that show the failed tests and their reasons.
#[derive(Default)]
pub(crate) struct FailedLines {
    kept: Vec<String>,
    /// Number of further lines to keep after a panic.
    lines_after_panic: usize,
}

impl FailedLines {
    pub(crate) fn read(&mut self, line: &str) {
        if line.contains("panicked at") {
            self.lines_after_panic = LINES_AFTER_PANIC + 1;
        }
        if self.kept.len() < KEPT_LIMIT && (self.lines_after_panic > 0 || line.contains("FAILED")) {
            self.kept.push(line.to_owned());
        }
        self.lines_after_panic = self.lines_after_panic.saturating_sub(1);
    }

    pub(crate) fn text(&self) -> String {
        self.kept.join("\n    ")
    }
}

/// The command line as typed in a shell, for messages.
pub(crate) fn display_command(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Skips a step and prints why. Fails if skipping is not allowed.
pub(crate) fn skip(step: &str, why: String) -> Result<(), String> {
    if std::env::var("MARLINE_REQUIRE_ALL").is_ok_and(|value| value == "1") {
        return Err(why);
    }
    println!("SKIPPED {step}: {why}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_a_log_are_shown() {
        let script = "echo 'test a ... ok'; echo 'test b ... FAILED'; echo 'noise'; \
                      echo \"thread 'b' panicked at b.rs:1:\"; echo 'why'; exit 3";
        let error = run_and_report_failure(&mut command(Path::new("/"), "sh", &["-c", script]));
        let error = error.expect_err("the script exits with 3");
        assert!(error.contains("exit status: 3") && error.contains("test b ... FAILED"), "{error}");
        assert!(error.contains("why") && !error.contains("    noise"), "{error}");
        assert!(run_and_report_failure(&mut command(Path::new("/"), "true", &[])).is_ok());
    }
}
