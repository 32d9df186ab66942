//! Server keys, and their pins.

use core::fmt;
use core::str::FromStr;

use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

/// Bytes that precede the 32 bytes of an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410 section 4).
const SPKI_HEAD: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Long-lived Ed25519 key of a server.
#[derive(Clone)]
pub struct Identity {
    pkcs8: Vec<u8>,
    spki: Vec<u8>,
}

/// Reason why a server key is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentityError {
    /// The operating system provides no random bytes.
    NoRandomness,
    /// The bytes are not an Ed25519 key in PKCS #8 form, for this reason.
    NotAKey(String),
}

impl Identity {
    /// Generates a new key.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn generate() -> Result<Identity, IdentityError> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new())
            .map_err(|_| IdentityError::NoRandomness)?;
        Self::from_pkcs8(pkcs8.as_ref().to_vec())
    }

    /// Loads a key from the bytes of [`pkcs8`](Self::pkcs8).
    ///
    /// # Errors
    /// The bytes are not an Ed25519 key in PKCS #8 form, with its public half (RFC 8410).
    pub fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Identity, IdentityError> {
        let pair = Ed25519KeyPair::from_pkcs8(&pkcs8)
            .map_err(|error| IdentityError::NotAKey(error.to_string()))?;
        let mut spki = SPKI_HEAD.to_vec();
        spki.extend_from_slice(pair.public_key().as_ref());
        Ok(Identity { pkcs8, spki })
    }

    /// Returns the private key in PKCS #8 form. **Secret**: store it in a file that only the server can read.
    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// Returns the public key as a SubjectPublicKeyInfo (RFC 8410).
    #[must_use]
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }

    /// Returns the pin for clients.
    #[must_use]
    pub fn pin(&self) -> KeyPin {
        KeyPin::from_spki(&self.spki)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity(pin {})", self.pin())
    }
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityError::NoRandomness => {
                f.write_str("the operating system provides no random bytes")
            }
            IdentityError::NotAKey(why) => write!(f, "not an Ed25519 key in PKCS #8 form: {why}"),
        }
    }
}

impl std::error::Error for IdentityError {}

/// SHA-256 hash of a server's public key, by which clients identify the server. Not secret. The text form has 64
/// hexadecimal digits.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct KeyPin([u8; 32]);

/// Error for a text that is not 64 hexadecimal digits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct KeyPinError;

impl KeyPin {
    /// Creates a pin from its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        KeyPin(bytes)
    }

    /// Returns the bytes of the pin.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn from_spki(spki: &[u8]) -> Self {
        let mut pin = [0; 32];
        pin.copy_from_slice(digest(&SHA256, spki).as_ref());
        KeyPin(pin)
    }
}

impl fmt::Display for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPin({self})")
    }
}

impl FromStr for KeyPin {
    type Err = KeyPinError;

    fn from_str(text: &str) -> Result<Self, KeyPinError> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut pin = [0; 32];
        if pairs.len() != pin.len() || !rest.is_empty() {
            return Err(KeyPinError);
        }
        let digit = |digit: u8| (digit as char).to_digit(16).ok_or(KeyPinError);
        for (byte, [high, low]) in pin.iter_mut().zip(pairs) {
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Ok(KeyPin(pin))
    }
}

impl fmt::Display for KeyPinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid pin: expected 64 hexadecimal digits")
    }
}

impl std::error::Error for KeyPinError {}

/// Verifier that accepts exactly one key.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    pin: KeyPin,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedVerifier {
    pub(super) const fn new(pin: KeyPin, algorithms: WebPkiSupportedAlgorithms) -> Self {
        PinnedVerifier { pin, algorithms }
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if intermediates.is_empty() && KeyPin::from_spki(end_entity) == self.pin {
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
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_as_it_is_written() {
        let pin = Identity::generate().unwrap().pin();
        assert_eq!(pin.to_string().parse(), Ok(pin));
        assert_eq!(pin.to_string().to_uppercase().parse(), Ok(pin));
        let text = pin.to_string();
        for wrong in ["", &text[1..], &text.replace(&text[..1], "g"), &format!("{text}0")] {
            assert_eq!(wrong.parse::<KeyPin>(), Err(KeyPinError), "{wrong}");
        }
    }

    #[tokio::test]
    async fn the_key_without_its_private_half_is_worth_nothing() {
        use std::sync::Arc;

        use crate::tls::{client_config, is_pin_mismatch, server_config, server_name};

        let (key, thief) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        // Presents the correct public key but signs with another private key.
        let forged = Identity { pkcs8: thief.pkcs8.clone(), spki: key.spki.clone() };
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server_config(&forged).unwrap()));
        let client = Arc::new(client_config(key.pin()).unwrap());
        let connector = tokio_rustls::TlsConnector::from(client);
        let (near, far) = tokio::io::duplex(64 * 1024);
        let connect = connector.connect(server_name(), near);
        let (near, far) = tokio::join!(connect, acceptor.accept(far));
        let error = near.unwrap_err();
        assert!(!is_pin_mismatch(&error), "the pin matches, but the signature does not: {error}");
        assert!(far.is_err());
    }

    #[test]
    fn a_key_survives_its_file_and_shows_nothing() {
        let identity = Identity::generate().unwrap();
        let again = Identity::from_pkcs8(identity.pkcs8().to_vec()).unwrap();
        assert_eq!(again.pin(), identity.pin());
        assert_eq!(format!("{identity:?}"), format!("Identity(pin {})", identity.pin()));
        let cut = identity.pkcs8()[1..].to_vec();
        assert!(matches!(Identity::from_pkcs8(cut), Err(IdentityError::NotAKey(_))));
    }
}
