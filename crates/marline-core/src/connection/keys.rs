//! Keys of a Multipath TCP connection, and the values RFC 8684 derives from them: tokens, initial
//! DSNs, HMACs.

use core::net::IpAddr;

use marline_policy::{Dsn, Role, Token};
use marline_wire::mptcp::{AddAddr, ExperimentalMessage};

use crate::crypto::{
    self, Key, address_hmac, equal_in_constant_time, fast_ack_hmac, fast_syn_hmac, join_hmac,
    leftmost_64, leftmost_160,
};

/// Keys of both sides and their derived values.
#[derive(Copy, Clone, Debug)]
pub(super) struct Keys {
    local: Key,
    local_token: Token,
    /// Wire DSN of our first byte: IDSN + 1, minus the data bytes in the SYN.
    local_first: u64,
    remote: Option<Key>,
    remote_token: Token,
    /// Wire DSN of the peer's first byte.
    remote_first: u64,
}

impl Keys {
    pub(super) fn new(local: Key) -> Self {
        let (local_token, idsn) = local.derive();
        Keys {
            local,
            local_token,
            local_first: idsn.wrapping_add(1),
            remote: None,
            remote_token: Token(0),
            remote_first: 0,
        }
    }

    pub(super) fn set_remote(&mut self, remote: Key) {
        let (token, idsn) = remote.derive();
        self.remote = Some(remote);
        self.remote_token = token;
        self.remote_first = idsn.wrapping_add(1);
    }

    pub(super) const fn local(&self) -> Key {
        self.local
    }

    pub(super) const fn remote(&self) -> Option<Key> {
        self.remote
    }

    /// Sets the number of bytes at the start of our stream that have no DSN, because they were sent with our SYN.
    pub(super) const fn skip_local(&mut self, bytes: u64) {
        self.local_first = self.local_first.wrapping_sub(bytes);
    }

    /// Like [`skip_local`](Self::skip_local), for the peer's stream, once its key is known.
    pub(super) const fn skip_remote(&mut self, bytes: u64) {
        self.remote_first = self.remote_first.wrapping_sub(bytes);
    }

    /// Token with which the peer identifies the connection.
    pub(super) const fn local_token(&self) -> Token {
        self.local_token
    }

    /// Token with which we identify the connection to the peer.
    pub(super) const fn remote_token(&self) -> Token {
        self.remote_token
    }

    /// The wire DSN of a position in our stream.
    pub(super) const fn local_wire(&self, at: Dsn) -> u64 {
        self.local_first.wrapping_add(at.0)
    }

    /// The wire DSN of a position in the peer's stream.
    pub(super) const fn remote_wire(&self, at: Dsn) -> u64 {
        self.remote_first.wrapping_add(at.0)
    }

    /// Position in our stream that corresponds to a wire DSN, without a range check.
    pub(super) const fn local_offset(&self, wire: u64) -> u64 {
        wire.wrapping_sub(self.local_first)
    }

    /// Position in the peer's stream that corresponds to a wire DSN, without a range check.
    pub(super) const fn remote_offset(&self, wire: u64) -> u64 {
        wire.wrapping_sub(self.remote_first)
    }

    /// Value that identifies the connection to protocols inside it; `None` while the peer's key is unknown.
    pub(super) fn binding(&self, role: Role, label: &[u8]) -> Option<[u8; 32]> {
        let remote = self.remote?;
        Some(match role {
            Role::Client => crypto::binding(self.local, remote, label),
            Role::Server => crypto::binding(remote, self.local, label),
        })
    }

    /// HMAC that we send in a join, computed from our nonce and the peer's.
    pub(super) fn join_hmac(&self, nonce: u32, peer_nonce: u32) -> Option<[u8; 32]> {
        Some(join_hmac(self.local, self.remote?, nonce, peer_nonce))
    }

    /// Verifies the HMAC of the peer's SYN/ACK.
    pub(super) fn proves_syn_ack(&self, hmac: u64, nonce: u32, peer_nonce: u32) -> bool {
        self.remote.is_some_and(|remote| {
            let expected = leftmost_64(&join_hmac(remote, self.local, peer_nonce, nonce));
            equal_in_constant_time(&hmac.to_be_bytes(), &expected.to_be_bytes())
        })
    }

    /// Verifies the HMAC of the peer's third ACK.
    pub(super) fn proves_third_ack(&self, hmac: &[u8; 20], nonce: u32, peer_nonce: u32) -> bool {
        self.remote.is_some_and(|remote| {
            let expected = join_hmac(remote, self.local, peer_nonce, nonce);
            equal_in_constant_time(hmac, &leftmost_160(&expected))
        })
    }

    /// HMAC of our ADD_ADDR.
    pub(super) fn address_hmac(&self, id: u8, address: IpAddr, port: Option<u16>) -> Option<u64> {
        Some(address_hmac(self.local, self.remote?, id, address, port))
    }

    /// Verifies the HMAC of the peer's ADD_ADDR.
    pub(super) fn proves_address(&self, add: &AddAddr) -> bool {
        let (Some(remote), Some(hmac)) = (self.remote, add.hmac) else { return false };
        let expected = address_hmac(remote, self.local, add.address_id, add.address, add.port);
        equal_in_constant_time(&hmac.to_be_bytes(), &expected.to_be_bytes())
    }

    /// HMAC of the SYN of our Fast JOIN.
    pub(super) fn fast_syn_hmac(
        &self,
        head: &ExperimentalMessage,
        point: u64,
        payload: &[u8],
        count: Option<u64>,
    ) -> Option<u64> {
        Some(fast_syn_hmac(self.local, self.remote?, head, point, payload, count))
    }

    /// Verifies the HMAC of the SYN of the peer's Fast JOIN.
    pub(super) fn proves_fast_syn(
        &self,
        hmac: u64,
        message: &ExperimentalMessage,
        point: u64,
        payload: &[u8],
        count: Option<u64>,
    ) -> bool {
        self.remote.is_some_and(|remote| {
            let expected = fast_syn_hmac(remote, self.local, message, point, payload, count);
            equal_in_constant_time(&hmac.to_be_bytes(), &expected.to_be_bytes())
        })
    }

    /// HMAC of our answer to a Fast JOIN whose SYN had `syn_hmac`.
    pub(super) fn fast_ack_hmac(
        &self,
        head: &ExperimentalMessage,
        point: u64,
        syn_hmac: u64,
    ) -> Option<u64> {
        Some(fast_ack_hmac(self.local, self.remote?, head, point, syn_hmac))
    }

    /// Verifies the HMAC of the peer's answer to our Fast JOIN.
    pub(super) fn proves_fast_ack(
        &self,
        hmac: u64,
        message: &ExperimentalMessage,
        point: u64,
        syn_hmac: u64,
    ) -> bool {
        self.remote.is_some_and(|remote| {
            let expected = fast_ack_hmac(remote, self.local, message, point, syn_hmac);
            equal_in_constant_time(&hmac.to_be_bytes(), &expected.to_be_bytes())
        })
    }
}
