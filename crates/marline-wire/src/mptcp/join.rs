//! MP_JOIN (RFC 8684 section 3.2): adds a subflow to an existing connection.

use crate::bytes::{Reader, Writer};
use crate::mptcp::{KIND, subtype};

const BACKUP: u8 = 0x01;

/// MP_JOIN (RFC 8684 section 3.2).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MpJoin {
    /// Length 12, in the SYN.
    Syn {
        /// Flag B: use as backup only.
        backup: bool,
        /// Address id of the sender's address.
        address_id: u8,
        /// The receiver's token.
        token: u32,
        /// The initiator's random number.
        nonce: u32,
    },
    /// Length 16, in the SYN/ACK.
    SynAck {
        /// Flag B: use as backup only.
        backup: bool,
        /// Address id of the sender's address.
        address_id: u8,
        /// Leftmost 64 bits of the listener's HMAC.
        hmac: u64,
        /// The listener's random number.
        nonce: u32,
    },
    /// Length 24, in the third ACK.
    Ack {
        /// Leftmost 160 bits of the initiator's HMAC.
        hmac: [u8; 20],
    },
}

impl MpJoin {
    /// Length on the wire in bytes: 12, 16 or 24.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        match self {
            MpJoin::Syn { .. } => 12,
            MpJoin::SynAck { .. } => 16,
            MpJoin::Ack { .. } => 24,
        }
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let mut r = Reader::new(option);
        let [_, len, first, address_id] = r.array()?;
        let backup = first & BACKUP != 0;
        Some(match len {
            12 => MpJoin::Syn { backup, address_id, token: r.u32()?, nonce: r.u32()? },
            16 => MpJoin::SynAck { backup, address_id, hmac: r.u64()?, nonce: r.u32()? },
            24 => MpJoin::Ack { hmac: r.array()? },
            _ => return None,
        })
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        let len = self.encoded_len() as u8;
        let first = |backup: bool| subtype::JOIN << 4 | if backup { BACKUP } else { 0 };
        match *self {
            MpJoin::Syn { backup, address_id, token, nonce } => {
                w.array([KIND, len, first(backup), address_id]);
                w.u32(token);
                w.u32(nonce);
            }
            MpJoin::SynAck { backup, address_id, hmac, nonce } => {
                w.array([KIND, len, first(backup), address_id]);
                w.u64(hmac);
                w.u32(nonce);
            }
            MpJoin::Ack { hmac } => {
                w.array([KIND, len, first(false), 0]);
                w.array(hmac);
            }
        }
    }
}
