//! TLS 1.3 inside the multipath stream.
//!
//! The server shows a raw public key (RFC 7250, Ed25519) instead of a certificate: nobody would check
//! a certificate's names or dates, the invite pins the key, and the whole handshake of the server
//! fits one segment. The client checks the key's SHA-256 against the invite and the handshake's
//! signature against the key; only then, inside the encrypted stream, it sends its token. So a
//! server that is not the invite's learns nothing, and an observer sees no client identity.
//!
//! Off: TLS 1.2, 0-RTT (a request could be replayed), session tickets (a session of ours does what they
//! would, bound to its connection: `session`), server name indication (it would name the server in clear).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::secret::Digest;

/// The protocols inside, by version (ALPN), the best first: client and server agree on the first of these
/// that both speak.
const PROTOCOLS: [(u8, &[u8]); 2] = [(2, b"marline/2"), (1, b"marline/1")];
/// What precedes the 32 bytes of an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410 section 4).
const SPKI_HEAD: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

fn protocols() -> Vec<Vec<u8>> {
    PROTOCOLS.iter().map(|(_, name)| name.to_vec()).collect()
}

/// The version negotiated by a handshake; version 1 if none was named.
#[must_use]
pub fn version(tls: &rustls::CommonState) -> u8 {
    let agreed = PROTOCOLS.iter().find(|(_, name)| tls.alpn_protocol() == Some(name));
    agreed.map_or(1, |(version, _)| *version)
}

/// The server's long-lived key.
pub struct ServerKey {
    pkcs8: Vec<u8>,
    spki: Vec<u8>,
}

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerKey(pin {})", Digest::from_bytes(self.pin()).to_hex())
    }
}

impl ServerKey {
    /// A new key.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn generate() -> anyhow::Result<ServerKey> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new())
            .map_err(|_| anyhow::anyhow!("the operating system gives no random bytes"))?;
        Self::from_pkcs8(pkcs8.as_ref().to_vec())
    }

    /// The key in a file that [`generate`](Self::generate) and [`pkcs8`](Self::pkcs8) made.
    ///
    /// # Errors
    /// The file cannot be read or holds no Ed25519 key.
    pub fn load(path: &Path) -> anyhow::Result<ServerKey> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::from_pkcs8(bytes).with_context(|| format!("in {}", path.display()))
    }

    fn from_pkcs8(pkcs8: Vec<u8>) -> anyhow::Result<ServerKey> {
        let pair = Ed25519KeyPair::from_pkcs8(&pkcs8)
            .map_err(|error| anyhow::anyhow!("no Ed25519 key in PKCS #8 form: {error}"))?;
        let mut spki = SPKI_HEAD.to_vec();
        spki.extend_from_slice(pair.public_key().as_ref());
        Ok(ServerKey { pkcs8, spki })
    }

    /// The private key in PKCS #8 form: for the key file only.
    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// SHA-256 of the public key: what invites carry.
    #[must_use]
    pub fn pin(&self) -> [u8; 32] {
        *Digest::of(&self.spki).as_bytes()
    }

    /// Accepts TLS with this key.
    ///
    /// # Errors
    /// The key is not usable.
    pub fn acceptor(&self) -> anyhow::Result<TlsAcceptor> {
        let provider = provider();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pkcs8.clone()));
        let signer = provider.key_provider.load_private_key(private)?;
        let public = CertificateDer::from(self.spki.clone());
        let key = Arc::new(CertifiedKey::new(vec![public], signer));
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
        config.alpn_protocols = protocols();
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Connects with TLS to the server whose key has this SHA-256, and to no other.
///
/// # Errors
/// The provider does not speak TLS 1.3 (it does).
pub fn connector(pin: [u8; 32]) -> anyhow::Result<TlsConnector> {
    let provider = provider();
    let verifier = Pinned {
        pin: Digest::from_bytes(pin),
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = protocols();
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name rustls asks for; it is neither sent nor checked.
#[must_use]
pub fn server_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

/// Whether a failed handshake failed because the server has another key than the invite's.
#[must_use]
pub fn is_pin_mismatch(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let wrong = rustls::CertificateError::ApplicationVerificationFailure;
    matches!(inner, Some(rustls::Error::InvalidCertificate(found)) if *found == wrong)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Accepts exactly one key.
#[derive(Debug)]
struct Pinned {
    pin: Digest,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if intermediates.is_empty() && Digest::of(end_entity).matches(&self.pin) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
