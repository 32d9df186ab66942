//! Options of Multipath TCP version 1 (RFC 8684 section 3): TCP option kind 30, one subtype per
//! file.

mod add_addr;
mod capable;
mod dss;
mod experimental;
mod fail;
mod fastclose;
mod join;
mod message;
mod options;
mod prio;
mod remove_addr;
mod repair;
mod tcprst;

pub use add_addr::AddAddr;
pub use capable::{CapableData, MpCapable, MpCapableForm};
pub use dss::{DataAck, Dss, WireDsn, WireMapping};
pub use experimental::MpExperimental;
pub use fail::MpFail;
pub use fastclose::MpFastclose;
pub use join::MpJoin;
pub use message::{ExperimentalMessage, Extensions, FastJoinForm};
pub use options::{MptcpOption, MptcpOptions};
pub use prio::MpPrio;
pub use remove_addr::RemoveAddr;
pub use repair::{MpRepair, repair_checksum};
pub use tcprst::MpTcpRst;

/// TCP option kind of every MPTCP option.
pub const KIND: u8 = 30;

/// The subtypes (RFC 8684 section 7.2): the high four bits of an option's third byte.
pub mod subtype {
    /// MP_CAPABLE.
    pub const CAPABLE: u8 = 0x0;
    /// MP_JOIN.
    pub const JOIN: u8 = 0x1;
    /// DSS.
    pub const DSS: u8 = 0x2;
    /// ADD_ADDR.
    pub const ADD_ADDR: u8 = 0x3;
    /// REMOVE_ADDR.
    pub const REMOVE_ADDR: u8 = 0x4;
    /// MP_PRIO.
    pub const PRIO: u8 = 0x5;
    /// MP_FAIL.
    pub const FAIL: u8 = 0x6;
    /// MP_FASTCLOSE.
    pub const FASTCLOSE: u8 = 0x7;
    /// MP_TCPRST.
    pub const TCPRST: u8 = 0x8;
    /// Private use.
    pub const EXPERIMENTAL: u8 = 0xf;
}
