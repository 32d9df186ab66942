//! Watcher of a client's paths: reports once when a path fails or works again.

use core::fmt;
use core::net::SocketAddr;
use std::collections::BTreeMap;

use marline_io::Contact;
use marline_time::{Duration, Instant};

use super::common_failures::CommonFailures;
use super::{
    ANSWER_TIMEOUT, ERROR_DELAY, NamedContacts, Reach, fault, find_other_working_paths,
    likely_cause, span,
};

/// Maximum delay of the report about a failed path while another one is also about to fail, so that both are reported
/// as one event.
const REPORT_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of paths whose last report is remembered.
const MAX_REPORTED_PATHS: usize = 64;

/// Change of path health.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathEvent {
    /// Time of detection.
    pub at: Instant,
    /// Affected paths.
    pub paths: Vec<String>,
    /// Kind of problem, as in [`Reach::name`]; `None` if the path works again.
    pub server: SocketAddr,
    /// Kind of problem, as in [`Reach::name`]; `None` if it works again.
    pub fault: Option<&'static str>,
    /// Human-readable description.
    pub text: String,
}

impl fmt::Display for PathEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Last report about a path.
#[derive(Clone, Debug)]
struct LastReport {
    word: &'static str,
    since: Instant,
    server: SocketAddr,
}

/// Last reports about all paths.
#[derive(Debug)]
pub(crate) struct HealthWatcher {
    /// Name of the transport that a firewall sees.
    transport: &'static str,
    last_reports: BTreeMap<String, LastReport>,
    common_failures: CommonFailures,
    /// Notices about paths that fail together.
    notices: Vec<String>,
}

/// Result of checking a path.
struct PathCheck<'a> {
    path: &'a str,
    contact: &'a Contact,
    reach: Reach,
}

impl HealthWatcher {
    pub(crate) const fn new(transport: &'static str) -> Self {
        HealthWatcher {
            transport,
            last_reports: BTreeMap::new(),
            common_failures: CommonFailures::new(),
            notices: Vec::new(),
        }
    }

    /// Checks all paths and returns the changes.
    pub(crate) fn check_paths(
        &mut self,
        now: Instant,
        paths: &[NamedContacts<'_>],
    ) -> Vec<PathEvent> {
        let mut news = self.recovery_events(now, paths);
        let bad: Vec<PathCheck<'_>> = paths
            .iter()
            .filter_map(|(path, contacts)| {
                let (contact, found) = fault(contacts, now)?;
                Some(PathCheck { path, contact, reach: found.reach })
            })
            .collect();
        let is_new = |look: &&PathCheck<'_>| match self.last_reports.get(look.path) {
            None => true,
            // A host that sometimes repeats its error does not cause a new event each time.
            Some(told) => told.word != look.reach.name() && look.reach.name() != "no-answer",
        };
        let fresh: Vec<&PathCheck<'_>> = bad.iter().filter(is_new).collect();
        let mut servers: Vec<SocketAddr> = fresh.iter().map(|look| look.contact.remote).collect();
        servers.sort_unstable();
        servers.dedup();
        for server in servers {
            let here = |look: &&&PathCheck<'_>| look.contact.remote == server;
            let fresh: Vec<&PathCheck<'_>> = fresh.iter().filter(here).copied().collect();
            if fresh.iter().any(|look| may_wait(now, look, paths)) {
                continue;
            }
            let bad: Vec<&PathCheck<'_>> =
                bad.iter().filter(|l| l.contact.remote == server).collect();
            let failed: Vec<&str> = fresh.iter().map(|look| look.path).collect();
            // If all paths fail, the server is assumed to be the cause.
            if paths.iter().any(|(path, _)| !bad.iter().any(|look| look.path == path)) {
                self.notices.extend(self.common_failures.on_failure(&failed));
            }
            news.extend(make_events(now, self.transport, &fresh, &bad, paths));
            for look in fresh {
                let word = look.reach.name();
                self.last_reports
                    .insert(look.path.to_owned(), LastReport { word, since: now, server });
            }
        }
        self.forget_oldest();
        news
    }

    /// Takes the notices about paths that fail together.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Drops the oldest reports, because paths may keep appearing under new names.
    fn forget_oldest(&mut self) {
        while self.last_reports.len() > MAX_REPORTED_PATHS {
            let oldest = self.last_reports.iter().min_by_key(|(_, told)| told.since);
            let Some(path) = oldest.map(|(path, _)| path.clone()) else { return };
            self.last_reports.remove(&path);
        }
    }

    /// Returns true if another check is due even without a change, because the outcome depends on time alone.
    pub(crate) fn is_recheck_due(&self, now: Instant, paths: &[NamedContacts<'_>]) -> bool {
        let open = |contact: &&Contact| {
            let asked = contact
                .question
                .is_some_and(|question| now.since(question.since) < ANSWER_TIMEOUT + REPORT_DELAY);
            let said =
                contact.delivery_error.is_some_and(|said| now.since(said.since) < ERROR_DELAY);
            asked || said
        };
        paths.iter().any(|(_, contacts)| contacts.iter().any(open))
    }

    fn recovery_events(&mut self, now: Instant, paths: &[NamedContacts<'_>]) -> Vec<PathEvent> {
        let mut news = Vec::new();
        for (path, contacts) in paths {
            if fault(contacts, now).is_some() {
                continue;
            }
            let Some(told) = self.last_reports.get(path) else { continue };
            // Only packets count: a forgotten contact is neither good nor bad.
            let heard = |c: &&&Contact| c.heard_at.is_some_and(|at| at >= told.since);
            if let Some(contact) = contacts.iter().find(heard) {
                let after = span(now.since(told.since));
                let server = contact.remote;
                let text = format!("path {path} works again: {server} answers, after {after}");
                let paths = vec![path.clone()];
                news.push(PathEvent { at: now, paths, server, fault: None, text });
            } else if contacts.iter().any(|contact| contact.remote == told.server) {
                continue;
            }
            self.last_reports.remove(path);
        }
        self.last_reports.retain(|path, _| paths.iter().any(|(known, _)| known == path));
        news
    }
}

/// Returns true if another path to this server is about to fail as well: its request is pending and nearly expired.
fn may_wait(now: Instant, look: &PathCheck<'_>, paths: &[NamedContacts<'_>]) -> bool {
    let Some(question) = look.contact.question else { return false };
    if now.since(question.since) >= ANSWER_TIMEOUT + REPORT_DELAY {
        return false;
    }
    paths.iter().filter(|(path, _)| path != look.path).any(|(_, contacts)| {
        contacts.iter().any(|other| {
            let asked = other.question.map(|question| now.since(question.since));
            let doubtful = asked.is_some_and(|age| age >= ANSWER_TIMEOUT - REPORT_DELAY);
            other.remote == look.contact.remote && doubtful && !Reach::evaluate(other, now).is_bad()
        })
    })
}

/// Creates the events for a server: one event for the only path or all paths together, or one per path.
fn make_events(
    now: Instant,
    transport: &str,
    fresh: &[&PathCheck<'_>],
    bad: &[&PathCheck<'_>],
    paths: &[NamedContacts<'_>],
) -> Vec<PathEvent> {
    let Some(first) = fresh.first() else { return Vec::new() };
    let server = first.contact.remote;
    let began =
        fresh.iter().filter_map(|look| super::problem_start(look.contact)).min().unwrap_or(now);
    let working = find_other_working_paths(paths, server, began, now);
    let failing = |path: &str| bad.iter().any(|look| look.path == path);
    let all = paths.iter().map(|(path, _)| path.as_str());
    let idle: Vec<&str> = all.filter(|path| !failing(path)).collect();
    if idle.is_empty() {
        let each: Vec<String> = bad.iter().map(|l| format!("{}: {}", l.path, l.reach)).collect();
        let advice = advice(transport, server, bad);
        let text =
            format!("no path reaches {server} over {transport} ({}): {advice}", each.join("; "));
        let paths = fresh.iter().map(|look| look.path.to_owned()).collect();
        return vec![PathEvent { at: now, paths, server, fault: Some(first.reach.name()), text }];
    }
    let one = |look: &&PathCheck<'_>| {
        let (path, reach) = (look.path, &look.reach);
        let text = if working.is_empty() {
            let idle = idle.join(", ");
            format!("path {path} to {server}: {reach}; no requests were sent over {idle} since")
        } else {
            let was_heard = look.contact.heard_at.is_some();
            let why = likely_cause(transport, server, reach, was_heard);
            let working = working.join(", ");
            format!("path {path} to {server}: {reach}, while it answers over {working}: {why}")
        };
        PathEvent {
            at: now,
            paths: vec![path.to_owned()],
            server,
            fault: Some(look.reach.name()),
            text,
        }
    };
    fresh.iter().map(one).collect()
}

/// Returns advice if no path works.
fn advice(transport: &str, server: SocketAddr, bad: &[&PathCheck<'_>]) -> String {
    let port = server.port();
    if bad.iter().all(|look| look.reach == Reach::Refused) {
        return "is `marline server` running there, with the same --carrier?".to_owned();
    }
    if bad.iter().all(|look| matches!(look.reach, Reach::Blocked { by: Some(_), .. })) {
        return format!(
            "log in if there is a captive portal, else use another network, or a port other than {transport} \
             {port}"
        );
    }
    format!(
        "is `marline server` running there with the same --carrier, is {transport} port {port} open in \
         its firewall and its provider's, and does this network let {transport} out?"
    )
}
