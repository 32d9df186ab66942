use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::socks_listener::{Service, SocksListener, bind};
use super::tunnel::{Timeouts, Tunnel};
use crate::server::ServerLimits;
use crate::shutdown::Stopper;
use crate::testing::{Bench, BenchConnector, echo_target};

struct Near {
    address: SocketAddr,
    _stopper: Stopper,
}

/// Returns a client with one port, in front of a server in memory.
async fn near() -> Near {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let connect = BenchConnector { bench, connects: Arc::default() };
    let tunnel = Tunnel::new(connect, pin, token, Timeouts::default(), 0).unwrap();
    let stopper = Stopper::default();
    let front =
        SocksListener::new(tunnel, 8, stopper.listen(), Default::default(), Default::default());
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(front.serve(listener, Service::Socks5, std::future::pending()));
    Near { address, _stopper: stopper }
}

/// Sends these bytes and returns everything that the port sends until its end.
async fn talk(near: &Near, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(near.address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut said = Vec::new();
    socket.read_to_end(&mut said).await.unwrap();
    String::from_utf8(said).unwrap()
}

/// Returns a target whose answer contains the whole request and how it ended.
async fn mirror() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                while !heard.ends_with(b"END") && !heard.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut heard).await.unwrap_or_default() == 0 {
                        return;
                    }
                }
                let answer = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n";
                let _ = stream.write_all(&[answer, &heard[..]].concat()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    address
}

#[tokio::test]
async fn connect_passes_bytes_in_both_directions_even_those_that_came_early() {
    let near = near().await;
    let target = echo_target().await;
    let mut socket = TcpStream::connect(near.address).await.unwrap();
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nearly");
    socket.write_all(head.as_bytes()).await.unwrap();
    let expected = b"HTTP/1.1 200 Connection established\r\n\r\nearly, and late";
    socket.write_all(b", and late").await.unwrap();
    socket.shutdown().await.unwrap();
    let mut said = Vec::new();
    socket.read_to_end(&mut said).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&said), String::from_utf8_lossy(expected));
}

#[tokio::test]
async fn a_request_in_absolute_form_reaches_its_target_alone() {
    let (near, target) = (near().await, mirror().await);
    let request = format!(
        "\r\nPOST http://{target}/a HTTP/1.1\r\nHost: other\r\nProxy-Connection: keep-alive\r\n\
         Content-Length: 3\r\n\r\nENDGET http://{target}/b HTTP/1.1\r\nHost: other\r\n\r\n"
    );
    let said = talk(&near, request.as_bytes()).await;
    assert_eq!(
        said,
        format!(
            "HTTP/1.1 200 OK\r\nVia: 1.1 marline\r\nConnection: close\r\n\r\nPOST /a HTTP/1.1\r\n\
             Host: {target}\r\nContent-Length: 3\r\nVia: 1.1 marline\r\nConnection: close\r\n\r\nEND"
        )
    );
}

#[tokio::test]
async fn refusals_have_their_status_and_their_reason() {
    let near = near().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (request, status, reason) in [
        ("CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 403, "--allow 10.0.0.1"),
        ("GET http://10.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 403, "--allow 10.0.0.1"),
        (format!("CONNECT {closed} HTTP/1.1\r\nHost: x\r\n\r\n"), 502, "refused"),
        ("GET http://no-such-name.invalid/ HTTP/1.0\r\n\r\n".to_owned(), 504, "no-such-name"),
        ("GET https://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 501, "CONNECT"),
        ("CONNECT a.example HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 400, "HOST:PORT"),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_owned(), 404, "/proxy.pac"),
        ("GET /proxy.pac HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), 421, "localhost"),
        ("hello there\n\n".to_owned(), 400, "not an HTTP request"),
        ("A\0".to_owned(), 400, "not an HTTP request"),
        ("\r\n".repeat(100), 400, "empty lines"),
        (format!("GET /{} HTTP/1.1\r\n", "x".repeat(40_000)), 431, "32768 bytes"),
        (
            format!(
                "POST http://{closed}/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc"
            ),
            400,
            "the chunk size",
        ),
    ] {
        let said = talk(&near, request.as_bytes()).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(said.starts_with(&expected) && said.contains(reason), "{request:?}: {said}");
    }
}

#[tokio::test]
async fn the_pac_file_names_the_port() {
    let near = near().await;
    let request = format!("GET /proxy.pac HTTP/1.1\r\nHost: {}\r\n\r\n", near.address);
    let said = talk(&near, request.as_bytes()).await;
    assert!(said.contains(&format!("SOCKS5 {0}; PROXY {0}", near.address)), "{said}");
}

/// After any first byte, another application is still served.
#[tokio::test]
async fn hostile_first_bytes_end_their_own_connection_only() {
    let near = near().await;
    for first in 0..=255u8 {
        let mut socket = TcpStream::connect(near.address).await.unwrap();
        socket.write_all(&[first, 0xff, 0, b'\n', b'\n']).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut said = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut said));
        // A reset is also an end.
        let _ = read.await.unwrap_or_else(|_| panic!("first byte {first}: no end"));
    }
    let target = echo_target().await;
    let head = format!("CONNECT {target} HTTP/1.0\r\n\r\n");
    let mut socket = TcpStream::connect(near.address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut said = [0; 12];
    socket.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"HTTP/1.1 200");
}
