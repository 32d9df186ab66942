//! A segment's way in: TCP first, then handshake options, then what it carries.

use marline_policy::{Dsn, Role, SchedulerEvent, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::mptcp::{CapableData, Dss, MpCapableForm, MptcpOption, WireDsn, WireMapping};
use marline_wire::{Checksum, TcpFlags, TcpSegment, dss_checksum, unwrap32};

use super::Connection;
use super::handshake::mp_capable;
use super::join::reason;
use super::leg::Farewell;
use super::mapping_rx::{MappingError, RxMapping};
use crate::shared::Shared;
use crate::subflow::{Ingress, SubflowEvent};
use crate::{CloseReason, Ecn, FallbackReason, MonitorKind};

impl Connection {
    /// One segment for one of our subflows.
    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) {
        if !self.admit(now, sh, id, segment) {
            return;
        }
        let window = self.receive.window_size();
        self.refresh_group(now, id);
        let key = self.keys.local.0;
        let Some(leg) = self.leg_mut(id) else { return };
        let mut ingress = leg.tcp.on_segment(now, segment, ecn, window);
        // RFC 5961 challenges a RST behind a hole; but an aborting peer may have no state left to
        // repeat it at the right place, and its key proves what the number does not.
        if ingress.challenge && is_proven_abort(segment, key) {
            ingress = leg.tcp.accept_reset();
        }
        if ingress.challenge {
            if sh.challenges.take(now, sh.rng.as_mut()) {
                sh.counters.challenge_acks += 1;
            } else {
                leg.tcp.withdraw_challenge();
            }
        }
        if ingress.accepted {
            if leg.is_initial() {
                self.on_capable(now, sh, segment);
            }
            self.on_closing_options(now, sh, id, segment);
        }
        while let Some(event) = self.leg_mut(id).and_then(|leg| leg.tcp.poll_event_before_fin()) {
            self.on_subflow_event(now, sh, id, event);
        }
        if ingress.accepted && self.leg(id).is_some() {
            if !segment.header.flags.contains(TcpFlags::SYN) {
                self.on_fourth_ack(now, sh, id);
            }
            self.on_content(now, sh, id, segment, &ingress);
            self.drain_subflow_events(now, sh, id);
        }
        self.drain_released(now, id);
        self.advance_closing(now, sh);
    }

    /// Options and payload of an acceptable segment.
    fn on_content(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        self.timers.linger_since = None;
        let was_at_end = self.receive.fin_reached();
        let before = self.receive.next();
        if self.is_plain() {
            self.on_plain_ack(now, sh, id);
            for option in segment.options.mptcp.iter() {
                if let MptcpOption::Fail(fail) = option {
                    self.on_mp_fail(now, sh, id, fail);
                }
            }
            // After a fallback in mid-stream the peer's mappings count until its infinite one.
            let mapped = self.leg(id).is_some_and(|leg| !leg.mappings.is_infinite());
            if let Some(dss) = segment.options.dss.filter(|_| mapped) {
                self.on_mapping(now, sh, id, (&dss, !segment.payload.is_empty()));
            }
        } else {
            self.on_mptcp_options(now, sh, id, segment);
            self.on_dss(now, sh, id, segment, ingress);
        }
        if self.coding.is_some() {
            self.on_coded(now, sh, id, segment, ingress);
        }
        self.take_payload(now, sh, id, segment, ingress);
        if self.coding.is_some() {
            self.repair_missing(now, sh, id);
        }
        self.watch_download(now, sh, id, before, segment);
        if self.receive.next() > before || (self.receive.fin_reached() && !was_at_end) {
            self.futile_resets = 0;
            let late = self.receive.next() > before;
            if self.closing.released {
                self.receive.discard();
            }
            if self.closing.released
                && late
                && self.is_plain()
                && self.config.conduct.reset_late_data
            {
                self.refuse_late_data(now, sh, id, segment);
                return;
            }
            self.tell_readable(sh);
        }
    }

    fn on_dss(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        if segment.options.dss.is_none() && mp_capable(segment).is_none() {
            self.on_missing_dss(now, sh, id, segment, ingress);
            return;
        }
        if let Some(dss) = segment.options.dss {
            if let Some(ack) = dss.data_ack {
                let before = self.acked();
                self.on_data_ack(now, sh, ack, ingress.window);
                let advanced = self.acked() > before;
                if let Some(leg) = self.leg_mut(id) {
                    if advanced {
                        leg.last_new_at = now;
                    }
                    leg.proven |= leg.tcp.snd_una() > Ssn(1);
                }
            }
            self.confirm(now, sh);
            self.on_mapping(now, sh, id, (&dss, !segment.payload.is_empty()));
        } else if let Some(capable) = mp_capable(segment) {
            // No DATA_ACK beside the keys: the window is relative to what was acknowledged before.
            self.window_end = self.window_end.max(self.acked().plus(ingress.window));
            let MpCapableForm::Ack { data: Some(data), .. } = capable.form else { return };
            self.confirm(now, sh);
            self.on_capable_data(now, sh, id, data);
            let in_order = ingress.in_order.is_some();
            self.peer_uses_long_dsn |= in_order && self.config.conduct.data_ack_like_data;
        }
    }

    /// RFC 8684 section 3.3: a checksum that is missing, or not agreed on, ends the subflow.
    pub(super) fn checksum_is_as_agreed(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        checksum: Option<u16>,
    ) -> bool {
        let agreed = checksum.is_some() == self.checksum;
        if !agreed {
            sh.counters.dss_not_matching += 1;
            self.reset_leg(now, sh, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
        }
        agreed
    }

    /// MP_CAPABLE with data: an implicit mapping of the first bytes.
    fn on_capable_data(&mut self, now: Instant, sh: &mut Shared, id: SubflowId, data: CapableData) {
        if !self.checksum_is_as_agreed(now, sh, id, data.checksum) {
            return;
        }
        let mapping = RxMapping {
            ssn: Ssn(1),
            len: u64::from(data.length),
            dsn: Dsn(0),
            wire_dsn: self.keys.remote_first,
            wire_len: data.length,
            checksum: data.checksum,
            coded: None,
        };
        self.announce(now, sh, id, mapping);
    }

    /// `carries`: the segment has payload.
    fn on_mapping(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        (dss, carries): (&Dss, bool),
    ) {
        let Some(wire) = dss.mapping else { return };
        if !self.checksum_is_as_agreed(now, sh, id, wire.checksum) {
            return;
        }
        if wire.length == 0 && !carries {
            // An infinite mapping speaks of the data it comes with (RFC 8684 section 3.7). Without any it
            // says nothing.
            return;
        }
        self.note_dsn_size(&wire, dss.data_fin);
        let Some(dsn) = self.unwrap_dsn(wire.dsn) else {
            sh.counters.dss_not_matching += 1;
            return;
        };
        if let Some(leg) = self.leg_mut(id) {
            leg.mapped = true;
        }
        if wire.length == 0 {
            self.on_infinite_wire_mapping(now, sh, id, &wire, dsn);
            return;
        }
        let data_len = u64::from(wire.length) - u64::from(dss.data_fin);
        let wire_dsn = self.keys.remote_first.wrapping_add(dsn.0);
        let lone_fin = dss.data_fin && data_len == 0;
        let sum = |_| dss_checksum(wire_dsn, wire.ssn, wire.length, Checksum::new());
        if lone_fin && wire.checksum != wire.checksum.map(sum) {
            sh.counters.data_csum_err += 1;
            return;
        }
        if dss.data_fin && !self.receive.set_fin(dsn.plus(data_len)) {
            sh.counters.dss_not_matching += 1;
        }
        if lone_fin {
            if let Some(leg) = self.leg_mut(id) {
                leg.tcp.ack_now();
            }
            return;
        }
        let Some(leg) = self.leg(id) else { return };
        let Some(ssn) = unwrap32(wire.ssn, leg.tcp.rcv_nxt().0) else {
            sh.counters.dss_not_matching += 1;
            return;
        };
        let mapping = RxMapping {
            ssn: Ssn(ssn),
            len: data_len,
            dsn,
            wire_dsn,
            wire_len: wire.length,
            checksum: wire.checksum,
            coded: None,
        };
        self.announce(now, sh, id, mapping);
    }

    /// DATA_ACKs are as long as the DSNs they answer.
    fn note_dsn_size(&mut self, wire: &WireMapping, data_fin: bool) {
        let long = matches!(wire.dsn, WireDsn::Long(_));
        if !self.config.conduct.data_ack_like_data {
            self.peer_uses_long_dsn |= long;
        } else if !(data_fin && wire.length == 1) {
            self.peer_uses_long_dsn = long;
        }
    }

    fn on_infinite_wire_mapping(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        wire: &WireMapping,
        dsn: Dsn,
    ) {
        let next = self.leg(id).map(|leg| leg.tcp.rcv_nxt().0);
        if let Some(ssn) = next.and_then(|next| unwrap32(wire.ssn, next)) {
            self.on_infinite_mapping(now, sh, id, (Ssn(ssn), dsn));
        }
    }

    pub(super) fn announce(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        mapping: RxMapping,
    ) {
        let Some(leg) = self.leg_mut(id) else { return };
        leg.mapped = true;
        let delivered = leg.delivered;
        if let Err(error) = leg.mappings.announce(mapping, delivered) {
            sh.counters.dss_not_matching += 1;
            self.on_bad_mapping(now, sh, id, error);
        }
    }

    /// Bytes of this segment that are in order on the subflow, and bytes held back until now.
    fn take_payload(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        if let Some((ssn, range)) = ingress.in_order.clone() {
            let mapped_itself = segment.options.dss.is_some_and(|dss| dss.mapping.is_some());
            self.deliver(now, sh, id, (ssn, &segment.payload[range]), mapped_itself);
        }
        while let Some((ssn, bytes)) = self.leg_mut(id).and_then(|leg| leg.tcp.pop_reassembled()) {
            self.deliver(now, sh, id, (ssn, &bytes), false);
            if let Some(leg) = self.leg_mut(id) {
                leg.tcp.recycle(bytes);
            }
        }
    }

    /// Bytes in order. `mapped_itself`: the segment that brought them had a mapping.
    fn deliver(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        (ssn, bytes): (Ssn, &[u8]),
        mapped_itself: bool,
    ) {
        if self.is_plain() && self.leg(id).is_some_and(|leg| !leg.mappings.covers(ssn)) {
            // Its infinite mapping did not pass; that it needs none says the same.
            self.receive_plain(sh, id, (ssn, self.receive.next()));
        }
        let may_be_plain = self.role == Role::Server && self.was_never_heard(id);
        let mut result = self.translate(now, sh, id, ssn, bytes);
        let nothing_follows = self.leg(id).is_some_and(|leg| leg.mappings.expects_nothing());
        if result == Err(MappingError::Unmapped) && may_be_plain && nothing_follows {
            // Options get lost here, if only those of segments that a box put together.
            self.fall_back(now, sh, FallbackReason::FirstDataWithoutOption);
            result = self.translate(now, sh, id, ssn, bytes);
        } else if result == Err(MappingError::Unmapped) && mapped_itself && nothing_follows {
            // A box put segments together and kept the options of one. Options pass: the rest is not
            // DATA_ACKed, so that it comes again with a mapping of its own.
            sh.counters.dss_not_matching += 1;
            result = Ok(());
        }
        let Some(leg) = self.leg(id) else { return };
        if let Some(kept) = leg.mappings.kept() {
            self.receive.set_held(kept);
        }
        match result {
            Ok(()) => {}
            Err(MappingError::BadChecksum(dsn)) => self.on_bad_checksum(now, sh, id, dsn),
            Err(error) => {
                sh.counters.dss_not_matching += 1;
                self.on_bad_mapping(now, sh, id, error);
            }
        }
    }

    /// Puts bytes at their places in the stream.
    fn translate(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        ssn: Ssn,
        bytes: &[u8],
    ) -> Result<(), MappingError> {
        let Some(leg) = self.legs.get_mut(usize::from(id.0)).and_then(Option::as_deref_mut) else {
            return Ok(());
        };
        leg.delivered = ssn.plus(bytes.len() as u64);
        let receive = &mut self.receive;
        let (mut duplicate, mut news) = (0, false);
        let mut insert = |dsn, bytes: &[u8]| {
            let known = receive.insert(dsn, bytes).duplicate;
            duplicate += known;
            news |= known < bytes.len() as u64;
        };
        let result = leg.mappings.translate(ssn, bytes, &mut insert);
        if duplicate > 0 {
            duplicate = leg.count_duplicate(duplicate);
        }
        if news {
            leg.last_new_at = now;
        }
        sh.counters.duplicate_data += u64::from(duplicate > 0);
        result
    }

    /// The position a DSN of the wire means. `None` before the start of the stream.
    pub(super) fn unwrap_dsn(&self, wire: WireDsn) -> Option<Dsn> {
        let near = self.receive.next().0;
        match wire {
            WireDsn::Long(dsn) => {
                let offset = dsn.wrapping_sub(self.keys.remote_first);
                // Offsets near 2^64 are positions before the first byte.
                (offset < 1 << 63).then_some(Dsn(offset))
            }
            WireDsn::Short(low) => {
                unwrap32(low.wrapping_sub(self.keys.remote_first as u32), near).map(Dsn)
            }
        }
    }

    /// What TCP has to say, in order.
    pub(super) fn drain_subflow_events(&mut self, now: Instant, sh: &mut Shared, id: SubflowId) {
        while let Some(event) = self.leg_mut(id).and_then(|leg| leg.tcp.poll_event()) {
            self.on_subflow_event(now, sh, id, event);
        }
    }

    fn on_subflow_event(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        event: SubflowEvent,
    ) {
        let is_initial = self.leg(id).is_some_and(super::Leg::is_initial);
        match event {
            SubflowEvent::Established if is_initial => self.on_initial_established(now, sh, id),
            SubflowEvent::Established => self.on_join_established(now, sh, id),
            SubflowEvent::Refused => self.on_leg_lost(now, sh, id, CloseReason::Refused),
            SubflowEvent::Reset => self.on_reset(now, sh, id),
            SubflowEvent::ConnectTimeout => self.on_leg_lost(now, sh, id, CloseReason::TimedOut),
            SubflowEvent::Dead => self.on_leg_dead(now, sh, id),
            SubflowEvent::PeerFin => self.on_peer_fin(now, sh, id),
            SubflowEvent::Finished => self.on_leg_finished(now, sh, id),
            SubflowEvent::ProbeTimeout => self.on_probe_timeout(now, sh, id),
            SubflowEvent::ProbeRepeated { range } if !range.is_empty() => {
                self.scheduler_event(now, SchedulerEvent::ProbeRepeated { on: id, range });
            }
            SubflowEvent::ProbeRepeated { .. } => {}
            SubflowEvent::Rto { count } => self.on_subflow_rto(now, sh, id, count),
            SubflowEvent::HeardAgain => self.on_heard_again(now, sh, id),
            SubflowEvent::MtuFound(_) => {}
        }
    }

    /// A segment without any MPTCP option: a DSS is missing if it carries data or acknowledges some.
    /// On the first subflow, before anything passed and while it is alone, that is plain TCP; on a
    /// joined one it is a box that drops options (RFC 8684 section 3.7). Data without a mapping later
    /// on is an error of the mapping.
    fn on_missing_dss(
        &mut self,
        now: Instant,
        sh: &mut Shared,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::SYN) || !segment.options.mptcp.is_empty() {
            return;
        }
        let Some(leg) = self.leg(id).filter(|leg| leg.up && !segment.options.mptcp.malformed)
        else {
            return;
        };
        let carries = !segment.payload.is_empty() || flags.contains(TcpFlags::FIN);
        let unmapped = carries && !leg.mapped;
        let first = leg.run == (Ssn(1), Dsn(0));
        let sent = self.mappings.end() > Dsn(0) || !first;
        let unproven = ingress.newly_acked > 0 && sent && leg.tcp.snd_una() > Ssn(1) && !leg.proven;
        if !unmapped && !unproven {
            return;
        }
        // Both directions are contiguous from their first byte on.
        let contiguous = first && leg.delivered.0 == self.receive.next().0 + 1;
        if leg.is_initial() && self.legs_count() == 1 && contiguous {
            self.fall_back(now, sh, FallbackReason::FirstDataWithoutOption);
        } else if unproven {
            self.reset_leg(now, sh, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
        }
    }

    /// The subflow's own sequence space ended in order.
    fn on_peer_fin(&mut self, now: Instant, sh: &mut Shared, id: SubflowId) {
        // Only plain TCP ends like this while we wait for an answer to MP_FAIL.
        if let Some(leg) = self.leg(id)
            && let Some(dsn) = leg.mappings.failed_at()
        {
            let at = (leg.delivered, dsn);
            self.on_infinite_mapping(now, sh, id, at);
        }
        if self.is_plain() {
            let end = self.receive.next();
            self.receive.set_fin(end);
            self.tell_readable(sh);
            return;
        }
        // A peer that has said all it had to say may close its half at once. The other half is as good
        // as before, and ours may be the only way to what we have still to say.
        if self.receive.fin_reached() && !self.closing.fin_acked {
            return;
        }
        let Some(leg) = self.leg_mut(id) else { return };
        leg.shut = true;
        leg.tcp.close();
        self.leg_stops_carrying(now, id);
    }

    /// RST from the peer: MP_FASTCLOSE was looked at before.
    fn on_reset(&mut self, now: Instant, sh: &mut Shared, id: SubflowId) {
        if let Some(leg) = self.leg_mut(id) {
            leg.farewell = Farewell::None;
        }
        self.note_reset(id);
        self.on_leg_lost(now, sh, id, CloseReason::PeerReset);
    }

    /// Bytes that a subflow no longer needs to repeat.
    fn drain_released(&mut self, now: Instant, id: SubflowId) {
        let Some(leg) = self.legs.get_mut(usize::from(id.0)).and_then(Option::as_deref_mut) else {
            return;
        };
        leg.release_repairs();
        if leg.tcp.released().is_empty() {
            return;
        }
        let mut released = core::mem::take(leg.tcp.released());
        for range in &released {
            self.send.unpin(*range);
        }
        if self.scheduler.watches_acks() {
            for range in &released {
                self.scheduler_event(now, SchedulerEvent::Acked { on: id, range: *range });
            }
        }
        released.clear();
        if let Some(leg) = self.leg_mut(id) {
            *leg.tcp.released() = released;
        }
    }

    pub(super) fn subflow_is_up(&mut self, now: Instant, sh: &mut Shared, id: SubflowId) {
        let Some(leg) = self.leg_mut(id) else { return };
        leg.last_new_at = now;
        let (path, backup, initial) = (leg.key.path, leg.is_backup(), leg.is_initial());
        self.timers.linger_since = None;
        self.resume_closing(now);
        if !initial {
            sh.monitor(now, self.id, MonitorKind::SubflowEstablished { id, path, backup });
        }
        self.rescue(now, |_| true);
        self.scheduler_event(now, SchedulerEvent::SubflowUp(id));
        self.path_event(now, sh, marline_policy::PathEvent::SubflowUp(id));
    }
}

/// A RST with MP_FASTCLOSE and our key: who knows that is the peer.
fn is_proven_abort(segment: &TcpSegment<'_>, key: u64) -> bool {
    let knows =
        |option: MptcpOption| matches!(option, MptcpOption::Fastclose(f) if f.receiver_key == key);
    segment.header.flags.contains(TcpFlags::RST) && segment.options.mptcp.iter().any(knows)
}
