//! Configuration of `marline run`: a client's, without what a client does besides.

use std::path::Path;

use super::client::{ClientOptions, ClientPlan};
use crate::log::LogLevel;

/// Options of `marline run`.
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions(pub ClientOptions);

impl ProgramOptions {
    /// Merges file and flags. What a client does besides is left to `marline client`, which reads the same file.
    ///
    /// # Errors
    /// Errors in the file, with their place.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<ProgramOptions> {
        let mut options = self.0.with_file(file)?.without_ports();
        // The terminal is the program's.
        options.log.get_or_insert(LogLevel::Warn);
        Ok(ProgramOptions(options))
    }

    /// All of them with the defaults filled in, as a file has them.
    #[must_use]
    pub fn effective(self) -> ClientOptions {
        self.0.effective()
    }

    /// The settings.
    ///
    /// # Errors
    /// Contradictory or missing options.
    pub fn plan(self) -> anyhow::Result<ClientPlan> {
        self.0.plan()
    }
}
