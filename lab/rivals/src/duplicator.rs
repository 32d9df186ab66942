//! Our own duplicator for WireGuard, which itself removes copies. The client sends each datagram over both paths; the
//! server answers over every path on which it has received a datagram from the client.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::UdpSocket;

use crate::world::{LTE, SERVER, WIFI};

/// WireGuard's port at both ends.
pub const PORT_WIREGUARD: u16 = 51_820;
/// The duplicator's port at both ends.
pub const PORT: u16 = 51_830;

/// Runs the client, which sends the local WireGuard's datagrams over both paths.
///
/// # Errors
/// A port is in use.
pub async fn client() -> anyhow::Result<()> {
    let local = UdpSocket::bind((Ipv4Addr::LOCALHOST, PORT)).await?;
    local.connect((Ipv4Addr::LOCALHOST, PORT_WIREGUARD)).await?;
    let [wifi, lte] = [WIFI, LTE].map(|(interface, _)| path(interface));
    let (wifi, lte) = (wifi.await?, lte.await?);
    println!("ready");
    let [mut datagram, mut from_wifi, mut from_lte] = [[0; 2_048]; 3];
    loop {
        // A datagram that cannot be sent is lost on this path only.
        tokio::select! {
            Ok(bytes) = local.recv(&mut datagram) => {
                let _ = wifi.send(&datagram[..bytes]).await;
                let _ = lte.send(&datagram[..bytes]).await;
            }
            Ok(bytes) = wifi.recv(&mut from_wifi) => drop(local.send(&from_wifi[..bytes]).await),
            Ok(bytes) = lte.recv(&mut from_lte) => drop(local.send(&from_lte[..bytes]).await),
            else => tokio::task::yield_now().await,
        }
    }
}

async fn path(interface: &str) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    socket.bind_device(Some(interface.as_bytes()))?;
    let server: Ipv4Addr = SERVER.parse()?;
    socket.connect((server, PORT)).await?;
    Ok(socket)
}

/// Runs the server for one client.
///
/// # Errors
/// A port is in use.
pub async fn server() -> anyhow::Result<()> {
    // Clients accept answers from this address only.
    let address: Ipv4Addr = SERVER.parse()?;
    let outside = UdpSocket::bind((address, PORT)).await?;
    let local = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    local.connect((Ipv4Addr::LOCALHOST, PORT_WIREGUARD)).await?;
    println!("ready");
    let mut heard: Vec<SocketAddr> = Vec::new();
    let [mut from_client, mut from_local] = [[0; 2_048]; 2];
    loop {
        tokio::select! {
            Ok((bytes, from)) = outside.recv_from(&mut from_client) => {
                if !heard.contains(&from) {
                    heard.push(from);
                }
                let _ = local.send(&from_client[..bytes]).await;
            }
            Ok(bytes) = local.recv(&mut from_local) => {
                for path in &heard {
                    let _ = outside.send_to(&from_local[..bytes], path).await;
                }
            }
            else => tokio::task::yield_now().await,
        }
    }
}
