//! Configuration of `marline run`: that of a client, without the options that only `marline client` has.

use std::path::Path;

use super::client::{ClientOptions, ClientPlan};
use crate::log::LogLevel;

/// Options of `marline run`.
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions(pub ClientOptions);

impl ProgramOptions {
    /// Merges file and flags. Options that only `marline client` has, which reads the same file, are dropped.
    ///
    /// # Errors
    /// Errors in the file, with their location.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<ProgramOptions> {
        let mut options = self.0.with_file(file)?.without_ports();
        // The terminal belongs to the program.
        options.log.get_or_insert(LogLevel::Warn);
        Ok(ProgramOptions(options))
    }

    /// Returns these options with the defaults filled in, as in a file.
    #[must_use]
    pub fn into_effective(self) -> ClientOptions {
        self.0.into_effective()
    }

    /// Returns the complete configuration.
    ///
    /// # Errors
    /// Contradictory or missing options.
    pub fn plan(self) -> anyhow::Result<ClientPlan> {
        self.0.plan()
    }
}
