//! Watcher of a client's paths: reports once when one fails or works again.

use core::fmt;
use core::net::SocketAddr;
use std::collections::BTreeMap;

use marline_io::Contact;
use marline_time::{Duration, Instant};

use super::shared_fate::SharedFate;
use super::{Known, PATIENCE, Reach, SETTLE, elsewhere, fault, span, suspicion};

/// A path that fails is told of at the latest so long after its time, if another one is about to fail as
/// well: that is one piece of news.
const TOGETHER: Duration = Duration::from_secs(1);

/// Paths of which it is remembered what was reported.
const MOST_TOLD: usize = 64;

/// A change of what is known of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathEvent {
    /// When it was noticed.
    pub at: Instant,
    /// The paths it is about.
    pub paths: Vec<String>,
    /// Where they lead, or do not.
    pub server: SocketAddr,
    /// What is wrong, as [`Reach::word`] has it; `None`: it works again.
    pub fault: Option<&'static str>,
    /// The same in words, for people.
    pub text: String,
}

impl fmt::Display for PathEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What was told of a path.
#[derive(Clone, Debug)]
struct Told {
    word: &'static str,
    since: Instant,
    server: SocketAddr,
}

/// What was told of all of them.
#[derive(Debug)]
pub(crate) struct HealthWatcher {
    /// What firewalls call the carrier.
    transport: &'static str,
    told: BTreeMap<String, Told>,
    fate: SharedFate,
    /// What is to be said of paths that fail together.
    notices: Vec<String>,
}

/// What a look at a path shows.
struct Look<'a> {
    path: &'a str,
    contact: &'a Contact,
    reach: Reach,
}

impl HealthWatcher {
    pub(crate) const fn new(transport: &'static str) -> Self {
        HealthWatcher {
            transport,
            told: BTreeMap::new(),
            fate: SharedFate::new(),
            notices: Vec::new(),
        }
    }

    /// Looks at all paths; gives what changed.
    pub(crate) fn look(&mut self, now: Instant, paths: &[Known<'_>]) -> Vec<PathEvent> {
        let mut news = self.recovered(now, paths);
        let bad: Vec<Look<'_>> = paths
            .iter()
            .filter_map(|(path, contacts)| {
                let (contact, found) = fault(contacts, now)?;
                Some(Look { path, contact, reach: found.reach })
            })
            .collect();
        let is_new = |look: &&Look<'_>| match self.told.get(look.path) {
            None => true,
            // A box that objects now and then is no news each time.
            Some(told) => told.word != look.reach.word() && look.reach.word() != "no-answer",
        };
        let fresh: Vec<&Look<'_>> = bad.iter().filter(is_new).collect();
        let mut servers: Vec<SocketAddr> = fresh.iter().map(|look| look.contact.remote).collect();
        servers.sort_unstable();
        servers.dedup();
        for server in servers {
            let here = |look: &&&Look<'_>| look.contact.remote == server;
            let fresh: Vec<&Look<'_>> = fresh.iter().filter(here).copied().collect();
            if fresh.iter().any(|look| may_wait(now, look, paths)) {
                continue;
            }
            let bad: Vec<&Look<'_>> = bad.iter().filter(|l| l.contact.remote == server).collect();
            let failed: Vec<&str> = fresh.iter().map(|look| look.path).collect();
            // Where all paths fail, the server has.
            if paths.iter().any(|(path, _)| !bad.iter().any(|look| look.path == path)) {
                self.notices.extend(self.fate.on_failure(&failed));
            }
            news.extend(tell(now, self.transport, (&fresh, &bad), paths));
            for look in fresh {
                let word = look.reach.word();
                self.told.insert(look.path.to_owned(), Told { word, since: now, server });
            }
        }
        self.forget_oldest();
        news
    }

    /// What there is to say of paths that fail together, once.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Paths come and go by ever new names: what was reported of those that are gone is forgotten in the end.
    fn forget_oldest(&mut self) {
        while self.told.len() > MOST_TOLD {
            let oldest = self.told.iter().min_by_key(|(_, told)| told.since);
            let Some(path) = oldest.map(|(path, _)| path.clone()) else { return };
            self.told.remove(&path);
        }
    }

    /// Whether another look is due before anything happens: something is open that time alone decides.
    pub(crate) fn is_unsettled(&self, now: Instant, paths: &[Known<'_>]) -> bool {
        let open = |contact: &&Contact| {
            let asked = contact
                .question
                .is_some_and(|question| now.since(question.since) < PATIENCE + TOGETHER);
            let said = contact.delivery_error.is_some_and(|said| now.since(said.since) < SETTLE);
            asked || said
        };
        paths.iter().any(|(_, contacts)| contacts.iter().any(open))
    }

    fn recovered(&mut self, now: Instant, paths: &[Known<'_>]) -> Vec<PathEvent> {
        let mut news = Vec::new();
        for (path, contacts) in paths {
            if fault(contacts, now).is_some() {
                continue;
            }
            let Some(told) = self.told.get(path) else { continue };
            // Only the network's word counts: what was forgotten is neither bad nor good.
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
            self.told.remove(path);
        }
        self.told.retain(|path, _| paths.iter().any(|(known, _)| known == path));
        news
    }
}

/// Whether another path to the same server is about to fail, too: its question is open and as good as
/// unanswered.
fn may_wait(now: Instant, look: &Look<'_>, paths: &[Known<'_>]) -> bool {
    let Some(question) = look.contact.question else { return false };
    if now.since(question.since) >= PATIENCE + TOGETHER {
        return false;
    }
    paths.iter().filter(|(path, _)| path != look.path).any(|(_, contacts)| {
        contacts.iter().any(|other| {
            let asked = other.question.map(|question| now.since(question.since));
            let doubtful = asked.is_some_and(|age| age >= PATIENCE - TOGETHER);
            other.remote == look.contact.remote && doubtful && !Reach::of(other, now).is_bad()
        })
    })
}

/// One piece of news of a server: of the only path or all of them, or of each.
fn tell(
    now: Instant,
    transport: &str,
    (fresh, bad): (&[&Look<'_>], &[&Look<'_>]),
    paths: &[Known<'_>],
) -> Vec<PathEvent> {
    let Some(first) = fresh.first() else { return Vec::new() };
    let server = first.contact.remote;
    let began = fresh.iter().filter_map(|look| super::began(look.contact)).min().unwrap_or(now);
    let working = elsewhere(paths, server, (began, now));
    let failing = |path: &str| bad.iter().any(|look| look.path == path);
    let all = paths.iter().map(|(path, _)| path.as_str());
    let idle: Vec<&str> = all.filter(|path| !failing(path)).collect();
    if idle.is_empty() {
        let each: Vec<String> = bad.iter().map(|l| format!("{}: {}", l.path, l.reach)).collect();
        let advice = advice(transport, server, bad);
        let text =
            format!("no path reaches {server} over {transport} ({}): {advice}", each.join("; "));
        let paths = fresh.iter().map(|look| look.path.to_owned()).collect();
        return vec![PathEvent { at: now, paths, server, fault: Some(first.reach.word()), text }];
    }
    let one = |look: &&Look<'_>| {
        let (path, reach) = (look.path, &look.reach);
        let text = if working.is_empty() {
            let idle = idle.join(", ");
            format!("path {path} to {server}: {reach}; nothing was asked over {idle} since")
        } else {
            let was_heard = look.contact.heard_at.is_some();
            let why = suspicion(transport, server, reach, was_heard);
            let working = working.join(", ");
            format!("path {path} to {server}: {reach}, while it answers over {working}: {why}")
        };
        PathEvent {
            at: now,
            paths: vec![path.to_owned()],
            server,
            fault: Some(look.reach.word()),
            text,
        }
    };
    fresh.iter().map(one).collect()
}

/// What to look at where none does.
fn advice(transport: &str, server: SocketAddr, bad: &[&Look<'_>]) -> String {
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
