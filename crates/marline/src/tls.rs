//! TLS 1.3 inside the stream, with a pinned key.
//!
//! The server presents a raw public key (RFC 7250, Ed25519) instead of a certificate, and the client accepts only that
//! key: there is no certificate authority, and no name or date to check. The client gets the [`KeyPin`] from its
//! configuration, like an address. The server does not authenticate the client, which must be done inside the stream.
//!
//! ```
//! use marline::tls::{Acceptor, Connector, Identity};
//! use marline::{Client, Server};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Once: keep `identity.pkcs8()` in a file that only the server can read.
//! let identity = Identity::generate()?;
//! let acceptor = Acceptor::new(&identity)?;
//! let server = Server::builder().listen("127.0.0.1:0".parse()?).bind().await?;
//! let address = server.local_addr();
//! let serving = tokio::spawn(async move {
//!     let (stream, _peer) = server.accept().await.expect("this server is never closed");
//!     let mut stream = acceptor.accept(stream).await?;
//!     stream.write_all(b"hello").await?;
//!     stream.shutdown().await?;
//!     server.drained(std::time::Duration::from_secs(5)).await;
//!     std::io::Result::Ok(())
//! });
//!
//! let connector = Connector::pinned(identity.pin())?;
//! let client = Client::builder().path("127.0.0.1".parse()?).bind().await?;
//! let mut stream = connector.connect(&client, address).await?;
//! let mut text = String::new();
//! stream.read_to_string(&mut text).await?;
//! assert_eq!(text, "hello");
//! # drop(stream);
//! # serving.await??;
//! # Ok(())
//! # }
//! ```
//!
//! Keys are agreed with X25519MLKEM768 if both sides support it, otherwise with X25519.
//!
//! Disabled: TLS 1.2, 0-RTT (a request could be replayed), session tickets, server name indication (it would
//! disclose the server's name).

mod identity;
mod post_quantum;
mod server;
mod stream;

use core::fmt;
use std::io;
use std::sync::Arc;

use marline_time::Duration;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use tokio::net::ToSocketAddrs;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use self::post_quantum::X25519MlKem768;
use crate::{Client, ConnectError, Stream};
pub use identity::{Identity, IdentityError, KeyPin, KeyPinError};
pub use server::TlsServer;
pub use stream::TlsStream;

/// Maximum duration of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a TLS connection could not be established.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// The underlying connection failed.
    Connect(ConnectError),
    /// The server's key differs from the pinned one: it is another server, or an attacker intercepts the connection.
    WrongKey,
    /// The handshake failed, or took longer than 10 s.
    Handshake(io::Error),
    /// The cryptography provider lacks a required feature.
    Config(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Connect(_) => f.write_str("cannot connect"),
            TlsError::WrongKey => f.write_str("the server's key differs from the pinned key"),
            TlsError::Handshake(_) => f.write_str("TLS handshake failed"),
            TlsError::Config(_) => f.write_str("invalid TLS configuration"),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TlsError::Connect(error) => Some(error),
            TlsError::Handshake(error) => Some(error),
            TlsError::Config(error) => Some(error),
            TlsError::WrongKey => None,
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        match error {
            TlsError::Connect(error) => error.into(),
            TlsError::Handshake(error) => error,
            TlsError::WrongKey => io::Error::new(io::ErrorKind::PermissionDenied, error),
            TlsError::Config(_) => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

/// TLS client for a server with a pinned key. Clones share the configuration.
#[derive(Clone)]
pub struct Connector {
    inner: TlsConnector,
}

impl Connector {
    /// Creates a connector that accepts only the key with this pin.
    ///
    /// # Errors
    /// [`TlsError::Config`]: the cryptography provider lacks TLS 1.3.
    pub fn pinned(pin: KeyPin) -> Result<Self, TlsError> {
        let config = client_config(pin).map_err(TlsError::Config)?;
        Ok(Connector { inner: TlsConnector::from(Arc::new(config)) })
    }

    /// Connects like [`Client::connect`] and performs the handshake.
    ///
    /// # Errors
    /// The connection or the handshake fails, or the server has a different key.
    pub async fn connect(
        &self,
        client: &Client,
        server: impl ToSocketAddrs,
    ) -> Result<TlsStream, TlsError> {
        self.handshake(client.connect(server).await.map_err(TlsError::Connect)?).await
    }

    /// Performs the handshake on a connected stream.
    ///
    /// # Errors
    /// The server has a different key, or the handshake fails.
    pub async fn handshake(&self, stream: Stream) -> Result<TlsStream, TlsError> {
        let handshake = self.inner.connect(server_name(), stream);
        match timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => Ok(TlsStream::new(stream.into())),
            Ok(Err(error)) if is_pin_mismatch(&error) => Err(TlsError::WrongKey),
            Ok(Err(error)) => Err(TlsError::Handshake(error)),
            Err(_) => Err(TlsError::Handshake(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

/// Accepts TLS connections with the server's key. Clones share the configuration.
#[derive(Clone)]
pub struct Acceptor {
    inner: TlsAcceptor,
}

impl Acceptor {
    /// Creates an acceptor with this identity.
    ///
    /// # Errors
    /// [`TlsError::Config`]: the key is not usable.
    pub fn new(identity: &Identity) -> Result<Self, TlsError> {
        let config = server_config(identity).map_err(TlsError::Config)?;
        Ok(Acceptor { inner: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Performs the handshake on an accepted stream. Call it in a separate task, or use [`TlsServer`]: a slow client
    /// must not delay others.
    ///
    /// # Errors
    /// The handshake fails, or takes longer than 10 s.
    pub async fn accept(&self, stream: Stream) -> Result<TlsStream, TlsError> {
        match timeout(HANDSHAKE_TIMEOUT, self.inner.accept(stream)).await {
            Ok(Ok(stream)) => Ok(TlsStream::new(stream.into())),
            Ok(Err(error)) => Err(TlsError::Handshake(error)),
            Err(_) => Err(TlsError::Handshake(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

/// Creates the server configuration for rustls, for protocols that also negotiate other parameters, such as ALPN.
///
/// # Errors
/// The key is not usable.
pub fn server_config(identity: &Identity) -> Result<rustls::ServerConfig, rustls::Error> {
    let provider = provider();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.pkcs8().to_vec()));
    let signer = provider.key_provider.load_private_key(private)?;
    let public = CertificateDer::from(identity.spki().to_vec());
    let key = Arc::new(CertifiedKey::new(vec![public], signer));
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// Creates the client configuration for rustls.
///
/// # Errors
/// The provider does not support TLS 1.3 (the one used here does).
pub fn client_config(pin: KeyPin) -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = provider();
    let verifier = identity::PinnedVerifier::new(pin, provider.signature_verification_algorithms);
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    Ok(config)
}

/// Returns the name required by rustls; it is neither sent nor checked.
#[must_use]
pub fn server_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

/// Returns true if a handshake failed because the server's key differs from the pinned one.
#[must_use]
pub fn is_pin_mismatch(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let wrong = rustls::CertificateError::ApplicationVerificationFailure;
    matches!(inner, Some(rustls::Error::InvalidCertificate(found)) if *found == wrong)
}

/// Returns the provider `ring`, with the hybrid key exchange as first choice.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.kx_groups.insert(0, &X25519MlKem768);
    Arc::new(provider)
}
