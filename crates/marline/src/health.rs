//! Health of a client's paths: reachability of servers over them, and the likely cause of failures.
//!
//! An interface that is up says little: it stays up with a captive portal, a firewall that drops UDP, or a failed
//! server. Health is derived from existing traffic, without extra probes. A repeated request without an answer for
//! [`ANSWER_TIMEOUT`] counts as unanswered. The sender of an ICMP error is reported. The first packet that arrives
//! restores the path.

mod common_failures;
#[cfg(test)]
mod tests;
mod watcher;

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use marline_io::{CarrierRates, Contact, DeliveryErrorKind};
use marline_time::{Duration, Instant};

pub(crate) use watcher::HealthWatcher;
pub use watcher::PathEvent;

/// Name of a path, and the contacts with servers over it.
pub(crate) type NamedContacts<'a> = (String, Vec<&'a Contact>);

/// Time after which a repeated request counts as unanswered.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum number of attempts, because a single packet may get lost.
const MIN_ATTEMPTS: u32 = 2;
/// Time without incoming packets after which a delivery error counts. If the server answers within this time, the error
/// was late or forged.
pub(crate) const ERROR_DELAY: Duration = Duration::from_millis(300);

/// Reachability of a server over a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// Unknown: no request has been sent, or only just now.
    Unknown,
    /// The server answers.
    Answers {
        /// Time since the server's last packet.
        since_last_packet: Duration,
    },
    /// The server does not answer.
    NoAnswer {
        /// Time since the first unanswered request.
        since: Duration,
        /// Number of requests since then.
        tries: u32,
    },
    /// The server's machine reports that no program listens on this port.
    Refused,
    /// An error report states that packets are not delivered.
    Blocked {
        /// Sender of the report: a host on the path or the server; `None` for this machine.
        by: Option<IpAddr>,
        /// Reported error.
        kind: DeliveryErrorKind,
    },
}

impl Reach {
    /// Evaluates a contact.
    pub(crate) fn evaluate(contact: &Contact, now: Instant) -> Reach {
        if let Some(delivery_error) = current_error(contact, now) {
            let by_server = delivery_error.by == Some(contact.remote.ip());
            return match delivery_error.kind {
                DeliveryErrorKind::PortClosed if by_server => Reach::Refused,
                // Reports of this machine's kernel contain our address.
                kind => {
                    Reach::Blocked { by: delivery_error.by.filter(|by| *by != contact.local), kind }
                }
            };
        }
        if let Some(question) = contact.question {
            let since = now.since(question.since);
            if since >= ANSWER_TIMEOUT && question.tries >= MIN_ATTEMPTS {
                return Reach::NoAnswer { since, tries: question.tries };
            }
        }
        match contact.heard_at {
            Some(at) => Reach::Answers { since_last_packet: now.since(at) },
            None => Reach::Unknown,
        }
    }

    /// Returns a single word: `unknown`, `answers`, `no-answer`, `refused`, `prohibited` or `unreachable`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Reach::Unknown => "unknown",
            Reach::Answers { .. } => "answers",
            Reach::NoAnswer { .. } => "no-answer",
            Reach::Refused => "refused",
            Reach::Blocked { kind: DeliveryErrorKind::Prohibited, .. } => "prohibited",
            Reach::Blocked { .. } => "unreachable",
        }
    }

    /// Returns true if the server is not reachable for any reason.
    #[must_use]
    pub const fn is_bad(&self) -> bool {
        !matches!(self, Reach::Unknown | Reach::Answers { .. })
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::Unknown => f.write_str("not yet known"),
            Reach::Answers { since_last_packet: heard } => {
                write!(f, "answers (last received {} ago)", span(*heard))
            }
            Reach::NoAnswer { since, tries } => {
                write!(f, "no answer for {} (tried {tries} times)", span(*since))
            }
            Reach::Refused => f.write_str("refused by the server: nothing listens on this port"),
            Reach::Blocked { by, kind } => {
                let said = DeliveryErrorText(*kind);
                match by {
                    Some(by) => write!(f, "{by} reports: {said}"),
                    None => write!(f, "this machine reports: {said}"),
                }
            }
        }
    }
}

/// Display of a delivery error, in the terms of the RFCs.
struct DeliveryErrorText(DeliveryErrorKind);

impl fmt::Display for DeliveryErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            DeliveryErrorKind::PortClosed => f.write_str("port unreachable (ICMP)"),
            DeliveryErrorKind::Prohibited => f.write_str("administratively prohibited (ICMP)"),
            DeliveryErrorKind::HostUnreachable => f.write_str("host unreachable (ICMP)"),
            DeliveryErrorKind::NetUnreachable => f.write_str("network unreachable (ICMP)"),
            DeliveryErrorKind::Other(kind, code) => {
                write!(f, "destination unreachable (ICMP type {kind}, code {code})")
            }
            DeliveryErrorKind::NotSent(errno) => std::io::Error::from_raw_os_error(errno).fmt(f),
        }
    }
}

/// Returns the error that the server's machine, this one or another host reported, without waiting for [`ERROR_DELAY`]:
/// the reason for a failed attempt.
pub(crate) fn delivery_error(contact: &Contact) -> Option<Reach> {
    let delivery_error = contact.delivery_error?;
    let settled_at = delivery_error.since + ERROR_DELAY;
    Some(Reach::evaluate(contact, settled_at.max(delivery_error.last_at))).filter(Reach::is_bad)
}

/// Returns the delivery error that still applies: nothing has arrived since, and its sender has not become silent while
/// requests continue.
fn current_error(contact: &Contact, now: Instant) -> Option<marline_io::DeliveryError> {
    let delivery_error =
        contact.delivery_error.filter(|said| now.since(said.since) >= ERROR_DELAY)?;
    let outlived = |question: marline_io::UnansweredPackets| {
        question.last_at.since(delivery_error.last_at) > ANSWER_TIMEOUT
    };
    (!contact.question.is_some_and(outlived)).then_some(delivery_error)
}

/// Returns the time at which the problem with a contact began.
fn problem_start(contact: &Contact) -> Option<Instant> {
    let asked = contact.question.map(|question| question.since);
    let said = contact.delivery_error.map(|delivery_error| delivery_error.since);
    asked.into_iter().chain(said).min()
}

/// Reachability of a server over a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReach {
    /// Address of the server.
    pub server: SocketAddr,
    /// Local address of the requests.
    pub local: IpAddr,
    /// Reachability.
    pub reach: Reach,
    /// True if connections to this server use TCP on this path because UDP gets no answer or is slower (carriers `Auto`
    /// and `Tcp`).
    pub by_tcp: bool,
    /// Measured rates, if TCP is used because UDP is slower.
    pub carrier_rates: Option<CarrierRates>,
    /// Reason why the last attempt to use TCP instead of UDP failed, if it did.
    pub tcp_failure: Option<String>,
}

/// Returns the reachability of each server, over one path.
pub(crate) fn servers(contacts: &[&Contact], now: Instant) -> Vec<ServerReach> {
    let of = |contact: &&Contact| ServerReach {
        server: contact.remote,
        local: contact.local,
        reach: Reach::evaluate(contact, now),
        by_tcp: false,
        carrier_rates: None,
        tcp_failure: None,
    };
    contacts.iter().map(of).collect()
}

/// Finds the problem with a path: a server that does not answer, while no other server has answered since.
pub(crate) fn fault<'a>(
    contacts: &[&'a Contact],
    now: Instant,
) -> Option<(&'a Contact, ServerReach)> {
    // The comparison is strict: an answer and a request sent immediately after it have equal times.
    let heard_since =
        |at: Instant| contacts.iter().any(|other| other.heard_at.is_some_and(|heard| heard > at));
    let bad = contacts.iter().filter(|contact| {
        Reach::evaluate(contact, now).is_bad() && !problem_start(contact).is_some_and(heard_since)
    });
    // Selects the most recent request.
    let asked = |contact: &&&Contact| contact.question.map(|question| question.last_at);
    let worst = *bad.max_by_key(asked)?;
    let (server, local) = (worst.remote, worst.local);
    let reach = Reach::evaluate(worst, now);
    let (carrier_rates, tcp_failure) = (None, None);
    let found = ServerReach { server, local, reach, by_tcp: false, carrier_rates, tcp_failure };
    Some((worst, found))
}

/// Describes the problem with a path, and its likely cause if other paths reach the same server.
pub(crate) fn problem_text(
    path: &str,
    fault: &ServerReach,
    all: &[NamedContacts<'_>],
    transport: &str,
    now: Instant,
) -> String {
    let ServerReach { server, reach, .. } = fault;
    let own = all.iter().find(|(name, _)| name == path);
    let contact = own.and_then(|(_, own)| own.iter().find(|contact| contact.remote == *server));
    let since = contact.and_then(|contact| problem_start(contact));
    match since.map(|since| find_other_working_paths(all, *server, since, now)) {
        Some(working) if !working.is_empty() => {
            let was_heard = contact.is_some_and(|contact| contact.heard_at.is_some());
            let why = likely_cause(transport, *server, reach, was_heard);
            format!("{server}: {reach}, while it answers over {}: {why}", working.join(", "))
        }
        _ => format!("{server}: {reach}"),
    }
}

/// Finds paths over which a server has answered since a given time and still answers.
fn find_other_working_paths<'a>(
    all: &'a [NamedContacts<'_>],
    server: SocketAddr,
    since: Instant,
    now: Instant,
) -> Vec<&'a str> {
    let answers = |c: &&Contact| {
        let heard = c.heard_at.is_some_and(|at| at >= since);
        c.remote == server && heard && !Reach::evaluate(c, now).is_bad()
    };
    let works = |contacts: &[&Contact]| contacts.iter().any(answers);
    all.iter().filter(|(_, c)| works(c)).map(|(path, _)| path.as_str()).collect()
}

/// Returns the likely cause if other paths work. `was_heard` means that the server has answered over this path, so its
/// network passes the transport.
fn likely_cause(transport: &str, server: SocketAddr, reach: &Reach, was_heard: bool) -> String {
    let port = server.port();
    match reach {
        Reach::Blocked { by: Some(by), .. } if *by == server.ip() => {
            format!("a firewall there, or the server's own, refuses {transport} port {port}")
        }
        Reach::Blocked { by: Some(_), .. } => {
            format!("a captive portal or a firewall there blocks {transport} port {port}")
        }
        Reach::Blocked { by: None, .. } => "this machine's routes or firewall block it".to_owned(),
        _ if was_heard => "no data arrives on this path anymore; it appears to be down".to_owned(),
        _ => format!("the network there seems to block {transport} port {port}, or is down"),
    }
}

/// Formats a duration for display.
pub(crate) fn span(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}
