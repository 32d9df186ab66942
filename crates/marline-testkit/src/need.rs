//! Requirements of a test on its machine, and the handling of missing ones.
//!
//! A test that wants recorded traces or a foreign program asks here first. Where the thing is
//! missing the test ends early, but never silently: one line goes to standard error past the
//! test harness's capture. With `MARLINE_REQUIRE_ALL=1` (as in `.ci/run`) the same line is a
//! failure, so that a skipped test can not pass for a passed one where everything is installed.
//!
//! ```
//! # fn example() {
//! use marline_testkit::need;
//! let Some(traces) = need::trace_dir() else { return };
//! let Some(tshark) = need::program("tshark") else { return };
//! # }
//! ```

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Names the directory that holds the recorded link traces.
pub const TRACE_DIR: &str = "MARLINE_TRACE_DIR";
/// Set to `1`: a test that would skip fails instead.
pub const REQUIRE_ALL: &str = "MARLINE_REQUIRE_ALL";

/// The directory with the recorded link traces: `MARLINE_TRACE_DIR`, or else `shared/traces`
/// beside the checkout. `None`, after a loud line, where neither exists.
///
/// # Panics
/// When the directory is missing and `MARLINE_REQUIRE_ALL=1`; also when `MARLINE_TRACE_DIR`
/// names something that is not a directory, because then the caller's wish was mistyped.
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

/// Where on `PATH` the program `name` lies. `None`, after a loud line, where it is not installed.
///
/// # Panics
/// When it is missing and `MARLINE_REQUIRE_ALL=1`.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let found = find_program(name, &env::var_os("PATH").unwrap_or_default());
    if found.is_none() {
        skip(&format!("`{name}` is not installed"));
    }
    found
}

/// Whether namespaces and interfaces can be made; where not, the test is skipped loudly.
pub fn root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    // Real, effective, saved, file system.
    let root = uid.and_then(|ids| ids.split_ascii_whitespace().nth(1)) == Some("0");
    if !root {
        skip("needs root");
    }
    root
}

/// Says loudly that the running test is left out and why. The caller returns right after it.
///
/// # Panics
/// When `MARLINE_REQUIRE_ALL=1`.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(!everything_is_required(), "{test} may not be skipped ({REQUIRE_ALL}=1): {why}");
    // Written to the stream itself: the harness captures only what goes through `eprintln!`.
    let line = format!("SKIPPED {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn everything_is_required() -> bool {
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
    fn a_program_is_found_on_the_path_and_nowhere_else() {
        let shell = find_program("sh", "/nowhere:/bin".as_ref());
        assert_eq!(shell, Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program("no-such-program-of-marline", "/bin".as_ref()), None);
    }
}
