//! Recorded pairs of links, and the figures by which what runs on a pair is compared.

pub(crate) mod figures;
pub(crate) mod pairs;
pub(crate) mod setup;

use crate::judge::Row;

/// A row that says that there are no traces; it must not pass for done.
///
/// # Errors
/// `MARLINE_REQUIRE_ALL=1` forbids that they are missing.
pub(crate) fn skipped(key: &str) -> anyhow::Result<Row> {
    let why = "SKIPPED: no recorded traces (--trace-dir DIR or MARLINE_TRACE_DIR)";
    let required = std::env::var_os("MARLINE_REQUIRE_ALL").is_some_and(|value| value == "1");
    anyhow::ensure!(!required, "{why}, and MARLINE_REQUIRE_ALL=1");
    eprintln!("{key}: {why}");
    Ok(Row::new("recorded traces").our_finding(why))
}
