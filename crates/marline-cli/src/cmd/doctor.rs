//! `marline doctor`: diagnosis of this machine (which carriers work) and of the paths to a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use marline::ServerBuilder;
use marline::advanced::KeptCapabilities;
use marline::paths::PathSpec;
use marline_io::SegmentLog;
use marline_proxy::target::Target;
use serde::Serialize;

use super::monitor::print;
use crate::config::client::ClientOptions;
use crate::doctor::{Finding, FindingStatus, PathVerdict, examine, invite, path};
use crate::invite_places::InvitePlaces;
use crate::native::{CarrierPlan, drop_privileges};

/// Arguments of `marline doctor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 if all checks pass (with --invite-file or --server: if a client can \
        connect over at least one path), otherwise 1."
)]
pub struct Args {
    /// Print a JSON object instead of text: `works`, `paths` with `state` and `cause` as in `marline status --json`,
    /// and `findings`.
    #[arg(long)]
    pub json: bool,
    /// Test the connection to the server of this invite on each path, over UDP and over TCP, within five seconds: name
    /// resolution, answer, server key, credential and MTU [default: check this machine, and the invite that `marline
    /// join` stored]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "server"])]
    pub invite_file: Option<PathBuf>,
    /// Test each path to this server over UDP, TCP and native TCP (needs CAP_NET_RAW). If the server runs `marline
    /// doctor --listen`, the segments at both ends are compared to detect middleboxes
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "listen")]
    pub server: Option<Target>,
    /// Path to test: an interface or a local address; may be repeated [default: all interfaces with a default
    /// route]
    #[arg(long, value_name = "PATH")]
    pub path: Vec<PathSpec>,
    /// Run the other end of a --server test until stopped: a native TCP echo server that reports the received
    /// segments to its clients
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
}

/// A diagnosis without unnecessary privileges.
#[derive(Debug)]
pub struct PreparedDoctor {
    args: Args,
    /// The responder of a diagnosis, with its port reserved.
    responder: Option<(ServerBuilder, SegmentLog)>,
}

/// Opens the sockets that need privileges, then drops the privileges. Checks of raw sockets keep the necessary
/// ones. Must be called before threads are started.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<PreparedDoctor> {
    let mut responder = None;
    if let Some(listen) = args.listen {
        let (mut server, log) = path::responder(listen);
        CarrierPlan::Raw.listen(&mut server, false, KeptCapabilities::Nothing)?;
        responder = Some((server, log));
    } else if args.invite_file.is_some() {
        drop_privileges(KeptCapabilities::Nothing)?;
    } else {
        drop_privileges(KeptCapabilities::Diagnosis)?;
    }
    Ok(PreparedDoctor { args, responder })
}

/// Runs the checks and prints the findings. Fails if any check fails or, with a server, if no path to it works.
///
/// # Errors
/// The invite does not exist, or the result cannot be serialized.
pub async fn run(prepared: PreparedDoctor) -> anyhow::Result<ExitCode> {
    let PreparedDoctor { args, responder } = prepared;
    if let Some((server, log)) = responder {
        path::respond(server, log, |address| println!("listening on {address}")).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = match (&args.invite_file, &args.server) {
        (Some(file), _) => {
            let options =
                ClientOptions { invite_file: Some(file.clone()), ..ClientOptions::default() };
            let found = invite::examine(&options.read_invite()?, &args.path).await;
            Report { works: found.can_connect(), paths: found.paths, findings: found.findings }
        }
        (None, Some(server)) => check_server(server, &args.path).await,
        (None, None) => with_stored_invite(&args.path).await?,
    };
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&report)?),
        false => report.findings.iter().map(line).collect(),
    };
    // A closed output is ignored.
    let _ = print(&text);
    Ok(if report.works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Complete result of a diagnosis.
#[derive(Debug, Serialize)]
struct Report {
    /// True if a client could connect, or, without a server, if no check of this machine fails.
    works: bool,
    /// Verdict on each path to the server.
    paths: Vec<PathVerdict>,
    findings: Vec<Finding>,
}

/// Checks this machine, and the paths to the server of the stored invite. Without a usable stored invite, only this
/// machine.
async fn with_stored_invite(paths: &[PathSpec]) -> anyhow::Result<Report> {
    let stored = InvitePlaces::for_process().find_stored();
    if !paths.is_empty() && matches!(stored, Ok(None)) {
        bail!("--path needs a server: run `marline join` first, or add --invite-file or --server");
    }
    let findings = if paths.is_empty() { examine().await } else { Vec::new() };
    let works = !findings.iter().any(fails);
    let mut report = Report { works, paths: Vec::new(), findings };
    match stored {
        Ok(Some(stored)) => {
            let found = invite::examine(&stored.invite, paths).await;
            report.works &= found.can_connect();
            report.paths = found.paths;
            report.findings.extend(found.findings);
        }
        Ok(None) => {}
        Err(error) => {
            report.findings.push(Finding::unusable_invite(&error));
            report.works = false;
        }
    }
    Ok(report)
}

fn fails(finding: &Finding) -> bool {
    finding.status == FindingStatus::Fails
}

/// Checks framed carriers and native TCP concurrently. If one of them reaches the server over any path, the failure
/// of the other is not a fault, because few servers support both.
async fn check_server(server: &Target, paths: &[PathSpec]) -> Report {
    let native = async {
        let (_, addresses) = invite::resolve(std::slice::from_ref(server)).await;
        match addresses.first() {
            Some(address) => path::examine(*address, paths).await,
            None => Vec::new(),
        }
    };
    let (framed, mut native) = tokio::join!(invite::probe_server(server, paths), native);
    let framed_works = framed.can_connect();
    let native_works = native.iter().any(|finding| finding.status == FindingStatus::Works);
    let mut findings = framed.findings;
    let forgive = |finding: &mut Finding| {
        if fails(finding) {
            finding.status = FindingStatus::Note;
        }
    };
    if native_works {
        findings.iter_mut().for_each(forgive);
    } else if framed_works {
        native.iter_mut().for_each(forgive);
    }
    findings.append(&mut native);
    Report { works: framed_works || native_works, paths: framed.paths, findings }
}

fn line(finding: &Finding) -> String {
    let mark = match finding.status {
        FindingStatus::Works => "works",
        FindingStatus::Note => "note",
        FindingStatus::Fails => "FAILS",
    };
    format!("{mark:<5}  {:<15} {}\n", finding.what, finding.text)
}
