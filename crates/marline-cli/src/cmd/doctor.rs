//! `marline doctor`: which ways of running Marline work on this machine.

use std::process::ExitCode;

use super::monitor::print;
use crate::doctor::{Finding, Verdict, examine};

/// Arguments of `marline doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A JSON array instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Examines, and says. A failure if anything fails.
///
/// # Errors
/// The result cannot be put into words.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let findings = examine().await;
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&findings)?),
        false => findings.iter().map(line).collect(),
    };
    // A reader that went away knows enough.
    let _ = print(&text);
    let sick = findings.iter().any(|finding| finding.verdict == Verdict::Fails);
    Ok(if sick { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn line(finding: &Finding) -> String {
    let mark = match finding.verdict {
        Verdict::Works => "works",
        Verdict::Note => "note",
        Verdict::Fails => "FAILS",
    };
    format!("{mark:<5}  {:<15} {}\n", finding.what, finding.text)
}
