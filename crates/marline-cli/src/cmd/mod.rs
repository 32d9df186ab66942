//! Subcommands, one file each: arguments and implementation.

mod accepting;
pub mod check_config;
pub mod client;
pub mod completions;
pub mod connect;
pub mod demo;
pub mod doctor;
pub mod down;
pub mod lab;
pub mod link;
pub mod link_supervisor;
pub mod man;
pub mod monitor;
mod names;
mod opened;
pub mod path;
pub mod policies;
pub mod reload;
pub mod run;
pub mod scheduler;
pub mod serve;
pub mod server;
mod settings;
pub mod status;
pub mod up;
pub mod upgrade;
mod watched;
