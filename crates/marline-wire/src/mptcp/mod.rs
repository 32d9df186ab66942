//! The options of Multipath TCP version 1 (RFC 8684 section 3): TCP option kind 30, one subtype a file.

use core::net::IpAddr;

/// TCP option kind of every MPTCP option.
pub const KIND: u8 = 30;

/// MP_CAPABLE (RFC 8684 section 3.1). Which form it is follows from the segment it stands in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpCapable {
    /// Protocol version; 1 here.
    pub version: u8,
    /// Flag A: the sender requires DSS checksums.
    pub checksum_required: bool,
    /// Flag B: extensibility; must be zero, a receiver that sees it set falls back.
    pub extensibility: bool,
    /// Flag C: no joins to this source address and port.
    pub deny_join_id0: bool,
    /// Flag H: HMAC-SHA256.
    pub hmac_sha256: bool,
    /// Keys and data length, by the option's length.
    pub form: MpCapableForm,
}

/// The part of MP_CAPABLE that depends on the option's length.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
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
        /// Data-level length and checksum, when the segment carries the first data.
        data: Option<CapableData>,
    },
}

/// Data-level length of MP_CAPABLE with data: an implicit mapping of DSN IDSN+1 to subflow sequence 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CapableData {
    /// Data-level length in bytes.
    pub length: u16,
    /// DSS checksum, when negotiated.
    pub checksum: Option<u16>,
}

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

/// A DATA_ACK as the wire has it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DataAck {
    /// Flag a clear: low 32 bits.
    Short(u32),
    /// Flag a set: all 64 bits.
    Long(u64),
}

/// A data sequence number as the wire has it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WireDsn {
    /// Flag m clear: low 32 bits.
    Short(u32),
    /// Flag m set: all 64 bits.
    Long(u64),
}

/// A data sequence mapping (RFC 8684 section 3.3.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WireMapping {
    /// First data sequence number.
    pub dsn: WireDsn,
    /// Relative subflow sequence number of the first byte (1 is the first byte after the SYN);
    /// 0 when the mapping holds a DATA_FIN alone.
    pub ssn: u32,
    /// Data-level length, DATA_FIN included; 0 is the infinite mapping.
    pub length: u16,
    /// Checksum, when negotiated.
    pub checksum: Option<u16>,
}

/// DSS (RFC 8684 section 3.3): mapping, DATA_ACK and DATA_FIN.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Dss {
    /// DATA_ACK, flag A.
    pub data_ack: Option<DataAck>,
    /// Mapping, flag M.
    pub mapping: Option<WireMapping>,
    /// Flag F: the mapping's last octet is a DATA_FIN.
    pub data_fin: bool,
}

/// ADD_ADDR (RFC 8684 section 3.4.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AddAddr {
    /// Address id.
    pub address_id: u8,
    /// The announced address.
    pub address: IpAddr,
    /// The announced port, if not that of the connection.
    pub port: Option<u16>,
    /// `None` is the echo (flag E); else the rightmost 64 bits of the HMAC.
    pub hmac: Option<u64>,
}

/// REMOVE_ADDR (RFC 8684 section 3.4.2): up to 37 ids fit the 40 bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RemoveAddr {
    /// Storage; only the first `len` count.
    pub ids: [u8; 37],
    /// How many are filled, at least 1.
    pub len: u8,
}

/// MP_PRIO (RFC 8684 section 3.3.8): priority of the subflow it arrives on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpPrio {
    /// Flag B: use as backup only.
    pub backup: bool,
}

/// MP_FAIL (RFC 8684 section 3.7).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpFail {
    /// The data sequence number at which the checksum failed.
    pub dsn: u64,
}

/// MP_FASTCLOSE (RFC 8684 section 3.5).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpFastclose {
    /// The receiver's key.
    pub receiver_key: u64,
}

/// MP_TCPRST (RFC 8684 section 3.6).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpTcpRst {
    /// Flag T: the condition is transient.
    pub transient: bool,
    /// Reason code; 0 is unspecified. Codes are in the registry of RFC 8684 section 7.
    pub reason: u8,
}

/// MP_EXPERIMENTAL (RFC 8684 section 9.1 registry, subtype 0xf): uninterpreted bytes after the kind and length.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MpExperimental {
    /// Low nibble of the subtype byte, then the payload.
    pub flags: u8,
    /// Storage; only the first `len` count.
    pub bytes: [u8; 37],
    /// How many are filled.
    pub len: u8,
}

/// Any MPTCP option but DSS.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "lives in a fixed array, never boxed")]
pub enum MptcpOption {
    /// Subtype 0.
    Capable(MpCapable),
    /// Subtype 1.
    Join(MpJoin),
    /// Subtype 3.
    AddAddr(AddAddr),
    /// Subtype 4.
    RemoveAddr(RemoveAddr),
    /// Subtype 5.
    Prio(MpPrio),
    /// Subtype 6.
    Fail(MpFail),
    /// Subtype 7.
    Fastclose(MpFastclose),
    /// Subtype 8.
    TcpRst(MpTcpRst),
    /// Subtype 15.
    Experimental(MpExperimental),
}

/// The MPTCP options of one segment other than DSS: at most four are kept, which is more than any
/// legal combination within 40 bytes needs.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MptcpOptions {
    options: [Option<MptcpOption>; 4],
    len: u8,
    /// An MPTCP option was there that could not be parsed (wrong length, unknown subtype); the
    /// segment still counts as one that carries MPTCP.
    pub malformed: bool,
}

impl MptcpOptions {
    /// The options in the order of the wire.
    pub fn iter(&self) -> impl Iterator<Item = &MptcpOption> {
        self.options[..usize::from(self.len)].iter().flatten()
    }

    /// Adds one; `false` if there is no room.
    pub fn push(&mut self, option: MptcpOption) -> bool {
        let Some(slot) = self.options.get_mut(usize::from(self.len)) else { return false };
        *slot = Some(option);
        self.len += 1;
        true
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
