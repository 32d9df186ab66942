//! State of a client's paths: what each is good for, judged once for everything that shows it.
//!
//! A path is usable only on evidence: a server answered over it, and nothing has spoken against that since. What was
//! never tried is not called usable, and a server that answers but turns the client away makes no path usable.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use marline_io::{CarrierRates, Contact, PathSpec, Prefix64};
use marline_time::{Duration, Instant};

use super::{Entry, PathTable};
use crate::health::{self, Reach, ServerReach, span};

/// What a path is good for now.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum PathHealth {
    /// A server answered over it, and nothing has spoken against that since.
    Usable,
    /// A server answers over it, but answers are overdue or its signal fades: data goes elsewhere if it can.
    Degraded,
    /// It leads to no server that serves this client.
    Unreachable,
    /// No server has been asked over it yet, or only just. A word of a newer version is read as this: it says nothing.
    #[default]
    #[cfg_attr(feature = "serde", serde(other))]
    Untried,
}

impl PathHealth {
    /// All of them.
    pub const ALL: [PathHealth; 4] =
        [PathHealth::Usable, PathHealth::Degraded, PathHealth::Unreachable, PathHealth::Untried];

    /// The word for it: `usable`, `degraded`, `unreachable` or `untried`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            PathHealth::Usable => "usable",
            PathHealth::Degraded => "degraded",
            PathHealth::Unreachable => "unreachable",
            PathHealth::Untried => "untried",
        }
    }

    /// Whether data gets through: it is usable or degraded.
    #[must_use]
    pub const fn works(self) -> bool {
        matches!(self, PathHealth::Usable | PathHealth::Degraded)
    }
}

impl fmt::Display for PathHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A local address that serves as a path, and its state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathStatus {
    /// The path as configured, or the interface's name if found by itself.
    pub spec: PathSpec,
    /// The interface, if known.
    pub interface: Option<String>,
    /// Its addresses in use: usually one, or one per family.
    pub addresses: Vec<IpAddr>,
    /// The interface is there and up, and the path was not taken down by hand: new subflows may start
    /// here. Whether anything gets through, `health` says.
    pub up: bool,
    /// Carries data only if nothing else can.
    pub backup: bool,
    /// Bytes on it cost money.
    pub metered: bool,
    /// It will soon be gone, as somebody said who knows its radio.
    pub fading: bool,
    /// Its network has only IPv6, and IPv4 addresses are reached below this prefix (NAT64).
    pub nat64: Option<Prefix64>,
    /// What it is good for.
    pub health: PathHealth,
    /// Why it is not usable, in words; `None`: it is.
    pub cause: Option<String>,
    /// What is known of each server that was asked something over it.
    pub servers: Vec<ServerReach>,
    /// What is wrong with the path as a whole: a server does not answer, and no other did since.
    pub fault: Option<ServerReach>,
}

/// What a table of paths does not know itself, when their state is judged.
pub(crate) struct Evidence<'a> {
    pub(crate) now: Instant,
    /// What each server did when it was asked.
    pub(crate) contacts: &'a [Contact],
    /// What firewalls call the carrier.
    pub(crate) transport: &'static str,
    /// The servers of the latest connection attempt; empty: there was none.
    pub(crate) servers: &'a [SocketAddr],
    /// Why the server that answers does not serve this client.
    pub(crate) rejection: Option<&'a str>,
    /// The ends of subflows on which answers are overdue.
    pub(crate) doubted: &'a [(IpAddr, SocketAddr)],
    /// The ends between which connections go by TCP as that is faster.
    pub(crate) rates: &'a [((IpAddr, SocketAddr), CarrierRates)],
    /// Whether connections from an address to a server go by TCP instead of UDP, and why they could not.
    pub(crate) tcp: &'a dyn Fn(IpAddr, SocketAddr) -> (bool, Option<String>),
}

impl PathTable {
    /// Its paths, judged by this evidence.
    pub(crate) fn status(&self, evidence: &Evidence<'_>) -> Vec<PathStatus> {
        let known = self.known(evidence.contacts);
        self.entries.iter().map(|entry| self.status_of(entry, evidence, &known)).collect()
    }

    fn status_of(
        &self,
        entry: &Entry,
        evidence: &Evidence<'_>,
        known: &[health::Known<'_>],
    ) -> PathStatus {
        let now = evidence.now;
        let contacts = entry.contacts(evidence.contacts);
        let fault = health::fault(&contacts, now).map(|(_, fault)| fault);
        let mut servers = health::servers(&contacts, now);
        for server in &mut servers {
            (server.by_tcp, server.tcp_failure) = (evidence.tcp)(server.local, server.server);
            let measured = |(ends, _): &&((IpAddr, SocketAddr), CarrierRates)| {
                *ends == (server.local, server.server)
            };
            server.carrier_rates = evidence.rates.iter().find(measured).map(|(_, rates)| *rates);
        }
        let problem = fault.as_ref().map(|fault| {
            let words = health::problem(&entry.called(), fault, (now, known), evidence.transport);
            match (evidence.tcp)(fault.local, fault.server).1 {
                // Without datagrams the refusal was TCP's.
                Some(_) if fault.reach == Reach::Refused && evidence.transport == "TCP" => words,
                Some(by_tcp) => format!("{words}; {by_tcp}"),
                None => words,
            }
        });
        let (health, cause) = self.judge(entry, evidence, (&contacts, problem));
        PathStatus {
            spec: entry.spec.clone(),
            interface: entry.interface().map(str::to_owned),
            addresses: entry.ends.iter().map(|end| end.address).collect(),
            up: entry.is_up(),
            backup: entry.backup,
            metered: entry.is_metered(),
            fading: entry.fading,
            nat64: entry.nat64(&self.prefixes),
            health,
            cause,
            servers,
            fault,
        }
    }

    /// The state of a path, and why it is not usable. `problem`: the server that was asked last does not answer.
    fn judge(
        &self,
        entry: &Entry,
        evidence: &Evidence<'_>,
        (contacts, problem): (&[&Contact], Option<String>),
    ) -> (PathHealth, Option<String>) {
        if !entry.is_up() || entry.error.is_some() {
            let cause = entry.obstacle().unwrap_or_else(|| "it has no address".to_owned());
            return (PathHealth::Unreachable, Some(cause));
        }
        let reaches = |contact: &&Contact| Reach::of(contact, evidence.now);
        let answers = contacts.iter().any(|c| matches!(reaches(c), Reach::Answers { .. }));
        let mismatch = || self.family_mismatch(entry, evidence.servers).filter(|_| !answers);
        let rejection = || evidence.rejection.map(str::to_owned);
        if let Some(cause) = problem.or_else(mismatch).or_else(rejection) {
            return (PathHealth::Unreachable, Some(cause));
        }
        if !answers {
            return (PathHealth::Untried, Some(untried(contacts, evidence.now)));
        }
        let is_doubted = |(local, remote): &(IpAddr, SocketAddr)| {
            let pinned = entry.spec.remote.is_none_or(|pinned| pinned == *remote);
            pinned && entry.ends.iter().any(|end| end.address == *local)
        };
        match () {
            () if entry.fading => (PathHealth::Degraded, Some("its signal fades".to_owned())),
            () if evidence.doubted.iter().any(is_doubted) => {
                (PathHealth::Degraded, Some("answers are overdue".to_owned()))
            }
            () => (PathHealth::Usable, None),
        }
    }

    /// Why none of these servers can be asked over a path: none has an address of its families.
    fn family_mismatch(&self, entry: &Entry, servers: &[SocketAddr]) -> Option<String> {
        let first = *servers.first()?;
        // A path that leads to an address of its own was resolved for it.
        if entry.spec.remote.is_some() {
            return None;
        }
        let nat64 = entry.nat64(&self.prefixes);
        let server_families = servers.iter().map(|server| server.is_ipv4());
        let reaches = |ipv4: bool| {
            entry.ends.iter().any(|end| end.address.is_ipv4() == ipv4) || (ipv4 && nat64.is_some())
        };
        if server_families.into_iter().any(reaches) {
            return None;
        }
        let (missing, other) = if first.is_ipv4() { ("IPv6", "IPv4") } else { ("IPv4", "IPv6") };
        let translated = match entry.has_only_ipv6() && first.is_ipv4() {
            true => " and no NAT64 prefix",
            false => "",
        };
        Some(format!(
            "no {missing} address of the server ({first}), and this path has no {other} address{translated}"
        ))
    }
}

/// What is known of a path over which nothing has been heard and nothing is held to be lost.
fn untried(contacts: &[&Contact], now: Instant) -> String {
    let asked = contacts.iter().filter_map(|contact| contact.question);
    match asked.min_by_key(|question| question.since) {
        Some(question) => {
            let since: Duration = now.since(question.since);
            format!("asked {} ago for the first time, no answer yet", span(since))
        }
        None => "not tried yet".to_owned(),
    }
}

#[cfg(test)]
mod tests;
