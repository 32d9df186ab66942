//! Reports from a carrier that identifies flows by ids: authenticated resets, address changes, SYNs to repeat, and
//! changes between datagrams and a reliable stream.

use marline_policy::SubflowId;
use marline_time::Instant;

use super::Endpoint;
use crate::connection::Connection;
use crate::tables::Context;
use crate::tables::demux::FlowRef;
use crate::{FourTuple, NetworkError};

impl Endpoint {
    /// Handles a verified proof that the peer has lost the state of this flow. The subflow is reset, as if by a RST
    /// in sequence.
    pub fn flow_reset(&mut self, now: Instant, local_flow: u64) {
        self.with_flow(now, local_flow, |c, cx, id| c.on_proven_reset(cx, id));
    }

    /// Handles a peer's move to another address, at which it has proven to receive. `new_host` is true if the IP
    /// address changed, not only the port. A new IP address may mean another network, so the path's measurements are
    /// discarded (RFC 9000 section 9.4). Unacknowledged data was sent to the old address and is retransmitted
    /// immediately.
    pub fn path_moved(&mut self, now: Instant, local_flow: u64, new_host: bool) {
        self.with_flow(now, local_flow, |c, _, id| c.on_path_moved(now, id, new_host));
    }

    /// Sets whether a reliable stream (`reliable`) or datagrams carry this flow from now on. On a stream nothing is
    /// lost, so timers need not retransmit, and the stream's congestion control governs the path. A change discards
    /// the path's measurements.
    pub fn set_flow_reliable(&mut self, now: Instant, local_flow: u64, reliable: bool) {
        self.with_flow(now, local_flow, |c, _, id| c.on_reliable(now, id, reliable));
    }

    /// Sets whether the stream that carries this flow is blocked (`full`). Acknowledgments and handshakes are sent
    /// regardless; data waits or uses another path. Ignored if datagrams carry the flow.
    pub fn set_flow_full(&mut self, now: Instant, local_flow: u64, full: bool) {
        self.with_flow(now, local_flow, |c, _, id| c.on_carrier_full(id, full));
    }

    /// Repeats our SYN immediately, because the server has given the carrier a cookie for it.
    pub fn repeat_syn(&mut self, now: Instant, local_flow: u64) {
        self.with_flow(now, local_flow, |c, _, id| c.repeat_syn(id));
    }

    /// Reports an error message that quotes the flow's id. The id is known only to hosts that see the flow.
    pub fn flow_error(&mut self, now: Instant, local_flow: u64, error: NetworkError) {
        self.with_flow(now, local_flow, |c, cx, id| c.on_error(cx, id, error));
    }

    /// Reports that the system refused a segment of this subflow: no route, no interface, or segment too large. Other
    /// subflows on this path detect it by their own segments, so that an interface with a thousand subflows does not
    /// cause quadratic work when it goes down.
    pub fn send_failed(
        &mut self,
        now: Instant,
        path: &FourTuple,
        local_flow: u64,
        error: NetworkError,
    ) {
        if local_flow != 0 {
            self.flow_error(now, local_flow, error);
            return;
        }
        let Some(flow) = self.flows.find(path, 0, 0) else { return };
        self.with_subflow(now, flow, |c, cx, id| c.on_error(cx, id, error));
    }

    fn with_flow(
        &mut self,
        now: Instant,
        local_flow: u64,
        report: impl FnOnce(&mut Connection, &mut Context<'_>, SubflowId),
    ) {
        let Some(flow) = self.flows.find_flow(local_flow) else { return };
        self.with_subflow(now, flow, report);
    }

    fn with_subflow(
        &mut self,
        now: Instant,
        flow: FlowRef,
        report: impl FnOnce(&mut Connection, &mut Context<'_>, SubflowId),
    ) {
        let (slots, mut cx) = self.split_context(now);
        let Some(connection) = slots.get_mut(flow.slot) else { return };
        report(connection, &mut cx, flow.subflow);
        self.update_after_call(now, flow.slot);
    }
}
