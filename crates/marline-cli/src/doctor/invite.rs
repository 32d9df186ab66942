//! Check of an invite, following the steps of a client: name resolution, the handshake on each path over UDP and over
//! TCP, the server's key, the credential, and the largest segment size.
//!
//! All checks run concurrently and within `PATIENCE`. They yield a line per check and path, each with a remedy. The
//! verdict on a path is the one that a running client would give: its causes are those of the library (`PathStatus`)
//! and of the tunnel (`Trouble`). Connections are closed without a request, and neither the invite nor its token is
//! shown.

use std::net::SocketAddr;
use std::time::Duration;

use marline::paths::{PathHealth, PathSpec};
use marline_io::Interfaces;
use marline_proxy::invite::Invite;
use marline_proxy::target::Target;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::candidate::{
    Candidate, CandidateResult, Credential, Transport, TriedCandidate, try_candidate,
};
use super::{Finding, PathVerdict};

const NAME: &str = "name";
const PATH: &str = "path";
const PATHS: &str = "paths";
const CLIENT: &str = "client";

/// Time limit for all checks together.
const TIMEOUT: Duration = Duration::from_millis(4_800);
/// Time after which a name counts as unresolvable.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(1_200);
/// Maximum number of server addresses tried over each path.
const MAX_SERVERS: usize = 8;

/// Findings of the checks.
#[derive(Debug, Default)]
pub struct Examination {
    /// A line per check and path.
    pub findings: Vec<Finding>,
    /// Verdict on each path.
    pub paths: Vec<PathVerdict>,
}

impl Examination {
    /// Returns true if a client could connect: at least one path leads to the right server, which accepts the client.
    #[must_use]
    pub fn can_connect(&self) -> bool {
        self.paths.iter().any(|path| path.state == PathHealth::Usable.name())
    }
}

/// Checks an invite over each of these paths, or over all that a client would use.
pub async fn examine(invite: &Invite, paths: &[PathSpec]) -> Examination {
    let credential = Credential { pin: invite.pin, token: invite.token.clone() };
    check_all(&invite.servers, paths, Some(credential)).await
}

/// Checks on each path whether a server answers over UDP or TCP, without identifying the client.
pub async fn probe_server(server: &Target, paths: &[PathSpec]) -> Examination {
    check_all(std::slice::from_ref(server), paths, None).await
}

async fn check_all(
    servers: &[Target],
    paths: &[PathSpec],
    credential: Option<Credential>,
) -> Examination {
    let deadline = Instant::now() + TIMEOUT;
    let paths = match usable_paths(paths) {
        Ok(paths) => paths,
        Err(why) => {
            let findings = vec![Finding::fails(PATHS, why)];
            return Examination { findings, ..Examination::default() };
        }
    };
    let (findings, addresses) = resolve(servers).await;
    let mut running = JoinSet::new();
    for (number, path) in paths.iter().enumerate() {
        // A path may have its own address for the server.
        let to = path.remote.map_or_else(|| addresses.clone(), |remote| vec![remote]);
        for (nth, server) in to.iter().take(MAX_SERVERS).enumerate() {
            for transport in [Transport::Udp, Transport::Tcp] {
                let way = Candidate { path: path.clone(), server: *server, transport };
                let (servers, credential) = (to.clone(), credential.clone());
                running.spawn(async move {
                    let gone = try_candidate(way, &servers, credential, deadline).await;
                    gone.map(|gone| ((number, nth, transport == Transport::Tcp), gone))
                });
            }
        }
    }
    let mut gone = Vec::new();
    while let Some(ended) = running.join_next().await {
        gone.extend(ended.ok().flatten());
    }
    gone.sort_by_key(|(place, _)| *place);
    let of_path = |number: usize| {
        let ways = gone.iter().filter(move |((of, ..), _)| *of == number);
        ways.map(|(_, gone)| gone).collect::<Vec<_>>()
    };
    let ways: Vec<(&PathSpec, Vec<&TriedCandidate>)> =
        paths.iter().enumerate().map(|(number, path)| (path, of_path(number))).collect();
    add_findings(findings, &ways)
}

/// Returns findings and verdicts about paths for which these candidates were tried.
fn add_findings(
    mut findings: Vec<Finding>,
    paths: &[(&PathSpec, Vec<&TriedCandidate>)],
) -> Examination {
    for (_, ways) in paths {
        for gone in ways {
            let same = |other: &&&TriedCandidate| {
                other.way.server == gone.way.server && other.has_answered()
            };
            findings.push(gone.first_line(ways.iter().any(|other| same(&other))));
            findings.extend(gone.findings.iter().cloned());
        }
    }
    let verdicts: Vec<PathVerdict> =
        paths.iter().map(|(path, ways)| judge_path(path, ways)).collect();
    for (verdict, (_, ways)) in verdicts.iter().zip(paths) {
        let PathVerdict { path, state, cause } = verdict;
        let cause = cause.as_deref().map(|cause| format!(": {cause}")).unwrap_or_default();
        let text = format!("{path}: {state}{cause}");
        let served = ways.iter().any(|gone| gone.end == CandidateResult::Served);
        findings.push(if served {
            Finding::passed(PATH, text)
        } else {
            Finding::fails(PATH, text)
        });
    }
    findings.extend(compare(paths));
    findings.push(for_client(&verdicts, paths));
    Examination { findings, paths: verdicts }
}

/// Returns the verdict that a running client would give on a path with these candidates.
fn judge_path(path: &PathSpec, ways: &[&TriedCandidate]) -> PathVerdict {
    let by = |transport: Transport| ways.iter().filter(move |g| g.way.transport == transport);
    let serves = |transport| by(transport).any(|gone| gone.end == CandidateResult::Served);
    let turned_away = ways.iter().find_map(|gone| match &gone.end {
        CandidateResult::Rejected(trouble) => Some(trouble.text.clone()),
        _ => None,
    });
    let unreached = |transport: Transport| {
        by(transport).find_map(|gone| match &gone.end {
            CandidateResult::Unreached { cause, .. } => Some(cause.clone()),
            _ => None,
        })
    };
    let (health, cause) = match (unreached(Transport::Udp), unreached(Transport::Tcp)) {
        _ if serves(Transport::Udp) => (PathHealth::Usable, None),
        _ if serves(Transport::Tcp) => {
            (PathHealth::Usable, Some("over TCP, as UDP gets no answer".to_owned()))
        }
        _ if turned_away.is_some() => (PathHealth::Unreachable, turned_away),
        (Some(udp), Some(tcp)) if udp == tcp => (PathHealth::Unreachable, Some(udp)),
        (Some(udp), Some(tcp)) => {
            (PathHealth::Unreachable, Some(format!("over UDP: {udp}; over TCP: {tcp}")))
        }
        (udp, tcp) => {
            let nothing = || Some("the server has no usable address".to_owned());
            (PathHealth::Unreachable, udp.or(tcp).or_else(nothing))
        }
    };
    PathVerdict { path: path.to_string(), state: health.name(), cause }
}

/// Returns the finding about whether a client can connect.
fn for_client(verdicts: &[PathVerdict], paths: &[(&PathSpec, Vec<&TriedCandidate>)]) -> Finding {
    let usable = |verdict: &&PathVerdict| verdict.state == PathHealth::Usable.name();
    let usable: Vec<&str> = verdicts.iter().filter(usable).map(|v| v.path.as_str()).collect();
    if !usable.is_empty() {
        return Finding::passed(CLIENT, format!("a client can connect over {}", usable.join(", ")));
    }
    let ends = || paths.iter().flat_map(|(_, ways)| ways).map(|gone| &gone.end);
    let trouble = ends().find_map(|end| match end {
        CandidateResult::Rejected(trouble) => Some(trouble),
        _ => None,
    });
    Finding::fails(
        CLIENT,
        match trouble {
            Some(trouble) => {
                format!("a client cannot connect: {}; {}", trouble.text, trouble.kind.advice())
            }
            None => "a client cannot connect: no path leads to the server".to_owned(),
        },
    )
}

/// Returns the given paths, or those that a client would use.
pub(super) fn usable_paths(paths: &[PathSpec]) -> Result<Vec<PathSpec>, String> {
    if !paths.is_empty() {
        return Ok(paths.to_vec());
    }
    let interfaces =
        Interfaces::now().map_err(|error| format!("cannot list interfaces: {error}"))?;
    let found = PathSpec::defaults(&interfaces);
    if found.is_empty() {
        return Err("no interface has a default route: add --path".to_owned());
    }
    Ok(found.into_iter().map(|(spec, _)| spec).collect())
}

/// Returns the addresses of all servers, and a finding for each name.
pub(crate) async fn resolve(servers: &[Target]) -> (Vec<Finding>, Vec<SocketAddr>) {
    let (mut findings, mut addresses) = (Vec::new(), Vec::new());
    for server in servers {
        let name = match server.host.as_name() {
            Ok(name) => name,
            Err(address) => {
                addresses.push((address, server.port).into());
                continue;
            }
        };
        let lookup = tokio::net::lookup_host((name, server.port));
        match timeout(RESOLVE_TIMEOUT, lookup).await {
            Ok(Ok(found)) => {
                let found: Vec<SocketAddr> = found.collect();
                let words: Vec<String> = found.iter().map(|a| a.ip().to_string()).collect();
                findings.push(Finding::passed(NAME, format!("{name} is {}", words.join(", "))));
                addresses.extend(found);
            }
            Ok(Err(error)) => findings.push(Finding::fails(
                NAME,
                format!("{name} does not resolve ({error}): check the name and the resolver"),
            )),
            Err(_) => findings.push(Finding::fails(
                NAME,
                format!("{name} does not resolve (no answer): does this network let DNS through?"),
            )),
        }
    }
    addresses.dedup();
    (findings, addresses)
}

/// Compares the paths: if a server answers over one path but not over another, the server is not the cause.
fn compare(paths: &[(&PathSpec, Vec<&TriedCandidate>)]) -> Option<Finding> {
    let names = |answered: bool| {
        let of = |(path, ways): &(&PathSpec, Vec<&TriedCandidate>)| {
            (ways.iter().any(|gone| gone.has_answered()) == answered).then(|| path.to_string())
        };
        paths.iter().filter_map(of).collect::<Vec<_>>()
    };
    let (works, blocked) = (names(true), names(false));
    if works.is_empty() || blocked.is_empty() {
        return None;
    }
    let text = format!(
        "the server answers over {}: the network behind {} is down or blocks it; connections use the other paths",
        works.join(", "),
        blocked.join(", ")
    );
    Some(Finding::note(PATHS, text))
}

#[cfg(test)]
mod tests;
