//! Check that the library and the proxy compile for a system other than Linux.
//!
//! Only macOS is checked: rustup downloads its standard library, and the substitutes in
//! `crates/marline-io/src/portable` are for any Unix. Nothing is linked, so no SDK or C compiler for macOS is needed:
//! the build script of `ring`, which has the only C code, gets a dummy compiler and archiver.

use std::path::Path;

use crate::TaskResult;
use crate::run::{command, output, run, skip};

const TARGET: &str = "x86_64-apple-darwin";
const CRATES: [&str; 4] = ["-p", "marline", "-p", "marline-proxy"];
/// Program that does nothing and succeeds.
const DUMMY_TOOL: &str = "true";

/// Runs the check. Without the target's standard library it prints what is missing, and fails only if skipping is not
/// allowed.
pub(crate) fn check(root: &Path) -> TaskResult {
    if !is_installed(root)? {
        let missing = format!(
            "the standard library for {TARGET} is missing: `rustup target add {TARGET}` installs it"
        );
        return skip("portable", missing);
    }
    let arguments = ["check", "--target", TARGET, "--locked", "--quiet"];
    let mut cargo = command(root, "cargo", &[&arguments[..], &CRATES].concat());
    let of_target = |tool: &str| format!("{tool}_{}", TARGET.replace('-', "_"));
    run(cargo.env(of_target("CC"), DUMMY_TOOL).env(of_target("AR"), DUMMY_TOOL))?;
    println!("portable: marline and marline-proxy compile for {TARGET}");
    Ok(())
}

fn is_installed(root: &Path) -> Result<bool, String> {
    let arguments = ["--print", "target-libdir", "--target", TARGET];
    let directory = output(&mut command(root, "rustc", &arguments))?;
    Ok(Path::new(directory.trim()).is_dir())
}
