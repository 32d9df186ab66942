//! Race of first SYNs over the paths, after "happy eyeballs" (RFC 8305).
//!
//! A path may be dead without anybody knowing, so the next attempt starts a stagger after the one
//! before, or at once when that one fails. The first handshake that completes wins; the others are
//! closed quietly. The order and the times are the schedule's (`schedule.rs`).
//!
//! *Data with the SYN* (Fast Open) goes with the first attempt alone, and the others wait until that one's SYN must be
//! repeated: two of them might have the request carried out twice (docs/adr/0042, 0046). Where such an attempt is
//! refused and nobody else is left, it is made again without data: it may have been the data that was refused.

mod schedule;

use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::pin::pin;
use core::task::Poll;
use std::sync::Arc;

use marline_core::{CloseReason, ConnectionConfig};
use marline_io::{Shard, StartError, Stream};
use tokio::time::Instant;

use crate::health::{self, Reach};
use crate::path_table::Candidate;
use crate::routes::Routes;
use crate::{Attempt, ConnectError};
pub(crate) use schedule::AttemptSchedule;

/// How long an attempt with data is alone: until its SYN is repeated (RFC 6298), which goes without.
const ALONE: core::time::Duration = core::time::Duration::from_secs(1);

/// What a race runs with.
pub(crate) struct HappyEyeballs<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) config: &'a Arc<ConnectionConfig>,
    pub(crate) routes: &'a Routes,
    /// What firewalls on the way call it.
    pub(crate) transport: &'static str,
    /// Who has not answered by then does not.
    pub(crate) patience: core::time::Duration,
    /// What the application says first, for a SYN that may carry it.
    pub(crate) first: &'a [u8],
}

/// An attempt that is under way.
struct Running {
    candidate: Candidate,
    stream: Stream,
    /// Bytes that went with its SYN.
    early: usize,
}

/// What happened to an attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) candidate: Candidate,
    pub(crate) why: FailureKind,
    /// Who objected, if anybody did.
    delivery_error: Option<Reach>,
    transport: &'static str,
}

#[derive(Debug)]
pub(crate) enum FailureKind {
    NoRoute(std::io::Error),
    Start(StartError),
    Closed(CloseReason),
    /// Patience ended.
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

/// Text of the reason alone.
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
            FailureKind::Closed(CloseReason::TimedOut) | FailureKind::Silent => {
                write!(f, "no answer (does a firewall drop {} there?)", self.0.transport)
            }
            FailureKind::Closed(reason) => reason.fmt(f),
        }
    }
}

/// Who won.
pub(crate) struct Winner {
    pub(crate) stream: Stream,
    pub(crate) ends: (IpAddr, SocketAddr),
    /// So many of the first bytes were written to it.
    pub(crate) early: usize,
}

/// What a race ended with.
pub(crate) struct Outcome {
    pub(crate) winner: Option<Winner>,
    pub(crate) failures: Vec<Failure>,
}

impl HappyEyeballs<'_> {
    /// Runs the race to its end.
    pub(crate) async fn run(&self, mut schedule: AttemptSchedule) -> Outcome {
        let begun = Instant::now();
        let mut running: Vec<Running> = Vec::new();
        let mut failures = Vec::new();
        let (mut first, mut alone, mut again) = (self.first, core::time::Duration::ZERO, None);
        loop {
            let elapsed = || begun.elapsed().saturating_sub(alone);
            while let Some(candidate) = schedule.take(elapsed(), running.is_empty()) {
                match self.start(&candidate, core::mem::take(&mut first)) {
                    Ok((stream, early)) => running.push(Running { candidate, stream, early }),
                    Err(why) => {
                        schedule.failed(elapsed(), &candidate);
                        failures.push(self.failure(candidate, why));
                    }
                }
            }
            if running.is_empty()
                && let Some(candidate) = again.take()
                && let Ok((stream, early)) = self.start(&candidate, &[])
            {
                running.push(Running { candidate, stream, early });
            }
            if running.is_empty() {
                return Outcome { winner: None, failures };
            }
            if running.iter().any(|attempt| attempt.early > 0) {
                alone = ALONE;
            }
            let over = begun + self.patience;
            let next = schedule.due().map_or(over, |due| over.min(begun + alone + due));
            match first_decided(&running, next).await {
                None if Instant::now() >= over => {
                    for Running { candidate, stream, .. } in running {
                        stream.abort();
                        failures.push(self.failure(candidate, FailureKind::Silent));
                    }
                    return Outcome { winner: None, failures };
                }
                None => {}
                Some((at, Ok(()))) => {
                    let Running { candidate, stream, early } = running.swap_remove(at);
                    for loser in running {
                        loser.stream.abort();
                    }
                    let ends = (candidate.end.address, candidate.remote);
                    return Outcome { winner: Some(Winner { stream, ends, early }), failures };
                }
                Some((at, Err(reason))) => {
                    let Running { candidate, early, .. } = running.swap_remove(at);
                    if early > 0 {
                        (again, alone) = (Some(candidate.clone()), core::time::Duration::ZERO);
                    }
                    schedule.failed(begun.elapsed().saturating_sub(alone), &candidate);
                    failures.push(self.failure(candidate, FailureKind::Closed(reason)));
                }
            }
        }
    }

    /// Why an attempt failed, with what its contact knows of that.
    fn failure(&self, candidate: Candidate, why: FailureKind) -> Failure {
        let (local, remote) = (candidate.end.address, candidate.remote);
        let (_, contacts) = self.shard.contacts();
        let contact = contacts.iter().find(|c| c.local == local && c.remote == remote);
        let delivery_error = contact.and_then(health::delivery_error);
        let why = match (why, &delivery_error) {
            // The server's own machine said so: that is its word.
            (FailureKind::Closed(CloseReason::Unreachable), Some(Reach::Refused)) => {
                FailureKind::Closed(CloseReason::Refused)
            }
            (why, _) => why,
        };
        Failure { candidate, why, delivery_error, transport: self.transport }
    }

    /// Starts an attempt: its stream, and how many bytes of `first` go with its SYN.
    fn start(&self, candidate: &Candidate, first: &[u8]) -> Result<(Stream, usize), FailureKind> {
        let (local, remote) = (candidate.end.address, candidate.remote);
        if let Err(error) = self.routes.check(&candidate.end, remote.ip()) {
            self.shard.note_unroutable(local, remote, &error);
            return Err(FailureKind::NoRoute(error));
        }
        let started = self.shard.connect_early(Arc::clone(self.config), local, remote, first);
        started.map_err(FailureKind::Start)
    }
}

/// The first attempt that is decided; `None` when it is time for the next to start, or to give up.
async fn first_decided(
    running: &[Running],
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

/// One error for all that happened.
pub(crate) fn connect_error(mut failures: Vec<Failure>) -> ConnectError {
    let all = |test: fn(&FailureKind) -> bool| failures.iter().all(|f| test(&f.why));
    if failures.is_empty() {
        return ConnectError::NoPath;
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
        return ConnectError::NoPath;
    }
    if all(|why| matches!(why, FailureKind::Start(StartError::Stopped))) {
        return ConnectError::Stopped;
    }
    if let [Failure { why: FailureKind::Start(StartError::Core(error)), .. }] = failures[..] {
        return ConnectError::Start(error);
    }
    ConnectError::Unreachable { attempts: failures.into_iter().map(Attempt::from).collect() }
}
