//! Messages between Marline peers in MP_EXPERIMENTAL (subtype 0xf of RFC 8684, private use).
//!
//! The low four bits of the subtype's byte select the message. docs/spec/experimental.md describes the layouts, the
//! negotiation and the costs. Another implementation may use the subtype differently. So an unknown message or a
//! wrong length is not an error: parsing returns `None`, and the option is kept as bytes.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::mptcp::{MpExperimental, MpRepair};

/// "ML": distinguishes a HELLO of this protocol from other uses of the private subtype.
const IDENTIFICATION: u16 = 0x4d4c;
/// Version of all messages except HELLO.
const VERSION: u8 = 1;
/// Flag B of a Fast JOIN's SYN/ACK.
const BACKUP: u8 = 0x01;
/// Flags of PATH_COST.
const METERED: u8 = 1;
const FADING: u8 = 2;
const LIMITED: u8 = 4;

mod nibble {
    pub(super) const HELLO: u8 = 0;
    pub(super) const IDLE: u8 = 1;
    pub(super) const RTO_REQUEST: u8 = 2;
    pub(super) const RTO_INFO: u8 = 3;
    pub(super) const SYN_IN: u8 = 4;
    pub(super) const SYN_OUT: u8 = 6;
    pub(super) const SYN_ACK_IN: u8 = 8;
    pub(super) const SYN_ACK_OUT: u8 = 9;
    pub(super) const REPAIR: u8 = 10;
    pub(super) const PATH_COST: u8 = 11;
}

/// Extensions that two Marline peers may negotiate: the feature bits of HELLO.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extensions(pub u16);

impl Extensions {
    /// No extensions.
    pub const NONE: Extensions = Extensions(0);
    /// Joins whose SYN carries data or a DATA_ACK.
    pub const FAST_JOIN: Extensions = Extensions(0x0001);
    /// The sender marks a segment after which it currently has no more data.
    pub const IDLE: Extensions = Extensions(0x0002);
    /// The receiver may request the sender's retransmission timeout.
    pub const RTO: Extensions = Extensions(0x0004);
    /// The server sends on the path from which the client last sent.
    pub const FOLLOW_CLIENT: Extensions = Extensions(0x0008);
    /// Lost segments are repaired by coding.
    pub const REPAIR: Extensions = Extensions(0x0010);
    /// Fast JOINs are numbered. The HMAC covers the number, which prevents replays.
    pub const COUNTED_JOIN: Extensions = Extensions(0x0020);
    /// The client reports the cost of its paths.
    pub const PATH_COST: Extensions = Extensions(0x0040);
    /// All extensions that this version supports.
    pub const ALL: Extensions = Extensions(0x007f);

    /// Returns true if all extensions in `other` are in this set.
    #[must_use]
    pub const fn contains(self, other: Extensions) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, other: Extensions) -> Extensions {
        Extensions(self.0 | other.0)
    }

    /// The intersection of both sets.
    #[must_use]
    pub const fn intersection(self, other: Extensions) -> Extensions {
        Extensions(self.0 & other.0)
    }

    /// This set without `other`.
    #[must_use]
    pub const fn difference(self, other: Extensions) -> Extensions {
        Extensions(self.0 & !other.0)
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Extensions {
    /// The names, or `none`. Unknown extensions are shown as bits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Extensions, &str); 7] = [
            (Extensions::FAST_JOIN, "fast-join"),
            (Extensions::IDLE, "idle"),
            (Extensions::RTO, "rto"),
            (Extensions::FOLLOW_CLIENT, "follow-client"),
            (Extensions::REPAIR, "repair"),
            (Extensions::COUNTED_JOIN, "counted-join"),
            (Extensions::PATH_COST, "path-cost"),
        ];
        let mut separator = "";
        for (_, name) in NAMES.iter().filter(|(one, _)| self.contains(*one)) {
            write!(f, "{separator}{name}")?;
            separator = " ";
        }
        match self.difference(Extensions::ALL).0 {
            0 if self.is_empty() => f.write_str("none"),
            0 => Ok(()),
            unknown => write!(f, "{separator}{unknown:#06x}"),
        }
    }
}

/// Direction of the data in a Fast JOIN.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FastJoinForm {
    /// To the opener: the SYN acknowledges the opener's data so far.
    In,
    /// From the opener: the SYN carries data.
    Out,
}

/// One message from a Marline peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ExperimentalMessage {
    /// Length 8 or more: features offered (by the client) or accepted (by the server).
    Hello(Extensions),
    /// Length 3, on a segment with data: the sender currently has no more data.
    Idle,
    /// Length 3: requests the peer's retransmission timeout.
    RtoRequest,
    /// Length 7.
    RtoInfo {
        /// The sender's retransmission timeout, in microseconds.
        rto_us: u32,
    },
    /// Length 20, in the SYN.
    FastJoinSyn {
        /// Direction of the data.
        form: FastJoinForm,
        /// Use as backup only.
        backup: bool,
        /// Address id of the sender's address.
        address_id: u8,
        /// The receiver's token.
        token: u32,
        /// Low 32 bits of the DATA_ACK (IN), or of the first DSN in the SYN (OUT).
        point: u32,
        /// Leftmost 64 bits of the opener's HMAC.
        hmac: u64,
    },
    /// Length 16, in the SYN/ACK.
    FastJoinSynAck {
        /// Form of the SYN that this answers.
        form: FastJoinForm,
        /// Use as backup only.
        backup: bool,
        /// Leftmost 64 bits of the passive opener's HMAC.
        hmac: u64,
        /// Low 32 bits of the DSN that the passive opener sends next (IN), or of its DATA_ACK (OUT).
        point: u32,
    },
    /// Length 18, or 20 with a checksum, on a segment with a repair.
    Repair(MpRepair),
    /// Length 6: the cost of the subflow on which it is sent.
    PathCost {
        /// Bytes on the subflow cost money.
        metered: bool,
        /// True if the path is about to fail.
        fading: bool,
        /// Bytes on the subflow may count against an allowance.
        limited: bool,
        /// Milliseconds from the last packet until the radio sleeps; 0 if there is no radio that sleeps.
        tail_ms: u16,
    },
}

impl ExperimentalMessage {
    /// Parses the message in an option. `None` for a foreign option, another version, or a wrong length; such options
    /// must be ignored.
    #[must_use]
    pub fn parse(option: &MpExperimental) -> Option<Self> {
        let mut r = Reader::new(option.as_slice());
        let len = option.as_slice().len();
        Some(match (option.flags, len) {
            (nibble::HELLO, 5..) => {
                if r.u16()? != IDENTIFICATION || r.u8()? != VERSION {
                    return None;
                }
                // Bytes after the features are reserved for future versions.
                ExperimentalMessage::Hello(Extensions(r.u16()?))
            }
            (nibble::IDLE, 0) => ExperimentalMessage::Idle,
            (nibble::RTO_REQUEST, 0) => ExperimentalMessage::RtoRequest,
            (nibble::RTO_INFO, 4) => ExperimentalMessage::RtoInfo { rto_us: r.u32()? },
            (kind @ nibble::SYN_IN..=7, 17) => ExperimentalMessage::FastJoinSyn {
                form: if kind < nibble::SYN_OUT { FastJoinForm::In } else { FastJoinForm::Out },
                backup: kind & 1 != 0,
                address_id: r.u8()?,
                token: r.u32()?,
                point: r.u32()?,
                hmac: r.u64()?,
            },
            (kind @ (nibble::SYN_ACK_IN | nibble::SYN_ACK_OUT), 13) => {
                let form =
                    if kind == nibble::SYN_ACK_IN { FastJoinForm::In } else { FastJoinForm::Out };
                let backup = r.u8()? & BACKUP != 0;
                ExperimentalMessage::FastJoinSynAck {
                    form,
                    backup,
                    hmac: r.u64()?,
                    point: r.u32()?,
                }
            }
            (nibble::PATH_COST, 3) => {
                let flags = r.u8()?;
                ExperimentalMessage::PathCost {
                    metered: flags & METERED != 0,
                    fading: flags & FADING != 0,
                    limited: flags & LIMITED != 0,
                    tail_ms: r.u16()?,
                }
            }
            (nibble::REPAIR, _) => ExperimentalMessage::Repair(MpRepair::parse(option.as_slice())?),
            _ => return None,
        })
    }

    const fn nibble(&self) -> u8 {
        match self {
            ExperimentalMessage::Hello(_) => nibble::HELLO,
            ExperimentalMessage::Idle => nibble::IDLE,
            ExperimentalMessage::RtoRequest => nibble::RTO_REQUEST,
            ExperimentalMessage::RtoInfo { .. } => nibble::RTO_INFO,
            ExperimentalMessage::FastJoinSyn { form, backup, .. } => {
                let form = match form {
                    FastJoinForm::In => nibble::SYN_IN,
                    FastJoinForm::Out => nibble::SYN_OUT,
                };
                form | *backup as u8
            }
            ExperimentalMessage::FastJoinSynAck { form: FastJoinForm::In, .. } => {
                nibble::SYN_ACK_IN
            }
            ExperimentalMessage::FastJoinSynAck { .. } => nibble::SYN_ACK_OUT,
            ExperimentalMessage::Repair(_) => nibble::REPAIR,
            ExperimentalMessage::PathCost { .. } => nibble::PATH_COST,
        }
    }

    /// Returns this message with its HMAC replaced, if it has one.
    #[must_use]
    pub const fn with_hmac(self, of: u64) -> Self {
        match self {
            ExperimentalMessage::FastJoinSyn { form, backup, address_id, token, point, .. } => {
                ExperimentalMessage::FastJoinSyn {
                    form,
                    backup,
                    address_id,
                    token,
                    point,
                    hmac: of,
                }
            }
            ExperimentalMessage::FastJoinSynAck { form, backup, point, .. } => {
                ExperimentalMessage::FastJoinSynAck { form, backup, hmac: of, point }
            }
            other => other,
        }
    }

    /// Returns the option that carries the message.
    #[must_use]
    pub fn option(&self) -> MpExperimental {
        let mut option = MpExperimental::EMPTY;
        let mut w = Writer::new(&mut option.bytes);
        match *self {
            ExperimentalMessage::Hello(features) => {
                w.u16(IDENTIFICATION);
                w.u8(VERSION);
                w.u16(features.0);
            }
            ExperimentalMessage::Idle | ExperimentalMessage::RtoRequest => {}
            ExperimentalMessage::RtoInfo { rto_us } => w.u32(rto_us),
            ExperimentalMessage::FastJoinSyn { address_id, token, point, hmac, .. } => {
                w.u8(address_id);
                w.u32(token);
                w.u32(point);
                w.u64(hmac);
            }
            ExperimentalMessage::FastJoinSynAck { backup, hmac, point, .. } => {
                w.u8(if backup { BACKUP } else { 0 });
                w.u64(hmac);
                w.u32(point);
            }
            ExperimentalMessage::Repair(ref repair) => repair.emit(&mut w),
            ExperimentalMessage::PathCost { metered, fading, limited, tail_ms } => {
                let (metered, fading) = (u8::from(metered) * METERED, u8::from(fading) * FADING);
                w.u8(metered | fading | (u8::from(limited) * LIMITED));
                w.u16(tail_ms);
            }
        }
        option.len = w.len() as u8;
        option.flags = self.nibble();
        option
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mptcp::{KIND, subtype};

    fn wire(message: &ExperimentalMessage) -> Vec<u8> {
        let option = message.option();
        let mut bytes = vec![0; option.encoded_len()];
        option.emit(&mut Writer::new(&mut bytes));
        assert_eq!(bytes[..2], [KIND, bytes.len() as u8]);
        assert_eq!(bytes[2] >> 4, subtype::EXPERIMENTAL);
        bytes
    }

    #[test]
    fn layouts_are_those_of_the_specification() {
        let hello = ExperimentalMessage::Hello(Extensions::FAST_JOIN.union(Extensions::REPAIR));
        assert_eq!(wire(&hello), [30, 8, 0xf0, b'M', b'L', 1, 0, 0x11]);
        assert_eq!(wire(&ExperimentalMessage::Idle), [30, 3, 0xf1]);
        assert_eq!(wire(&ExperimentalMessage::RtoRequest), [30, 3, 0xf2]);
        let info = ExperimentalMessage::RtoInfo { rto_us: 0x0102_0304 };
        assert_eq!(wire(&info), [30, 7, 0xf3, 1, 2, 3, 4]);
        let cost = |flags: u8| ExperimentalMessage::PathCost {
            metered: flags & 1 != 0,
            fading: flags & 2 != 0,
            limited: flags & 4 != 0,
            tail_ms: 0x0102,
        };
        for flags in 0..8 {
            assert_eq!(wire(&cost(flags)), [30, 6, 0xfb, flags, 1, 2]);
        }
        let option = MpExperimental::new(11, &[0xff, 1, 2]).unwrap();
        assert_eq!(ExperimentalMessage::parse(&option), Some(cost(7)));
        let syn = |form, backup| ExperimentalMessage::FastJoinSyn {
            form,
            backup,
            address_id: 9,
            token: 0x0a0b_0c0d,
            point: 0x1112_1314,
            hmac: 0x2122_2324_2526_2728,
        };
        let out = wire(&syn(FastJoinForm::Out, true));
        assert_eq!(out[..12], [30, 20, 0xf7, 9, 10, 11, 12, 13, 17, 18, 19, 20]);
        assert_eq!(out[12..], [0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]);
        assert_eq!(wire(&syn(FastJoinForm::In, false))[2], 0xf4);
        assert_eq!(wire(&syn(FastJoinForm::In, true))[2], 0xf5);
        assert_eq!(wire(&syn(FastJoinForm::Out, false))[2], 0xf6);
        let answer = |form| ExperimentalMessage::FastJoinSynAck {
            form,
            backup: true,
            hmac: 0x2122_2324_2526_2728,
            point: 0x1112_1314,
        };
        let bytes = wire(&answer(FastJoinForm::In));
        assert_eq!(bytes[..4], [30, 16, 0xf8, 1]);
        assert_eq!(bytes[12..], [0x11, 0x12, 0x13, 0x14]);
        assert_eq!(wire(&answer(FastJoinForm::Out))[2], 0xf9);
    }

    #[test]
    fn bytes_after_the_features_are_ignored() {
        let option = MpExperimental::new(0, &[b'M', b'L', 1, 0, 3, 9, 9]).unwrap();
        let features = Extensions(3);
        assert_eq!(ExperimentalMessage::parse(&option), Some(ExperimentalMessage::Hello(features)));
        for other in [[b'M', b'K', 1, 0, 3], [b'M', b'L', 2, 0, 3]] {
            let option = MpExperimental::new(0, &other).unwrap();
            assert_eq!(ExperimentalMessage::parse(&option), None);
        }
    }
}
