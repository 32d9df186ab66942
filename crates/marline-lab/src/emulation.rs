//! Emulated links as `marline link` and `marline demo` use them: descriptions with their traces,
//! commands in words, reports for people and programs.

pub mod report;
pub mod script;
pub mod settings;
pub mod traces;
