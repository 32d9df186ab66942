//! TLS 1.3 inside the multipath stream.
//!
//! The server presents a raw public key (RFC 7250, Ed25519) instead of a certificate. The invite pins the key, so the
//! names and dates of a certificate would never be checked. The server's whole handshake fits in two segments, most of
//! which is the post-quantum key exchange. The client checks the key's SHA-256 against the invite and the handshake's
//! signature against the key. Only then does it send its token, inside the encrypted stream. A server other than the
//! invite's therefore learns nothing, and an observer sees no client identity.
//!
//! Disabled: TLS 1.2, 0-RTT (a request could be replayed), session tickets (replaced by the proxy's own sessions, which
//! are bound to their connection: `session`), server name indication (it would reveal the server's name).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use marline::tls::{Identity, KeyPin, client_config, server_config};
pub use marline::tls::{is_pin_mismatch, server_name};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Application protocol (ALPN), with its version. TLS fails between programs with different versions.
const PROTOCOL: &[u8] = b"marline/5";

/// The server's long-lived key.
pub struct ServerKey(Identity);

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerKey(pin {})", self.0.pin())
    }
}

impl ServerKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn generate() -> anyhow::Result<ServerKey> {
        Ok(ServerKey(Identity::generate()?))
    }

    /// Loads the key from a file written from [`pkcs8`](Self::pkcs8).
    ///
    /// # Errors
    /// The file cannot be read or does not contain an Ed25519 key.
    pub fn load(path: &Path) -> anyhow::Result<ServerKey> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let identity = Identity::from_pkcs8(bytes);
        identity.map(ServerKey).with_context(|| format!("in {}", path.display()))
    }

    /// Returns the private key in PKCS #8 form, for the key file only.
    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        self.0.pkcs8()
    }

    /// Returns the SHA-256 of the public key, as contained in invites.
    #[must_use]
    pub fn pin(&self) -> [u8; 32] {
        *self.0.pin().as_bytes()
    }

    /// Creates an acceptor with this key.
    ///
    /// # Errors
    /// The key is not usable.
    pub fn acceptor(&self) -> anyhow::Result<TlsAcceptor> {
        let mut config = server_config(&self.0)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Creates a connector for only the server whose key has this SHA-256.
///
/// # Errors
/// The crypto provider does not support TLS 1.3, which cannot happen.
pub fn connector(pin: [u8; 32]) -> anyhow::Result<TlsConnector> {
    let mut config = client_config(KeyPin::new(pin))?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests;
