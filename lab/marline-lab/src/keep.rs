//! Stored results for resuming long runs, and generated parts of documents.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};

/// Hash of this program's file. Results of a program built from other sources are not valid for it.
///
/// # Errors
/// The program's file cannot be read.
pub fn program() -> anyhow::Result<String> {
    file(&std::env::current_exe()?)
}

/// Hash of a program's or a module's file.
///
/// # Errors
/// The file cannot be read.
pub fn file(file: &Path) -> anyhow::Result<String> {
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

/// Replaces the part of a document between `<!-- NAME: generated -->` and `<!-- NAME: end -->`.
///
/// # Errors
/// The file cannot be read or written, or has no such lines.
pub fn write_between_markers(file: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let before = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let (begin, end) = (format!("<!-- {name}: generated -->"), format!("<!-- {name}: end -->"));
    let (Some(from), Some(to)) = (before.find(&begin), before.find(&end)) else {
        anyhow::bail!("{} does not have the lines `{begin}` and `{end}`", file.display());
    };
    ensure!(from < to, "{}: the markers are in the wrong order", file.display());
    let head = &before[..from + begin.len()];
    let after = format!("{head}\n\n{}\n\n{}", text.trim(), &before[to..]);
    fs::write(file, after).with_context(|| file.display().to_string())
}
