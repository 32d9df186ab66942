use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use tokio_rustls::{client, server};

use super::*;

async fn handshake(
    key: &ServerKey,
    pin: [u8; 32],
) -> (
    std::io::Result<client::TlsStream<tokio::io::DuplexStream>>,
    std::io::Result<server::TlsStream<tokio::io::DuplexStream>>,
) {
    let (near, far) = duplex(64 * 1024);
    let connect = connector(pin).unwrap().connect(server_name(), near);
    tokio::join!(connect, key.acceptor().unwrap().accept(far))
}

#[tokio::test]
async fn the_pinned_key_is_accepted_with_tls_13_and_a_raw_key() {
    let key = ServerKey::generate().unwrap();
    let (near, far) = handshake(&key, key.pin()).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    assert_eq!(near.get_ref().1.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(near.get_ref().1.alpn_protocol(), Some(&b"marline/5"[..]));
    let group = near.get_ref().1.negotiated_key_exchange_group().unwrap();
    assert_eq!(group.name(), rustls::NamedGroup::X25519MLKEM768);
    let shown = near.get_ref().1.peer_certificates().unwrap();
    assert_eq!(shown[0].len(), 44, "an Ed25519 SubjectPublicKeyInfo, no certificate");
    near.write_all(b"ping").await.unwrap();
    let mut buf = [0; 4];
    far.read_exact(&mut buf).await.unwrap();
    assert_eq!(&buf, b"ping");
}

/// Accepts any pin, because these tests concern the key exchange.
#[derive(Debug)]
struct AnyKey;

impl rustls::client::danger::ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A client without support for the hybrid key exchange.
#[tokio::test]
async fn a_client_without_the_hybrid_key_exchange_is_spoken_to_in_one_round_trip() {
    let key = ServerKey::generate().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey))
        .with_no_client_auth();
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    let (near, far) = duplex(64 * 1024);
    let connect = TlsConnector::from(Arc::new(client)).connect(server_name(), near);
    let (near, far) = tokio::join!(connect, key.acceptor().unwrap().accept(far));
    let near = near.unwrap();
    let state = &near.get_ref().1;
    let group = state.negotiated_key_exchange_group().unwrap();
    assert_eq!(group.name(), rustls::NamedGroup::X25519);
    assert_eq!(state.handshake_kind(), Some(rustls::HandshakeKind::Full), "no second hello");
    far.unwrap();
}

#[tokio::test]
async fn another_key_is_a_pin_mismatch() {
    let (key, other) = (ServerKey::generate().unwrap(), ServerKey::generate().unwrap());
    let (near, far) = handshake(&other, key.pin()).await;
    assert!(is_pin_mismatch(&near.unwrap_err()));
    assert!(far.is_err());
}

#[tokio::test]
async fn plain_tls_12_style_clients_and_noise_are_refused() {
    let key = ServerKey::generate().unwrap();
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0], &[0; 64]] {
        let (mut near, far) = duplex(4096);
        near.write_all(noise).await.unwrap();
        near.shutdown().await.unwrap();
        assert!(key.acceptor().unwrap().accept(far).await.is_err());
    }
}

#[test]
fn keys_come_back_from_files_and_hide_in_debug() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let key = ServerKey::generate().unwrap();
    crate::private_file::create(&path, key.pkcs8()).unwrap();
    assert_eq!(ServerKey::load(&path).unwrap().pin(), key.pin());
    let shown = format!("{key:?}");
    assert!(shown.starts_with("ServerKey(pin ") && shown.len() < 90, "{shown}");
    std::fs::write(&path, b"junk").unwrap();
    let error = format!("{:#}", ServerKey::load(&path).unwrap_err());
    assert!(error.contains("not an Ed25519 key"), "{error}");
}

/// Each flight must fit in two segments. Most of each is the post-quantum key exchange.
#[tokio::test]
async fn each_flight_fits_two_segments() {
    let key = ServerKey::generate().unwrap();
    let (near, far) = duplex(64 * 1024);
    let (tap_client, mut tap_server) = (near, far);
    let connect = tokio::spawn(connector(key.pin()).unwrap().connect(server_name(), tap_client));
    let mut hello = vec![0; 8192];
    let sent = tap_server.read(&mut hello).await.unwrap();
    let (mut inner_near, inner_far) = duplex(64 * 1024);
    let accept = tokio::spawn(key.acceptor().unwrap().accept(inner_far));
    inner_near.write_all(&hello[..sent]).await.unwrap();
    let mut flight = 0;
    let mut buf = [0; 8192];
    while let Ok(Ok(read)) =
        tokio::time::timeout(std::time::Duration::from_millis(300), inner_near.read(&mut buf)).await
    {
        flight += read;
        tap_server.write_all(&buf[..read]).await.unwrap();
        if read == 0 {
            break;
        }
    }
    assert!(sent <= 2_400 && flight > 0 && flight <= 2_400, "client {sent}, server {flight} bytes");
    connect.await.unwrap().unwrap();
    drop(accept);
}
