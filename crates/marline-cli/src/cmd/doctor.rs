//! `marline doctor`: which ways of running Marline work on this machine, and what lies on the way to a
//! server.

use std::net::SocketAddr;
use std::process::ExitCode;

use marline::PathSpec;

use super::monitor::print;
use crate::doctor::{Finding, Verdict, examine, path};

/// Arguments of `marline doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A JSON array instead of text.
    #[arg(long)]
    pub json: bool,
    /// Examine the way to this server, path by path, with native TCP (CAP_NET_RAW). If it is a `marline
    /// doctor --listen`, boxes on the way are found by what both ends saw
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "listen")]
    pub server: Option<SocketAddr>,
    /// A path to examine (again for more): an interface or a local address. Without: all that have a
    /// default route
    #[arg(long, value_name = "PATH", requires = "server")]
    pub path: Vec<PathSpec>,
    /// Be the other end of such an examination until stopped: an echo on native TCP that tells those who
    /// come which segments it saw of them
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
}

/// Examines, and says. A failure if anything fails.
///
/// # Errors
/// The result cannot be put into words.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(listen) = args.listen {
        path::respond(listen, |address| println!("listening on {address}")).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let findings = match args.server {
        Some(server) => path::examine(server, &args.path).await,
        None => examine().await,
    };
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
