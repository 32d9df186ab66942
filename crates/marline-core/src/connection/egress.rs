//! What goes out next. One call fills one batch for one path.
//!
//! Order: what TCP owes on a subflow (handshakes, resets, repairs: later data on that subflow is
//! useless before its hole is filled), tail loss probes, signals, the DATA_FIN, data by the
//! scheduler's choice, and last pure ACKs, which data may have carried by then.

use marline_policy::{Dsn, SubflowId, SubflowSet};
use marline_time::Instant;
use marline_wire::mptcp::{Dss, WireMapping};
use marline_wire::{Checksum, TcpOptions, dss_checksum};

use super::Connection;
use super::scheduling::{Choice, Kind};
use crate::Transmit;
use crate::subflow::{Egress, HeaderFor};
use crate::tables::Context;
use crate::transmit::TransmitBuf;

impl Connection {
    /// Fills `buf` with the next batch, which is empty when it comes. `None`: nothing to send now.
    pub(crate) fn poll_transmit(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        self.suspect_accused(cx);
        let signals_first = self.config.conduct.lone_add_addr || self.addresses.owes_mp_fail();
        if signals_first && let Some(transmit) = self.emit_signal(cx, buf) {
            return Some(transmit);
        }
        self.emit_owed(cx, buf)
            .or_else(|| self.emit_probe(cx, buf))
            .or_else(|| self.emit_signal(cx, buf))
            .or_else(|| self.emit_data_fin(cx, buf))
            .or_else(|| self.emit_batch(cx, buf))
            .or_else(|| self.emit_acks(cx, buf))
    }

    /// Payload that a repeated segment may have on this subflow.
    fn repeat_room(&self, id: SubflowId) -> usize {
        let Some(leg) = self.leg(id) else { return 0 };
        let timestamps = leg.tcp.uses_timestamps();
        let options = self.data_option_len(id, Dsn(1), leg.tcp.snd_una(), timestamps);
        let overhead = marline_wire::TCP_HEADER_LEN + options;
        leg.tcp.settled_segment().saturating_sub(overhead)
    }

    fn emit_owed(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        let now = cx.now;
        for _ in 0..self.legs.len() {
            let index = self.next_leg % self.legs.len();
            let id = SubflowId(index as u8);
            let owes = self.leg(id).is_some_and(|leg| leg.tcp.owes_more_than_ack());
            let room = if owes { self.repeat_room(id) } else { 0 };
            let ack_first = self.config.conduct.lone_last_data_ack && self.session.is_multipath();
            let leg = self.leg_mut(id).filter(|_| owes);
            let egress = leg.and_then(|l| {
                let first = if ack_first { l.tcp.next_ack_before_fin() } else { None };
                first.or_else(|| l.tcp.next_egress_but_ack(now, room))
            });
            if let Some(egress) = egress {
                let transmit = self.emit(cx, id, &egress, None, buf);
                self.drain_subflow_events(cx, id);
                self.drop_if_reset(cx, id, &egress);
                if transmit.is_some() {
                    return transmit;
                }
            }
            self.next_leg = index + 1;
        }
        None
    }

    /// A subflow whose RST is out is done with, unless the RST only answered a bogus ACK.
    fn drop_if_reset(&mut self, cx: &mut Context<'_>, id: SubflowId, egress: &Egress) {
        let closed = |leg: &super::Leg| leg.tcp.state() == crate::SubflowState::Closed;
        if matches!(egress, Egress::Rst) && self.leg(id).is_some_and(closed) {
            let reason = self.closing.closed.unwrap_or(crate::CloseReason::Aborted);
            self.on_leg_lost(cx, id, reason);
        }
    }

    /// A tail loss probe: new data if there is any, else the last segment again. While a healthy
    /// subflow is there, new data is not risked on one that is silent: it would wait there for a
    /// timeout, and everything behind it.
    fn emit_probe(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        let now = cx.now;
        for id in self.leg_ids() {
            if self.leg(id).is_some_and(|leg| leg.tcp.awaits_frto_data())
                && let Some(transmit) = self.emit_frto_data(cx, id, buf)
            {
                return Some(transmit);
            }
            if !self.leg(id).is_some_and(|leg| leg.tcp.wants_new_data_probe()) {
                continue;
            }
            let alone = self.healthy().is_empty();
            if alone
                && self.leg(id).is_some_and(super::Leg::is_usable)
                && let Some(transmit) = self.emit_new_segment(cx, id, buf)
            {
                return Some(transmit);
            }
            let room = self.repeat_room(id);
            let leg = self.leg_mut(id)?;
            leg.tcp.repeat_last_as_probe();
            if let Some(egress) = leg.tcp.next_egress_but_ack(now, room) {
                let transmit = self.emit(cx, id, &egress, None, buf);
                self.drain_subflow_events(cx, id);
                return transmit;
            }
        }
        None
    }

    /// New data that tells whether a timeout was spurious, or else a repeat that waited for it. It is not
    /// risked while a healthy subflow is there, as a probe's is not.
    fn emit_frto_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let now = cx.now;
        let alone = self.healthy().iter().all(|other| other == id);
        let usable = self.leg(id).is_some_and(|leg| leg.is_usable() && leg.tcp.has_room_for_frto());
        if alone
            && usable
            && let Some(transmit) = self.emit_new_segment(cx, id, buf)
        {
            return Some(transmit);
        }
        let room = self.repeat_room(id);
        let leg = self.leg_mut(id)?;
        leg.tcp.frto_has_no_data();
        let egress = leg.tcp.next_egress_but_ack(now, room)?;
        self.emit(cx, id, &egress, None, buf)
    }

    /// One segment of new data on this subflow, whatever the scheduler had in mind.
    fn emit_new_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let range = self.sender.unsent();
        if range.is_empty() {
            return None;
        }
        self.scheduling.void_all();
        let choice = Choice { subflow: id, range, kind: Kind::New };
        let (size, ecn) = self.emit_data(cx, &choice, usize::MAX, buf)?;
        self.batch(id, 1, size + buf.headroom(), ecn)
    }

    fn emit_signal(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        if !self.addresses.has_signals() {
            return None;
        }
        let live = self.leg_ids().filter(|id| self.leg(*id).is_some_and(super::Leg::is_usable));
        let set = live.fold(0u32, |set, id| set | 1 << id.0);
        if set == 0 {
            return None;
        }
        let signal = self.addresses.next_signal(|id| set & (1 << id.0) != 0)?;
        let on = signal.on.or_else(|| self.best_leg())?;
        self.emit(cx, on, &Egress::Ack, Some(signal.option), buf)
    }

    /// The subflow on which a lone segment arrives soonest.
    pub(super) fn best_leg(&self) -> Option<SubflowId> {
        let usable = self.leg_ids().filter_map(|id| Some((id, self.leg(id)?)));
        usable
            .filter(|(_, leg)| leg.is_usable())
            .min_by_key(|(_, leg)| {
                let suspect =
                    leg.suspected || leg.tcp.potentially_failed() || leg.netpath_fault.is_some();
                (suspect, leg.is_backup(), leg.tcp.srtt().unwrap_or_default())
            })
            .map(|(id, _)| id)
    }

    /// A DATA_FIN in a segment of its own.
    fn emit_data_fin(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        let now = cx.now;
        self.timers.fin_at.filter(|at| *at <= now)?;
        if self.closing.fin_acked || self.session.is_plain() || self.closing.closed.is_some() {
            self.timers.fin_at = None;
            return None;
        }
        let id = self.next_leg_for_fin()?;
        // A third ACK that is still owed carries the keys, without which the peer cannot read the
        // DATA_FIN: it goes first.
        let unconfirmed = self.session.is_unconfirmed();
        if unconfirmed && self.leg(id).is_some_and(|leg| leg.tcp.owes_ack()) {
            let room = self.repeat_room(id);
            if let Some(egress) = self.leg_mut(id).and_then(|l| l.tcp.next_egress(now, room)) {
                return self.emit(cx, id, &egress, None, buf);
            }
        }
        self.timers.fin_on.remove(id);
        self.timers.fin_went_on.insert(id);
        if !self.timers.fin_on.iter().any(|id| self.carries(id)) {
            self.rearm_fin(now);
        }
        let fin = self.sender.written();
        let wire = self.session.keys().local_wire(fin);
        let empty = Checksum::new();
        let sum = self.session.uses_checksum().then(|| dss_checksum(wire, 0, 1, empty));
        let dss = Some(Dss {
            data_ack: Some(self.session.data_ack(self.receiver.data_ack())),
            mapping: Some(WireMapping {
                dsn: self.session.wire_dsn(fin),
                ssn: 0,
                length: 1,
                checksum: sum,
            }),
            data_fin: true,
        });
        let mut options = TcpOptions { dss, ..TcpOptions::default() };
        let window = self.receiver.advertise();
        let egress = Egress::Ack;
        let tcp = &mut self.leg_mut(id)?.tcp;
        let owes_sack = tcp.owes_sack();
        let (header, ecn) = tcp.fill_header(now, HeaderFor::Egress(&egress), window, &mut options);
        let room = options.room();
        tcp.fill_sack(&mut options, room);
        if owes_sack && options.sack.is_empty() {
            tcp.ack_now();
        }
        self.write_segment(cx, id, &header, &options, (Dsn(0), 0), buf)?;
        self.batch(id, 1, buf.bytes().len(), ecn)
    }

    /// Where the DATA_FIN that is due goes next: first on the best subflow, its repeats on each. Which of them
    /// lost it nobody knows, and no subflow repeats what occupies no sequence space; Linux uses all from the first.
    fn next_leg_for_fin(&mut self) -> Option<SubflowId> {
        let left = self.timers.fin_on.iter().find(|id| self.carries(*id));
        if left.is_some() {
            return left;
        }
        let mut on = SubflowSet::EMPTY;
        match self.timers.fin_count {
            0 => on.insert(self.best_leg()?),
            _ => self.leg_ids().filter(|id| self.carries(*id)).for_each(|id| on.insert(id)),
        }
        (self.timers.fin_on, self.timers.fin_went_on) = (on, SubflowSet::EMPTY);
        on.iter().next()
    }

    fn carries(&self, id: SubflowId) -> bool {
        self.leg(id).is_some_and(super::Leg::is_usable)
    }

    /// The DATA_FIN went out wherever it was to go.
    fn rearm_fin(&mut self, now: Instant) {
        self.timers.fin_count += 1;
        let silent = self.timers.fin.again(now, self.last_heard_at());
        self.note_silence(now, silent);
        let early = u32::from(self.config.conduct.data_fin_twice);
        let backoff = 1 << (self.timers.fin_count - 1).saturating_sub(early).min(6);
        self.timers.fin_at = Some(now + self.largest_rto() * backoff);
    }

    /// Data, as the scheduler says, as long as it stays on one subflow.
    fn emit_batch(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        let now = cx.now;
        if self.closing.closed.is_some() || self.session.is_offered() {
            return None;
        }
        if !self.sender.has_data() {
            self.nothing_to_send(now);
            return None;
        }
        self.refresh_views(now);
        self.batched = 0;
        let first = self.choose(now);
        let sent = first.and_then(|choice| self.emit_chosen(cx, &choice, usize::MAX, buf));
        let (id, (size, ecn)) = match (first, sent) {
            (Some(choice), Some(sent)) => (choice.subflow, sent),
            (first, _) => {
                match first {
                    None => self.nothing_to_send(now),
                    // The rest of the peer's window is not worth a segment.
                    Some(_) => self.tell_blocked(now),
                }
                // The scheduler may have answered that something is to be repeated.
                let terms = self.terms(now);
                let repeat = self.scheduling.choose_reinjection(terms, &self.sender)?;
                (repeat.subflow, self.emit_data(cx, &repeat, usize::MAX, buf)?)
            }
        };
        let stride = size + buf.headroom();
        let mut count = 1;
        let mut full = true;
        while full && count < buf.max_datagrams() {
            self.refresh_view(now, id);
            let Some(next) = self.choose(now) else { break };
            if next.subflow != id {
                self.scheduling.defer(next);
                break;
            }
            self.batched = count;
            let Some((next_size, _)) = self.emit_chosen(cx, &next, size, buf) else { break };
            full = next_size == size;
            count += 1;
        }
        self.batched = 0;
        self.rearm_after_sending(now);
        self.watch_progress(now);
        self.tell_of_sent(cx);
        if self.closing.shutdown {
            self.advance_closing(cx);
        }
        self.batch(id, count, stride, ecn)
    }

    fn emit_chosen(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<(usize, crate::Ecn)> {
        match choice.kind {
            Kind::Repair => self.emit_repair(cx, choice, limit, buf),
            Kind::New | Kind::Repeat => self.emit_data(cx, choice, limit, buf),
        }
    }

    pub(super) fn batch(
        &self,
        id: SubflowId,
        count: usize,
        stride: usize,
        ecn: crate::Ecn,
    ) -> Option<Transmit> {
        let key = self.leg(id)?.key;
        Some(Transmit {
            path: key.path,
            ecn,
            local_flow: key.local_flow,
            peer_flow: key.peer_flow,
            handshake: false,
            datagrams: count,
            stride,
        })
    }

    /// Nothing may go now: the rate sampler and the scheduler should know why.
    fn nothing_to_send(&mut self, now: Instant) {
        // Whoever has room and gets nothing is held up by others: the application, the peer's window,
        // the scheduler. What it delivers now is less than what it could.
        let dry = self.sender.unsent().is_empty() && self.sender.reinjections().is_empty();
        for (slot, leg) in self.legs.iter_mut().enumerate() {
            let Some(leg) = leg.as_deref_mut().filter(|leg| leg.up) else { continue };
            let ready = |view: &marline_policy::SubflowView| {
                usize::from(view.id.0) == slot && view.is_ready()
            };
            if dry || self.scheduling.views().iter().any(ready) {
                leg.tcp.set_app_limited(dry);
            }
        }
        if self.sender.has_data() {
            self.tell_blocked(now);
        }
        self.rearm_persist(now);
    }

    fn emit_acks(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        let now = cx.now;
        for id in self.leg_ids() {
            let owes = |leg: &super::Leg| leg.tcp.owes_ack() || leg.tcp.owes_more_than_ack();
            if !self.leg(id).is_some_and(owes) {
                continue;
            }
            let room = self.repeat_room(id);
            if let Some(egress) = self.leg_mut(id).and_then(|l| l.tcp.next_egress(now, room)) {
                return self.emit(cx, id, &egress, None, buf);
            }
        }
        None
    }
}
