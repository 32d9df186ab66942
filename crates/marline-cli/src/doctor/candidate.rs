//! One candidate (a path, a server address and a carrier), tried in the same way as by a client, from the first packet
//! to the server's Welcome.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline::paths::{DeliveryErrorKind, PathHealth, PathSpec, PathStatus, Reach};
use marline::{Carrier, Client};
use marline_proxy::client::open::OpenError;
use marline_proxy::client::trouble::Trouble;
use marline_proxy::message::{Message, VERSION};
use marline_proxy::secret::Secret;
use marline_proxy::tls;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::Finding;
use crate::path_summary::nat64_text;

/// Time without an answer to several attempts after which the server counts as unreachable. A running client
/// reports this after three seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(3_300);
/// Time without an answer after which a refusal reported by the server or a host on the path is believed.
const REFUSAL_DELAY: Duration = Duration::from_millis(700);
/// Time limit for an answer from a resolver in the local network.
const RESOLVER_WAIT: Duration = Duration::from_millis(500);
/// Time limit for closing a connection that served only for the check.
const CLOSING_TIME: marline::time::Duration = marline::time::Duration::from_millis(300);

const KEY: &str = "key";
const CREDENTIAL: &str = "credential";
const MTU: &str = "MTU";

/// Transport below a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    /// Returns the name used in firewalls.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
        }
    }

    const fn carrier(self) -> Carrier {
        match self {
            Transport::Udp => Carrier::Udp,
            Transport::Tcp => Carrier::Tcp,
        }
    }
}

/// Credential for a server that has answered.
#[derive(Clone, Debug)]
pub(super) struct Credential {
    pub(super) pin: [u8; 32],
    pub(super) token: Secret,
}

/// The combination to try.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) path: PathSpec,
    pub(super) server: SocketAddr,
    pub(super) transport: Transport,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.path, self.server)
    }
}

/// Result of trying a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CandidateResult {
    /// The server answers and accepts this client, or the credential was not checked.
    Served,
    /// The server answers and rejects this client.
    Rejected(Trouble),
    /// The server does not answer, with the cause and a remedy.
    Unreached { cause: String, help: String },
}

/// A candidate that was tried, with its result.
#[derive(Clone, Debug)]
pub(super) struct TriedCandidate {
    pub(super) way: Candidate,
    pub(super) end: CandidateResult,
    pub(super) took: Duration,
    /// Findings after the first answer.
    pub(super) findings: Vec<Finding>,
}

impl TriedCandidate {
    pub(super) const fn has_answered(&self) -> bool {
        !matches!(self.end, CandidateResult::Unreached { .. })
    }

    /// Returns the finding about the first answer, or its absence. `forgiven` is true if another candidate for the
    /// same server works.
    pub(super) fn first_line(&self, forgiven: bool) -> Finding {
        let (what, way) = (self.way.transport.name(), &self.way);
        match &self.end {
            CandidateResult::Unreached { cause, .. } if forgiven => {
                Finding::note(what, format!("{way}: {cause}; the other carrier works"))
            }
            CandidateResult::Unreached { cause, help } => {
                Finding::fails(what, format!("{way}: {cause}: {help}"))
            }
            _ => Finding::passed(what, format!("{way}: answers in {} ms", self.took.as_millis())),
        }
    }
}

/// Tries the candidate. `servers` are all addresses of the server. Returns `None` if a client would not try this
/// address, because another one has the path's family.
pub(super) async fn try_candidate(
    way: Candidate,
    servers: &[SocketAddr],
    credential: Option<Credential>,
    deadline: Instant,
) -> Option<TriedCandidate> {
    let begun = Instant::now();
    let gone =
        |way, end, findings| Some(TriedCandidate { way, end, took: begun.elapsed(), findings });
    let mut builder = Client::builder();
    let client = match builder.carrier(way.transport.carrier()).path(way.path.clone()).bind().await
    {
        Ok(client) => client,
        Err(error) => {
            let cause = format!("{:#}", anyhow::Error::new(error));
            let help = "connect the interface, or name another path".to_owned();
            return gone(way, CandidateResult::Unreached { cause, help }, Vec::new());
        }
    };
    let addresses: Vec<IpAddr> = client.paths().into_iter().flat_map(|p| p.addresses).collect();
    let fits = |server: &SocketAddr| addresses.iter().any(|a| a.is_ipv4() == server.is_ipv4());
    if !fits(&way.server) && servers.iter().any(fits) {
        return None;
    }
    let stream = match timeout(ANSWER_TIMEOUT, client.connect(way.server)).await {
        Ok(Ok(stream)) => stream,
        failed => {
            let error = failed.ok().and_then(Result::err);
            let error = error.map(|error| format!("{:#}", anyhow::Error::new(error)));
            let end = explain_unreached(&client, &way, error).await;
            return gone(way, end, Vec::new());
        }
    };
    let took = begun.elapsed();
    let mut findings = Vec::new();
    for prefix in wait_for_prefixes(&client).await {
        findings.push(Finding::note("paths", format!("{}: {}", way.path, nat64_text(&prefix))));
    }
    let end = match credential {
        None => {
            stream.abort();
            CandidateResult::Served
        }
        Some(credential) => {
            let (greeted, refused) = greet(&client, stream, &credential, deadline).await;
            let named = |f: Finding| Finding { text: format!("{way}: {}", f.text), ..f };
            findings.extend(greeted.into_iter().map(named));
            refused.map_or(CandidateResult::Served, |error| {
                CandidateResult::Rejected(Trouble::from(&error))
            })
        }
    };
    client.drained(CLOSING_TIME).await;
    Some(TriedCandidate { way, end, took, findings })
}

/// Returns the reason why a server did not answer, worded as by a running client, and a remedy. `error` is the result
/// of the attempt.
async fn explain_unreached(
    client: &Client,
    way: &Candidate,
    error: Option<String>,
) -> CandidateResult {
    let judged = async {
        loop {
            let status = client.paths().into_iter().next();
            if let Some(status) = status.filter(|status| status.health == PathHealth::Unreachable) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match timeout(REFUSAL_DELAY, judged).await {
        Ok(status) => {
            let help = remedy(&status, way);
            let cause = status.cause.unwrap_or_default();
            let cause = cause.strip_prefix(&format!("{}: ", way.server)).unwrap_or(&cause);
            CandidateResult::Unreached { cause: cause.to_owned(), help }
        }
        Err(_) => {
            let silent = || format!("no answer within {:.1} s", ANSWER_TIMEOUT.as_secs_f64());
            CandidateResult::Unreached {
                cause: error.unwrap_or_else(silent),
                help: open_port_hint(way),
            }
        }
    }
}

/// Returns the remedy for a path that reaches no server.
fn remedy(status: &PathStatus, way: &Candidate) -> String {
    let fault = status.fault.as_ref().map(|fault| &fault.reach);
    match fault {
        Some(Reach::Refused) => {
            "start `marline server` there, or ask for an invite with the right port".to_owned()
        }
        Some(Reach::Blocked { by: Some(_), kind: DeliveryErrorKind::Prohibited }) => {
            "log in if there is a captive portal, or use another network".to_owned()
        }
        Some(Reach::Blocked { .. }) => {
            "check the routes and the firewall of this machine and of its network".to_owned()
        }
        Some(_) => open_port_hint(way),
        None => {
            "use a path that has an address of that family, or a server that has one".to_owned()
        }
    }
}

fn open_port_hint(way: &Candidate) -> String {
    let (transport, port) = (way.transport.name(), way.server.port());
    format!(
        "is the server running, is {transport} port {port} open in its firewall and its provider's, and does this \
         network let {transport} out?"
    )
}

/// Returns the NAT64 prefixes of the client's paths. Waits for an IPv6-only network to announce its prefix.
async fn wait_for_prefixes(client: &Client) -> Vec<String> {
    let prefixes = || {
        let found = client.paths().into_iter().filter_map(|path| path.nat64);
        found.map(|prefix| prefix.to_string()).collect::<Vec<_>>()
    };
    let has_ipv4 = client.paths().iter().any(|path| path.addresses.iter().any(IpAddr::is_ipv4));
    let named = async {
        while prefixes().is_empty() && !has_ipv4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = timeout(RESOLVER_WAIT, named).await;
    prefixes()
}

/// Checks TLS, the key and the credential, up to the server's Welcome. Also returns the reason if the server rejects
/// the client.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    client: &Client,
    stream: S,
    credential: &Credential,
    deadline: Instant,
) -> (Vec<Finding>, Option<OpenError>) {
    let connector = match tls::connector(credential.pin) {
        Ok(connector) => connector,
        Err(error) => {
            let finding = Finding::fails(KEY, format!("{error:#}"));
            return (vec![finding], Some(OpenError::Server(error)));
        }
    };
    let handshake = timeout_at(deadline, connector.connect(tls::server_name(), stream)).await;
    let handshake = handshake.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    let mut stream = match handshake {
        Ok(stream) => stream,
        Err(error) => {
            let error = OpenError::from_io("TLS handshake with the server failed", error);
            return (vec![failed(KEY, &error)], Some(error));
        }
    };
    let mut findings = vec![Finding::passed(KEY, "the server's key matches the invite")];
    let mut hello = Vec::new();
    Message::Hello { version: VERSION, token: credential.token.clone() }.encode(&mut hello);
    let asked = async {
        stream.write_all(&hello).await?;
        stream.flush().await?;
        Message::read(&mut stream).await
    };
    let asked = timeout_at(deadline, asked).await;
    let refused = match asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(Message::Welcome { .. }) => None,
        Ok(Message::Failed(failure)) => Some(OpenError::Refused(failure)),
        Ok(other) => Some(OpenError::Server(anyhow::anyhow!("unexpected {other}"))),
        Err(error) => Some(OpenError::from_io("the server ended the connection", error)),
    };
    findings.push(match &refused {
        None => Finding::passed(CREDENTIAL, "the server accepts the invite's credential"),
        Some(error) => failed(CREDENTIAL, error),
    });
    findings.extend(segment_size(client));
    // The check is complete even if the end is not delivered.
    let _ = timeout_at(deadline, stream.shutdown()).await;
    (findings, refused)
}

fn failed(what: &'static str, error: &OpenError) -> Finding {
    let trouble = Trouble::from(error);
    Finding::fails(what, format!("{}; {}", trouble.text, trouble.kind.advice()))
}

/// Returns the finding about the segment size that the connection has learned.
fn segment_size(client: &Client) -> Option<Finding> {
    let connections = client.connections();
    let subflows = connections.iter().flat_map(|c| c.subflows.iter().chain(&c.gone));
    let mss = subflows.map(|subflow| subflow.mss).max().filter(|mss| *mss > 0)?;
    let text = format!("segments with {mss} bytes of payload get through");
    Some(Finding::passed(MTU, text))
}
