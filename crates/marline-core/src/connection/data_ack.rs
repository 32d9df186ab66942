//! DATA_ACK: what the peer has, and its receive window (RFC 8684 sections 3.3.2 and 3.3.5).

use marline_policy::{Dsn, SubflowId};
use marline_time::Rate;
use marline_wire::mptcp::DataAck;

use super::{Connection, Mode};
use crate::tables::Context;
use crate::{BufferTuning, Event};

impl Connection {
    pub(super) fn on_data_ack(&mut self, cx: &mut Context<'_>, ack: DataAck, window: u64) {
        match self.session.unwrap_ack(ack, self.acked()) {
            // An ACK of what was never sent is ignored, as in TCP.
            Some(acked) if acked <= self.sent_end() => self.advance_una(cx, acked, window),
            _ => cx.out.counters.dss_not_matching += 1,
        }
    }

    /// Plain TCP: the subflow's ACK is the connection's.
    pub(super) fn on_plain_ack(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Mode::Plain { tx: (ssn, dsn), .. } = self.session.mode() else { return };
        let Some(leg) = self.leg(id) else { return };
        let acked = dsn.plus(leg.tcp.snd_una().since(ssn)).min(self.sender.sent());
        let window = leg.tcp.peer_window();
        self.advance_una(cx, acked, window);
        // RFC 9293 section 3.8.6 (SHLD-15): a window that shrinks lets nothing new out. That of Multipath TCP does not
        // shrink: ACKs of other subflows overtake each other (RFC 8684 section 3.3.5).
        let end = self.acked().min(self.sender.written()).plus(window);
        self.sender.set_window(end);
    }

    pub(super) fn advance_una(&mut self, cx: &mut Context<'_>, acked: Dsn, window: u64) {
        let now = cx.now;
        self.sender.raise_window(acked.plus(window));
        if acked <= self.acked() {
            return;
        }
        self.closing.fin_acked |= self.closing.fin_sent && acked > self.sender.written();
        let data = acked.min(self.sender.written());
        self.sender.ack(data);
        self.futile_resets = 0;
        self.wait.on_progress();
        // Who takes data has not been silent about its end.
        self.timers.fin_count = self.timers.fin_count.min(1);
        if data == self.sender.written() {
            self.hasten_fin(now);
        }
        self.rearm_data_rto(now);
        self.watch_data_ack(now);
        self.sender.tune(self.wanted_buffer());
        self.watch_progress(now);
        if self.sender.take_writable() && !self.closing.released {
            cx.out.event(Event::Writable(self.id));
        }
    }

    /// What all subflows together want to have under way, bytes.
    fn wanted_buffer(&self) -> u64 {
        let legs = || self.legs.iter().flatten();
        if self.config.buffer_tuning != BufferTuning::Rates {
            return legs().map(|leg| leg.tcp.cwnd()).sum();
        }
        let usable = || legs().filter(|leg| leg.is_usable());
        let longest = usable().filter_map(|leg| leg.tcp.srtt()).max().unwrap_or_default();
        let in_longest = |leg: &super::Leg| {
            let srtt = leg.tcp.srtt().filter(|srtt| !srtt.is_zero()).unwrap_or(longest);
            Rate::over(leg.tcp.cwnd(), srtt).bytes_in(longest).max(leg.tcp.cwnd())
        };
        usable().map(|leg| in_longest(leg)).sum()
    }

    /// First DSN that is not DATA_ACKed, our DATA_FIN counted.
    pub(super) fn acked(&self) -> Dsn {
        let una = self.sender.una();
        if self.closing.fin_acked { una.plus(1) } else { una }
    }

    /// One past the highest DSN sent, our DATA_FIN counted.
    pub(super) fn sent_end(&self) -> Dsn {
        if self.closing.fin_sent { self.sender.written().plus(1) } else { self.sender.sent() }
    }
}
