//! The policies that experiments name: the built-in ones, those of the literature, and those a program brings along.

use std::sync::OnceLock;

use anyhow::ensure;
use marline::Registry;

/// What the program was started with.
static CHOSEN: OnceLock<Registry> = OnceLock::new();

/// All of them, by name: those given to [`choose`], else the built-in ones and those of the literature.
#[must_use]
pub fn registry() -> Registry {
    CHOSEN.get().cloned().unwrap_or_else(marline_research::registry)
}

/// Has all experiments of this process, and the ends that it starts for them, go by these policies. A program that
/// has policies of its own calls it once, before anything else.
///
/// # Errors
/// Others were chosen before.
pub fn choose(registry: Registry) -> anyhow::Result<()> {
    ensure!(
        CHOSEN.set(registry).is_ok(),
        "the policies of this process are chosen once, at its start"
    );
    Ok(())
}
