//! `marline client`: the proxy's near end.

use std::process::ExitCode;

/// Arguments of `marline client`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
///
/// # Errors
/// What went wrong, in words for the user.
pub async fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no `client` yet")
}
