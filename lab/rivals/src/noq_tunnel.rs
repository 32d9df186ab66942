//! A tunnel over noq: a stream per TCP connection, QUIC datagrams for UDP, over one connection with two paths.
//!
//! noq sends over the first usable path of the better status, so WiFi is opened as available and LTE as backup. Idle
//! timeout and keep-alive of paths are those of iroh. A path that noq abandoned is opened again every second.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use noq::{
    ClientConfig, Connection, Endpoint, PathStatus, RecvStream, SendStream, ServerConfig,
    TransportConfig,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::protocol::PORT;
use crate::world::{LTE, SERVER, TARGET, WIFI};

const PORT_QUIC: u16 = 4433;

/// TCP and UDP port of the tunnel's client.
pub const PORT_LOCAL: u16 = 9100;

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_multipath_paths(8)
        .max_concurrent_bidi_streams(10_000u32.into())
        .keep_alive_interval(Some(Duration::from_secs(5)))
        .default_path_keep_alive_interval(Some(Duration::from_secs(5)))
        .default_path_max_idle_timeout(Some(Duration::from_secs(15)));
    Arc::new(transport)
}

/// Runs the server, which writes its certificate to a file.
///
/// # Errors
/// The port is in use.
pub async fn serve(certificate: &str) -> anyhow::Result<()> {
    let made = rcgen::generate_simple_self_signed(vec!["rivals".into()])?;
    std::fs::write(certificate, made.cert.der())?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    config.transport_config(transport());
    let endpoint = Endpoint::server(config, SocketAddr::from(([0, 0, 0, 0], PORT_QUIC)))?;
    println!("ready");
    while let Some(incoming) = endpoint.accept().await {
        let connection = incoming.await?;
        let target: SocketAddr = format!("{TARGET}:{PORT}").parse()?;
        let socket = Arc::new(UdpSocket::bind("0.0.0.0:0").await?);
        socket.connect(target).await?;
        tokio::spawn(from_socket(connection.clone(), socket.clone()));
        tokio::spawn(to_socket(connection.clone(), socket));
        tokio::spawn(async move {
            while let Ok((send, receive)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    let stream = TcpStream::connect(target).await?;
                    relay(stream, send, receive).await
                });
            }
        });
    }
    Ok(())
}

/// The client.
///
/// # Errors
/// The server does not answer.
pub async fn connect(certificate: &str) -> anyhow::Result<()> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(std::fs::read(certificate)?))?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let endpoint = Endpoint::client(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    let server: SocketAddr = format!("{SERVER}:{PORT_QUIC}").parse()?;
    let connection = endpoint.connect_with(config, server, "rivals")?.await?;
    for ((_, address), status) in [(WIFI, PathStatus::Available), (LTE, PathStatus::Backup)] {
        tokio::spawn(keep_open(connection.clone(), server, address.parse()?, status));
    }
    let local = SocketAddr::from(([127, 0, 0, 1], PORT_LOCAL));
    let socket = Arc::new(UdpSocket::bind(local).await?);
    tokio::spawn(serve_local(connection.clone(), socket));
    let listener = TcpListener::bind(local).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    println!("ready");
    loop {
        let (stream, _) = listener.accept().await?;
        let (send, receive) = connection.open_bi().await?;
        tokio::spawn(relay(stream, send, receive));
    }
}

/// Opens a path, and opens it again after it was abandoned.
async fn keep_open(connection: Connection, server: SocketAddr, local: IpAddr, status: PathStatus) {
    loop {
        let tuple = noq::FourTuple::new(server, Some(local));
        match connection.open_path_ensure(tuple, status).await {
            Ok(path) => {
                println!("path {} from {local}: {status:?}", path.id());
                // The connection's first path was opened without a status.
                if path.set_status(status).is_err() {
                    println!("path from {local} is closed");
                }
                while path.status().is_ok() {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                println!("path from {local} was abandoned");
            }
            Err(error) => println!("path from {local}: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn relay(
    stream: TcpStream,
    mut send: SendStream,
    mut receive: RecvStream,
) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let (mut from, mut to) = stream.into_split();
    let out = async {
        copy(&mut from, &mut send).await?;
        send.finish().context("the stream was closed")
    };
    let into = async {
        copy(&mut receive, &mut to).await?;
        anyhow::Ok(())
    };
    // An error on a stream ends both directions.
    tokio::try_join!(out, into).map(drop)
}

async fn from_socket(connection: Connection, socket: Arc<UdpSocket>) -> anyhow::Result<()> {
    let mut buffer = [0; 2_048];
    loop {
        // Datagrams that do not fit are lost, as in any network.
        if let Ok(bytes) = socket.recv(&mut buffer).await {
            let _ = connection.send_datagram(buffer[..bytes].to_vec().into());
        }
    }
}

async fn to_socket(connection: Connection, socket: Arc<UdpSocket>) -> anyhow::Result<()> {
    loop {
        let datagram = connection.read_datagram().await?;
        let _ = socket.send(&datagram).await;
    }
}

/// The client's UDP port; answers go to the last sender.
async fn serve_local(connection: Connection, socket: Arc<UdpSocket>) -> anyhow::Result<()> {
    let (mut buffer, mut last) = ([0; 2_048], None);
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                let (bytes, from) = received?;
                last = Some(from);
                let _ = connection.send_datagram(buffer[..bytes].to_vec().into());
            }
            datagram = connection.read_datagram() => {
                if let Some(to) = last {
                    let _ = socket.send_to(&datagram?, to).await;
                }
            }
        }
    }
}
