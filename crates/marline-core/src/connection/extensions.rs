//! HELLO: which extensions beyond RFC 8684 two Marline peers use with each other.
//!
//! ```text
//! client                                        server
//!   ... MP_CAPABLE handshake, confirmed by the first DSS ...
//!   ACK   HELLO(what it asks for)          ->          repeated with back-off, five times at most
//!                                          <-   ACK    HELLO(what of it the server allows)
//! ```
//! It comes after the handshake, never in MP_CAPABLE: a peer that knows nothing of it, or a box that
//! dislikes what it does not know, must find nothing there that could make it refuse. Such a peer
//! ignores the option on an ACK that means something without it, the client stops asking after a
//! while, and the connection is plain RFC 8684. A server says nothing of its own accord.
//!
//! HELLO is not authenticated, as MP_PRIO is not: who can forge an acceptable segment can do worse.
//! What is agreed on proves itself where it matters (Fast JOIN by an HMAC).

use marline_policy::{Role, SubflowId};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{ExperimentalMessage, Extensions, MpExperimental, MptcpOption};

use super::Connection;
use super::addresses::Signal;
use crate::MonitorKind;
use crate::tables::Context;

/// What this core can do. The rest is never offered nor granted, whatever the configuration says.
const BUILT: Extensions = Extensions::ALL;
/// HELLOs without an answer after which the client stops asking.
const MAX_HELLOS: u32 = 5;
/// HELLOs that a server answers: more than a client sends, few enough that they are no lever.
const MAX_ANSWERS: u32 = 16;
/// Shortest pause between two HELLOs.
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// Where the negotiation stands.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Negotiation {
    agreed: Extensions,
    settled: bool,
    /// HELLOs sent.
    count: u32,
    again_at: Option<Instant>,
}

impl Negotiation {
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.again_at
    }
}

impl Connection {
    /// Whether both sides agreed on all of these.
    pub(super) const fn agreed_on(&self, extensions: Extensions) -> bool {
        self.is_multipath() && self.negotiation.agreed.contains(extensions)
    }

    /// What both sides agreed on.
    pub(super) const fn extensions(&self) -> Extensions {
        if self.is_multipath() { self.negotiation.agreed } else { Extensions::NONE }
    }

    /// Client: these were asked for, and no answer has come yet.
    pub(super) fn awaits_word_on(&self, extensions: Extensions) -> bool {
        let asking = self.negotiation.count > 0 && !self.negotiation.settled;
        asking
            && self.role == Role::Client
            && self.is_multipath()
            && self.asked().contains(extensions)
    }

    /// Client: what the configuration asks for and we can do.
    fn asked(&self) -> Extensions {
        self.config.extensions.and(BUILT)
    }

    /// Server: what of these may be used.
    fn granted(&self, offered: Extensions) -> Extensions {
        let mut allowed = self.config.allow_extensions;
        if self.config.follow_client.is_none() {
            allowed = allowed.without(Extensions::FOLLOW_CLIENT);
        }
        offered.and(allowed).and(BUILT)
    }

    /// The connection is confirmed: a client that wants something says so.
    pub(super) fn greet(&mut self, cx: &mut Context<'_>) {
        if self.role == Role::Client && !self.asked().is_empty() && !self.negotiation.settled {
            self.say_hello(cx);
        }
    }

    fn say_hello(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let pause = (self.largest_rto() * 2).max(MIN_PAUSE) * (1 << self.negotiation.count.min(6));
        self.negotiation.count += 1;
        cx.out.counters.hello_tx += 1;
        let more = self.negotiation.count < MAX_HELLOS;
        self.negotiation.again_at = more.then_some(now + pause);
        let hello = ExperimentalMessage::Hello(self.asked());
        self.signal_message(None, &hello);
    }

    /// Puts a message on an ACK, on this subflow or on the best one.
    pub(super) fn signal_message(&mut self, on: Option<SubflowId>, message: &ExperimentalMessage) {
        let option = MptcpOption::Experimental(message.option());
        self.addresses.signal(Signal { on, option });
    }

    /// The time to ask again has come, or not yet.
    pub(super) fn repeat_hello(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.negotiation.again_at.is_none_or(|at| at > now) {
            return;
        }
        self.negotiation.again_at = None;
        if self.is_multipath() && !self.negotiation.settled && !self.closing.is_closing() {
            self.say_hello(cx);
        }
    }

    /// An option of the private subtype on an acceptable segment. What is not understood, or was not
    /// agreed on, is ignored.
    pub(super) fn on_experimental(
        &mut self,
        cx: &mut Context<'_>,
        on: SubflowId,
        option: &MpExperimental,
    ) {
        let Some(message) = ExperimentalMessage::parse(option) else { return };
        match message {
            ExperimentalMessage::Hello(features) => self.on_hello(cx, on, features),
            ExperimentalMessage::RtoRequest => self.on_rto_request(cx, on),
            ExperimentalMessage::RtoInfo { rto_us } => self.on_rto_info(cx, rto_us),
            // The mark counts with the mapping beside it.
            _ => {}
        }
    }

    /// The peer's HELLO.
    fn on_hello(&mut self, cx: &mut Context<'_>, on: SubflowId, features: Extensions) {
        cx.out.counters.hello_rx += 1;
        match self.role {
            Role::Client => {
                if self.negotiation.count > 0 && !self.negotiation.settled {
                    self.settle(cx, features.and(self.asked()));
                    self.ask_for_rto(cx, on);
                }
            }
            Role::Server => {
                if self.negotiation.count >= MAX_ANSWERS {
                    return;
                }
                self.negotiation.count += 1;
                if !self.negotiation.settled {
                    let granted = self.granted(features);
                    self.settle(cx, granted);
                }
                let answer = ExperimentalMessage::Hello(self.negotiation.agreed);
                cx.out.counters.hello_tx += 1;
                self.signal_message(Some(on), &answer);
            }
        }
    }

    /// What is agreed on holds from now on; the first word counts.
    fn settle(&mut self, cx: &mut Context<'_>, agreed: Extensions) {
        let now = cx.now;
        self.negotiation.settled = true;
        self.negotiation.again_at = None;
        self.negotiation.agreed = agreed;
        if agreed.contains(Extensions::REPAIR) {
            self.start_coding();
        } else {
            self.stop_coding();
        }
        if agreed.is_empty() {
            return;
        }
        cx.out.monitor(now, self.id, MonitorKind::Agreed(agreed));
        if let Some(follow) = self.config.follow_client.clone()
            && self.role == Role::Server
            && agreed.contains(Extensions::FOLLOW_CLIENT)
        {
            self.set_scheduler(now, &*follow);
        }
    }
}
