//! Properties of a received segment that do not depend on the connection.

use marline_wire::mptcp::{MpTcpRst, MptcpOption};
use marline_wire::{TcpFlags, TcpSegment};

use super::handshake::reason;
use crate::crypto::Key;

/// True for a RST with MP_FASTCLOSE and our key, which only the peer knows.
pub(super) fn is_proven_abort(segment: &TcpSegment<'_>, key: Key) -> bool {
    let knows = |option| matches!(option, MptcpOption::Fastclose(f) if f.receiver_key == key.0);
    segment.header.flags.contains(TcpFlags::RST) && segment.options.mptcp.iter().any(knows)
}

/// True if the segment has payload or a FIN.
pub(super) fn carries(segment: &TcpSegment<'_>) -> bool {
    !segment.payload.is_empty() || segment.header.flags.contains(TcpFlags::FIN)
}

/// True if the reason is an unknown token. Only the peer gives this reason; a middlebox that resets connections does
/// not.
pub(super) const fn reports_unknown_token(word: MpTcpRst) -> bool {
    word.reason == reason::MPTCP_ERROR && !word.transient
}

/// The segment without its payload, mapping and FINs, as if they were beyond the window.
pub(super) fn without_payload<'a>(segment: &TcpSegment<'a>) -> TcpSegment<'a> {
    let mut segment = TcpSegment { payload: &[], ..segment.clone() };
    segment.header.flags = segment.header.flags.without(TcpFlags::FIN);
    if let Some(dss) = &mut segment.options.dss {
        dss.mapping = None;
        dss.data_fin = false;
    }
    segment
}
