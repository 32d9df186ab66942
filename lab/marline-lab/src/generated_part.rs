//! Generated parts of documents.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

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
