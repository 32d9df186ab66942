//! Origin of stored results: the program and the kernel that produced them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use sha2::{Digest, Sha256};

/// Hash of this program's file. Results of a program built from other sources are not valid for it.
///
/// # Errors
/// The program's file cannot be read.
pub fn program_hash() -> anyhow::Result<String> {
    file_hash(&std::env::current_exe()?)
}

/// Hash of a program's or a module's file.
///
/// # Errors
/// The file cannot be read.
pub fn file_hash(file: &Path) -> anyhow::Result<String> {
    let own = fs::read(file).with_context(|| file.display().to_string())?;
    let mut program = String::new();
    for byte in &Sha256::digest(&own)[..8] {
        // Writing to a String cannot fail.
        let _ = write!(program, "{byte:02x}");
    }
    Ok(program)
}

/// The running kernel's version.
#[must_use]
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
