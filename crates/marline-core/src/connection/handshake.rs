//! Handshake options of a subflow: MP_CAPABLE, MP_JOIN and the Fast JOIN message, as they appear in
//! segments (RFC 8684 sections 3.1 and 3.2).
//!
//! ```text
//! client                                   server
//!   SYN       MP_CAPABLE(v1)        ->
//!                                   <-     SYN/ACK  MP_CAPABLE(key B)
//!   ACK       MP_CAPABLE(key A, key B) ->          (may be lost)
//!   data      MP_CAPABLE(key A, key B, length) ->  (until the peer sends a DSS)
//!
//! active opener                             passive opener
//!   SYN      MP_JOIN(token, nonce A)    ->
//!                                       <-  SYN/ACK  MP_JOIN(HMAC-B, nonce B)
//!   ACK      MP_JOIN(HMAC-A)            ->           repeated until the fourth ACK
//!                                       <-  ACK      data may go both ways
//! ```
//! Without MP_CAPABLE the connection continues as plain TCP. A wrong HMAC ends the subflow with a RST, but never the
//! connection.

use marline_wire::TcpSegment;
use marline_wire::mptcp::{ExperimentalMessage, MpCapable, MpCapableForm, MpJoin, MptcpOption};

/// RFC 8684 section 3.6: reason codes of MP_TCPRST that Marline sends.
pub(crate) mod reason {
    pub(crate) const UNSPECIFIED: u8 = 0;
    pub(crate) const MPTCP_ERROR: u8 = 1;
    pub(crate) const PROHIBITED: u8 = 3;
    pub(crate) const TOO_MUCH_OUTSTANDING: u8 = 4;
    pub(crate) const BAD_PERFORMANCE: u8 = 5;
    pub(crate) const MIDDLEBOX: u8 = 6;
}

/// The MP_CAPABLE option of a segment, if it has one.
pub(crate) fn mp_capable(segment: &TcpSegment<'_>) -> Option<MpCapable> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Capable(capable) => Some(capable),
        _ => None,
    })
}

/// True if the option has our version, no unknown extension, and the only defined hash.
const fn is_usable(capable: &MpCapable) -> bool {
    capable.version == 1 && !capable.extensibility && capable.hmac_sha256
}

/// True for a SYN that offers our version or a higher one. A higher version is answered with ours, which the peer can
/// accept or reject.
pub(crate) fn offers_multipath(capable: &MpCapable) -> bool {
    let ours = MpCapable { version: capable.version.min(1), ..*capable };
    capable.form == MpCapableForm::Syn && is_usable(&ours)
}

/// Usable option of a SYN/ACK, with the server's key.
pub(super) fn capable_syn_ack(segment: &TcpSegment<'_>) -> Option<(MpCapable, u64)> {
    let capable = mp_capable(segment).filter(is_usable)?;
    match capable.form {
        MpCapableForm::SynAck { listener_key } => Some((capable, listener_key)),
        _ => None,
    }
}

/// Both keys, the client's first, from a third ACK, or from the first data if it arrives instead.
pub(super) fn capable_keys(segment: &TcpSegment<'_>) -> Option<(u64, u64)> {
    let capable = mp_capable(segment).filter(is_usable)?;
    match capable.form {
        MpCapableForm::Ack { initiator_key, listener_key, .. } => {
            Some((initiator_key, listener_key))
        }
        _ => None,
    }
}

/// The MP_JOIN option of a segment, if it has one.
pub(crate) fn mp_join(segment: &TcpSegment<'_>) -> Option<MpJoin> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Join(join) => Some(join),
        _ => None,
    })
}

/// Token of a SYN with a Fast JOIN message and without MP_CAPABLE.
pub(crate) fn fast_join_token(segment: &TcpSegment<'_>) -> Option<u32> {
    if segment.options.mptcp.capable().is_some() {
        return None;
    }
    segment.options.mptcp.experimental().find_map(|message| match message {
        ExperimentalMessage::FastJoinSyn { token, .. } => Some(token),
        _ => None,
    })
}
