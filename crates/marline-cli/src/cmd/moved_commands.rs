//! Commands that moved to the program `marline-lab`.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::USAGE_ERROR;

/// Arguments of a command that moved.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The arguments that follow the command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub rest: Vec<OsString>,
}

/// Prints the new name of the command, and returns the status of an invalid command line.
///
/// # Errors
/// None.
pub async fn run(old: &str, new: &str, args: Args) -> anyhow::Result<ExitCode> {
    let rest: String =
        args.rest.iter().map(|word| format!(" {}", word.to_string_lossy())).collect();
    eprintln!(
        "marline: `marline {old}` has moved to the program `marline-lab`: run {new}{rest}\n\
         In a source tree: cargo install --path lab/marline-lab-cli"
    );
    Ok(ExitCode::from(USAGE_ERROR))
}
