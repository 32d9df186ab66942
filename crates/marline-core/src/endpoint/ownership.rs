//! Ownership of segments where several endpoints share addresses and flows have no ids: what an endpoint has, and what
//! a segment asks for by itself.

use marline_policy::Token;
use marline_time::Instant;
use marline_wire::mptcp::MpJoin;
use marline_wire::{TcpFlags, TcpSegment};

use super::Endpoint;
use crate::connection::{fast_join_token, mp_join};
use crate::tables::time_wait::TIME_WAIT_BIT;
use crate::{FourTuple, PacketMeta};

/// What a segment asks for by itself, whatever is known of its ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Asks {
    /// To join the connection that has this token.
    ToJoin(u32),
    /// To open a connection.
    ToOpen,
    /// Nothing: it concerns what is there already, or it is none.
    Nothing,
}

impl Asks {
    /// What these bytes ask for.
    #[must_use]
    pub fn of(segment: &[u8]) -> Asks {
        TcpSegment::parse(segment).map_or(Asks::Nothing, |segment| Asks::of_parsed(&segment))
    }

    fn of_parsed(segment: &TcpSegment<'_>) -> Asks {
        let flags = segment.header.flags;
        if !flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::ACK) {
            return Asks::Nothing;
        }
        let joins = match mp_join(segment) {
            Some(MpJoin::Syn { token, .. }) => Some(token),
            _ => fast_join_token(segment),
        };
        joins.map_or(Asks::ToOpen, Asks::ToJoin)
    }
}

impl Endpoint {
    /// Whether a connection has this token, so that joins to it belong here.
    #[must_use]
    pub fn knows_token(&self, token: u32) -> bool {
        self.flows.token(Token(token)).is_some()
    }

    /// Whether a segment concerns something that is here: a subflow or what is left of one, a connection that it would
    /// join, or a handshake that a cookie has answered. Endpoints that share their addresses tell by it whose it
    /// is, where flows have no ids.
    #[must_use]
    pub fn claims(&self, now: Instant, meta: &PacketMeta, segment: &[u8]) -> bool {
        let flow = self.flows.find(&meta.path, meta.flow, meta.peer_flow);
        if flow.is_some_and(|flow| flow.slot & TIME_WAIT_BIT == 0) {
            return true;
        }
        let Ok(segment) = TcpSegment::parse(segment) else { return false };
        let asks = Asks::of_parsed(&segment);
        if let Some(ended) = flow.and_then(|flow| self.flows.ended(flow.slot))
            && (asks == Asks::Nothing || !ended.gives_way_to(&segment))
        {
            return true;
        }
        match asks {
            Asks::Nothing => self.shows_cookie(now, meta, &segment),
            Asks::ToJoin(token) => self.knows_token(token),
            Asks::ToOpen => false,
        }
    }

    /// Forgets what is left of a subflow between these ends: another endpoint has them from now on, by a SYN that this
    /// one does not [claim](Self::claims). Otherwise it would go on to claim what is the other's.
    pub fn make_way(&mut self, path: &FourTuple) {
        let flow = self.flows.find(path, 0, 0);
        if let Some(flow) = flow.filter(|flow| flow.slot & TIME_WAIT_BIT != 0) {
            self.flows.forget_ended(flow.slot, &mut self.out);
        }
    }
}
