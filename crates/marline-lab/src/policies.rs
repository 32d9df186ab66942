//! The policies that experiments name: the built-in ones and those of the literature.

use marline::Registry;

/// All of them, by name.
#[must_use]
pub fn registry() -> Registry {
    marline_research::registry()
}
