//! Keys of Fast Open cookies (RFC 7413 section 4.1.2).
//!
//! A cookie is the SipHash-2-4 of the client's and the server's address, as in Linux. Servers that share an address
//! and a key, including Linux servers, accept each other's cookies.

use core::fmt;
#[expect(
    deprecated,
    reason = "the only SipHash-2-4 in the standard library, and cookies require it"
)]
use core::hash::{Hasher as _, SipHasher};
use core::net::IpAddr;

use marline_time::Rng;

use crate::FourTuple;
use crate::crypto::equal_in_constant_time;

/// Keys for Fast Open cookies. `Debug` hides them, because they allow address forgery.
pub(crate) struct CookieKeys {
    primary: [u8; 16],
    /// Previous key, whose cookies are still valid but are replaced.
    backup: Option<[u8; 16]>,
}

impl fmt::Debug for CookieKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKeys(..)")
    }
}

/// Validity of a cookie.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CookieValidity {
    Good,
    /// Created with the previous key.
    Old,
    Invalid,
}

impl CookieKeys {
    pub(crate) const fn new(primary: [u8; 16], backup: Option<[u8; 16]>) -> Self {
        CookieKeys { primary, backup }
    }

    pub(crate) fn draw(rng: &mut dyn Rng) -> Self {
        let mut primary = [0; 16];
        primary[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
        primary[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
        CookieKeys { primary, backup: None }
    }

    /// Cookie for the client on this path.
    pub(crate) fn cookie(&self, path: &FourTuple) -> [u8; 8] {
        Self::cookie_of(&self.primary, path)
    }

    #[expect(deprecated, reason = "cookies require SipHash-2-4, as above")]
    fn cookie_of(key: &[u8; 16], path: &FourTuple) -> [u8; 8] {
        let (low, high) =
            (u128::from_le_bytes(*key) as u64, (u128::from_le_bytes(*key) >> 64) as u64);
        let mut hasher = SipHasher::new_with_keys(low, high);
        for ip in [path.remote.ip(), path.local.ip()] {
            match ip {
                IpAddr::V4(v4) => hasher.write(&v4.octets()),
                IpAddr::V6(v6) => hasher.write(&v6.octets()),
            }
        }
        hasher.finish().to_le_bytes()
    }

    /// Checks a cookie of the client on this path.
    pub(crate) fn check(&self, cookie: &[u8], path: &FourTuple) -> CookieValidity {
        let is_of = |key: &[u8; 16]| equal_in_constant_time(cookie, &Self::cookie_of(key, path));
        match &self.backup {
            _ if is_of(&self.primary) => CookieValidity::Good,
            Some(backup) if is_of(backup) => CookieValidity::Old,
            _ => CookieValidity::Invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn path(client: [u8; 4], server: [u8; 4]) -> FourTuple {
        let (local, remote) =
            (SocketAddr::from((server, 8_080)), SocketAddr::from((client, 40_000)));
        FourTuple { local, remote }
    }

    fn key(words: [u32; 4]) -> [u8; 16] {
        let mut key = [0; 16];
        for (place, word) in key.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        key
    }

    /// The expected cookies are from packetdrill's scripts for Linux.
    #[test]
    fn cookies_are_those_of_linux() {
        let key = key([0xa0bf_63f7, 0xed80_3d81, 0xcd64_1d30, 0xcebc_4a90]);
        for (client, server, cookie) in [
            ([10, 248, 0, 2], [192, 168, 0, 2], 0x00ab_aaab_e8e9_54c2_u64),
            ([10, 248, 0, 3], [192, 168, 0, 2], 0x1313_a2da_994a_0951),
            ([10, 248, 0, 3], [192, 168, 0, 3], 0x76d2_c1c5_30f5_1f79),
        ] {
            let made = CookieKeys::cookie_of(&key, &path(client, server));
            assert_eq!(made, cookie.to_be_bytes(), "{client:?}");
        }
    }

    #[test]
    fn a_cookie_is_valid_only_for_its_addresses_and_key() {
        let (first, second) = ([1; 16], [2; 16]);
        let here = path([10, 0, 0, 2], [10, 0, 0, 1]);
        let cookie = CookieKeys::cookie_of(&first, &here);
        let keys = CookieKeys { primary: first, backup: None };
        assert_eq!(keys.check(&cookie, &here), CookieValidity::Good);
        let elsewhere = path([10, 0, 0, 3], [10, 0, 0, 1]);
        assert_eq!(keys.check(&cookie, &elsewhere), CookieValidity::Invalid);
        assert_eq!(keys.check(&cookie[..6], &here), CookieValidity::Invalid, "a truncated value");
        let renewed = CookieKeys { primary: second, backup: Some(first) };
        assert_eq!(renewed.check(&cookie, &here), CookieValidity::Old);
        assert_eq!(format!("{renewed:?}"), "CookieKeys(..)");
    }
}
