//! Race of first SYNs over the paths, after "happy eyeballs" (RFC 8305).
//!
//! A path may have failed unnoticed, so the next attempt starts one stagger after the previous one, or immediately when
//! that one fails. The first handshake that completes wins; the others are closed without an error.
//!
//! # Schedule
//!
//! *Problem.* Happy eyeballs (RFC 8305) tries the next path shortly after the previous one, answered or not. That wakes
//! a cellular radio whenever a server's round trip exceeds the stagger. It also tries a path that other connections of
//! the process know to be bad, which sometimes wins because its RTT is shorter.
//!
//! *Solution.* Without a path health monitor, every attempt waits for the stagger. With a monitor:
//! - paths that it considers good come first, regular paths before reserves (backup paths, radios that should sleep),
//!   even if another path won last time, because its information is newer;
//! - a reserve starts after two requests on the first regular path, [`RESERVE_WAIT`] apart, and another
//!   [`RESERVE_WAIT`]: a single lost SYN wakes no radio;
//! - a degraded address pair starts last, [`DEGRADED_PAIR_DELAY`] after everything else: by then, the first SYNs of the
//!   others count as lost (RFC 6298).
//!
//! A late attempt starts immediately when no other attempt is in progress.
//!
//! *Source.* MultiMob's path health monitor "prevents primary use when bad" (slides). The waiting times and the
//! second request on a path are ours.

use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::pin::pin;
use core::task::Poll;
use std::collections::VecDeque;
use std::sync::Arc;

use marline_core::{CloseReason, ConnectionConfig};
use marline_io::{Shard, StartError, Stream};
use marline_time::Duration;
use tokio::time::Instant;

use crate::ConnectError;
use crate::error::Attempt;
use crate::health::{self, Reach};
use crate::path_table::Candidate;
use crate::routes::Routes;

/// Delay between the two requests on a regular path, and from the second one to the first on a backup path.
const RESERVE_WAIT: Duration = Duration::from_millis(250);
/// Delay from the last other attempt to the first one on a degraded address pair.
const DEGRADED_PAIR_DELAY: Duration = Duration::from_millis(1_000);

/// Parameters of a race.
pub(crate) struct HappyEyeballs<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) config: &'a Arc<ConnectionConfig>,
    pub(crate) routes: &'a Routes,
    /// Name of the transport that a firewall sees.
    pub(crate) transport: &'static str,
    /// Time after which an attempt without an answer fails.
    pub(crate) patience: Duration,
    /// Data for the first SYN, if Fast Open is allowed. Later SYNs belong to other connections, which would deliver the
    /// data again.
    pub(crate) first_bytes: &'a [u8],
}

/// Attempt in progress.
#[derive(Debug)]
struct RunningAttempt {
    candidate: Candidate,
    stream: Stream,
    /// Number of the first bytes written to this connection.
    written: usize,
}

/// Winning attempt.
#[derive(Debug)]
pub(crate) struct WinningAttempt {
    pub(crate) stream: Stream,
    /// Both ends, without the local port.
    pub(crate) ends: (IpAddr, SocketAddr),
    /// Number of the first bytes written to this connection.
    pub(crate) written: usize,
}

/// Failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) candidate: Candidate,
    pub(crate) kind: FailureKind,
    /// Error reported by the network, if there was one.
    delivery_error: Option<Reach>,
    /// Reason why no link could carry the connection, if one was tried.
    link_failure: Option<String>,
    transport: &'static str,
}

#[derive(Debug)]
pub(crate) enum FailureKind {
    NoRoute(std::io::Error),
    Start(StartError),
    Closed(CloseReason),
    /// No answer before the timeout.
    Silent,
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Attempt {
        let reason = Reason(&failure).to_string();
        Attempt::new(failure.candidate.path, failure.candidate.remote, reason)
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "path {} to {}: ", self.candidate.path, self.candidate.remote)?;
        Reason(self).fmt(f)
    }
}

/// Displays only the reason.
struct Reason<'a>(&'a Failure);

impl core::fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.0.kind {
            FailureKind::NoRoute(error) => write!(f, "no route: {error}"),
            FailureKind::Start(StartError::Core(error)) => error.fmt(f),
            FailureKind::Start(StartError::Stopped) => {
                f.write_str("the network driver has stopped")
            }
            FailureKind::Closed(CloseReason::TimedOut) | FailureKind::Silent
                if let Some(delivery_error) = &self.0.delivery_error =>
            {
                write!(f, "no answer; {delivery_error}")
            }
            FailureKind::Closed(_) if let Some(delivery_error) = &self.0.delivery_error => {
                delivery_error.fmt(f)
            }
            FailureKind::Closed(CloseReason::TimedOut) | FailureKind::Silent
                if let Some(link_failure) = &self.0.link_failure =>
            {
                write!(f, "no answer over {}: {link_failure}", self.0.transport)
            }
            FailureKind::Closed(CloseReason::TimedOut) | FailureKind::Silent => {
                write!(f, "no answer (a firewall may drop {})", self.0.transport)
            }
            FailureKind::Closed(reason) => reason.fmt(f),
        }
    }
}

/// Result of a race.
pub(crate) struct Outcome {
    pub(crate) winner: Option<WinningAttempt>,
    pub(crate) failures: Vec<Failure>,
}

impl HappyEyeballs<'_> {
    /// Runs the race to the end.
    pub(crate) async fn run(&self, mut schedule: AttemptSchedule) -> Outcome {
        let begun = Instant::now();
        let mut running: Vec<RunningAttempt> = Vec::new();
        let mut failures = Vec::new();
        loop {
            while let Some(candidate) = schedule.take_due(begun.elapsed(), running.is_empty()) {
                let is_first = running.is_empty() && failures.is_empty();
                match self.start(&candidate, if is_first { self.first_bytes } else { &[] }) {
                    Ok((stream, written)) => {
                        running.push(RunningAttempt { candidate, stream, written })
                    }
                    Err(why) => {
                        schedule.failed(begun.elapsed(), &candidate);
                        failures.push(self.failure(candidate, why));
                    }
                }
            }
            if running.is_empty() {
                return Outcome { winner: None, failures };
            }
            let over = begun + self.patience;
            let next = schedule.time_until_due().map_or(over, |due| over.min(begun + due));
            match wait_for_first(&running, next).await {
                None if Instant::now() >= over => {
                    for RunningAttempt { candidate, stream, .. } in running {
                        stream.abort();
                        failures.push(self.failure(candidate, FailureKind::Silent));
                    }
                    return Outcome { winner: None, failures };
                }
                None => {}
                Some((at, Ok(()))) => {
                    let RunningAttempt { candidate, stream, written } = running.swap_remove(at);
                    for loser in running {
                        loser.stream.abort();
                    }
                    let ends = (candidate.end.address, candidate.remote);
                    return Outcome {
                        winner: Some(WinningAttempt { stream, ends, written }),
                        failures,
                    };
                }
                Some((at, Err(reason))) => {
                    let candidate = running.swap_remove(at).candidate;
                    schedule.failed(begun.elapsed(), &candidate);
                    failures.push(self.failure(candidate, FailureKind::Closed(reason)));
                }
            }
        }
    }

    /// Describes why an attempt failed, including errors reported for its contact.
    fn failure(&self, candidate: Candidate, why: FailureKind) -> Failure {
        let (local, remote) = (candidate.end.address, candidate.remote);
        let (_, contacts) = self.shard.contacts();
        let contact = contacts.iter().find(|c| c.local == local && c.remote == remote);
        let delivery_error = contact.and_then(health::delivery_error);
        let why = match (why, &delivery_error) {
            // The error came from the server's machine itself, so the server refused.
            (FailureKind::Closed(CloseReason::Unreachable), Some(Reach::Refused)) => {
                FailureKind::Closed(CloseReason::Refused)
            }
            (why, _) => why,
        };
        let link_failure = self.shard.link_failure(local, remote);
        Failure { candidate, kind: why, delivery_error, link_failure, transport: self.transport }
    }

    fn start(
        &self,
        candidate: &Candidate,
        first_bytes: &[u8],
    ) -> Result<(Stream, usize), FailureKind> {
        if let Err(error) = self.routes.check(&candidate.end, candidate.remote.ip()) {
            self.shard.record_unroutable(candidate.end.address, candidate.remote, &error);
            return Err(FailureKind::NoRoute(error));
        }
        let (config, local) = (Arc::clone(self.config), candidate.end.address);
        self.shard
            .connect_with(config, local, candidate.remote, first_bytes)
            .map_err(FailureKind::Start)
    }
}

/// Attempt in the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ScheduledAttempt {
    candidate: Candidate,
    /// Delay after the start of the previous attempt.
    wait: Duration,
    /// If true, the attempt does not start earlier when another fails, unless that one was the last in progress.
    starts_on_time: bool,
}

/// Attempts that have not started.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptSchedule {
    waiting: VecDeque<ScheduledAttempt>,
    /// Start time of the first of these attempts, relative to the start of the race.
    due: Duration,
}

impl AttemptSchedule {
    /// Starts all attempts in this order, one stagger apart.
    pub(crate) fn new_staggered(candidates: Vec<Candidate>, stagger: Duration) -> AttemptSchedule {
        let entrant =
            |candidate| ScheduledAttempt { candidate, wait: stagger, starts_on_time: false };
        AttemptSchedule {
            waiting: candidates.into_iter().map(entrant).collect(),
            due: Duration::ZERO,
        }
    }

    /// Orders the attempts by the health in a path health monitor.
    pub(crate) fn order_by_health(
        mut candidates: Vec<Candidate>,
        stagger: Duration,
        is_bad: impl Fn(&Candidate) -> bool,
    ) -> AttemptSchedule {
        // The sort is stable: equal candidates keep their order.
        candidates.sort_by_key(|candidate| candidate.reserve);
        let (bad, good): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_bad);
        let (reserve, regular): (Vec<_>, Vec<_>) = good.into_iter().partition(|c| c.reserve);
        let again = regular.first().filter(|_| !reserve.is_empty()).cloned();
        let mut schedule = AttemptSchedule::new_staggered(regular, stagger);
        for late in [again.into_iter().collect(), reserve] {
            schedule.append(late, RESERVE_WAIT, stagger);
        }
        schedule.append(bad, DEGRADED_PAIR_DELAY, stagger);
        schedule
    }

    /// Appends attempts: the first starts after `wait`, the others one stagger apart.
    fn append(&mut self, candidates: Vec<Candidate>, wait: Duration, stagger: Duration) {
        for (number, candidate) in candidates.into_iter().enumerate() {
            let (wait, starts_on_time) = if number == 0 { (wait, true) } else { (stagger, false) };
            self.waiting.push_back(ScheduledAttempt { candidate, wait, starts_on_time });
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the start time of the next attempt, relative to the start of the race.
    fn time_until_due(&self) -> Option<Duration> {
        (!self.is_empty()).then_some(self.due)
    }

    /// Takes the attempt that starts now, if any. `alone` means that no attempt is in progress.
    fn take_due(&mut self, now: Duration, alone: bool) -> Option<Candidate> {
        if now < self.due && !alone {
            return None;
        }
        let entrant = self.waiting.pop_front()?;
        self.due = now + self.waiting.front().map_or(Duration::ZERO, |next| next.wait);
        Some(entrant.candidate)
    }

    /// Removes a failed attempt, which is not repeated, and advances the next one.
    fn failed(&mut self, now: Duration, candidate: &Candidate) {
        self.waiting.retain(|entrant| entrant.candidate != *candidate);
        if self.waiting.front().is_some_and(|next| !next.starts_on_time) {
            self.due = self.due.min(now);
        }
    }
}

/// Waits for the first attempt with a result. Returns `None` when the next attempt must start, or at the timeout.
async fn wait_for_first(
    running: &[RunningAttempt],
    next: Instant,
) -> Option<(usize, Result<(), CloseReason>)> {
    let mut turn = pin!(tokio::time::sleep_until(next));
    poll_fn(|cx| {
        for (at, attempt) in running.iter().enumerate() {
            if let Poll::Ready(result) = attempt.stream.poll_connected(cx) {
                return Poll::Ready(Some((at, result.map(|_fallback| ()))));
            }
        }
        turn.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Combines all failures into one error.
pub(crate) fn connect_error(mut failures: Vec<Failure>) -> ConnectError {
    let all = |test: fn(&FailureKind) -> bool| failures.iter().all(|f| test(&f.kind));
    if failures.is_empty() {
        return ConnectError::NoPath { reasons: Vec::new() };
    }
    if all(|why| matches!(why, FailureKind::Closed(CloseReason::Refused))) {
        return ConnectError::Closed(CloseReason::Refused);
    }
    if all(|why| matches!(why, FailureKind::NoRoute(_))) {
        let Failure { candidate, kind: why, .. } = failures.swap_remove(0);
        if let FailureKind::NoRoute(source) = why {
            return ConnectError::NoRoute {
                path: candidate.path,
                remote: candidate.remote,
                source,
            };
        }
        return ConnectError::NoPath { reasons: Vec::new() };
    }
    if all(|why| matches!(why, FailureKind::Start(StartError::Stopped))) {
        return ConnectError::Stopped;
    }
    if let [Failure { kind: FailureKind::Start(StartError::Core(error)), .. }] = failures[..] {
        return ConnectError::Start(error);
    }
    ConnectError::Unreachable { attempts: failures.into_iter().map(Attempt::from).collect() }
}

#[cfg(test)]
mod tests;
