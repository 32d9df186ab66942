//! Fast Open at a listener (RFC 7413 section 4.1): cookies, and which SYN may bring data.
//!
//! A cookie is SipHash-2-4 of the client's and the server's address under a key of this endpoint, as Linux makes it:
//! servers that share an address and the key, Linux among them, take each other's cookies. It proves that the client
//! once received what was sent to its address, so that a forged SYN does not make the server answer with data; it
//! says nothing of who the client is, and does not keep a SYN from being played again.

use core::fmt;
#[expect(
    deprecated,
    reason = "the only SipHash-2-4 of the standard library, and the cookie is defined by it"
)]
use core::hash::{Hasher as _, SipHasher};
use core::net::IpAddr;

use marline_wire::{FastOpenOption, TcpSegment};

use super::Endpoint;
use crate::connection::FastOpenVerdict;
use crate::crypto::equal_in_constant_time;
use crate::{ConnectionConfig, FourTuple, PacketMeta};

/// Keys of cookies. `Debug` hides them: who has one can forge addresses.
pub(super) struct CookieKeys {
    primary: [u8; 16],
    /// The one before, whose cookies are still good, and are replaced.
    backup: Option<[u8; 16]>,
}

impl fmt::Debug for CookieKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKeys(..)")
    }
}

/// Whether a cookie is ours.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Standing {
    Good,
    /// Of the key before.
    Old,
    Wrong,
}

impl CookieKeys {
    #[expect(deprecated, reason = "see above")]
    fn cookie(key: &[u8; 16], path: &FourTuple) -> [u8; 8] {
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

    fn judge(&self, cookie: &[u8], path: &FourTuple) -> Standing {
        let is_of = |key: &[u8; 16]| equal_in_constant_time(cookie, &Self::cookie(key, path));
        match &self.backup {
            _ if is_of(&self.primary) => Standing::Good,
            Some(backup) if is_of(backup) => Standing::Old,
            _ => Standing::Wrong,
        }
    }
}

impl Endpoint {
    /// Sets the key of the cookies of Fast Open that are made from now on, and the one before, whose cookies stay
    /// good. Until this is called the key is drawn at random, which suits a server alone; servers behind one address
    /// must have the same. The bytes are those of Linux's `net.ipv4.tcp_fastopen_key`, each of its four words with the
    /// lowest byte first, and of `TCP_FASTOPEN_KEY`.
    pub const fn set_fast_open_keys(&mut self, primary: [u8; 16], backup: Option<[u8; 16]>) {
        self.cookie_keys = Some(CookieKeys { primary, backup });
    }

    /// Forgets all cookies that servers gave, and which ways swallow Fast Open.
    pub fn forget_fast_open(&mut self) {
        self.fast_opens.clear();
    }

    /// What Fast Open makes of a SYN that opens a connection.
    pub(super) fn judge_fast_open(
        &mut self,
        meta: &PacketMeta,
        syn: &TcpSegment<'_>,
        config: &ConnectionConfig,
    ) -> FastOpenVerdict {
        let Some(fast) = &config.fast_open else { return FastOpenVerdict::default() };
        if !fast.ports.is_empty() && !fast.ports.contains(&meta.path.local.port()) {
            return FastOpenVerdict::default();
        }
        let option = syn.fast_open();
        let asks = option.is_some() || fast.without_cookie && !syn.payload.is_empty();
        if !asks || self.fast_pending >= fast.pending as usize {
            return FastOpenVerdict::default();
        }
        if fast.without_cookie {
            return FastOpenVerdict { opens: true, answer: None };
        }
        let Some(option) = option else { return FastOpenVerdict::default() };
        let rng = self.rng.as_mut();
        let keys = self.cookie_keys.get_or_insert_with(|| {
            let mut primary = [0; 16];
            primary[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
            primary[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
            CookieKeys { primary, backup: None }
        });
        let standing = match option.is_request() {
            true => Standing::Wrong,
            false => keys.judge(option.as_bytes(), &meta.path),
        };
        let fresh = FastOpenOption::cookie(&CookieKeys::cookie(&keys.primary, &meta.path));
        let fresh = fresh.map(|cookie| cookie.with_form(option.is_experimental()));
        FastOpenVerdict {
            opens: standing != Standing::Wrong,
            answer: fresh.filter(|_| standing != Standing::Good),
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

    /// What packetdrill's scripts for Linux say of the cookies that it makes.
    #[test]
    fn cookies_are_those_of_linux() {
        let key = key([0xa0bf_63f7, 0xed80_3d81, 0xcd64_1d30, 0xcebc_4a90]);
        for (client, server, cookie) in [
            ([10, 248, 0, 2], [192, 168, 0, 2], 0x00ab_aaab_e8e9_54c2_u64),
            ([10, 248, 0, 3], [192, 168, 0, 2], 0x1313_a2da_994a_0951),
            ([10, 248, 0, 3], [192, 168, 0, 3], 0x76d2_c1c5_30f5_1f79),
        ] {
            let made = CookieKeys::cookie(&key, &path(client, server));
            assert_eq!(made, cookie.to_be_bytes(), "{client:?}");
        }
    }

    #[test]
    fn a_cookie_is_good_for_its_ends_and_its_key() {
        let (first, second) = ([1; 16], [2; 16]);
        let here = path([10, 0, 0, 2], [10, 0, 0, 1]);
        let cookie = CookieKeys::cookie(&first, &here);
        let keys = CookieKeys { primary: first, backup: None };
        assert_eq!(keys.judge(&cookie, &here), Standing::Good);
        let elsewhere = path([10, 0, 0, 3], [10, 0, 0, 1]);
        assert_eq!(keys.judge(&cookie, &elsewhere), Standing::Wrong);
        assert_eq!(keys.judge(&cookie[..6], &here), Standing::Wrong, "a part of it");
        let renewed = CookieKeys { primary: second, backup: Some(first) };
        assert_eq!(renewed.judge(&cookie, &here), Standing::Old);
        assert_eq!(format!("{renewed:?}"), "CookieKeys(..)");
    }
}
