//! HELLO and other messages between Marline peers (docs/spec/experimental.md).

use marline_policy::{PathCost, SubflowId};
use marline_time::Duration;
use marline_wire::mptcp::{ExperimentalMessage, Extensions, MptcpOption};

use super::addresses::Signal;
use super::path_set::PathSet;
use super::rto_exchange::RtoExchange;
use super::session::Session;
use crate::ConnectionConfig;
use crate::on_demand::OnDemand;
use crate::tables::Context;

/// Parts of a connection that send and handle messages.
pub(super) struct PeerMessages<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a mut Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) rto_exchange: &'a mut OnDemand<RtoExchange>,
}

impl PeerMessages<'_> {
    /// Sends HELLO after the connection is confirmed, if the client requests extensions.
    pub(super) fn send_first_hello(&mut self, cx: &mut Context<'_>) {
        let rto = self.paths.largest_rto(self.config);
        if let Some(asked) = self.session.first_hello(cx.now, self.config, rto) {
            self.send_hello(cx, None, asked);
        }
    }

    /// Repeats HELLO when it is due.
    pub(super) fn repeat_hello(&mut self, cx: &mut Context<'_>) {
        let rto = self.paths.largest_rto(self.config);
        if let Some(asked) = self.session.repeated_hello(cx.now, self.config, rto) {
            self.send_hello(cx, None, asked);
        }
    }

    pub(super) fn send_hello(
        &mut self,
        cx: &mut Context<'_>,
        on: Option<SubflowId>,
        said: Extensions,
    ) {
        cx.out.counters.hello_tx += 1;
        self.signal_message(on, &ExperimentalMessage::Hello(said));
    }

    /// Sends a message on an ACK, on this subflow or on the best one.
    fn signal_message(&mut self, on: Option<SubflowId>, message: &ExperimentalMessage) {
        self.signal(on, MptcpOption::Experimental(message.option()));
    }

    /// Sends an option on an ACK, on this subflow or on the best one.
    pub(super) fn signal(&mut self, on: Option<SubflowId>, option: MptcpOption) {
        self.paths.addresses_mut().signal(Signal { on, option });
    }

    /// Client: reports the cost of a subflow, twice, because an ACK may be lost.
    pub(super) fn report_cost(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get(id).filter(|subflow| subflow.is_active()) else {
            return;
        };
        if !self.session.is_client() || !self.session.agreed_on(Extensions::PATH_COST) {
            return;
        }
        let PathCost { metered, limited, fading, tail_ms } = subflow.cost();
        for _ in 0..2 {
            cx.out.counters.path_cost_tx += 1;
            let message = ExperimentalMessage::PathCost { metered, fading, limited, tail_ms };
            self.signal_message(Some(id), &message);
        }
    }

    /// Handles a client's report of a path cost.
    pub(super) fn on_path_cost(&mut self, cx: &mut Context<'_>, on: SubflowId, cost: PathCost) {
        if !self.session.is_server() || !self.session.agreed_on(Extensions::PATH_COST) {
            return;
        }
        cx.out.counters.path_cost_rx += 1;
        if let Some(subflow) = self.paths.get_mut(on) {
            subflow.set_cost(cost);
        }
    }

    /// Requests the peer's retransmission timeout on this subflow if the known value is old.
    pub(super) fn request_rto(&mut self, cx: &mut Context<'_>, on: SubflowId) {
        let Some(config) = self.config.receive_timer else { return };
        let wanted = self.session.is_client() && self.session.agreed_on(Extensions::RTO);
        if wanted && self.rto_exchange.is_due(cx.now, config.refresh) {
            self.rto_exchange.record_rto_request(cx.now);
            cx.out.counters.rto_request_tx += 1;
            self.signal_message(Some(on), &ExperimentalMessage::RtoRequest);
        }
    }

    /// Answers the peer's request for our retransmission timeout.
    pub(super) fn on_rto_request(&mut self, cx: &mut Context<'_>, on: SubflowId) {
        if !self.session.is_server() || !self.session.agreed_on(Extensions::RTO) {
            return;
        }
        cx.out.counters.rto_request_rx += 1;
        if self.rto_exchange.may_answer(cx.now) {
            let rto_us =
                u32::try_from(self.paths.largest_rto(self.config).as_micros()).unwrap_or(u32::MAX);
            cx.out.counters.rto_info_tx += 1;
            self.signal_message(Some(on), &ExperimentalMessage::RtoInfo { rto_us });
        }
    }

    /// Handles RTO_INFO: the RTO that the peer uses.
    pub(super) fn on_rto_info(&mut self, cx: &mut Context<'_>, rto_us: u32) {
        if self.rto_exchange.on_peer_rto(cx.now, Duration::from_micros(u64::from(rto_us))) {
            cx.out.counters.rto_info_rx += 1;
        } else {
            cx.out.counters.rto_info_refused += 1;
        }
    }
}
