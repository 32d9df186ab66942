//! Recorded pairs of links, and the metrics by which results on a pair are compared.

pub(crate) mod figures;
pub(crate) mod pairs;
pub(crate) mod setup;

use crate::judge::Row;

/// Row that marks missing traces, so that the test does not count as passed.
///
/// # Errors
/// `MARLINE_REQUIRE_ALL=1` is set, which requires the traces.
pub(crate) fn skipped_row(key: &str) -> anyhow::Result<Row> {
    let why = "SKIPPED: no recorded traces (--trace-dir DIR or MARLINE_TRACE_DIR)";
    let required = std::env::var_os("MARLINE_REQUIRE_ALL").is_some_and(|value| value == "1");
    anyhow::ensure!(!required, "{why}, and MARLINE_REQUIRE_ALL=1");
    eprintln!("{key}: {why}");
    Ok(Row::new("recorded traces").our_finding(why))
}
