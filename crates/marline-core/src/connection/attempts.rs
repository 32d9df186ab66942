//! Attempts at the first subflow: the local addresses from which its SYN was sent, and the time of the next one.
//!
//! *Problem.* A path may be dead without any sign, or have a middlebox that drops SYNs with MP_CAPABLE. A client that
//! tries only that path waits for seconds, and then has plain TCP for the rest of the connection, or fails, although
//! another path works.
//!
//! *How.* Until there is an answer, the SYN is sent from one local address after another, at intervals of the
//! Connection Attempt Delay (RFC 8305 section 5). Each attempt is a subflow with ports, sequence numbers and timers
//! of its own. The first SYN/ACK selects the initial subflow. The other attempts are discarded, and a later SYN/ACK
//! is answered with a RST. docs/decisions/opening.md explains why this is safe.
//!
//! A SYN/ACK without MP_CAPABLE may come from the server or a middlebox. It is kept for at most a Connection Attempt
//! Delay while another attempt may be answered with the option, and is accepted after that.
//!
//! Backup addresses, those with a radio that should sleep, and those on degraded address pairs wait until two SYNs were
//! sent from the others: neither a distant server nor a single lost SYN wakes a radio.

use core::net::IpAddr;

use marline_policy::{AddressId, SubflowId, SubflowSet};
use marline_time::{Duration, Instant};
use marline_wire::{TcpHeader, TcpOptions, TcpSegment};

use crate::on_demand::UnusedState;
use crate::{CloseReason, ConnectionConfig, Ecn};

/// A local address from which a first subflow may be tried.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct StartAddress {
    pub(super) id: AddressId,
    pub(super) ip: IpAddr,
    /// Used only if other addresses do not work.
    pub(super) reserve: bool,
}

/// A SYN/ACK that TCP has not processed yet.
#[derive(Clone, Debug)]
pub(super) struct KeptAnswer {
    pub(super) on: SubflowId,
    header: TcpHeader,
    options: TcpOptions,
    pub(super) ecn: Ecn,
    /// Time of arrival.
    pub(super) arrived_at: Instant,
}

impl KeptAnswer {
    /// The answer without its payload, which the server sends again.
    pub(super) fn segment(&self) -> TcpSegment<'static> {
        TcpSegment {
            header: self.header,
            options: self.options.clone(),
            payload: &[],
            raw_options: &[],
        }
    }
}

/// Attempts of a client whose first subflow is not established.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    /// Addresses of the attempts so far, in order.
    started: Vec<(AddressId, IpAddr)>,
    /// Start time of the next attempt.
    next_at: Option<Instant>,
    /// Deadline after which a refusal is accepted, unless another path answers first.
    refused_until: Option<Instant>,
    /// First answer without the option, and the time at which it is accepted.
    plain_answer: Option<(Box<KeptAnswer>, Instant)>,
    /// Attempts that were answered without the option.
    plain: SubflowSet,
    /// True if the kept answer was accepted. Later answers without the option are then accepted immediately.
    settled: bool,
}

impl UnusedState for Attempts {
    const UNUSED: &'static Self = &Attempts {
        started: Vec::new(),
        next_at: None,
        refused_until: None,
        plain_answer: None,
        plain: SubflowSet::EMPTY,
        settled: false,
    };
}

impl Attempts {
    /// Records an attempt from this address.
    pub(super) fn record_attempt(&mut self, id: AddressId, ip: IpAddr) {
        if !self.started.contains(&(id, ip)) {
            self.started.push((id, ip));
        }
    }

    /// Allows another attempt from an address that came up.
    pub(super) fn allow_another_attempt(&mut self, id: AddressId) {
        self.started.retain(|(begun, _)| *begun != id);
    }

    pub(super) fn has_begun(&self, start: &StartAddress) -> bool {
        self.started.contains(&(start.id, start.ip))
    }

    /// Schedules the next attempt, after one that starts now. `from_reserve` is true if the current one uses a
    /// reserve address.
    pub(super) fn schedule(
        &mut self,
        now: Instant,
        next: &StartAddress,
        from_reserve: bool,
        config: &ConnectionConfig,
    ) {
        let asks_twice = next.reserve && !from_reserve;
        let second_syn = if asks_twice { config.rtt.initial_rto } else { Duration::ZERO };
        self.next_at = Some(now + second_syn + delay(config));
    }

    /// Records that there is no other address.
    pub(super) const fn record_no_other_address(&mut self) {
        self.next_at = None;
    }

    /// Starts the next attempt now, unless it uses a reserve address, which waits for a second SYN from the others.
    pub(super) fn start_next_early(&mut self, now: Instant, next: &StartAddress) {
        if !next.reserve {
            self.next_at = Some(now);
        }
    }

    /// True if another attempt is scheduled.
    pub(super) const fn is_attempt_scheduled(&self) -> bool {
        self.next_at.is_some()
    }

    /// Returns true once when the next attempt is due.
    pub(super) fn take_due_attempt(&mut self, now: Instant) -> bool {
        self.next_at.take_if(|at| *at <= now).is_some()
    }

    /// Records the failure of an attempt while others run. A refusal applies to all attempts, unless another one is
    /// answered within `timeout`.
    pub(super) fn record_failed_attempt(
        &mut self,
        now: Instant,
        reason: CloseReason,
        timeout: Duration,
    ) {
        if reason == CloseReason::Refused && self.refused_until.is_none() {
            self.refused_until = Some(now + timeout);
        }
    }

    /// True if an attempt was refused, even if the refusal is not final.
    pub(super) const fn was_refused(&self) -> bool {
        self.refused_until.is_some()
    }

    /// True if no other attempt contradicted a refusal in time.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| until <= now)
    }

    /// Keeps an answer without the option.
    pub(super) fn keep_answer(
        &mut self,
        now: Instant,
        on: SubflowId,
        answer: &TcpSegment<'_>,
        ecn: Ecn,
        config: &ConnectionConfig,
    ) {
        self.plain.insert(on);
        if self.plain_answer.is_none() {
            let (header, options) = (answer.header, answer.options.clone());
            let kept = KeptAnswer { on, header, options, ecn, arrived_at: now };
            self.plain_answer = Some((Box::new(kept), now + delay(config)));
        }
    }

    /// Drops a subflow and its kept answer.
    pub(super) fn forget_subflow(&mut self, id: SubflowId) {
        self.plain.remove(id);
        self.plain_answer.take_if(|(kept, _)| kept.on == id);
    }

    /// True if this attempt was answered without the option.
    pub(super) const fn is_plain(&self, id: SubflowId) -> bool {
        self.plain.contains(id)
    }

    /// True if answers without the option are accepted immediately.
    pub(super) const fn accepts_plain_answers(&self) -> bool {
        self.settled
    }

    /// True if an answer without the option is kept.
    pub(super) const fn has_kept_answer(&self) -> bool {
        self.plain_answer.is_some()
    }

    /// Takes the kept answer if it is due at `now`; `None` takes it unconditionally.
    pub(super) fn take_kept(&mut self, now: Option<Instant>) -> Option<Box<KeptAnswer>> {
        let due = |(_, until): &mut (_, Instant)| now.is_none_or(|now| *until <= now);
        let (kept, _) = self.plain_answer.take_if(due)?;
        self.settled = true;
        Some(kept)
    }

    /// Times of the pending events.
    pub(super) fn timeouts(&self) -> [Option<Instant>; 3] {
        [self.next_at, self.refused_until, self.plain_answer.as_ref().map(|(_, until)| *until)]
    }
}

/// Time between two attempts.
fn delay(config: &ConnectionConfig) -> Duration {
    let timeout = config.rtt.initial_rto;
    config.connection_attempt_delay.map_or(timeout, |delay| delay.min(timeout))
}
