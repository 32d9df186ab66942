//! The task `reference`: pages of the reference, written from the program by the tests that compare them.

use std::path::Path;

use crate::TaskResult;
use crate::run::{command, run};

/// Environment variable with which those tests write.
const WRITE: &str = "MARLINE_WRITE_REFERENCE";

/// The tests: of configuration, command line and metrics, of the list of policies, and of the events of traces.
const TESTS: [&[&str]; 3] = [
    &["test", "-q", "-p", "marline-cli", "--lib", "reference::"],
    &["test", "-q", "-p", "marline-research", "--test", "policy_list"],
    &["test", "-q", "-p", "marline-qlog", "--lib", "the_page_shows_the_schema"],
];

/// Writes all pages.
pub(crate) fn write(root: &Path) -> TaskResult {
    for test in TESTS {
        run(command(root, "cargo", test).env(WRITE, "1"))?;
    }
    Ok(())
}
