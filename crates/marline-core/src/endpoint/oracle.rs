//! Exchange between an endpoint and the path health monitor: it reports observations of its
//! connections, asks for due verdicts, and passes changed ones on.
//!
//! A visit looks at every subflow, so it happens once per period while anything is sent, when something
//! timed out (not more often than every [`TROUBLE_GAP`]: a network that dies takes a thousand timers with
//! it), and when a question or its answer is due: never per packet. Between visits an endpoint only
//! compares the generation of the verdicts, one atomic load.

use core::net::IpAddr;
use std::collections::BTreeMap;

use marline_policy::Netpath;
use marline_time::{Duration, Instant};

use super::Endpoint;
use crate::ConnectionId;
use crate::connection::Connection;
use crate::oracle::{Contribution, Judge, NetpathFault, Oracle};
use crate::tables::Context;

/// Least time between a visit and the next one for trouble's sake.
const TROUBLE_GAP: Duration = Duration::from_millis(10);

/// An endpoint's place at the path health monitor.
#[derive(Debug)]
pub(super) struct Seat {
    oracle: Oracle,
    /// The generation of verdicts that connections know.
    seen: u64,
    /// When statistics are told next; `None` while nothing happens.
    period_ends: Option<Instant>,
    /// When a question or an answer is due.
    watch_at: Option<Instant>,
    /// When troubles that came soon after a visit are told.
    troubles_at: Option<Instant>,
    last_visit_at: Option<Instant>,
}

impl Seat {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.period_ends.into_iter().chain(self.watch_at).chain(self.troubles_at).min()
    }

    /// Whether a timeout may be told now; if not, it will be soon.
    fn tells_trouble(&mut self, now: Instant) -> bool {
        let earliest = self.last_visit_at.map_or(now, |at| at + TROUBLE_GAP);
        if earliest > now {
            self.troubles_at = Some(earliest);
        }
        earliest <= now
    }
}

/// What a visit brought.
struct Findings {
    bad: Option<BTreeMap<(IpAddr, IpAddr), NetpathFault>>,
    questions: Vec<(ConnectionId, Netpath)>,
}

impl Endpoint {
    /// Connections take part in this path health monitor from now on. Endpoints that share one must
    /// share a clock.
    pub fn set_oracle(&mut self, oracle: Oracle) {
        self.seat = Some(Seat {
            oracle,
            seen: 0,
            period_ends: None,
            watch_at: None,
            troubles_at: None,
            last_visit_at: None,
        });
        self.faults.begin();
    }

    /// The path health monitor, if there is one.
    #[must_use]
    pub fn oracle(&self) -> Option<&Oracle> {
        self.seat.as_ref().map(|seat| &seat.oracle)
    }

    /// Visits the path health monitor if there is a reason to.
    pub(super) fn see_oracle(&mut self, now: Instant) {
        let Some(seat) = &mut self.seat else { return };
        let changed = seat.oracle.generation() != seat.seen;
        let due = seat.next_timeout().is_some_and(|at| at <= now);
        let troubled = self.faults.has_troubles() && seat.tells_trouble(now);
        if changed || due || troubled {
            self.visit_oracle(now);
        } else if seat.period_ends.is_none() {
            // Somebody woke: statistics have a meaning again.
            seat.period_ends = Some(now + seat.oracle.lock().period());
        }
    }

    fn visit_oracle(&mut self, now: Instant) {
        let Some(mut seat) = self.seat.take() else { return };
        let findings = self.consult(now, &mut seat);
        self.seat = Some(seat);
        if let Some(bad) = findings.bad {
            self.faults.set_bad(bad);
            for id in self.connections() {
                self.with_quietly(now, id, |c, cx| c.adopt_verdicts(cx));
            }
        }
        for (id, netpath) in findings.questions {
            self.with_quietly(now, id, |c, _| c.ask_netpath(&netpath));
        }
    }

    /// All that needs the lock.
    fn consult(&mut self, now: Instant, seat: &mut Seat) -> Findings {
        let oracle = seat.oracle.clone();
        let mut judge = oracle.lock();
        let period_over = seat.period_ends.is_none_or(|at| at <= now);
        let active = self.tell(now, &mut judge, period_over);
        let troubles = self.faults.take_troubles();
        (seat.troubles_at, seat.last_visit_at) = (None, Some(now));
        for (path, trouble) in &troubles {
            if let Some(netpath) = judge.netpath(path) {
                judge.trouble(now, netpath, *trouble);
            }
        }
        judge.advance(now);
        if period_over {
            let goes_on = active || !troubles.is_empty() || judge.is_watching();
            seat.period_ends = goes_on.then(|| now + judge.period());
        }
        seat.watch_at = judge.next_timeout();
        let changed = judge.generation() != seat.seen;
        seat.seen = judge.generation();
        oracle.publish(&judge);
        let by_addresses = |(n, fault): (Netpath, NetpathFault)| ((n.local, n.remote), fault);
        let bad = changed.then(|| judge.bad().map(by_addresses).collect());
        Findings { bad, questions: self.questions(&mut judge) }
    }

    /// Tells when members were heard, and at a period's end what they did. Whether they did anything.
    fn tell(&mut self, now: Instant, judge: &mut Judge, period_over: bool) -> bool {
        let mut parts: BTreeMap<Netpath, (Instant, Contribution)> = BTreeMap::new();
        for connection in self.slots.iter_mut() {
            self.out.counters.connections_looked_at += 1;
            connection.members(|path, tcp| {
                let Some(netpath) = judge.netpath(&path) else { return };
                let (heard, sum) = parts.entry(netpath).or_default();
                *heard = (*heard).max(tcp.last_heard_at());
                if period_over {
                    sum.add(&tcp.contribute());
                }
            });
        }
        let mut active = false;
        for (netpath, (heard, part)) in parts {
            judge.heard(now, netpath, heard);
            judge.contribute(now, netpath, &part);
            active |= part.sent > 0 || part.outstanding > 0;
        }
        active
    }

    /// Who asks on address pairs on which a question is due: the first member of each.
    fn questions(&mut self, judge: &mut Judge) -> Vec<(ConnectionId, Netpath)> {
        let mut questions = Vec::new();
        if !judge.is_watching() {
            return questions;
        }
        for connection in self.slots.iter_mut() {
            let id = connection.id();
            connection.members(|path, _| {
                let netpath = judge.netpath(&path).filter(|netpath| judge.take_question(netpath));
                questions.extend(netpath.map(|netpath| (id, netpath)));
            });
        }
        questions
    }

    /// Runs a command on a connection without another visit.
    fn with_quietly(
        &mut self,
        now: Instant,
        id: ConnectionId,
        command: impl FnOnce(&mut Connection, &mut Context<'_>),
    ) {
        let slot = id.0 as u32;
        let (slots, mut cx) = self.lend(now);
        if let Some(connection) = slots.get_mut(slot).filter(|connection| connection.id() == id) {
            command(connection, &mut cx);
            self.touched(slot);
        }
    }
}
