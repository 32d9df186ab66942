//! A segment's way in: TCP first, then handshake options, then what it carries. What its DSS says is in
//! `dss_rx`, where its bytes go in `delivery`, what TCP made of it in `subflow_events`.

use marline_policy::SubflowId;
use marline_wire::mptcp::MptcpOption;
use marline_wire::{TcpFlags, TcpSegment};

use super::Connection;
use crate::subflow::Ingress;
use crate::tables::Context;
use crate::{CloseReason, Ecn};

impl Connection {
    /// One segment for one of our subflows.
    pub(crate) fn on_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) {
        let now = cx.now;
        if !self.admit(cx, id, segment) {
            return;
        }
        let window = self.receiver.window_size();
        self.refresh_group(now, id);
        let key = self.session.keys().local().0;
        let carries = !segment.payload.is_empty();
        let room = if carries { self.out_of_order_room() } else { 0 };
        let Some(leg) = self.leg_mut(id) else { return };
        leg.tcp.set_out_of_order_room(room);
        let mut ingress = leg.tcp.on_segment(now, segment, ecn, window);
        // RFC 5961 challenges a RST behind a hole; but an aborting peer may have no state left to
        // repeat it at the right place, and its key proves what the number does not.
        if ingress.challenge && is_proven_abort(segment, key) {
            ingress = leg.tcp.accept_reset();
        }
        if ingress.challenge {
            if cx.challenges.take(now, cx.rng) {
                cx.out.counters.challenge_acks += 1;
            } else {
                leg.tcp.withdraw_challenge();
            }
        }
        if ingress.accepted {
            if leg.is_initial() {
                self.on_capable(cx, segment);
            }
            self.on_closing_options(cx, id, segment);
        }
        while let Some(event) = self.leg_mut(id).and_then(|leg| leg.tcp.poll_event_before_fin()) {
            self.on_subflow_event(cx, id, event);
        }
        if ingress.accepted && (carries || ingress.newly_acked > 0) {
            self.ebb.note_busy(now);
        }
        if ingress.accepted && self.leg(id).is_some() {
            if !segment.header.flags.contains(TcpFlags::SYN) {
                self.on_fourth_ack(cx, id);
            }
            self.on_content(cx, id, segment, &ingress);
            self.drain_subflow_events(cx, id);
            self.note_half_closed(now, id);
        }
        self.drain_released(now, id);
        self.advance_closing(cx);
    }

    /// Options and payload of an acceptable segment.
    fn on_content(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let now = cx.now;
        self.wait.heard(now);
        self.vigil.begin(now, self.config.receive_probes);
        let was_at_end = self.receiver.fin_reached();
        let before = self.receiver.next();
        if self.session.is_plain() {
            self.on_plain_ack(cx, id);
            for option in segment.options.mptcp.iter() {
                if let MptcpOption::Fail(fail) = option {
                    self.on_mp_fail(cx, id, fail);
                }
            }
            // After a fallback in mid-stream the peer's mappings count until its infinite one.
            let mapped = self.leg(id).is_some() && !self.receiver.is_infinite(id);
            if let Some(dss) = segment.options.dss {
                if mapped {
                    self.on_mapping(cx, id, (&dss, super::dss_rx::carries(segment)));
                } else if self.is_beside_plain(id, &dss) {
                    cx.out.counters.dss_not_matching += 1;
                    self.abort_because(cx, CloseReason::PeerMisbehaved);
                    return;
                }
            }
        } else {
            self.on_mptcp_options(cx, id, segment);
            self.on_dss(cx, id, segment, ingress);
        }
        if self.receiver.takes_repairs() || self.is_early_repair(segment) {
            self.on_coded(cx, id, segment, ingress);
        }
        self.note_torn(cx, id, segment, ingress);
        self.take_payload(cx, id, segment, ingress);
        if self.receiver.takes_repairs() {
            self.repair_missing(cx, id);
        }
        self.watch_download(cx, id, before, segment);
        if self.receiver.next() > before || (self.receiver.fin_reached() && !was_at_end) {
            self.futile_resets = 0;
            self.wait.on_progress();
            self.vigil.on_data(now, self.config.receive_probes);
            let late = self.receiver.next() > before;
            if self.closing.released {
                self.receiver.discard();
            }
            if self.closing.released && late {
                self.closing.came_late = true;
                if self.session.is_plain() && self.config.conduct.reset_late_data_at_once {
                    self.refuse_late_data(cx, id, segment);
                    return;
                }
            }
            self.tell_readable(cx);
        }
    }
}

/// A RST with MP_FASTCLOSE and our key: who knows that is the peer.
fn is_proven_abort(segment: &TcpSegment<'_>, key: u64) -> bool {
    let knows =
        |option: MptcpOption| matches!(option, MptcpOption::Fastclose(f) if f.receiver_key == key);
    segment.header.flags.contains(TcpFlags::RST) && segment.options.mptcp.iter().any(knows)
}
