//! State of a client's paths, evaluated here for all outputs.
//!
//! A path is usable only on evidence: a server has answered over it, and nothing has contradicted that since. An
//! untried path does not count as usable, and a server that answers but rejects the client does not make a path usable.

use core::net::{IpAddr, SocketAddr};

use marline_io::carrier::FlowEnds;
use marline_io::{CarrierRates, Contact, PathSpec, Prefix64};
use marline_policy::PathHealth;
use marline_time::{Duration, Instant};

use super::{Entry, PathTable};
use crate::health::{self, Reach, ServerReach, span};

/// State of a path.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathStatus {
    /// The path as configured, or the interface's name if found automatically.
    pub spec: PathSpec,
    /// Interface of the path, if known.
    pub interface: Option<String>,
    /// Addresses in use: usually one, or one per family.
    pub addresses: Vec<IpAddr>,
    /// True if the interface exists and is up, and the path was not disabled by hand: new subflows may start on it. For
    /// reachability, see `health`.
    pub up: bool,
    /// True if the path carries data only if no other path can.
    pub backup: bool,
    /// True if traffic on the path is charged.
    pub metered: bool,
    /// True if traffic counts against an allowance, as with mobile data: idle capacity is not used for copies.
    pub limited: bool,
    /// True if the path is expected to disappear soon, according to its radio signal.
    pub fading: bool,
    /// NAT64 prefix, if the network is IPv6-only.
    pub nat64: Option<Prefix64>,
    /// Health of the path.
    pub health: PathHealth,
    /// Reason why the path is not usable, if so.
    pub cause: Option<String>,
    /// Reachability of each server that was contacted over the path.
    pub servers: Vec<ServerReach>,
    /// Problem with the path as a whole: a server does not answer, and no other server has answered since.
    pub fault: Option<ServerReach>,
}

/// Data for judging paths that the path table does not contain.
pub(crate) struct Evidence<'a> {
    pub(crate) now: Instant,
    /// Contacts with servers.
    pub(crate) contacts: &'a [Contact],
    /// Name of the transport that a firewall sees.
    pub(crate) transport: &'static str,
    /// Servers tried in the latest connection attempt; empty if there was none.
    pub(crate) servers: &'a [SocketAddr],
    /// Reason why the answering server does not serve this client.
    pub(crate) rejection: Option<&'a str>,
    /// Ends of subflows with overdue answers.
    pub(crate) impaired: &'a [FlowEnds],
    /// Ends between which connections use TCP because it is faster.
    pub(crate) rates: &'a [(FlowEnds, CarrierRates)],
    /// Returns true if connections from an address to a server use TCP instead of UDP, and, if such a connection
    /// failed, the reason.
    pub(crate) tcp: &'a dyn Fn(IpAddr, SocketAddr) -> (bool, Option<String>),
}

impl PathTable {
    /// Judges all paths with this evidence.
    pub(crate) fn status(&self, evidence: &Evidence<'_>) -> Vec<PathStatus> {
        let known = self.known_contacts(evidence.contacts);
        self.entries.iter().map(|entry| self.status_of(entry, evidence, &known)).collect()
    }

    fn status_of(
        &self,
        entry: &Entry,
        evidence: &Evidence<'_>,
        known: &[health::NamedContacts<'_>],
    ) -> PathStatus {
        let now = evidence.now;
        let contacts = entry.contacts(evidence.contacts);
        let fault = health::fault(&contacts, now).map(|(_, fault)| fault);
        let mut servers = health::servers(&contacts, now);
        for server in &mut servers {
            (server.by_tcp, server.tcp_failure) = (evidence.tcp)(server.local, server.server);
            let ends = FlowEnds { local: server.local, remote: server.server };
            let measured = |(measured, _): &&(FlowEnds, CarrierRates)| *measured == ends;
            server.carrier_rates = evidence.rates.iter().find(measured).map(|(_, rates)| *rates);
        }
        let problem = fault.as_ref().map(|fault| {
            let words =
                health::problem_text(&entry.display_name(), fault, known, evidence.transport, now);
            match (evidence.tcp)(fault.local, fault.server).1 {
                // Without datagrams, the refusal came over TCP.
                Some(_) if fault.reach == Reach::Refused && evidence.transport == "TCP" => words,
                Some(by_tcp) => format!("{words}; {by_tcp}"),
                None => words,
            }
        });
        let (health, cause) = self.judge_health(entry, evidence, &contacts, problem);
        PathStatus {
            spec: entry.spec.clone(),
            interface: entry.interface().map(str::to_owned),
            addresses: entry.ends.iter().map(|end| end.address).collect(),
            up: entry.is_up(),
            backup: entry.backup,
            metered: entry.is_metered(),
            limited: entry.is_limited(),
            fading: entry.fading,
            nat64: entry.nat64(&self.prefixes),
            health,
            cause,
            servers,
            fault,
        }
    }

    /// Returns the health of a path, and the reason if it is not usable. `problem` is set if the most recently
    /// contacted server does not answer.
    fn judge_health(
        &self,
        entry: &Entry,
        evidence: &Evidence<'_>,
        contacts: &[&Contact],
        problem: Option<String>,
    ) -> (PathHealth, Option<String>) {
        if !entry.is_up() || entry.error.is_some() {
            let cause = entry
                .current_obstacle()
                .unwrap_or_else(|| "the interface has no address".to_owned());
            return (PathHealth::Unreachable, Some(cause));
        }
        let reaches = |contact: &&Contact| Reach::evaluate(contact, evidence.now);
        let answers = contacts.iter().any(|c| matches!(reaches(c), Reach::Answers { .. }));
        let mismatch = || self.family_mismatch(entry, evidence.servers).filter(|_| !answers);
        let rejection = || evidence.rejection.map(str::to_owned);
        if let Some(cause) = problem.or_else(mismatch).or_else(rejection) {
            return (PathHealth::Unreachable, Some(cause));
        }
        if !answers {
            return (PathHealth::Untried, Some(describe_untried(contacts, evidence.now)));
        }
        let is_impaired = |ends: &FlowEnds| {
            let pinned = entry.spec.remote.is_none_or(|pinned| pinned == ends.remote);
            pinned && entry.ends.iter().any(|end| end.address == ends.local)
        };
        match () {
            () if entry.fading => (PathHealth::Degraded, Some("its signal is fading".to_owned())),
            () if evidence.impaired.iter().any(is_impaired) => {
                (PathHealth::Degraded, Some("answers are overdue".to_owned()))
            }
            () => (PathHealth::Usable, None),
        }
    }

    /// Returns the reason why none of these servers can be probed over a path: the path has no address of their
    /// families.
    fn family_mismatch(&self, entry: &Entry, servers: &[SocketAddr]) -> Option<String> {
        let first = *servers.first()?;
        // A path with its own server address was resolved for it.
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

/// Describes a path that has received no answer and has no detected problem.
fn describe_untried(contacts: &[&Contact], now: Instant) -> String {
    let asked = contacts.iter().filter_map(|contact| contact.question);
    match asked.min_by_key(|question| question.since) {
        Some(question) => {
            let since: Duration = now.since(question.since);
            format!("first tried {} ago, no answer yet", span(since))
        }
        None => "not tried yet".to_owned(),
    }
}

#[cfg(test)]
mod tests;
