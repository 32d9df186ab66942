//! MP_CAPABLE: the first subflow's handshake (RFC 8684 section 3.1).
//!
//! ```text
//! client                                   server
//!   SYN       MP_CAPABLE(v1)        ->
//!                                   <-     SYN/ACK  MP_CAPABLE(key B)
//!   ACK       MP_CAPABLE(key A, key B) ->          (may be lost)
//!   data      MP_CAPABLE(key A, key B, length) ->  (until the peer shows a DSS)
//! ```
//! Wherever the option is missing the connection goes on as plain TCP. Marline's server answers the
//! third ACK with a DATA_ACK at once, so that a client that waits for the server to speak may join
//! its other paths meanwhile.

use marline_policy::{PathEvent, Role, SubflowId};
use marline_wire::mptcp::{MpCapable, MpCapableForm, MptcpOption};
use marline_wire::{TcpFlags, TcpSegment};

use super::{Connection, Mode};
use crate::crypto::Key;
use crate::tables::Context;
use crate::{Event, FallbackReason, MonitorKind};

/// The MP_CAPABLE option of a segment, if it has one.
pub(crate) fn mp_capable(segment: &TcpSegment<'_>) -> Option<MpCapable> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Capable(capable) => Some(capable),
        _ => None,
    })
}

/// Usable: our version, no unknown extension, the one hash there is.
const fn is_usable(capable: &MpCapable) -> bool {
    capable.version == 1 && !capable.extensibility && capable.hmac_sha256
}

/// A SYN that offers what we speak, or more: a version above ours is answered by ours, which whoever offers
/// it can take or leave.
pub(crate) fn offers_multipath(capable: &MpCapable) -> bool {
    let ours = MpCapable { version: capable.version.min(1), ..*capable };
    capable.form == MpCapableForm::Syn && is_usable(&ours)
}

impl Connection {
    /// Server: the SYN that opened the connection.
    pub(super) fn on_first_syn(&mut self, cx: &mut Context<'_>, syn: &TcpSegment<'_>) {
        match mp_capable(syn) {
            Some(capable) if self.config.mptcp && offers_multipath(&capable) => {
                cx.out.counters.mp_capable_syn_rx += 1;
                self.session.on_capable(&self.config, &capable);
            }
            _ => self.fall_back(cx, FallbackReason::SynWithoutOption),
        }
    }

    /// Handshake options on the first subflow, before its TCP events are looked at.
    pub(super) fn on_capable(&mut self, cx: &mut Context<'_>, segment: &TcpSegment<'_>) {
        if !self.session.is_offered() {
            return;
        }
        match self.session.role() {
            Role::Client if segment.header.flags.contains(TcpFlags::SYN) => {
                self.on_capable_syn_ack(cx, segment);
            }
            Role::Client => {}
            Role::Server if segment.header.flags.contains(TcpFlags::SYN) => {}
            Role::Server => self.on_capable_ack(cx, segment),
        }
    }

    fn on_capable_syn_ack(&mut self, cx: &mut Context<'_>, segment: &TcpSegment<'_>) {
        let capable = mp_capable(segment).filter(is_usable);
        let Some((capable, listener_key)) = capable.and_then(|c| match c.form {
            MpCapableForm::SynAck { listener_key } => Some((c, listener_key)),
            _ => None,
        }) else {
            self.fall_back(cx, FallbackReason::SynAckWithoutOption);
            return;
        };
        self.session.on_capable(&self.config, &capable);
        self.session.on_peer_key(Key(listener_key));
        if let Some(leg) = self.legs.iter().flatten().next() {
            cx.networks.absolve(leg.key.path.local.ip(), leg.key.path.remote.ip());
        }
    }

    /// A SYN or SYN/ACK that comes again says that what answered it did not get through. If it was the
    /// option that kept it back, going on with it would not help.
    pub(super) fn on_repeated_handshake(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let flags = segment.header.flags;
        let first = marline_policy::Ssn(0);
        let Some(leg) = self.leg(id).filter(|_| flags.contains(TcpFlags::SYN)) else { return };
        if flags.contains(TcpFlags::RST) || segment.header.seq != leg.tcp.peer_to_wire(first) {
            return;
        }
        match (self.session.role(), self.session.mode()) {
            // The client has given the option up: so must we, or our SYN/ACK will never pass.
            (Role::Server, Mode::Offered)
                if !flags.contains(TcpFlags::ACK) && mp_capable(segment).is_none() =>
            {
                self.fall_back(cx, FallbackReason::SynWithoutOption);
            }
            (Role::Client, Mode::Multipath { confirmed: false }) if leg.tcp.is_established() => {
                if self.session.count_repeated_syn_ack() > self.config.mptcp_syn_retries {
                    self.give_options_up(cx);
                }
            }
            _ => {}
        }
    }

    /// Server: the first byte comes again, and without the option that it came with. The client cannot
    /// know that we have it: our answers carry options, too, and do not get through.
    pub(super) fn on_repeated_first_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let first = marline_policy::Ssn(1);
        let Some(leg) = self.leg(id).filter(|_| self.receiver.delivered(id) > first) else {
            return;
        };
        let again = segment.header.seq == leg.tcp.peer_to_wire(first)
            && !segment.payload.is_empty()
            && !segment.options.has_mptcp();
        if again
            && self.session.is_server()
            && self.session.is_multipath()
            && self.was_never_heard(id)
        {
            self.fall_back(cx, FallbackReason::FirstDataWithoutOption);
            self.session.drop_infinite_mapping();
        }
    }

    /// Nothing that we sent was ever DATA_ACKed, there was no other subflow, both directions are
    /// contiguous from their first byte on, and the peer has sent no more than the window that needs no
    /// answer, and probes.
    pub(super) fn was_never_heard(&self, id: SubflowId) -> bool {
        let candidate =
            |leg: &&super::Leg| leg.is_initial() && !self.sender.is_proven(id) && leg.is_usable();
        let Some(leg) = self.leg(id).filter(candidate) else { return false };
        let window = 2 * u64::from(self.config.initial_window) * leg.tcp.max_segment() as u64;
        self.receiver.is_contiguous(id)
            && self.receiver.delivered(id).0 <= window
            && self.sender.is_contiguous(id)
            && self.sender.una() == marline_policy::Dsn(0)
            && self.legs_count() == 1
    }

    /// Nothing with options was ever answered since the handshake: from now on without.
    pub(super) fn give_options_up(&mut self, cx: &mut Context<'_>) {
        let end = self.sender.sent().0 + 1;
        let contiguous = |id| {
            let reached = self.leg(id).is_some_and(|leg| leg.tcp.snd_nxt().0 == end);
            self.sender.is_contiguous(id) && reached
        };
        if !self.leg_ids().all(contiguous) {
            return;
        }
        self.fall_back(cx, FallbackReason::OptionsUnanswered);
        // An infinite mapping is an option, too, and would not pass either.
        self.session.drop_infinite_mapping();
    }

    /// Server: the third ACK, or the first data in its place.
    fn on_capable_ack(&mut self, cx: &mut Context<'_>, segment: &TcpSegment<'_>) {
        let keys = mp_capable(segment).filter(is_usable).and_then(|c| match c.form {
            MpCapableForm::Ack { initiator_key, listener_key, .. } => {
                Some((initiator_key, listener_key))
            }
            _ => None,
        });
        match keys {
            Some((initiator, listener)) if Key(listener) == self.session.keys().local() => {
                self.session.on_peer_key(Key(initiator));
            }
            // A stray ACK without the option before the handshake is through is no reason yet; the
            // one that completes it is.
            _ if segment.header.flags.contains(TcpFlags::RST) => {}
            _ => self.fall_back(cx, FallbackReason::FirstDataWithoutOption),
        }
    }

    /// Server: a segment with a DSS overtook the third ACK and the first data, which carry the keys.
    /// It cannot be understood yet and is not plain TCP either: drop it, it will come again.
    pub(super) fn overtook_the_keys(&self, segment: &TcpSegment<'_>) -> bool {
        self.session.is_server()
            && self.session.is_offered()
            && segment.options.dss.is_some()
            && mp_capable(segment).is_none()
    }

    /// The first subflow's TCP handshake is complete.
    pub(super) fn on_initial_established(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(leg) = self.leg_mut(id) else { return };
        leg.up = true;
        if self.session.is_server() {
            // The client may join its other paths as soon as it knows that we speak MPTCP. If data came
            // along, which wants an ACK too, an answer may be as soon.
            let answers = self.session.is_multipath() && !self.config.conduct.silent_third_ack;
            if let Some(leg) = self.leg_mut(id).filter(|_| answers) {
                if leg.tcp.owes_ack() {
                    leg.tcp.ack_soon(now);
                } else {
                    leg.tcp.ack_now();
                }
            }
            self.closing.announced_to_application = true;
            cx.out.event(Event::Incoming(self.id));
        } else {
            let waits = self.config.speaks_first;
            if let Some(leg) = self.leg_mut(id).filter(|_| waits) {
                leg.tcp.ack_soon(now);
            }
            let fallback = self.session.fallback();
            cx.out.event(Event::Connected { connection: self.id, fallback });
        }
        if let Some(leg) = self.leg(id) {
            let path = leg.key.path;
            if self.session.fallback() == Some(FallbackReason::SynRetries) {
                cx.networks.blame(now, path.local.ip(), path.remote.ip());
            }
            cx.out.monitor(now, self.id, MonitorKind::Established(path));
        }
        self.subflow_is_up(cx, id);
        if self.session.is_server()
            && self.session.is_multipath()
            && self.config.conduct.announce_at_once
        {
            self.path_event(cx, PathEvent::Established);
        }
    }

    /// The peer showed that it speaks MPTCP: joins are possible from now on.
    pub(super) fn confirm(&mut self, cx: &mut Context<'_>) {
        if self.session.confirm() {
            let told = self.session.is_server() && self.config.conduct.announce_at_once;
            if !told {
                self.path_event(cx, PathEvent::Established);
            }
            self.greet(cx);
        }
    }
}
