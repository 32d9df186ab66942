//! Ownership of segments where several endpoints share addresses and flows have no ids: whether a segment belongs to
//! an endpoint, and which new flow it requests.

use marline_policy::Token;
use marline_time::Instant;
use marline_wire::mptcp::MpJoin;
use marline_wire::{TcpFlags, TcpSegment};

use super::Endpoint;
use crate::connection::{fast_join_token, mp_join};
use crate::tables::time_wait::TIME_WAIT_BIT;
use crate::{FourTuple, PacketMeta};

/// New flow that a segment requests, regardless of existing flows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SegmentRequest {
    /// A join to the connection with this token.
    ToJoin(u32),
    /// A new connection.
    ToOpen,
    /// None: the segment concerns an existing flow, or is invalid.
    Nothing,
}

impl SegmentRequest {
    /// Classifies the bytes of a segment.
    #[must_use]
    pub fn of(segment: &[u8]) -> SegmentRequest {
        TcpSegment::parse(segment)
            .map_or(SegmentRequest::Nothing, |segment| SegmentRequest::from_segment(&segment))
    }

    fn from_segment(segment: &TcpSegment<'_>) -> SegmentRequest {
        let flags = segment.header.flags;
        if !flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::ACK) {
            return SegmentRequest::Nothing;
        }
        let joins = match mp_join(segment) {
            Some(MpJoin::Syn { token, .. }) => Some(token),
            _ => fast_join_token(segment),
        };
        joins.map_or(SegmentRequest::ToOpen, SegmentRequest::ToJoin)
    }
}

impl Endpoint {
    /// Returns true if a connection has this token, so that joins to it belong here.
    #[must_use]
    pub fn knows_token(&self, token: u32) -> bool {
        self.flows.token(Token(token)).is_some()
    }

    /// Returns true if a segment belongs to this endpoint: to a subflow (including TIME-WAIT), to a connection that
    /// it would join, or to a handshake that was answered with a cookie. Endpoints that share addresses use this to
    /// find a segment's owner where flows have no ids.
    #[must_use]
    pub fn owns_segment(&self, now: Instant, meta: &PacketMeta, segment: &[u8]) -> bool {
        let flow = self.flows.find(&meta.path, meta.flow, meta.peer_flow);
        if flow.is_some_and(|flow| flow.slot & TIME_WAIT_BIT == 0) {
            return true;
        }
        let Ok(segment) = TcpSegment::parse(segment) else { return false };
        let asks = SegmentRequest::from_segment(&segment);
        if let Some(ended) = flow.and_then(|flow| self.flows.ended_subflow(flow.slot))
            && (asks == SegmentRequest::Nothing || !ended.may_be_replaced_by(&segment))
        {
            return true;
        }
        match asks {
            SegmentRequest::Nothing => self.belongs_to_cookie(now, meta, &segment),
            SegmentRequest::ToJoin(token) => self.knows_token(token),
            SegmentRequest::ToOpen => false,
        }
    }

    /// Drops the TIME-WAIT state of a subflow between these addresses and ports. Another endpoint now owns them,
    /// because of a SYN that this endpoint did not [claim](Self::owns_segment). Otherwise this endpoint would continue
    /// to claim the other's segments.
    pub fn release_address_pair(&mut self, path: &FourTuple) {
        let flow = self.flows.find(path, 0, 0);
        if let Some(flow) = flow.filter(|flow| flow.slot & TIME_WAIT_BIT != 0) {
            self.flows.forget_ended(flow.slot, &mut self.out);
        }
    }
}
