//! Emulated links as `marline-lab link` and experiments use them: descriptions with their traces, textual
//! commands, and reports as text and JSON.

pub mod script;
pub mod settings;

pub use marline_emulator::{report_text as report, traces};
