//! The task `reference`, which writes pages of the reference. Most of them are written by the tests that compare them
//! with the program.

use std::path::Path;

use crate::TaskResult;
use crate::names;
use crate::run::{command, run};

/// Environment variable that makes these tests write the pages.
const WRITE: &str = "MARLINE_WRITE_REFERENCE";

/// Tests of configuration, command line and metrics, of the list of policies, and of the trace events.
const TESTS: [&[&str]; 3] = [
    &["test", "-q", "-p", "marline-cli", "--lib", "reference::"],
    &["test", "-q", "-p", "marline-research", "--test", "policy_list"],
    &["test", "-q", "-p", "marline-qlog", "--lib", "the_page_shows_the_schema"],
];

/// Writes all pages.
pub(crate) fn write(root: &Path) -> TaskResult {
    names::write(root)?;
    for test in TESTS {
        run(command(root, "cargo", test).env(WRITE, "1"))?;
    }
    Ok(())
}
