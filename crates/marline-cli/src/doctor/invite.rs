//! Check of an invite, following the steps of a client: name resolution, the handshake over each
//! path, the server's key, the credential, and the largest segment size.
//!
//! All checks run at once and are bounded: a line per check and path, each with a remedy, within
//! `PATIENCE`. The connection is closed without a request; neither the invite nor its token is
//! shown.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline::{Client, CloseReason, ConnectError, PathSpec, Reach};
use marline_io::Interfaces;
use marline_proxy::invite::Invite;
use marline_proxy::message::Message;
use marline_proxy::secret::Secret;
use marline_proxy::target::Target;
use marline_proxy::tls;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::Finding;
use crate::path_summary::by_nat64;

/// A resolver next door has answered by then.
const NAMING: Duration = Duration::from_millis(500);
const NAME: &str = "name";
const CARRIER: &str = "UDP";
const KEY: &str = "key";
const CREDENTIAL: &str = "credential";
const MTU: &str = "MTU";
const PATHS: &str = "paths";

/// Everything together takes no longer.
const PATIENCE: Duration = Duration::from_millis(4_800);
/// A name that does not resolve within this time does not.
const RESOLVING: Duration = Duration::from_millis(1_200);
/// A server that does not answer within this time, in which it is asked twice, does not.
const ANSWERING: Duration = Duration::from_millis(2_500);
/// The end of a connection that was only to be looked at.
const FAREWELL: marline::Duration = marline::Duration::from_millis(300);
/// Server addresses that are tried over each path.
const MOST_SERVERS: usize = 8;

/// Findings of the checks.
#[derive(Debug)]
pub struct Examination {
    /// A line per check and path.
    pub findings: Vec<Finding>,
    /// At least one path leads to the server, and it is the right one and takes the client.
    pub usable: bool,
}

/// What a server is asked for once it has answered.
#[derive(Clone, Debug)]
struct Credential {
    pin: [u8; 32],
    token: Secret,
}

/// Where a check ended.
#[derive(Debug)]
struct PathCheck {
    path: String,
    server: SocketAddr,
    findings: Vec<Finding>,
    answered: bool,
    usable: bool,
}

/// Goes the way of an invite over each of these paths, or over all that a client would use.
pub async fn examine(invite: &Invite, paths: &[PathSpec]) -> Examination {
    let credential = Credential { pin: invite.pin, token: invite.token.clone() };
    check_all(&invite.servers, paths, Some(credential)).await
}

/// Checks over each path whether a server answers on the UDP carrier, without identifying the
/// client.
pub async fn knock(server: &Target, paths: &[PathSpec]) -> Examination {
    check_all(std::slice::from_ref(server), paths, None).await
}

async fn check_all(
    servers: &[Target],
    paths: &[PathSpec],
    credential: Option<Credential>,
) -> Examination {
    let deadline = Instant::now() + PATIENCE;
    let paths = match usable_paths(paths) {
        Ok(paths) => paths,
        Err(why) => {
            return Examination { findings: vec![Finding::fails(PATHS, why)], usable: false };
        }
    };
    let (mut findings, addresses) = resolve(servers).await;
    let mut running = JoinSet::new();
    for path in &paths {
        for server in addresses.iter().take(MOST_SERVERS) {
            // A server without IPv6 may be reached from a network that has nothing else.
            let alone = server.is_ipv4() && addresses.iter().all(SocketAddr::is_ipv4);
            let check = check_path(path.clone(), (*server, alone), credential.clone(), deadline);
            running.spawn(check);
        }
    }
    let mut checks = Vec::new();
    while let Some(check) = running.join_next().await {
        checks.extend(check.ok().flatten());
    }
    let place = |check: &PathCheck| {
        let path = paths.iter().position(|path| path.to_string() == check.path);
        (path, addresses.iter().position(|server| *server == check.server))
    };
    checks.sort_by_key(place);
    let usable = checks.iter().any(|check| check.usable);
    let comparison = compare(&checks);
    findings.extend(checks.into_iter().flat_map(|check| check.findings));
    findings.extend(comparison);
    Examination { findings, usable }
}

/// The paths as given, or those that a client would use.
pub(super) fn usable_paths(paths: &[PathSpec]) -> Result<Vec<PathSpec>, String> {
    if !paths.is_empty() {
        return Ok(paths.to_vec());
    }
    let interfaces =
        Interfaces::now().map_err(|error| format!("cannot list interfaces: {error}"))?;
    let found = PathSpec::defaults(&interfaces);
    if found.is_empty() {
        return Err("no interface has a default route: name a --path".to_owned());
    }
    Ok(found.into_iter().map(|(spec, _)| spec).collect())
}

/// The addresses of all servers, and a line for each name.
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
        match timeout(RESOLVING, lookup).await {
            Ok(Ok(found)) => {
                let found: Vec<SocketAddr> = found.collect();
                let words: Vec<String> = found.iter().map(|a| a.ip().to_string()).collect();
                findings.push(Finding::works(NAME, format!("{name} is {}", words.join(", "))));
                addresses.extend(found);
            }
            Ok(Err(error)) => findings.push(Finding::fails(
                NAME,
                format!(
                    "{name} does not resolve ({error}): is the name right, is there a resolver?"
                ),
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

/// One path to one address, perhaps the only family that there is; `None`: they are of different ones.
async fn check_path(
    path: PathSpec,
    (server, alone): (SocketAddr, bool),
    credential: Option<Credential>,
    deadline: Instant,
) -> Option<PathCheck> {
    let name = path.to_string();
    let mut check = PathCheck {
        path: name.clone(),
        server,
        findings: Vec::new(),
        answered: false,
        usable: false,
    };
    let client = match Client::builder().path(path).bind().await {
        Ok(client) => client,
        Err(error) => {
            check.findings.push(Finding::fails(CARRIER, format!("{name}: {error}")));
            return Some(check);
        }
    };
    let addresses = client.paths().into_iter().flat_map(|path| path.addresses);
    let fits = addresses.into_iter().any(|address| address.is_ipv4() == server.is_ipv4());
    if !fits && !alone {
        return None;
    }
    let begun = Instant::now();
    let connected = timeout(ANSWERING, client.connect(server)).await;
    let way = format!("{name} to {server}");
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        _ if !fits && prefixes(&client).is_empty() => {
            let text = format!(
                "{way}: IPv6 only there, and its resolver names no NAT64 prefix: an IPv4 server is not reached; \
                 a server with an IPv6 address is, and so is this one by `--path {name},nat64=PREFIX` if you know it"
            );
            check.findings.push(Finding::fails(CARRIER, text));
            return Some(check);
        }
        failed => {
            let error = failed.ok().and_then(Result::err);
            let (why, what_to_do) = unanswered(&client, server, error.as_ref());
            check.findings.push(Finding::fails(CARRIER, format!("{way}: {why}: {what_to_do}")));
            return Some(check);
        }
    };
    let took_ms = begun.elapsed().as_millis();
    check.findings.push(Finding::works(CARRIER, format!("{way}: answers in {took_ms} ms")));
    for prefix in prefixes_in_time(&client).await {
        check.findings.push(Finding::note(PATHS, format!("{name}: {}", by_nat64(&prefix))));
    }
    check.answered = true;
    match credential {
        None => {
            check.usable = true;
            stream.abort();
        }
        Some(credential) => {
            let (findings, accepted) = greet(&client, stream, &credential, deadline).await;
            let name_way = |f: Finding| Finding { text: format!("{way}: {}", f.text), ..f };
            check.findings.extend(findings.into_iter().map(name_way));
            check.usable = accepted;
        }
    }
    client.drained(FAREWELL).await;
    Some(check)
}

/// Below which prefixes its paths reach IPv4 addresses.
fn prefixes(client: &Client) -> Vec<String> {
    client.paths().iter().filter_map(|path| path.nat64).map(|prefix| prefix.to_string()).collect()
}

/// The same; a network that has only IPv6 is given the time to name its own.
async fn prefixes_in_time(client: &Client) -> Vec<String> {
    let has_ipv4 = client.paths().iter().any(|path| path.addresses.iter().any(IpAddr::is_ipv4));
    let named = async {
        while prefixes(client).is_empty() && !has_ipv4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = timeout(NAMING, named).await;
    prefixes(client)
}

/// Why a server did not answer, and what to do.
fn unanswered(
    client: &Client,
    server: SocketAddr,
    error: Option<&ConnectError>,
) -> (String, String) {
    let port = server.port();
    if let Some(ConnectError::Closed(CloseReason::Refused)) = error {
        let why = format!("refused by the server: nobody listens on UDP port {port}");
        return (
            why,
            "start `marline server` there, or ask for an invite with the right port".into(),
        );
    }
    if let Some(ConnectError::Unreachable { attempts }) = error {
        let text = attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let blocked = text.contains("(ICMP)");
        let what_to_do = if blocked {
            "a captive portal or a firewall: log in there, or use another network"
        } else {
            "look at this machine's routes and firewall"
        };
        return (text, what_to_do.to_owned());
    }
    if let Some(error) = error {
        return (error.to_string(), "look at this machine's routes and firewall".to_owned());
    }
    let bad = client.paths().into_iter().flat_map(|path| path.servers).find(|s| s.reach.is_bad());
    let said = match bad.map(|server| server.reach) {
        Some(reach @ (Reach::Blocked { .. } | Reach::Refused)) => format!("; {reach}"),
        _ => String::new(),
    };
    (
        format!("no answer within {:.1} s{said}", ANSWERING.as_secs_f64()),
        format!(
            "is the server running, is UDP port {port} open in its firewall and its provider's, and does \
             this network let UDP out?"
        ),
    )
}

/// TLS, the key, and the credential, up to the server's Welcome. `true`: it takes us.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    client: &Client,
    stream: S,
    credential: &Credential,
    deadline: Instant,
) -> (Vec<Finding>, bool) {
    let late = || Finding::fails(KEY, "the server answers, but TLS does not end: try again");
    let connector = match tls::connector(credential.pin) {
        Ok(connector) => connector,
        Err(error) => return (vec![Finding::fails(KEY, error.to_string())], false),
    };
    let mut stream = match timeout_at(deadline, connector.connect(tls::server_name(), stream)).await
    {
        Err(_) => return (vec![late()], false),
        Ok(Err(error)) if tls::is_pin_mismatch(&error) => {
            let text = "the server has another key than the invite names: it was set up anew, or \
                        somebody sits in between (nothing secret was sent): ask its owner for a new \
                        invite";
            return (vec![Finding::fails(KEY, text)], false);
        }
        Ok(Err(error)) => {
            let text = format!("TLS fails ({error}): is it a `marline server` of this version?");
            return (vec![Finding::fails(KEY, text)], false);
        }
        Ok(Ok(stream)) => stream,
    };
    let mut findings = vec![Finding::works(KEY, "the server has the invite's key")];
    // The protocol's name ends with its version: marline/1.
    let agreed = stream.get_ref().1.alpn_protocol().and_then(|name| name.last().copied());
    let version = agreed.filter(u8::is_ascii_digit).map_or(1, |digit| digit - b'0');
    let mut hello = Vec::new();
    Message::Hello { version, token: credential.token.clone() }.encode(&mut hello);
    let asked = async {
        stream.write_all(&hello).await?;
        stream.flush().await?;
        Message::read(&mut stream).await
    };
    let (finding, accepted) = match timeout_at(deadline, asked).await {
        Ok(Ok(Message::Welcome { .. })) => {
            (Finding::works(CREDENTIAL, "the server takes the invite's credential"), true)
        }
        Ok(Ok(Message::Failed(failure))) => {
            let text = format!("the server refuses it: {}", failure.text);
            (Finding::fails(CREDENTIAL, text), false)
        }
        Ok(Ok(other)) => {
            (Finding::fails(CREDENTIAL, format!("the server said {other} out of turn")), false)
        }
        Ok(Err(error)) => {
            let text = format!("the server ended the connection ({error}): try again");
            (Finding::fails(CREDENTIAL, text), false)
        }
        Err(_) => {
            (Finding::fails(CREDENTIAL, "the server does not say whether it takes it"), false)
        }
    };
    findings.push(finding);
    findings.extend(segment_size(client));
    // A goodbye that does not arrive is none of the examination's findings.
    let _ = timeout_at(deadline, stream.shutdown()).await;
    (findings, accepted)
}

/// What the connection learnt of the path's MTU.
fn segment_size(client: &Client) -> Option<Finding> {
    let connections = client.connections();
    let subflows = connections.iter().flat_map(|c| c.subflows.iter().chain(&c.gone));
    let mss = subflows.map(|subflow| subflow.mss).max().filter(|mss| *mss > 0)?;
    let text = format!("segments of {mss} bytes of payload pass, as far as was found out by then");
    Some(Finding::works(MTU, text))
}

/// What the paths tell together: a server that answers over one and not over another is not the culprit.
fn compare(checks: &[PathCheck]) -> Option<Finding> {
    let names = |answered: bool| {
        let mut names: Vec<&str> = Vec::new();
        for check in checks.iter().filter(|check| check.answered == answered) {
            if !names.contains(&check.path.as_str()) {
                names.push(&check.path);
            }
        }
        names
    };
    let works = names(true);
    let blocked: Vec<&str> =
        names(false).into_iter().filter(|path| !works.contains(path)).collect();
    if works.is_empty() || blocked.is_empty() {
        return None;
    }
    let text = format!(
        "the server answers over {}: what is behind {} seems to block UDP; connections use the other paths",
        works.join(", "),
        blocked.join(", ")
    );
    Some(Finding::note(PATHS, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_path(path: &str, answered: bool) -> PathCheck {
        let server = "9.9.9.1:7777".parse().unwrap();
        PathCheck { path: path.into(), server, findings: Vec::new(), answered, usable: answered }
    }

    #[test]
    fn the_paths_together_tell_who_blocks() {
        let text = |checks: &[PathCheck]| compare(checks).map(|finding| finding.text);
        let one =
            text(&[check_path("wlan0", false), check_path("wwan0", true)]).expect("a culprit");
        assert!(
            one.contains("answers over wwan0: what is behind wlan0 seems to block UDP"),
            "{one}"
        );
        assert_eq!(
            text(&[check_path("wlan0", false), check_path("wwan0", false)]),
            None,
            "it may be the server"
        );
        assert_eq!(text(&[check_path("wlan0", true), check_path("wwan0", true)]), None);
        assert_eq!(
            text(&[check_path("wlan0", false), check_path("wlan0", true)]),
            None,
            "the other family"
        );
    }

    #[tokio::test]
    async fn addresses_need_no_resolver_and_a_name_without_any_is_named() {
        let servers = ["192.0.2.1:7", "[2001:db8::1]:7"].map(|text| text.parse().unwrap());
        let (findings, addresses) = resolve(&servers).await;
        assert!(findings.is_empty());
        assert_eq!(addresses.len(), 2);
        let (findings, addresses) = resolve(&["nobody.invalid:7".parse().unwrap()]).await;
        assert!(addresses.is_empty());
        assert!(findings[0].text.contains("nobody.invalid does not resolve"), "{findings:?}");
    }
}
