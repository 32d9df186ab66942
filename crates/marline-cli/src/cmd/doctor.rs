//! `marline doctor`: diagnosis of this machine (which carriers work) and of the paths to a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use marline::advanced::KeptCapabilities;
use marline::{PathSpec, ServerBuilder};
use marline_io::SegmentLog;
use marline_proxy::target::Target;

use super::monitor::print;
use crate::config::client::ClientOptions;
use crate::doctor::{Finding, FindingStatus, examine, invite, path};
use crate::invite_places::InvitePlaces;
use crate::native::{CarrierPlan, drop_privileges};

/// Arguments of `marline doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print a JSON array instead of text.
    #[arg(long)]
    pub json: bool,
    /// Check the connection to the server of this invite as a client would make it, over each path,
    /// in five seconds: name, UDP, the server's key, the credential, MTU. Exit status 0 if at least
    /// one path works [default: this machine, and the invite that `marline join` stored]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "server"])]
    pub invite_file: Option<PathBuf>,
    /// Examine each path to this server: whether it answers over UDP, and with native TCP
    /// (CAP_NET_RAW). If the server is a `marline doctor --listen`, middleboxes are detected by
    /// comparing the segments at both ends. Exit status 0 if at least one path works with either
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "listen")]
    pub server: Option<Target>,
    /// Path to examine, an interface or a local address; may be repeated [default: all with a
    /// default route]
    #[arg(long, value_name = "PATH")]
    pub path: Vec<PathSpec>,
    /// Run the other end of such an examination until stopped: a native TCP echo server that
    /// reports to its clients the segments it received from them
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
}

/// A diagnosis that has dropped the privileges it does not need.
#[derive(Debug)]
pub struct Prepared {
    args: Args,
    /// The other end of an examination, its port reserved.
    responder: Option<(ServerBuilder, SegmentLog)>,
}

/// Opens what needs privileges, then drops them. Checks of raw sockets keep what these need: whether it is there is what
/// they find out. Must be called before threads are started.
///
/// # Errors
/// An error message for the user.
pub fn prepare(args: Args) -> anyhow::Result<Prepared> {
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
    Ok(Prepared { args, responder })
}

/// Runs the checks and prints the findings. Failure if any check fails or, with a server, if no
/// path to it works.
///
/// # Errors
/// There is no such invite, or the result cannot be serialised.
pub async fn run(prepared: Prepared) -> anyhow::Result<ExitCode> {
    let Prepared { args, responder } = prepared;
    if let Some(responder) = responder {
        path::respond(responder, |address| println!("listening on {address}")).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let (findings, well) = match (&args.invite_file, &args.server) {
        (Some(file), _) => {
            let options =
                ClientOptions { invite_file: Some(file.clone()), ..ClientOptions::default() };
            let found = invite::examine(&options.read_invite()?, &args.path).await;
            (found.findings, found.usable)
        }
        (None, Some(server)) => way_to(server, &args.path).await,
        (None, None) => with_stored_invite(&args.path).await?,
    };
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&findings)?),
        false => findings.iter().map(line).collect(),
    };
    // A reader that went away knows enough.
    let _ = print(&text);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// This machine, and the way to the server whose invite is stored. Without a stored invite, or with one that cannot be
/// used, this machine alone.
async fn with_stored_invite(paths: &[PathSpec]) -> anyhow::Result<(Vec<Finding>, bool)> {
    let stored = InvitePlaces::of_process().find_stored();
    if !paths.is_empty() && matches!(stored, Ok(None)) {
        bail!("--path: which server? Type `marline join` first, or add --invite-file or --server");
    }
    let mut findings = if paths.is_empty() { examine().await } else { Vec::new() };
    let mut well = !findings.iter().any(fails);
    match stored {
        Ok(Some(stored)) => {
            let found = invite::examine(&stored.invite, paths).await;
            findings.extend(found.findings);
            well &= found.usable;
        }
        Ok(None) => {}
        Err(error) => {
            findings.push(Finding::unusable_invite(&error));
            well = false;
        }
    }
    Ok((findings, well))
}

fn fails(finding: &Finding) -> bool {
    finding.status == FindingStatus::Fails
}

/// Both carriers at once; `true`: one of them leads to the server over at least one path. Then it is no
/// fault that the other one does not: few servers have both.
async fn way_to(server: &Target, paths: &[PathSpec]) -> (Vec<Finding>, bool) {
    let native = async {
        let (_, addresses) = invite::resolve(std::slice::from_ref(server)).await;
        match addresses.first() {
            Some(address) => path::examine(*address, paths).await,
            None => Vec::new(),
        }
    };
    let (udp, mut native) = tokio::join!(invite::knock(server, paths), native);
    let native_works = native.iter().any(|finding| finding.status == FindingStatus::Works);
    let mut findings = udp.findings;
    let forgive = |finding: &mut Finding| {
        if fails(finding) {
            finding.status = FindingStatus::Note;
        }
    };
    if native_works {
        findings.iter_mut().for_each(forgive);
    } else if udp.usable {
        native.iter_mut().for_each(forgive);
    }
    findings.append(&mut native);
    (findings, udp.usable || native_works)
}

fn line(finding: &Finding) -> String {
    let mark = match finding.status {
        FindingStatus::Works => "works",
        FindingStatus::Note => "note",
        FindingStatus::Fails => "FAILS",
    };
    format!("{mark:<5}  {:<15} {}\n", finding.what, finding.text)
}
