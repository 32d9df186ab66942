//! ADD_ADDR (RFC 8684 section 3.4.1): announces an address, or echoes an announcement.
//!
//! Flag E determines whether an HMAC follows: an echo has none (lengths 8, 10, 20, 22), an announcement must have one
//! (16, 18, 28, 30). A length that fits the other kind makes the option malformed.

use core::net::IpAddr;

use crate::bytes::{Reader, Writer};
use crate::mptcp::{KIND, subtype};

const ECHO: u8 = 0x01;

/// ADD_ADDR (RFC 8684 section 3.4.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AddAddr {
    /// Address id.
    pub address_id: u8,
    /// The announced address.
    pub address: IpAddr,
    /// The announced port, if it differs from the connection's port.
    pub port: Option<u16>,
    /// The rightmost 64 bits of the HMAC; `None` for an echo (flag E).
    pub hmac: Option<u64>,
}

impl AddAddr {
    /// Length on the wire in bytes: 8 to 30.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        let address = if self.address.is_ipv4() { 4 } else { 16 };
        let port = if self.port.is_some() { 2 } else { 0 };
        let hmac = if self.hmac.is_some() { 8 } else { 0 };
        4 + address + port + hmac
    }

    /// Parses `option`, the whole option including kind and length.
    pub(crate) fn parse(option: &[u8]) -> Option<Self> {
        let mut r = Reader::new(option);
        let [_, len, first, address_id] = r.array()?;
        let echo = first & ECHO != 0;
        let (v4, with_port) = match if echo { len } else { len.checked_sub(8)? } {
            8 => (true, false),
            10 => (true, true),
            20 => (false, false),
            22 => (false, true),
            _ => return None,
        };
        let address =
            if v4 { IpAddr::from(r.array::<4>()?) } else { IpAddr::from(r.array::<16>()?) };
        let port = if with_port { Some(r.u16()?) } else { None };
        let hmac = if echo { None } else { Some(r.u64()?) };
        Some(AddAddr { address_id, address, port, hmac })
    }

    pub(crate) fn emit(&self, w: &mut Writer<'_>) {
        let echo = if self.hmac.is_none() { ECHO } else { 0 };
        let first = subtype::ADD_ADDR << 4 | echo;
        w.array([KIND, self.encoded_len() as u8, first, self.address_id]);
        match self.address {
            IpAddr::V4(a) => w.array(a.octets()),
            IpAddr::V6(a) => w.array(a.octets()),
        }
        if let Some(port) = self.port {
            w.u16(port);
        }
        if let Some(hmac) = self.hmac {
            w.u64(hmac);
        }
    }
}
