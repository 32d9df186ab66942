//! Search path of trace files.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use marline_link::{DuplexConfig, DuplexSpec};
use marline_time::SeedTree;

/// Maximum size of a trace file in bytes, so that other large files in the directory do not fill the memory.
const MAX_TRACE_BYTES: u64 = 64 << 20;

/// Turns a description into links and reads their traces from `directory` or its subdirectories; without one, from
/// `MARLINE_TRACE_DIR`.
///
/// # Errors
/// A trace is missing or cannot be parsed.
pub fn resolve(
    spec: &DuplexSpec,
    directory: Option<&Path>,
    seeds: &SeedTree,
) -> anyhow::Result<DuplexConfig> {
    let directory = directory.map(Path::to_path_buf).or_else(trace_directory_from_env);
    let places = directory.as_deref().map(trace_directories).unwrap_or_default();
    let mut read = |name: &str| places.iter().find_map(|place| read_file(&place.join(name)));
    spec.resolve(seeds, &mut read).with_context(|| match &directory {
        Some(directory) => format!("searched for traces in {}", directory.display()),
        None => "give the directory of traces with --trace-dir DIR".to_owned(),
    })
}

/// The directory in `MARLINE_TRACE_DIR`. An empty value counts as unset.
#[must_use]
pub fn trace_directory_from_env() -> Option<PathBuf> {
    std::env::var_os("MARLINE_TRACE_DIR").filter(|named| !named.is_empty()).map(PathBuf::from)
}

/// The directory and its subdirectories.
fn trace_directories(directory: &Path) -> Vec<PathBuf> {
    let mut places = vec![directory.to_path_buf()];
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            places.push(entry.path());
        }
    }
    places.sort();
    places
}

fn read_file(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(MAX_TRACE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_found_in_directories_of_the_directory() {
        let dir = std::env::temp_dir().join(format!("marline-traces-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("set")).expect("make");
        std::fs::write(dir.join("set").join("steady.down"), "1\n2\n3\n").expect("write");
        let seeds = SeedTree::new(1);
        let spec: DuplexSpec = "rate=1M,down.trace=steady".parse().expect("spec");
        resolve(&spec, Some(&dir), &seeds).expect("found");
        let missing: DuplexSpec = "trace=nowhere".parse().expect("spec");
        let error = format!("{:#}", resolve(&missing, Some(&dir), &seeds).expect_err("missing"));
        assert!(error.contains("nowhere") && error.contains("marline-traces"), "{error}");
        std::fs::remove_dir_all(&dir).expect("clean up");
    }
}
