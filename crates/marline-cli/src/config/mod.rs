//! Configuration: TOML files whose keys are the flags' names; flags override files.
//!
//! One struct per command serves both: clap fills it from flags, serde from a file, and `with_defaults` merges the two.
//! Options common to several commands are in [`shared`]. Every value is parsed where it is read, so that an error
//! in a file names line and column. An unknown key is an error.

pub mod client;
pub mod effects;
pub mod machine;
pub mod policies;
pub mod program;
pub mod serve;
pub mod server;
pub mod shared;
pub mod up;
mod values;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::de::DeserializeOwned;

pub use values::{
    Bytes, ClientQuota, DurationValue, Forward, InviteWord, PathQuota, PortDeadline, Resolver,
    SessionLimit, SignalAddress, StringValue, Tun, ValueOrOff,
};

/// Reads a file. Relative paths in it are relative to the file.
///
/// # Errors
/// The file cannot be read, or is invalid (with the location of the error).
pub fn load<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    parse(&text).with_context(|| format!("cannot parse {shown}"))
}

/// Parses the text of a file.
///
/// # Errors
/// The text is invalid (with the location of the error).
pub fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    Ok(toml::from_str(text)?)
}

/// Returns `path`, relative to the directory of the file that contains it.
#[must_use]
pub fn resolve_relative(file: &Path, path: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).join(path)
}

#[cfg(test)]
mod tests;
