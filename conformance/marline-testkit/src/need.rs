//! Requirements of a test on its machine, and the handling of missing ones.
//!
//! A test that needs recorded traces or another program calls this module first. If a requirement is missing, the test
//! ends early with one line on standard error, which bypasses the test harness's capture. With `MARLINE_REQUIRE_ALL=1`
//! (as in `.ci/run`), this is a failure instead, so that a skipped test cannot count as passed where everything is
//! installed. `cargo xtask test` sets [`SKIPPED`] to a file and counts its lines at the end.
//!
//! ```
//! # fn example() {
//! use marline_testkit::need;
//! let Some(traces) = need::trace_dir() else { return };
//! let Some(tshark) = need::program("tshark") else { return };
//! # }
//! ```

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Variable with the directory of the recorded link traces.
pub const TRACE_DIR: &str = "MARLINE_TRACE_DIR";
/// If set to `1`, a test that would be skipped fails instead.
pub const REQUIRE_ALL: &str = "MARLINE_REQUIRE_ALL";
/// Variable with a file to which each skipped test appends a line: program, test, kind and text, separated by tabs.
/// With the kind `program`, the text is the program's name. With `other`, it is the reason.
pub const SKIPPED: &str = "MARLINE_SKIPPED";

/// Maximum length of the text in such a line, and of the file. Each line is one write, so that lines of concurrent
/// tests do not mix.
const TEXT_BYTES: usize = 200;
const FILE_BYTES: u64 = 1 << 20;

/// The directory with the recorded link traces: `MARLINE_TRACE_DIR`, or else `shared/traces` next to the checkout.
/// `None`, with a message, if neither exists.
///
/// # Panics
/// If the directory is missing and `MARLINE_REQUIRE_ALL=1`, or if `MARLINE_TRACE_DIR` is not a directory.
#[must_use]
pub fn trace_dir() -> Option<PathBuf> {
    if let Some(named) = env::var_os(TRACE_DIR).filter(|value| !value.is_empty()) {
        let dir = PathBuf::from(named);
        assert!(dir.is_dir(), "{TRACE_DIR}={} is not a directory", dir.display());
        return Some(dir);
    }
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let beside = checkout.parent()?.join("shared/traces");
    if beside.is_dir() {
        return Some(beside);
    }
    skip(&format!("no recorded traces: set {TRACE_DIR}"));
    None
}

/// The location of the program `name` on `PATH`. `None`, with a message, if it is not installed.
///
/// # Panics
/// If it is missing and `MARLINE_REQUIRE_ALL=1`.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let found = find_program(name, &env::var_os("PATH").unwrap_or_default());
    if found.is_none() {
        skip_with_reason("program", name, &format!("`{name}` is not installed"));
    }
    found
}

/// Returns true if the test may create namespaces and interfaces. Otherwise skips it with a message.
pub fn root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    // The ids are real, effective, saved and file system.
    let root = uid.and_then(|ids| ids.split_ascii_whitespace().nth(1)) == Some("0");
    if !root {
        skip("needs root");
    }
    root
}

/// Reports that the running test is skipped, with the reason. The caller must return immediately afterwards.
///
/// # Panics
/// If `MARLINE_REQUIRE_ALL=1`.
pub fn skip(why: &str) {
    skip_with_reason("other", why, why);
}

fn skip_with_reason(kind: &str, text: &str, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(!requires_all_tools(), "{test} must not be skipped ({REQUIRE_ALL}=1): {why}");
    // Written directly to the stream, because the harness captures only `eprintln!`.
    let line = format!("SKIPPED {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = env::var_os(SKIPPED).filter(|value| !value.is_empty()) {
        let program = env::current_exe().unwrap_or_default();
        let program = program.file_name().unwrap_or_default().to_string_lossy();
        // The test is skipped even if this cannot be recorded.
        let _ = append(Path::new(&file), &[&program, test, kind, text]);
    }
}

/// Appends a line with these fields, unless the file is full.
fn append(file: &Path, fields: &[&str]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    if file.metadata()?.len() >= FILE_BYTES {
        return Ok(());
    }
    let clean = |field: &&str| {
        let plain = field.replace(|c: char| c.is_control(), " ");
        plain[..plain.floor_char_boundary(TEXT_BYTES)].to_owned()
    };
    let line = fields.iter().map(clean).collect::<Vec<_>>().join("\t");
    file.write_all(format!("{line}\n").as_bytes())
}

fn requires_all_tools() -> bool {
    env::var_os(REQUIRE_ALL).is_some_and(|value| value == "1")
}

fn find_program(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    // Daemons such as sshd live in sbin, which an ordinary user's PATH often leaves out.
    let extra = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")];
    env::split_paths(path).chain(extra).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_skipped_tests_stay_lines_and_the_file_stays_small() {
        let file = env::temp_dir().join(format!("marline-skipped-{}", std::process::id()));
        append(&file, &["program", "a::b", "other", "one\ntwo\tthree"]).expect("a line");
        append(&file, &["program", "a::c", "other", &"ä".repeat(500)]).expect("a line");
        let text = std::fs::read_to_string(&file).expect("the file");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "program\ta::b\tother\tone two three");
        assert!(lines.len() == 2 && lines[1].len() < 300, "{text}");
        std::fs::write(&file, vec![b'\n'; FILE_BYTES as usize]).expect("a full file");
        append(&file, &["program", "a::b", "other", "one"]).expect("nothing to do");
        assert_eq!(std::fs::metadata(&file).expect("the file").len(), FILE_BYTES);
        std::fs::remove_file(&file).expect("removed");
    }

    #[test]
    fn a_program_is_found_on_the_path_and_nowhere_else() {
        let shell = find_program("sh", "/nowhere:/bin".as_ref());
        assert_eq!(shell, Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program("no-such-program-of-marline", "/bin".as_ref()), None);
    }
}
