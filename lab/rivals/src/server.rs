//! The neutral server, which serves every workload over streams and datagrams of any system.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use crate::dial::{Stream, tcp_socket, tokio_socket};
use crate::protocol::{
    CALL, DOWN, ECHO, PAGE, PORT, PORT_BBR, PORT_LIBRARY, PORT_MULTIPATH, REQUEST, UP,
};
use crate::workload::call;
use crate::world::TARGET;

/// Serves until it is killed.
///
/// # Errors
/// A port is in use.
pub async fn serve() -> anyhow::Result<()> {
    let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
    let kernel =
        [(PORT, false, "cubic"), (PORT_BBR, false, "bbr"), (PORT_MULTIPATH, true, "cubic")];
    for (port, multipath, congestion) in kernel {
        let socket = tcp_socket(multipath)?;
        socket.set_reuse_address(true)?;
        if socket.set_tcp_congestion(congestion.as_bytes()).is_err() {
            println!("port {port}: congestion control {congestion} is not available");
            continue;
        }
        let socket = tokio_socket(socket)?;
        socket.bind(any(port))?;
        let listener = socket.listen(1024)?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_stream(Box::new(stream)));
            }
        });
    }
    let library = marline::Server::builder().listen(any(PORT_LIBRARY)).bind().await?;
    tokio::spawn(async move {
        while let Some((stream, _)) = library.accept().await {
            tokio::spawn(serve_stream(Box::new(stream)));
        }
    });
    // Clients accept answers from this address only.
    let target: Ipv4Addr = TARGET.parse()?;
    let datagrams = UdpSocket::bind((target, PORT)).await.context("cannot bind the UDP socket")?;
    println!("ready");
    serve_datagrams(datagrams).await
}

async fn serve_stream(mut stream: Stream) {
    // Clients may end streams at any time.
    let _ = answer(&mut stream).await;
}

async fn answer(stream: &mut Stream) -> anyhow::Result<()> {
    match stream.read_u8().await? {
        ECHO => echo(stream).await,
        DOWN => loop {
            stream.write_all(&[7; 65_536]).await?;
        },
        UP => receive(stream).await,
        PAGE => serve_page(stream).await,
        _ => call::serve_stream(stream).await,
    }
}

async fn echo(stream: &mut Stream) -> anyhow::Result<()> {
    let mut message = vec![0; stream.read_u32().await? as usize];
    loop {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message).await?;
        stream.flush().await?;
    }
}

async fn receive(stream: &mut Stream) -> anyhow::Result<()> {
    let mut buffer = vec![0; 65_536];
    let (mut received, mut ticks) = (0u64, tokio::time::interval(Duration::from_millis(100)));
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => match read? {
                0 => return Ok(()),
                bytes => received += bytes as u64,
            },
            _ = ticks.tick() => {
                stream.write_u64(received).await?;
                stream.flush().await?;
            }
        }
    }
}

async fn serve_page(stream: &mut Stream) -> anyhow::Result<()> {
    let mut request = [0; REQUEST];
    loop {
        stream.read_exact(&mut request).await?;
        let bytes = u32::from_be_bytes([request[0], request[1], request[2], request[3]]);
        stream.write_all(&vec![7; bytes as usize]).await?;
        stream.flush().await?;
    }
}

async fn serve_datagrams(socket: UdpSocket) -> anyhow::Result<()> {
    let socket = std::sync::Arc::new(socket);
    let mut calls = call::Datagrams::new(socket.clone());
    let mut packet = vec![0; 2_048];
    loop {
        let (bytes, from) = socket.recv_from(&mut packet).await?;
        match packet[0] {
            CALL => calls.receive(&packet[..bytes], from),
            // A full queue loses datagrams, as any network does.
            _ => drop(socket.send_to(&packet[..bytes], from).await),
        }
    }
}
