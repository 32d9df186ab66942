//! Reproducible build of the program, independent of its directory and time.
//!
//! The static program links glibc, so it has the allocator and resolver of the tests, and builds on any machine
//! with Rust and a C library's development files. Its resolver uses only `/etc/hosts` and DNS (see `main.rs` of
//! marline-cli): other sources would be modules loaded from the machine, possibly of another version.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{command, output, run};

/// Both variants of the program.
pub(super) struct Programs {
    /// Dynamically linked with the machine's C library, for packages, which declare their dependencies.
    pub(super) dynamic: PathBuf,
    /// Statically linked, without dependencies on the machine.
    pub(super) fixed: PathBuf,
}

/// Builds both, optimized and stripped, below `target/dist-build`, because builds with different flags in one
/// directory would be repeated each time. The static one is built second, from the same compiled crates.
pub(super) fn build(root: &Path, epoch_s: &str) -> Result<Programs, String> {
    let folder = root.join("target/dist-build");
    cargo(root, &["build", "--release", "--locked", "-p", "marline-cli"], epoch_s, &[])?;
    let built = folder.join(target()?).join("release/marline");
    let dynamic = strip_program(&built, &folder.join("dynamic"))?;
    let fixed = build_static_program(root, epoch_s)?;
    Ok(Programs { dynamic, fixed })
}

/// Builds only the static program.
pub(super) fn build_static_program(root: &Path, epoch_s: &str) -> Result<PathBuf, String> {
    let folder = root.join("target/dist-build");
    let arguments = ["rustc", "--release", "--locked", "-p", "marline-cli", "--bin", "marline"];
    cargo(root, &arguments, epoch_s, &["--", "-Ctarget-feature=+crt-static"])?;
    let built = folder.join(target()?).join("release/marline");
    strip_program(&built, &folder.join("static"))
}

fn cargo(root: &Path, arguments: &[&str], epoch_s: &str, last: &[&str]) -> Result<(), String> {
    let mut cargo = command(root, "cargo", arguments);
    cargo.args(["--target-dir", "target/dist-build", "--target", target()?]).args(last);
    let moves = path_replacements(root)?;
    let flags = moves.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.collect::<Vec<_>>().join("\x1f"));
    // For the TLS library's C and assembly code.
    let c_flags = moves.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}"));
    cargo.env("CFLAGS", c_flags.collect::<Vec<_>>().join(" "));
    cargo.env("SOURCE_DATE_EPOCH", epoch_s);
    run(&mut cargo)
}

/// Copies `program` without its debugging information.
pub(crate) fn strip_program(program: &Path, copy: &Path) -> Result<PathBuf, String> {
    fs::copy(program, copy).map_err(|error| format!("{}: {error}", program.display()))?;
    let parent = copy.parent().unwrap_or(copy);
    let name = copy.to_string_lossy();
    run(&mut command(parent, "strip", &["--strip-unneeded", &name]))?;
    Ok(copy.to_path_buf())
}

/// Links a static program for checks from the crates compiled for the tests. Only the last crate, which is one page
/// long, is compiled again.
pub(crate) fn link_static_program(root: &Path, to: &Path) -> Result<(), String> {
    let arguments =
        ["test", "--workspace", "--no-run", "--locked", "-q", "--message-format", "json"];
    let messages = output(&mut command(root, "cargo", &arguments))?;
    let library = messages
        .lines()
        .find_map(find_compiled_library)
        .ok_or("cargo reported no compiled marline_cli library")?;
    let path = format!("marline_cli={}", library.display());
    let beside = format!("dependency={}", library.parent().unwrap_or(root).display());
    let mut rustc = command(root, "rustc", &["--edition", "2024", "--crate-name", "marline"]);
    rustc.args(["crates/marline-cli/src/main.rs", "--extern", &path, "-L", &beside]);
    rustc.args(["-Ctarget-feature=+crt-static", "-Cstrip=symbols", "-o"]).arg(to);
    run(&mut rustc)
}

/// The program's compiled library, if this cargo message is about it.
fn find_compiled_library(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let ours = message["target"]["name"] == "marline_cli" && message["profile"]["test"] == false;
    let files = message["filenames"].as_array().filter(|_| ours)?;
    let mut files = files.iter().filter_map(|file| file.as_str());
    files.find(|file| file.ends_with(".rlib")).map(PathBuf::from)
}

fn target() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x86_64-unknown-linux-gnu"),
        "aarch64" => Ok("aarch64-unknown-linux-gnu"),
        other => Err(format!("release builds for {other} are not supported")),
    }
}

/// Local directories that would occur in panic messages, with their replacements.
fn path_replacements(root: &Path) -> Result<[(String, &'static str); 3], String> {
    let sysroot = output(&mut command(root, "rustc", &["--print", "sysroot"]))?;
    let home = std::env::var("HOME").unwrap_or_default();
    let cargo = std::env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"));
    // The last matching entry applies.
    let (root, sysroot) = (root.display().to_string(), sysroot.trim().to_owned());
    Ok([(sysroot, "/rust"), (cargo, "/cargo"), (root, "/marline")])
}

/// Returns true if the program is static, that is, it requests no loader (PT_INTERP) from the kernel.
pub(crate) fn is_static(program: &Path) -> Result<bool, String> {
    let bytes = fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
    let asks = has_interpreter(&bytes);
    asks.map(|asks| !asks).ok_or_else(|| format!("{} is not a 64-bit ELF file", program.display()))
}

/// Returns true if the ELF image has a PT_INTERP header. `None` if it cannot be parsed.
fn has_interpreter(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let offset = usize::try_from(u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?)).ok()?;
    let size = usize::from(u16::from_le_bytes(elf.get(54..56)?.try_into().ok()?));
    let count = usize::from(u16::from_le_bytes(elf.get(56..58)?.try_into().ok()?));
    for index in 0..count {
        let at = offset.checked_add(index * size)?;
        let kind = u32::from_le_bytes(elf.get(at..at.checked_add(4)?)?.try_into().ok()?);
        if kind == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_programs_are_recognized() {
        let this = std::env::current_exe().expect("a test is a program");
        let bytes = fs::read(this).expect("readable");
        let dynamic = cfg!(not(target_feature = "crt-static"));
        assert_eq!(has_interpreter(&bytes), Some(dynamic));
        assert_eq!(has_interpreter(&bytes[..40]), None);
        assert_eq!(has_interpreter(b"#!/bin/sh\n"), None);
    }
}
