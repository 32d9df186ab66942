//! Emulated links as `marline link` and `marline demo` use them: descriptions with their traces,
//! textual commands, reports for people and programs.

pub mod report;
pub mod script;
pub mod settings;
pub mod traces;
