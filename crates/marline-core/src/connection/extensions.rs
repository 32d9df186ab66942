//! Experimental messages of the peer, and ours.

use marline_policy::SubflowId;
use marline_wire::mptcp::{ExperimentalMessage, Extensions, MpExperimental, MptcpOption};

use super::Connection;
use super::addresses::Signal;
use crate::MonitorKind;
use crate::tables::Context;

impl Connection {
    /// The connection is confirmed: a client that wants something says so.
    pub(super) fn greet(&mut self, cx: &mut Context<'_>) {
        let rto = self.largest_rto();
        if let Some(asked) = self.session.first_hello(cx.now, &self.config, rto) {
            self.say_hello(cx, None, asked);
        }
    }

    /// Asks again if it is time to.
    pub(super) fn repeat_hello(&mut self, cx: &mut Context<'_>) {
        let rto = self.largest_rto();
        if let Some(asked) = self.session.repeated_hello(cx.now, &self.config, rto) {
            self.say_hello(cx, None, asked);
        }
    }

    fn say_hello(&mut self, cx: &mut Context<'_>, on: Option<SubflowId>, said: Extensions) {
        cx.out.counters.hello_tx += 1;
        self.signal_message(on, &ExperimentalMessage::Hello(said));
    }

    /// Puts a message on an ACK, on this subflow or on the best one.
    pub(super) fn signal_message(&mut self, on: Option<SubflowId>, message: &ExperimentalMessage) {
        let option = MptcpOption::Experimental(message.option());
        self.addresses.signal(Signal { on, option });
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

    fn on_hello(&mut self, cx: &mut Context<'_>, on: SubflowId, features: Extensions) {
        cx.out.counters.hello_rx += 1;
        let outcome = self.session.on_hello(&self.config, features);
        if let Some(agreed) = outcome.settled {
            self.on_agreement(cx, agreed);
            if self.session.is_client() {
                self.ask_for_rto(cx, on);
            }
        }
        if let Some(answer) = outcome.answer {
            self.say_hello(cx, Some(on), answer);
        }
    }

    /// What is agreed on holds from now on.
    fn on_agreement(&mut self, cx: &mut Context<'_>, agreed: Extensions) {
        if agreed.contains(Extensions::REPAIR) {
            self.start_coding();
        } else {
            self.stop_coding();
        }
        if agreed.is_empty() {
            return;
        }
        cx.out.monitor(cx.now, self.id, MonitorKind::Agreed(agreed));
        if let Some(follow) = self.config.follow_client.clone()
            && self.session.is_server()
            && agreed.contains(Extensions::FOLLOW_CLIENT)
        {
            self.set_scheduler(cx.now, &*follow);
        }
    }
}
