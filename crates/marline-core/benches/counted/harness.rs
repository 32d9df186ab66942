//! Configuration of the benches that count instructions, the same for all crates.

use gungraun::prelude::*;
use gungraun::{Callgrind, FlamegraphConfig};

/// Of `rep movsb`, by which the C library copies what is large, valgrind counts each byte as an
/// instruction: the other way of copying is what is meant.
const COPY_BY_VECTORS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000";

/// Caches are not simulated: only instructions are compared. `MARLINE_FLAME` draws a flame graph beside
/// each profile.
pub(crate) fn config() -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    if std::env::var_os("MARLINE_FLAME").is_some() {
        callgrind.flamegraph(FlamegraphConfig::default());
    }
    LibraryBenchmarkConfig::default().env("GLIBC_TUNABLES", COPY_BY_VECTORS).tool(callgrind).clone()
}
