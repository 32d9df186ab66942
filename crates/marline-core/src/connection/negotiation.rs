//! Negotiation of extensions beyond RFC 8684 by HELLO, between two Marline peers.
//!
//! ```text
//! client                                        server
//!   ... MP_CAPABLE handshake, confirmed by the first DSS ...
//!   ACK   HELLO(requested extensions)      ->          repeated with backoff, at most five times
//!                                          <-   ACK    HELLO(allowed extensions)
//! ```
//! HELLO is sent after the handshake, never in MP_CAPABLE, so that it gives other peers and middleboxes no reason to
//! refuse the connection. A peer that does not know it ignores the option on an otherwise ordinary ACK. The client
//! stops asking after a while, and the connection uses only RFC 8684. A server never offers extensions on its own
//! initiative.
//!
//! HELLO is not authenticated, like MP_PRIO: an attacker who can forge an acceptable segment can do worse. Extensions
//! that need authentication provide it themselves (Fast JOIN uses an HMAC).

use marline_policy::Role;
use marline_time::{Duration, Instant};
use marline_wire::mptcp::Extensions;

use crate::ConnectionConfig;

/// Extensions that this core implements. Others are never offered or granted, regardless of the configuration.
const IMPLEMENTED: Extensions = Extensions::ALL;
/// Number of unanswered HELLOs after which the client stops asking.
const MAX_HELLOS: u32 = 5;
/// Maximum number of HELLOs that a server answers: more than a client sends, but too few for an amplification attack.
const MAX_ANSWERS: u32 = 16;
/// Minimum interval between two HELLOs.
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// State of the negotiation.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Negotiation {
    agreed: Extensions,
    settled: bool,
    /// Number of HELLOs sent.
    count: u32,
    repeat_at: Option<Instant>,
}

/// Result of handling the peer's HELLO.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct HelloOutcome {
    /// Extensions in use from now on, if the negotiation is complete.
    pub(super) settled: Option<Extensions>,
    /// Answer to be sent.
    pub(super) answer: Option<Extensions>,
}

/// Extensions that a client's configuration requests and that we implement. PATH_COST is requested only if a path
/// has a cost or may get one.
fn requested_extensions(config: &ConnectionConfig) -> Extensions {
    let wanted = config.extensions.intersection(IMPLEMENTED);
    if config.local_addresses.iter().all(|local| local.cost.is_none()) {
        return wanted;
    }
    wanted.union(Extensions::PATH_COST)
}

/// Extensions offered by a client that a server may grant.
fn grant_extensions(config: &ConnectionConfig, offered: Extensions) -> Extensions {
    let mut allowed = config.allow_extensions;
    if config.follow_client.is_none() {
        allowed = allowed.difference(Extensions::FOLLOW_CLIENT);
    }
    offered.intersection(allowed).intersection(IMPLEMENTED)
}

impl Negotiation {
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.repeat_at
    }

    /// Negotiated extensions.
    pub(super) const fn agreed(&self) -> Extensions {
        self.agreed
    }

    /// Client: true if these extensions were requested and the answer has not arrived.
    pub(super) fn awaits_extension_answer(
        &self,
        config: &ConnectionConfig,
        wanted: Extensions,
    ) -> bool {
        self.count > 0 && !self.settled && requested_extensions(config).contains(wanted)
    }

    /// True if a client has extensions to request after confirmation.
    pub(super) fn has_pending_requests(&self, config: &ConnectionConfig) -> bool {
        !requested_extensions(config).is_empty() && !self.settled
    }

    /// Builds the next HELLO of a client, whose round trips take up to `rto`.
    pub(super) fn build_hello(
        &mut self,
        now: Instant,
        config: &ConnectionConfig,
        rto: Duration,
    ) -> Extensions {
        let pause = (rto * 2).max(MIN_PAUSE) * (1 << self.count.min(6));
        self.count += 1;
        self.repeat_at = (self.count < MAX_HELLOS).then_some(now + pause);
        requested_extensions(config)
    }

    /// True if HELLO is to be repeated now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.repeat_at.is_some_and(|at| at <= now);
        if due {
            self.repeat_at = None;
        }
        due && !self.settled
    }

    /// Handles the peer's HELLO. Only the first one counts.
    pub(super) fn on_hello(
        &mut self,
        role: Role,
        config: &ConnectionConfig,
        features: Extensions,
    ) -> HelloOutcome {
        match role {
            Role::Client => {
                let awaited = self.count > 0 && !self.settled;
                let settled = awaited
                    .then(|| self.agree_on(features.intersection(requested_extensions(config))));
                HelloOutcome { settled, answer: None }
            }
            Role::Server if self.count >= MAX_ANSWERS => {
                HelloOutcome { settled: None, answer: None }
            }
            Role::Server => {
                self.count += 1;
                let settled =
                    (!self.settled).then(|| self.agree_on(grant_extensions(config, features)));
                HelloOutcome { settled, answer: Some(self.agreed) }
            }
        }
    }

    fn agree_on(&mut self, agreed: Extensions) -> Extensions {
        self.settled = true;
        self.repeat_at = None;
        self.agreed = agreed;
        agreed
    }
}
