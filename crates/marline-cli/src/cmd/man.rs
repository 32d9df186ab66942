//! Subcommand `marline man`: the manual pages, generated from the text of `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory as _;

use super::monitor::print;
use crate::Cli;

/// Arguments of `marline man`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write marline.1 and a page for each subcommand there, instead of printing marline.1.
    pub dir: Option<PathBuf>,
}

/// Prints the page, or writes all of them.
///
/// # Errors
/// The directory or a file in it cannot be written.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let command = Cli::command();
    match args.dir {
        Some(dir) => {
            let cannot = || format!("cannot write manual pages into {}", dir.display());
            std::fs::create_dir_all(&dir).with_context(cannot)?;
            clap_mangen::generate_to(command, &dir).with_context(cannot)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            let _ = print(&String::from_utf8_lossy(&page));
        }
    }
    Ok(ExitCode::SUCCESS)
}
