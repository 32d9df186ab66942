//! Fast Open at a listener (RFC 7413 section 4.1): it decides which SYNs may carry data.
//!
//! A cookie proves that the client once received a segment at its address, so that a forged SYN does not make the
//! server answer with data. It does not authenticate the client, and it does not prevent a SYN from being replayed.

use marline_wire::{FastOpenOption, TcpSegment};

use super::Endpoint;
use crate::connection::FastOpenVerdict;
use crate::tables::cookie_keys::{CookieKeys, CookieValidity};
use crate::{ConnectionConfig, PacketMeta};

impl Endpoint {
    /// Sets the key for new Fast Open cookies, and the previous key, whose cookies stay valid. By default the key is
    /// random, which suits a single server; servers behind one address must share a key. The bytes are those of
    /// Linux's `net.ipv4.tcp_fastopen_key`, each of its four words with the lowest byte first, and of
    /// `TCP_FASTOPEN_KEY`.
    pub const fn set_fast_open_keys(&mut self, primary: [u8; 16], backup: Option<[u8; 16]>) {
        self.cookie_keys = Some(CookieKeys::new(primary, backup));
    }

    /// Forgets all cookies received from servers, and which paths block Fast Open.
    pub fn forget_fast_open(&mut self) {
        self.fast_opens.clear();
    }

    /// Applies Fast Open to a SYN that opens a connection.
    pub(super) fn judge_fast_open(
        &mut self,
        meta: &PacketMeta,
        syn: &TcpSegment<'_>,
        config: &ConnectionConfig,
    ) -> FastOpenVerdict {
        let Some(fast) = &config.fast_open else { return FastOpenVerdict::default() };
        if !fast.is_on(meta.path.local.port()) {
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
        let keys = self.cookie_keys.get_or_insert_with(|| CookieKeys::draw(rng));
        let standing = match option.is_request() {
            true => CookieValidity::Invalid,
            false => keys.check(option.as_bytes(), &meta.path),
        };
        let fresh = FastOpenOption::cookie(&keys.cookie(&meta.path));
        let fresh = fresh.map(|cookie| cookie.with_form(option.is_experimental()));
        FastOpenVerdict {
            opens: standing != CookieValidity::Invalid,
            answer: fresh.filter(|_| standing != CookieValidity::Good),
        }
    }
}
