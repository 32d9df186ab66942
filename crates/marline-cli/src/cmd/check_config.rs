//! `marline check-config`: validation and display of the effective configuration.

use std::process::ExitCode;

use super::{client, serve, server};
use crate::config::server::ServerOptions;

/// Arguments of `marline check-config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration to check.
    #[command(subcommand)]
    pub kind: ConfigKind,
}

/// Kinds of configuration.
#[derive(Debug, clap::Subcommand)]
pub enum ConfigKind {
    /// Client configuration: the same file and flags as for `marline client`
    Client(Box<client::Args>),
    /// Server configuration: the same file and flags as for `marline server`
    Server(Box<server::Args>),
    /// Configuration of a front: the same file and flags as for `marline serve`
    Serve(Box<serve::Args>),
}

/// Runs `marline check-config`.
///
/// # Errors
/// The errors in the configuration, with their location.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = match args.kind {
        ConfigKind::Client(args) => {
            let options = args.options.with_file(args.config.as_deref())?;
            let text = toml::to_string(&options.clone().into_effective())?;
            options.plan()?;
            text
        }
        ConfigKind::Serve(args) => {
            let options = args.options.with_file(args.config.as_deref())?;
            let text = toml::to_string(&options.clone().into_effective())?;
            options.plan()?;
            text
        }
        ConfigKind::Server(args) => {
            let server::Args { config: file, options, .. } = *args;
            let file = &file;
            let options = options.with_defaults(ServerOptions::from_file(file)?);
            let text = toml::to_string(&options.clone().into_effective(file))?;
            options.plan(file)?;
            text
        }
    };
    println!("# Effective settings; settings not listed are off.");
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
