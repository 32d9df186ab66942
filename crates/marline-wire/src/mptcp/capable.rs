//! MP_CAPABLE (RFC 8684 section 3.1): opens a Multipath TCP connection and exchanges the keys.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::mptcp::{KIND, subtype};

const CHECKSUM_REQUIRED: u8 = 0x80;
const EXTENSIBILITY: u8 = 0x40;
const DENY_JOIN_ID0: u8 = 0x20;
const HMAC_SHA256: u8 = 0x01;

/// MP_CAPABLE (RFC 8684 section 3.1). The segment that carries it determines its form.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpCapable {
    /// Protocol version; 1 here. Four bits on the wire.
    pub version: u8,
    /// Flag A: the sender requires DSS checksums.
    pub checksum_required: bool,
    /// Flag B: extensibility. Must be zero; a receiver that sees it set falls back.
    pub extensibility: bool,
    /// Flag C: no joins to this source address and port.
    pub deny_join_id0: bool,
    /// Flag H: HMAC-SHA256.
    pub hmac_sha256: bool,
    /// Keys and data length, by the option's length.
    pub form: MpCapableForm,
}

/// The part of MP_CAPABLE that depends on the option's length. `Debug` hides the keys.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum MpCapableForm {
    /// Length 4, in the SYN: no key.
    Syn,
    /// Length 12, in the SYN/ACK: the listener's key.
    SynAck {
        /// Key-B.
        listener_key: u64,
    },
    /// Length 20 (bare ACK), 22 (with data) or 24 (with data and checksum).
    Ack {
        /// Key-A.
        initiator_key: u64,
        /// Key-B.
        listener_key: u64,
        /// Data-level length and checksum, if the segment carries the first data.
        data: Option<CapableData>,
    },
}

impl fmt::Debug for MpCapableForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MpCapableForm::Syn => f.write_str("Syn"),
            MpCapableForm::SynAck { .. } => f.debug_struct("SynAck").finish_non_exhaustive(),
            MpCapableForm::Ack { data, .. } => {
                f.debug_struct("Ack").field("data", data).finish_non_exhaustive()
            }
        }
    }
}

/// Data-level length of MP_CAPABLE with data: an implicit mapping of DSN IDSN+1 to subflow sequence number 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CapableData {
    /// Data-level length in bytes.
    pub length: u16,
    /// DSS checksum, if negotiated.
    pub checksum: Option<u16>,
}

impl MpCapable {
    /// Length on the wire in bytes: 4, 12, 20, 22 or 24.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        match self.form {
            MpCapableForm::Syn => 4,
            MpCapableForm::SynAck { .. } => 12,
            MpCapableForm::Ack { data: None, .. } => 20,
            MpCapableForm::Ack { data: Some(CapableData { checksum: None, .. }), .. } => 22,
            MpCapableForm::Ack { data: Some(CapableData { checksum: Some(_), .. }), .. } => 24,
        }
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let mut r = Reader::new(option);
        let [_, len, first, flags] = r.array()?;
        let form = match len {
            4 => MpCapableForm::Syn,
            12 => MpCapableForm::SynAck { listener_key: r.u64()? },
            20 | 22 | 24 => MpCapableForm::Ack {
                initiator_key: r.u64()?,
                listener_key: r.u64()?,
                data: match len {
                    20 => None,
                    22 => Some(CapableData { length: r.u16()?, checksum: None }),
                    _ => Some(CapableData { length: r.u16()?, checksum: Some(r.u16()?) }),
                },
            },
            _ => return None,
        };
        Some(MpCapable {
            version: first & 0x0f,
            checksum_required: flags & CHECKSUM_REQUIRED != 0,
            extensibility: flags & EXTENSIBILITY != 0,
            deny_join_id0: flags & DENY_JOIN_ID0 != 0,
            hmac_sha256: flags & HMAC_SHA256 != 0,
            form,
        })
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        let mut flags = 0;
        for (set, bit) in [
            (self.checksum_required, CHECKSUM_REQUIRED),
            (self.extensibility, EXTENSIBILITY),
            (self.deny_join_id0, DENY_JOIN_ID0),
            (self.hmac_sha256, HMAC_SHA256),
        ] {
            flags |= if set { bit } else { 0 };
        }
        let first = subtype::CAPABLE << 4 | self.version & 0x0f;
        w.array([KIND, self.encoded_len() as u8, first, flags]);
        match self.form {
            MpCapableForm::Syn => {}
            MpCapableForm::SynAck { listener_key } => w.u64(listener_key),
            MpCapableForm::Ack { initiator_key, listener_key, data } => {
                w.u64(initiator_key);
                w.u64(listener_key);
                if let Some(data) = data {
                    w.u16(data.length);
                    if let Some(checksum) = data.checksum {
                        w.u16(checksum);
                    }
                }
            }
        }
    }
}
