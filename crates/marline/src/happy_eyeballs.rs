//! Race of first SYNs over the paths, after "happy eyeballs" (RFC 8305).
//!
//! A path may have failed unnoticed, so the next attempt starts a stagger after the previous one, or at once when
//! that one fails. The first handshake that completes wins; the others are closed without an error. The order and
//! the times are in `schedule.rs`.

mod schedule;

use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::pin::pin;
use core::task::Poll;
use std::sync::Arc;

use marline_core::{CloseReason, ConnectionConfig};
use marline_io::{Shard, StartError, Stream};
use tokio::time::Instant;

use crate::ConnectError;
use crate::error::Attempt;
use crate::health::{self, Reach};
use crate::path_table::Candidate;
use crate::routes::Routes;
pub(crate) use schedule::AttemptSchedule;

/// Parameters of a race.
pub(crate) struct HappyEyeballs<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) config: &'a Arc<ConnectionConfig>,
    pub(crate) routes: &'a Routes,
    /// Name of the transport in terms of firewalls.
    pub(crate) transport: &'static str,
    /// Time after which an attempt without an answer fails.
    pub(crate) patience: core::time::Duration,
    /// Data for the first SYN, if Fast Open is allowed. Later SYNs belong to other connections, which would deliver
    /// it again.
    pub(crate) first_bytes: &'a [u8],
}

/// Attempt in progress.
#[derive(Debug)]
struct Running {
    candidate: Candidate,
    stream: Stream,
    /// Number of the first bytes that were written to it.
    written: usize,
}

/// Winning attempt.
#[derive(Debug)]
pub(crate) struct WinningAttempt {
    pub(crate) stream: Stream,
    /// Both ends, without our port.
    pub(crate) ends: (IpAddr, SocketAddr),
    /// Number of the first bytes that were written to it.
    pub(crate) written: usize,
}

/// Failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) candidate: Candidate,
    pub(crate) why: FailureKind,
    /// Error reported by the network, if there was one.
    delivery_error: Option<Reach>,
    /// Reason why there was no TCP connection to carry it, if that was tried.
    link_failure: Option<String>,
    transport: &'static str,
}

#[derive(Debug)]
pub(crate) enum FailureKind {
    NoRoute(std::io::Error),
    Start(StartError),
    Closed(CloseReason),
    /// No answer in time.
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

/// Display of the reason alone.
struct Reason<'a>(&'a Failure);

impl core::fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.0.why {
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
                write!(f, "no answer by {}: {link_failure}", self.0.transport)
            }
            FailureKind::Closed(CloseReason::TimedOut) | FailureKind::Silent => {
                write!(f, "no answer (does a firewall drop {} there?)", self.0.transport)
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
    /// Runs the race to its end.
    pub(crate) async fn run(&self, mut schedule: AttemptSchedule) -> Outcome {
        let begun = Instant::now();
        let mut running: Vec<Running> = Vec::new();
        let mut failures = Vec::new();
        loop {
            while let Some(candidate) = schedule.take(begun.elapsed(), running.is_empty()) {
                let is_first = running.is_empty() && failures.is_empty();
                match self.start(&candidate, if is_first { self.first_bytes } else { &[] }) {
                    Ok((stream, written)) => running.push(Running { candidate, stream, written }),
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
            let next = schedule.due().map_or(over, |due| over.min(begun + due));
            match first(&running, next).await {
                None if Instant::now() >= over => {
                    for Running { candidate, stream, .. } in running {
                        stream.abort();
                        failures.push(self.failure(candidate, FailureKind::Silent));
                    }
                    return Outcome { winner: None, failures };
                }
                None => {}
                Some((at, Ok(()))) => {
                    let Running { candidate, stream, written } = running.swap_remove(at);
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

    /// Describes why an attempt failed, including errors of its contact.
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
        Failure { candidate, why, delivery_error, link_failure, transport: self.transport }
    }

    fn start(
        &self,
        candidate: &Candidate,
        first_bytes: &[u8],
    ) -> Result<(Stream, usize), FailureKind> {
        if let Err(error) = self.routes.check(&candidate.end, candidate.remote.ip()) {
            self.shard.note_unroutable(candidate.end.address, candidate.remote, &error);
            return Err(FailureKind::NoRoute(error));
        }
        let (config, local) = (Arc::clone(self.config), candidate.end.address);
        self.shard
            .connect_with(config, local, candidate.remote, first_bytes)
            .map_err(FailureKind::Start)
    }
}

/// Waits for the first attempt with a result. Returns `None` when the next one must start, or when it is time to
/// give up.
async fn first(running: &[Running], next: Instant) -> Option<(usize, Result<(), CloseReason>)> {
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

/// Combines all failures in one error.
pub(crate) fn connect_error(mut failures: Vec<Failure>) -> ConnectError {
    let all = |test: fn(&FailureKind) -> bool| failures.iter().all(|f| test(&f.why));
    if failures.is_empty() {
        return ConnectError::NoPath { reasons: Vec::new() };
    }
    if all(|why| matches!(why, FailureKind::Closed(CloseReason::Refused))) {
        return ConnectError::Closed(CloseReason::Refused);
    }
    if all(|why| matches!(why, FailureKind::NoRoute(_))) {
        let Failure { candidate, why, .. } = failures.swap_remove(0);
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
    if let [Failure { why: FailureKind::Start(StartError::Core(error)), .. }] = failures[..] {
        return ConnectError::Start(error);
    }
    ConnectError::Unreachable { attempts: failures.into_iter().map(Attempt::from).collect() }
}
