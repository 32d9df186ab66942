//! Configuration of the benches that count instructions, the same for all crates.

use gungraun::prelude::*;
use gungraun::{Callgrind, FlamegraphConfig};

/// The C library copies large blocks with `rep movsb`, of which valgrind counts each byte as an instruction. This
/// setting makes it copy with vector instructions.
const COPY_BY_VECTORS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000";

/// Caches are not simulated: only instructions are compared. `MARLINE_FLAME` draws a flame graph for each profile.
pub(crate) fn config() -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    if std::env::var_os("MARLINE_FLAME").is_some() {
        callgrind.flamegraph(FlamegraphConfig::default());
    }
    LibraryBenchmarkConfig::default().env("GLIBC_TUNABLES", COPY_BY_VECTORS).tool(callgrind).clone()
}
