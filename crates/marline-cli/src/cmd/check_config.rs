//! `marline check-config`: validation and display of the effective configuration.

use std::process::ExitCode;

use super::{client, serve, server};
use crate::config::server::ServerOptions;

/// Arguments of `marline check-config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose configuration.
    #[command(subcommand)]
    pub whose: Whose,
}

/// Whose configuration is checked.
#[derive(Debug, clap::Subcommand)]
pub enum Whose {
    /// A client's: the same file and flags as for `marline client`
    Client(client::Args),
    /// A server's: the same file and flags as for `marline server`
    Server(server::Args),
    /// A front's: the same file and flags as for `marline serve`
    Serve(serve::Args),
}

/// Runs it.
///
/// # Errors
/// What is wrong with the configuration, and where.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = match args.whose {
        Whose::Client(args) => {
            let options = args.options.with_file(args.config.as_deref())?;
            let text = toml::to_string(&options.clone().effective())?;
            options.plan()?;
            text
        }
        Whose::Serve(args) => {
            let options = args.options.with_file(args.config.as_deref())?;
            let text = toml::to_string(&options.clone().effective())?;
            options.plan()?;
            text
        }
        Whose::Server(args) => {
            let file = &args.config;
            let options = args.options.over(ServerOptions::from_file(file)?);
            let text = toml::to_string(&options.clone().effective(file))?;
            options.plan(file)?;
            text
        }
    };
    println!("# In force; what is not listed is off.");
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
