//! Static build of the program, which the quickstart copies to a server.
//!
//! Linked against musl it runs on any Linux of its processor, whatever its C library. The standard
//! library for that target comes by rustup, musl's own start files with it; the TLS library's C and
//! assembler parts are compiled by musl-gcc (Debian's package musl-tools). The linker stays the
//! default one: musl-gcc as linker makes a program that asks for musl's loader.

use std::fs;
use std::path::Path;

use crate::TaskResult;
use crate::run::{command, output, run};

/// Builds `target/dist/marline` and `target/dist/marline.sha256`, and proves that it is static.
pub(crate) fn build(root: &Path) -> TaskResult {
    let target = target()?;
    let compiler = "musl-gcc";
    output(&mut command(root, compiler, &["--version"]))
        .map_err(|error| format!("{error}\nhint: apt-get install musl-tools"))?;
    run(&mut command(root, "rustup", &["target", "add", target]))?;
    let arguments = ["build", "--release", "--locked", "-p", "marline-cli", "--target", target];
    let mut cargo = command(root, "cargo", &arguments);
    cargo.env(format!("CC_{}", target.replace('-', "_")), compiler);
    run(&mut cargo)?;

    let built = target_directory(root)?;
    let program = Path::new(&built).join(target).join("release/marline");
    let folder = root.join("target/dist");
    let copy = folder.join("marline");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    fs::copy(&program, &copy).map_err(|error| format!("{}: {error}", program.display()))?;
    must_be_static(&copy)?;
    run(&mut command(&folder, "./marline", &["--version"]))?;
    let sum = output(&mut command(&folder, "sha256sum", &["marline"]))?;
    let sum_file = folder.join("marline.sha256");
    fs::write(&sum_file, &sum).map_err(|error| format!("{}: {error}", sum_file.display()))?;
    let size = fs::metadata(&copy).map_or(0, |meta| meta.len());
    println!("target/dist/marline: static, {size} bytes\n{}", sum.trim());
    Ok(())
}

fn target() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x86_64-unknown-linux-musl"),
        "aarch64" => Ok("aarch64-unknown-linux-musl"),
        other => Err(format!("no static build is set up for {other}")),
    }
}

fn target_directory(root: &Path) -> Result<String, String> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata = output(&mut command(root, "cargo", &arguments))?;
    let key = "\"target_directory\":\"";
    let start = metadata.find(key).ok_or("cargo metadata names no target directory")? + key.len();
    let end = metadata[start..].find('"').ok_or("cargo metadata ends inside a string")?;
    Ok(metadata[start..start + end].to_string())
}

/// A program that asks the kernel for a loader (PT_INTERP) is not static, whatever its linker said.
fn must_be_static(program: &Path) -> TaskResult {
    let bytes = fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
    match wants_interpreter(&bytes) {
        Some(false) => Ok(()),
        Some(true) => Err(format!("{} is linked dynamically", program.display())),
        None => Err(format!("{} is no 64-bit little-endian ELF file", program.display())),
    }
}

/// Whether the ELF image has a PT_INTERP header; `None` where it can not be read as one.
fn wants_interpreter(elf: &[u8]) -> Option<bool> {
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
    fn a_dynamic_program_is_recognised() {
        let this = std::env::current_exe().expect("a test is a program");
        let bytes = fs::read(this).expect("readable");
        let dynamic = cfg!(not(target_env = "musl"));
        assert_eq!(wants_interpreter(&bytes), Some(dynamic));
        assert_eq!(wants_interpreter(&bytes[..40]), None);
        assert_eq!(wants_interpreter(b"#!/bin/sh\n"), None);
    }
}
