//! Health of a client's paths: whether servers answer over them, and if not, the likely cause.
//!
//! An interface that is up says little: a captive portal, a firewall that drops UDP or a server that
//! is gone leave it up. Health is judged from traffic that is sent anyway; there are no extra probes. A
//! request that is unanswered for [`PATIENCE`] and was repeated counts as unanswered, and the sender of
//! an ICMP error is named. The first packet that comes in restores the path.

mod shared_fate;
#[cfg(test)]
mod tests;
mod watcher;

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use marline_io::{CarrierRates, Contact, DeliveryErrorKind};
use marline_time::{Duration, Instant};

pub(crate) use watcher::HealthWatcher;
pub use watcher::PathEvent;

/// A path's name and what is known of its servers.
pub(crate) type Known<'a> = (String, Vec<&'a Contact>);

/// A question that is open this long, and was repeated, has no answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// Tries that it takes: one packet may get lost.
const TRIES: u32 = 2;
/// A delivery error counts if nothing came in for this long: a late one, or a forged one, is outlived by
/// a server that answers.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);

/// Whether a server answers over a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// Nothing is known: it was not asked yet, or only just.
    Unknown,
    /// It answers.
    Answers {
        /// Time since it was last heard.
        heard: Duration,
    },
    /// It does not.
    Silent {
        /// Time since the first question without an answer.
        since: Duration,
        /// How often it was asked since.
        tries: u32,
    },
    /// Its machine answers that nobody listens on this port.
    Refused,
    /// Somebody says that packets do not get there.
    Blocked {
        /// Who says so: a host on the way, or the server's own; `None`: this machine does.
        by: Option<IpAddr>,
        /// What is said.
        kind: DeliveryErrorKind,
    },
}

impl Reach {
    /// What a contact tells.
    pub(crate) fn of(contact: &Contact, now: Instant) -> Reach {
        if let Some(delivery_error) = settled(contact, now) {
            let by_server = delivery_error.by == Some(contact.remote.ip());
            return match delivery_error.kind {
                DeliveryErrorKind::PortClosed if by_server => Reach::Refused,
                // The kernel's own word bears our address.
                kind => {
                    Reach::Blocked { by: delivery_error.by.filter(|by| *by != contact.local), kind }
                }
            };
        }
        if let Some(question) = contact.question {
            let since = now.since(question.since);
            if since >= PATIENCE && question.tries >= TRIES {
                return Reach::Silent { since, tries: question.tries };
            }
        }
        match contact.heard_at {
            Some(at) => Reach::Answers { heard: now.since(at) },
            None => Reach::Unknown,
        }
    }

    /// One word for it: `unknown`, `answers`, `no-answer`, `refused`, `prohibited` or `unreachable`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Reach::Unknown => "unknown",
            Reach::Answers { .. } => "answers",
            Reach::Silent { .. } => "no-answer",
            Reach::Refused => "refused",
            Reach::Blocked { kind: DeliveryErrorKind::Prohibited, .. } => "prohibited",
            Reach::Blocked { .. } => "unreachable",
        }
    }

    /// It does not answer, for whatever reason.
    #[must_use]
    pub const fn is_bad(&self) -> bool {
        !matches!(self, Reach::Unknown | Reach::Answers { .. })
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::Unknown => f.write_str("not known yet"),
            Reach::Answers { heard } => write!(f, "answers (heard {} ago)", span(*heard)),
            Reach::Silent { since, tries } => {
                write!(f, "no answer for {} (tried {tries} times)", span(*since))
            }
            Reach::Refused => f.write_str("refused by the server: nothing listens on this port"),
            Reach::Blocked { by, kind } => {
                let said = DeliveryErrorText(*kind);
                match by {
                    Some(by) => write!(f, "{by} says: {said}"),
                    None => write!(f, "this machine says: {said}"),
                }
            }
        }
    }
}

/// Text of a delivery error, in the terms of the RFCs.
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

/// What a server's own machine, this one, or somebody else said, without waiting for it to settle: why
/// an attempt failed.
pub(crate) fn delivery_error(contact: &Contact) -> Option<Reach> {
    let delivery_error = contact.delivery_error?;
    let settled_at = delivery_error.since + SETTLE;
    Some(Reach::of(contact, settled_at.max(delivery_error.last_at))).filter(Reach::is_bad)
}

/// The delivery error that stands: nothing came in since, and whoever made it does not fall silent while
/// questions go on.
fn settled(contact: &Contact, now: Instant) -> Option<marline_io::DeliveryError> {
    let delivery_error = contact.delivery_error.filter(|said| now.since(said.since) >= SETTLE)?;
    let outlived =
        |question: marline_io::Question| question.last_at.since(delivery_error.last_at) > PATIENCE;
    (!contact.question.is_some_and(outlived)).then_some(delivery_error)
}

/// When what is bad about a contact began.
fn began(contact: &Contact) -> Option<Instant> {
    let asked = contact.question.map(|question| question.since);
    let said = contact.delivery_error.map(|delivery_error| delivery_error.since);
    asked.into_iter().chain(said).min()
}

/// A server over a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReach {
    /// The server.
    pub server: SocketAddr,
    /// The path's address from which it was asked.
    pub local: IpAddr,
    /// Whether it answers.
    pub reach: Reach,
    /// Connections to it go by TCP from there, as UDP gets no answer or is slower (carriers `Auto` and `Tcp`).
    pub by_tcp: bool,
    /// They do so as UDP is slower there, with what was measured.
    pub carrier_rates: Option<CarrierRates>,
    /// Why no TCP connection came about in place of UDP, if that was tried last and failed.
    pub tcp_failure: Option<String>,
}

/// What is known of each server, of one path.
pub(crate) fn servers(contacts: &[&Contact], now: Instant) -> Vec<ServerReach> {
    let of = |contact: &&Contact| ServerReach {
        server: contact.remote,
        local: contact.local,
        reach: Reach::of(contact, now),
        by_tcp: false,
        carrier_rates: None,
        tcp_failure: None,
    };
    contacts.iter().map(of).collect()
}

/// What is wrong with a path: a server that does not answer, while no other did since.
pub(crate) fn fault<'a>(
    contacts: &[&'a Contact],
    now: Instant,
) -> Option<(&'a Contact, ServerReach)> {
    // Later, not at the same time: an answer and the question that follows it at once have one clock reading.
    let heard_since =
        |at: Instant| contacts.iter().any(|other| other.heard_at.is_some_and(|heard| heard > at));
    let bad = contacts.iter().filter(|contact| {
        Reach::of(contact, now).is_bad() && !began(contact).is_some_and(heard_since)
    });
    // The one that was asked last.
    let asked = |contact: &&&Contact| contact.question.map(|question| question.last_at);
    let worst = *bad.max_by_key(asked)?;
    let (server, local) = (worst.remote, worst.local);
    let reach = Reach::of(worst, now);
    let (carrier_rates, tcp_failure) = (None, None);
    let found = ServerReach { server, local, reach, by_tcp: false, carrier_rates, tcp_failure };
    Some((worst, found))
}

/// What is wrong with a path, in words, and what is likely if others lead to the same server.
pub(crate) fn problem(
    path: &str,
    fault: &ServerReach,
    (now, all): (Instant, &[Known<'_>]),
    transport: &str,
) -> String {
    let ServerReach { server, reach, .. } = fault;
    let own = all.iter().find(|(name, _)| name == path);
    let contact = own.and_then(|(_, own)| own.iter().find(|contact| contact.remote == *server));
    let since = contact.and_then(|contact| began(contact));
    match since.map(|since| elsewhere(all, *server, (since, now))) {
        Some(working) if !working.is_empty() => {
            let was_heard = contact.is_some_and(|contact| contact.heard_at.is_some());
            let why = suspicion(transport, *server, reach, was_heard);
            format!("{server}: {reach}, while it answers over {}: {why}", working.join(", "))
        }
        _ => format!("{server}: {reach}"),
    }
}

/// The paths over which a server was heard since a time, and answers now.
fn elsewhere<'a>(
    all: &'a [Known<'_>],
    server: SocketAddr,
    (since, now): (Instant, Instant),
) -> Vec<&'a str> {
    let answers = |c: &&Contact| {
        let heard = c.heard_at.is_some_and(|at| at >= since);
        c.remote == server && heard && !Reach::of(c, now).is_bad()
    };
    let works = |contacts: &[&Contact]| contacts.iter().any(answers);
    all.iter().filter(|(_, c)| works(c)).map(|(path, _)| path.as_str()).collect()
}

/// What is likely where other paths work. `was_heard`: the server has answered over this one before, so that its
/// network lets the transport through.
fn suspicion(transport: &str, server: SocketAddr, reach: &Reach, was_heard: bool) -> String {
    let port = server.port();
    match reach {
        Reach::Blocked { by: Some(by), .. } if *by == server.ip() => {
            format!("a firewall there, or its own, refuses {transport} port {port}")
        }
        Reach::Blocked { by: Some(_), .. } => {
            format!("a captive portal or a firewall there blocks {transport} port {port}")
        }
        Reach::Blocked { by: None, .. } => {
            "this machine's routes or firewall keep it back".to_owned()
        }
        _ if was_heard => "nothing arrives from there any more, so the line seems dead".to_owned(),
        _ => format!("the network there seems to block {transport} port {port}, or is dead"),
    }
}

/// A time as people say it.
pub(crate) fn span(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}
