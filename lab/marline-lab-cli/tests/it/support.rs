//! Common parts of the tests.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Whom the machine belongs to.
static MACHINE: RwLock<()> = RwLock::new(());

/// For tests whose figures other work would spoil, or that take all of the machine: no test that asks runs
/// meanwhile.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    // Who panicked with it has spoiled nothing.
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// For all tests that are more than a moment's work. Once in a test: a second time it may wait for itself.
pub(crate) fn among_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The program, to be run in `dir`.
pub(crate) fn marline_lab(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    command.current_dir(dir).args(args).stdin(Stdio::null());
    command
}

/// Runs it, expects success, gives its standard output.
pub(crate) fn run_ok(dir: &Path, args: &[&str]) -> String {
    let (out, err, done) = texts(&marline_lab(dir, args).output().expect("the program starts"));
    assert!(done, "marline-lab {args:?}: {err}");
    out
}

/// Runs it, expects failure, gives its standard error.
pub(crate) fn run_err(dir: &Path, args: &[&str]) -> String {
    let (_, err, done) = texts(&marline_lab(dir, args).output().expect("the program starts"));
    assert!(!done, "marline-lab {args:?} should fail");
    err
}

/// Both outputs, and whether it succeeded.
fn texts(output: &Output) -> (String, String, bool) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.success())
}

/// An address of loopback whose TCP port was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}
