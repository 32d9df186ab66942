//! Attempts at the first subflow: from which local addresses its SYN went out, and when the next one's turn is.
//!
//! *Problem.* A path may be dead without anybody knowing, or have a middlebox that drops SYNs with MP_CAPABLE. Who
//! asks on that path alone waits for seconds, and then has plain TCP for good, if anything, while another path works.
//!
//! *How.* As long as nobody has answered, the SYN goes out from one local address after the other, a connection
//! attempt delay apart (RFC 8305 section 5). Each attempt is a subflow with ports, sequence numbers and timers of its
//! own. The first SYN/ACK decides which of them is the initial subflow; the others are forgotten, and a SYN/ACK that
//! comes later is answered by a RST. docs/decisions/opening.md says why this is safe.
//!
//! A SYN/ACK without MP_CAPABLE may be the server's or a middlebox's. It is kept for as long as one of the others may
//! be answered with the option, at most a connection attempt delay, and counts only then.
//!
//! Backup addresses, and those that the path health monitor holds to be bad, have to wait until the others have been
//! asked twice: neither a distant server nor one lost SYN wakes a radio.

use core::net::IpAddr;

use marline_policy::{AddressId, SubflowId, SubflowSet};
use marline_time::{Duration, Instant};
use marline_wire::{TcpHeader, TcpOptions, TcpSegment};

use crate::on_demand::Unused;
use crate::{CloseReason, ConnectionConfig, Ecn};

/// An address of ours from which a first subflow may be tried.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) id: AddressId,
    pub(super) ip: IpAddr,
    /// It is to be used only if others do not work.
    pub(super) reserve: bool,
}

/// A SYN/ACK that is not handed to TCP yet.
#[derive(Clone, Debug)]
pub(super) struct KeptAnswer {
    pub(super) on: SubflowId,
    header: TcpHeader,
    options: TcpOptions,
    pub(super) ecn: Ecn,
    /// When it came.
    pub(super) came_at: Instant,
}

impl KeptAnswer {
    /// The answer as it came; what it carried comes again.
    pub(super) fn segment(&self) -> TcpSegment<'static> {
        TcpSegment {
            header: self.header,
            options: self.options.clone(),
            payload: &[],
            raw_options: &[],
        }
    }
}

/// Attempts of a client whose first subflow is not up.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    /// Where they began, in this order.
    begun: Vec<(AddressId, IpAddr)>,
    /// When the next one begins.
    next_at: Option<Instant>,
    /// Somebody said that there is no such server, and is believed unless another path answers until then.
    refused_until: Option<Instant>,
    /// The first answer without the option, and when it counts.
    kept: Option<(Box<KeptAnswer>, Instant)>,
    /// Those that were answered without it.
    plain: SubflowSet,
    /// What was kept counts now, and what comes next does at once.
    settled: bool,
}

impl Unused for Attempts {
    const UNUSED: &'static Self = &Attempts {
        begun: Vec::new(),
        next_at: None,
        refused_until: None,
        kept: None,
        plain: SubflowSet::EMPTY,
        settled: false,
    };
}

impl Attempts {
    /// An attempt began here.
    pub(super) fn note_begun(&mut self, id: AddressId, ip: IpAddr) {
        if !self.begun.contains(&(id, ip)) {
            self.begun.push((id, ip));
        }
    }

    /// This address came up, perhaps again: it may be tried once more.
    pub(super) fn forget_begun(&mut self, id: AddressId) {
        self.begun.retain(|(begun, _)| *begun != id);
    }

    pub(super) fn has_begun(&self, start: &Start) -> bool {
        self.begun.contains(&(start.id, start.ip))
    }

    /// The next attempt begins there, after one that began now, perhaps at a reserve, too.
    pub(super) fn schedule(
        &mut self,
        now: Instant,
        next: &Start,
        from_reserve: bool,
        config: &ConnectionConfig,
    ) {
        let asks_twice = next.reserve && !from_reserve;
        let second_syn = if asks_twice { config.rtt.initial_rto } else { Duration::ZERO };
        self.next_at = Some(now + second_syn + delay(config));
    }

    /// There is no other address.
    pub(super) const fn note_last(&mut self) {
        self.next_at = None;
    }

    /// The next attempt begins now, unless it is one that waits for others to be asked twice.
    pub(super) fn hasten(&mut self, now: Instant, next: &Start) {
        if !next.reserve {
            self.next_at = Some(now);
        }
    }

    /// Another attempt is to begin.
    pub(super) const fn is_one_due(&self) -> bool {
        self.next_at.is_some()
    }

    /// Whether the next attempt begins now. It is told once.
    pub(super) fn take_turn(&mut self, now: Instant) -> bool {
        self.next_at.take_if(|at| *at <= now).is_some()
    }

    /// An attempt failed while others run. What a refusal says holds for all, unless one of them is answered
    /// within a timeout.
    pub(super) fn note_failed(&mut self, now: Instant, reason: CloseReason, timeout: Duration) {
        if reason == CloseReason::Refused && self.refused_until.is_none() {
            self.refused_until = Some(now + timeout);
        }
    }

    /// Somebody said that there is no such server.
    pub(super) const fn was_refused(&self) -> bool {
        self.refused_until.is_some()
    }

    /// Nobody contradicted a refusal in time.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| until <= now)
    }

    /// An answer without the option came.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        on: SubflowId,
        (answer, ecn): (&TcpSegment<'_>, Ecn),
        config: &ConnectionConfig,
    ) {
        self.plain.insert(on);
        if self.kept.is_none() {
            let (header, options) = (answer.header, answer.options.clone());
            let kept = KeptAnswer { on, header, options, ecn, came_at: now };
            self.kept = Some((Box::new(kept), now + delay(config)));
        }
    }

    /// The subflow is gone, and with it what it had as an answer.
    pub(super) fn forget_subflow(&mut self, id: SubflowId) {
        self.plain.remove(id);
        self.kept.take_if(|(kept, _)| kept.on == id);
    }

    /// Whether this one was answered without the option.
    pub(super) const fn is_plain(&self, id: SubflowId) -> bool {
        self.plain.contains(id)
    }

    /// Answers without the option count when they come.
    pub(super) const fn is_settled(&self) -> bool {
        self.settled
    }

    /// An answer without the option waits for a better one.
    pub(super) const fn keeps_answer(&self) -> bool {
        self.kept.is_some()
    }

    /// Nothing better is to be expected at `now`: the answer that was kept, if there is one.
    pub(super) fn take_kept(&mut self, now: Option<Instant>) -> Option<Box<KeptAnswer>> {
        let due = |(_, until): &mut (_, Instant)| now.is_none_or(|now| *until <= now);
        let (kept, _) = self.kept.take_if(due)?;
        self.settled = true;
        Some(kept)
    }

    /// When something is due.
    pub(super) fn timeouts(&self) -> [Option<Instant>; 3] {
        [self.next_at, self.refused_until, self.kept.as_ref().map(|(_, until)| *until)]
    }
}

/// How long one attempt is waited for.
fn delay(config: &ConnectionConfig) -> Duration {
    let timeout = config.rtt.initial_rto;
    config.connection_attempt_delay.map_or(timeout, |delay| delay.min(timeout))
}
