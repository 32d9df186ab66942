//! Has this address proven that it receives? Challenges, responses and moves (spec section 4).

use core::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use marline_time::Instant;
use sha2::Sha256;

use super::frame::{ControlFrame, Nonce};
use super::{CHALLENGE_INTERVAL, Datagram, Outer, Received, UdpCarrier};

impl UdpCarrier {
    /// A datagram with a known id: does it come from where the flow is?
    pub(super) fn check_address(&mut self, now: Instant, id: u64, datagram: &Datagram<'_>) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.outer == datagram.outer {
            if !flow.validated {
                flow.validated = true;
                self.unproven = self.unproven.saturating_sub(1);
            }
            return;
        }
        if let Some((outer, at)) = flow.challenged
            && outer == datagram.outer
            && now < at + CHALLENGE_INTERVAL
        {
            return;
        }
        flow.challenged = Some((datagram.outer, now));
        let (peer_flow, moves) = (flow.peer_flow, flow.moves);
        if peer_flow == 0 {
            return;
        }
        let nonce = self.nonce(id, moves, &datagram.outer);
        self.counters.challenges += 1;
        self.push_control(datagram.outer, ControlFrame::challenge(peer_flow, &nonce));
    }

    fn nonce(&self, flow: u64, moves: u32, outer: &Outer) -> Nonce {
        // A key of 32 bytes is below the block size: new_from_slice takes any length anyway.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.config.secret) else {
            return [0; 16];
        };
        mac.update(&flow.to_be_bytes());
        mac.update(&moves.to_be_bytes());
        mac.update(&outer.socket.to_be_bytes());
        mac.update(&ip_bytes(outer.local));
        mac.update(&ip_bytes(outer.remote.ip()));
        mac.update(&outer.remote.port().to_be_bytes());
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&mac.finalize().into_bytes()[..16]);
        nonce
    }

    pub(super) fn on_challenge<'a>(
        &mut self,
        datagram: &Datagram<'a>,
        id: u64,
        nonce: &Nonce,
    ) -> Received<'a> {
        let Some(flow) = self.flows.get(&id) else {
            return self.foreign(datagram, id).unwrap_or(Received::Nothing);
        };
        if flow.peer_flow != 0 {
            self.push_control(datagram.outer, ControlFrame::response(flow.peer_flow, nonce));
        }
        Received::Nothing
    }

    pub(super) fn on_response<'a>(
        &mut self,
        now: Instant,
        datagram: &Datagram<'a>,
        id: u64,
        nonce: &Nonce,
    ) -> Received<'a> {
        let Some(flow) = self.flows.get(&id) else {
            return self.foreign(datagram, id).unwrap_or(Received::Nothing);
        };
        if flow.outer == datagram.outer && flow.validated {
            // The answer to a challenge that was repeated before the first answer came.
            return Received::Nothing;
        }
        if *nonce != self.nonce(id, flow.moves, &datagram.outer) {
            self.counters.bad_responses += 1;
            return Received::Nothing;
        }
        let Some(flow) = self.flows.get_mut(&id) else { return Received::Nothing };
        tracing::debug!(from = %flow.outer.remote, to = %datagram.outer.remote, "the peer moved");
        flow.outer = datagram.outer;
        flow.moves += 1;
        flow.challenged = None;
        flow.sent_at = now;
        if !flow.validated {
            flow.validated = true;
            self.unproven = self.unproven.saturating_sub(1);
        }
        self.counters.moves += 1;
        Received::Nothing
    }
}

fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
