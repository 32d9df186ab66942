//! Emulated links as `marline-lab link` and experiments use them: descriptions with their traces, textual commands,
//! reports for people and programs.

pub mod script;
pub mod settings;

pub use marline_emulator::{report_text as report, traces};
