//! An endpoint's exchange with the path health monitor: it reports what its connections observed, requests the probes
//! that are due, and passes changed verdicts to the connections.
//!
//! A visit examines every subflow. It therefore happens once per period while anything is sent, after a timeout (at
//! most once per [`MIN_TROUBLE_INTERVAL`], because a failing path triggers a thousand timers), and when a probe or its
//! answer
//! is due, but never per packet. Between visits, an endpoint only compares the generation of the verdicts: one atomic
//! load.

use std::collections::BTreeMap;

use marline_policy::{AddressPair, AddressPairFault};
use marline_time::{Duration, Instant};

use super::Endpoint;
use crate::connection::Connection;
use crate::path_health::{HealthTable, MemberActivity, PathHealthMonitor};
use crate::tables::Context;
use crate::{ConnectionId, PathAddresses};

/// Minimum time between two visits caused by timeouts.
const MIN_TROUBLE_INTERVAL: Duration = Duration::from_millis(10);

/// State of the reports to a path health monitor.
#[derive(Debug)]
pub(super) struct PathHealthReporter {
    monitor: PathHealthMonitor,
    /// Generation of verdicts that connections have seen.
    seen: u64,
    /// Time of the next report of statistics; `None` while idle.
    period_ends: Option<Instant>,
    /// Time at which a probe or an answer is due.
    watch_at: Option<Instant>,
    /// Time at which timeouts that occurred soon after a visit are reported.
    report_timeouts_at: Option<Instant>,
    last_visit_at: Option<Instant>,
}

impl PathHealthReporter {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.period_ends.into_iter().chain(self.watch_at).chain(self.report_timeouts_at).min()
    }

    /// Returns true if a timeout may be reported now; otherwise schedules the report.
    fn may_report_timeout(&mut self, now: Instant) -> bool {
        let earliest = self.last_visit_at.map_or(now, |at| at + MIN_TROUBLE_INTERVAL);
        if earliest > now {
            self.report_timeouts_at = Some(earliest);
        }
        earliest <= now
    }
}

/// Results of a visit.
struct Findings {
    degraded: Option<BTreeMap<PathAddresses, AddressPairFault>>,
    due_probes: Vec<(ConnectionId, AddressPair)>,
}

impl Endpoint {
    /// Connects the endpoint to this path health monitor. Endpoints that share one must share a clock.
    pub fn set_path_health_monitor(&mut self, monitor: PathHealthMonitor) {
        self.reporter = Some(PathHealthReporter {
            monitor,
            seen: 0,
            period_ends: None,
            watch_at: None,
            report_timeouts_at: None,
            last_visit_at: None,
        });
        self.faults.reset();
    }

    /// The path health monitor, if there is one.
    #[must_use]
    pub fn path_health_monitor(&self) -> Option<&PathHealthMonitor> {
        self.reporter.as_ref().map(|reporter| &reporter.monitor)
    }

    /// Visits the path health monitor if a visit is due.
    pub(super) fn check_path_health(&mut self, now: Instant) {
        let Some(reporter) = &mut self.reporter else { return };
        let changed = reporter.monitor.generation() != reporter.seen;
        let due = reporter.next_timeout().is_some_and(|at| at <= now);
        let troubled = self.faults.has_troubles() && reporter.may_report_timeout(now);
        if changed || due || troubled {
            self.sync_path_health(now);
        } else if reporter.period_ends.is_none() {
            // A connection became active: statistics are meaningful again.
            reporter.period_ends = Some(now + reporter.monitor.lock().period());
        }
    }

    fn sync_path_health(&mut self, now: Instant) {
        let Some(mut reporter) = self.reporter.take() else { return };
        let findings = self.consult(now, &mut reporter);
        self.reporter = Some(reporter);
        if let Some(degraded) = findings.degraded {
            self.faults.set_degraded(degraded);
            for id in self.connections() {
                self.run_without_visit(now, id, |c, cx| c.adopt_path_health(cx));
            }
        }
        for (id, pair) in findings.due_probes {
            self.run_without_visit(now, id, |c, _| c.probe_pair(&pair));
        }
    }

    /// Does all work that requires the monitor's lock.
    fn consult(&mut self, now: Instant, reporter: &mut PathHealthReporter) -> Findings {
        let monitor = reporter.monitor.clone();
        let mut table = monitor.lock();
        let period_over = reporter.period_ends.is_none_or(|at| at <= now);
        let active = self.report_members(now, &mut table, period_over);
        let troubles = self.faults.take_troubles();
        (reporter.report_timeouts_at, reporter.last_visit_at) = (None, Some(now));
        for (path, trouble) in &troubles {
            if let Some(pair) = table.address_pair(path) {
                table.record_trouble(now, pair, *trouble);
            }
        }
        table.advance(now);
        if period_over {
            let goes_on = active || !troubles.is_empty() || table.is_watching();
            reporter.period_ends = goes_on.then(|| now + table.period());
        }
        reporter.watch_at = table.next_timeout();
        let changed = table.generation() != reporter.seen;
        reporter.seen = table.generation();
        monitor.publish(&table);
        let by_addresses = |(pair, fault): (AddressPair, AddressPairFault)| {
            (PathAddresses { local: pair.local, remote: pair.remote }, fault)
        };
        let degraded = changed.then(|| table.degraded().map(by_addresses).collect());
        let due_probes = self.choose_probes(&mut table);
        drop(table);
        Findings { degraded, due_probes }
    }

    /// Reports the times at which members last received a segment and, at the end of a period, their statistics.
    /// Returns true if any member was active.
    fn report_members(&mut self, now: Instant, table: &mut HealthTable, period_over: bool) -> bool {
        let mut parts: BTreeMap<AddressPair, (Instant, MemberActivity)> = BTreeMap::new();
        for connection in self.slots.iter_mut() {
            self.out.counters.connections_examined += 1;
            connection.members(|path, tcp| {
                let Some(pair) = table.address_pair(&path) else { return };
                let (heard, sum) = parts.entry(pair).or_default();
                *heard = (*heard).max(tcp.last_rx_at());
                if period_over {
                    sum.add(&tcp.contribute());
                }
            });
        }
        let mut active = false;
        for (pair, (heard, part)) in parts {
            table.record_last_rx(now, pair, heard);
            table.contribute(now, pair, &part);
            active |= part.sent > 0 || part.outstanding > 0;
        }
        active
    }

    /// Chooses the connections that probe the address pairs on which a probe is due: the first member of each pair.
    fn choose_probes(&mut self, table: &mut HealthTable) -> Vec<(ConnectionId, AddressPair)> {
        let mut due_probes = Vec::new();
        if !table.is_watching() {
            return due_probes;
        }
        for connection in self.slots.iter_mut() {
            let id = connection.id();
            connection.members(|path, _| {
                let pair = table.address_pair(&path).filter(|pair| table.take_due_probe(pair));
                due_probes.extend(pair.map(|pair| (id, pair)));
            });
        }
        due_probes
    }

    /// Runs a command on a connection without another visit.
    fn run_without_visit(
        &mut self,
        now: Instant,
        id: ConnectionId,
        command: impl FnOnce(&mut Connection, &mut Context<'_>),
    ) {
        let slot = id.0 as u32;
        let (slots, mut cx) = self.split_context(now);
        if let Some(connection) = slots.get_mut(slot).filter(|connection| connection.id() == id) {
            command(connection, &mut cx);
            self.enqueue_ready(slot);
        }
    }
}
