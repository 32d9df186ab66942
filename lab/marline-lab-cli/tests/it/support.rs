//! Common parts of the tests.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Lock for the use of the whole machine.
static MACHINE: RwLock<()> = RwLock::new(());

/// For tests that measure or use the whole machine: waits for the lock and holds it.
pub(crate) fn lock_exclusively() -> RwLockWriteGuard<'static, ()> {
    // A panic of the previous holder does not invalidate the lock.
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// For all other tests that are not instant. Call it once per test: a second call may deadlock.
pub(crate) fn among_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The program's command in `dir`.
pub(crate) fn marline_lab(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    command.current_dir(dir).args(args).stdin(Stdio::null());
    command
}

/// Runs the program, expects success, and returns its standard output.
pub(crate) fn run_ok(dir: &Path, args: &[&str]) -> String {
    let (out, err, done) = texts(&marline_lab(dir, args).output().expect("the program starts"));
    assert!(done, "marline-lab {args:?}: {err}");
    out
}

/// Runs the program, expects failure, and returns its standard error.
pub(crate) fn run_err(dir: &Path, args: &[&str]) -> String {
    let (_, err, done) = texts(&marline_lab(dir, args).output().expect("the program starts"));
    assert!(!done, "marline-lab {args:?} should fail");
    err
}

/// Standard output, standard error, and whether it succeeded.
fn texts(output: &Output) -> (String, String, bool) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.success())
}
