//! Fast Open in the first handshake (RFC 7413, RFC 8684 appendix B). `connection/fast_open.rs` describes the
//! exchange.

use marline_policy::{DataRange, Dsn, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::{TcpOptions, TcpSegment, Timestamps, dss_checksum};

use super::fast_open::FastOpening;
use super::handshake::mp_capable;
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::sender::Sender;
use super::session::Session;
use crate::ConnectionConfig;
use crate::on_demand::OnDemand;
use crate::subflow::DEFAULT_MSS;
use crate::tables::Context;
use crate::tables::fast_open_memory::{Answer, Plan, syn_room};

/// Parts of a connection that handle data of the first SYN.
pub(super) struct FastOpenHandshake<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a mut Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) sender: &'a mut Sender,
    pub(super) receiver: &'a mut Receiver,
    pub(super) fast_open: &'a mut OnDemand<FastOpening>,
}

/// Acknowledgment of data that was sent with the first SYN.
#[derive(Copy, Clone, Debug)]
pub(super) struct SynDataAck {
    /// End of the accepted data.
    pub(super) to: Dsn,
    /// Window of the peer in bytes.
    pub(super) window: u64,
}

impl FastOpenHandshake<'_> {
    /// Client: selects the Fast Open part of the first SYN. `options` are the other options of the SYN, excluding those
    /// of TCP itself.
    pub(super) fn plan_fast_open(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        options: &TcpOptions,
    ) {
        let Some(fast) = &self.config.fast_open else { return };
        if self.fast_open.is_planned() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let path = subflow.path();
        let plan = match subflow.tcp().syns_sent() {
            0 | 1 if fast.is_on(path.remote.port()) => {
                cx.fast_opens.plan(cx.now, path.addresses(), fast)
            }
            _ => Plan::Ordinary,
        };
        let (option, mss) = match plan {
            Plan::Ordinary => return self.fast_open.plan_syn(None, 0),
            Plan::Ask(option) => (Some(option), 0),
            Plan::Send(option, mss) => (option, mss),
        };
        let all = TcpOptions {
            mss: Some(0),
            window_scale: Some(0),
            sack_permitted: true,
            timestamps: subflow.tcp().uses_timestamps().then(Timestamps::default),
            ..options.clone()
        };
        if option.is_some_and(|option| !option.fits_with(&all)) {
            return self.fast_open.plan_syn(None, 0);
        }
        let room = if mss > 0 { syn_room(subflow.tcp().settled_segment(), mss) as u64 } else { 0 };
        let range = DataRange::new(Dsn(0), self.sender.written_end()).prefix(room);
        self.fast_open.plan_syn(option, range.len());
        if range.is_empty() {
            return;
        }
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().set_unmapped_syn_data(range);
        }
        self.sender.record_sent(id, Ssn(1), range, false);
    }

    /// Client: handles the answer to a first SYN with Fast Open.
    pub(super) fn on_fast_open_answer(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        if !self.session.is_client() || !self.fast_open.was_tried() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let path = subflow.path();
        let repeated = subflow.tcp().syns_sent() > 1;
        // A repeated SYN may not have offered Multipath TCP.
        let speaks = mp_capable(segment).is_some();
        let multipath = (speaks || self.session.is_offered() && !repeated).then_some(speaks);
        let answer = Answer {
            mss: segment.options.mss.unwrap_or(DEFAULT_MSS),
            cookie: segment.fast_open(),
            asked: self.fast_open.option(),
            repeated,
            multipath,
            syn_data_acked: subflow.tcp().syn_data_answer().map(|(taken, _)| taken > 0),
        };
        cx.fast_opens.on_answer(cx.now, path.addresses(), &answer);
    }

    /// Client: handles the SYN's data once the first subflow is established: either it was accepted, or it is sent
    /// again first. Returns the acknowledgment of its data in Multipath TCP.
    pub(super) fn settle_fast_open(&mut self, now: Instant, id: SubflowId) -> Option<SynDataAck> {
        let answered = self.paths.get(id).and_then(|subflow| subflow.tcp().syn_data_answer());
        let (taken, rest) = answered?;
        let mut checksum = 0;
        if self.session.uses_checksum() && !rest.is_empty() {
            let mut bytes = vec![0; rest.len() as usize];
            let sum = self.sender.copy(rest.start, &mut bytes)?;
            let wire = self.session.keys().local_wire(rest.start);
            checksum = dss_checksum(wire, 1, rest.len() as u16, sum);
        }
        let subflow = self.paths.get_mut(id)?;
        subflow.tcp_mut().settle_syn_payload(now, Some(checksum));
        let window = subflow.tcp().peer_window();
        // This data gets no DATA_ACK.
        self.session.is_multipath().then_some(SynDataAck { to: Dsn(taken), window })
    }

    /// Server: takes data of the SYN that opened the connection. The client repeats data beyond the window.
    pub(super) fn take_first_data(&mut self, id: SubflowId, payload: &[u8]) {
        let len = payload.len() as u64;
        if payload.is_empty() || len > self.receiver.window() {
            return;
        }
        self.receiver.take_unmapped(id, payload);
        self.session.skip_remote(len);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().take_syn_payload(len);
            subflow.tcp_mut().record_syn_data_taken();
        }
    }
}
