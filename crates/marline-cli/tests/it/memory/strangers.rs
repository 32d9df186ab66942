//! Handshakes by unauthenticated peers, over both carriers of a server, from several addresses on loopback.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use marline::Client;
use marline_testkit::capable;
use marline_testkit::fixtures::first_packet;
use marline_wire::mptcp::MpCapableForm;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Number of source addresses.
const SOURCES: u32 = 20;
/// Start of a TLS record of 16 KiB whose rest never arrives.
const HALF_HELLO: &[u8] = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03";
/// Opening of the TCP carrier, and the length of a frame that never arrives.
const HALF_FRAME: &[u8] = b"Marline\x01\x00\x80";

fn source(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 2, (number % SOURCES) as u8 + 1)
}

/// Unauthenticated connections, open until this is dropped.
#[derive(Default)]
pub(super) struct Strangers {
    /// Connections whose handshake below TLS was completed.
    pub(super) connections: Vec<marline::Stream>,
    pub(super) links: Vec<TcpStream>,
    /// First packets and noise; the senders never answer.
    pub(super) datagrams: u32,
    /// Handshakes that the server or the kernel refused or did not answer.
    pub(super) refused: u32,
}

/// One unauthenticated connection or packet.
enum Held {
    Connection(marline::Stream),
    Link(TcpStream),
    Datagram,
}

/// Starts `count` handshakes at this rate. Half of them are TCP connections of the kernel that are silent, stop
/// halfway or send invalid data. A quarter are single datagrams. A quarter complete the multipath handshake and
/// stop in TLS.
pub(super) async fn come(server: SocketAddr, count: u32, per_second: u32) -> Strangers {
    let mut clients = Vec::new();
    let mut sockets = Vec::new();
    for number in 0..SOURCES {
        let mut client = Client::builder();
        client.paths([source(number).to_string().parse().expect("a path")]);
        clients.push(client.bind().await.expect("a client"));
        sockets.push(UdpSocket::bind((source(number), 0)).await.expect("a socket"));
    }
    let mut coming = JoinSet::new();
    let mut strangers = Strangers::default();
    let begun = tokio::time::Instant::now();
    for number in 0..count {
        tokio::time::sleep_until(begun + Duration::from_secs(1) * number / per_second).await;
        // Each source uses each kind.
        let (way, from, word) = (number % 4, number / 4, number / 4 / SOURCES);
        if way == 2 {
            let frame = stray_packet(number, word % 3);
            let sent = sockets[(from % SOURCES) as usize].send_to(&frame, server).await;
            strangers.count(sent.map(|_| Held::Datagram));
            continue;
        }
        let client = clients[(from % SOURCES) as usize].clone();
        coming.spawn(async move {
            let held = async {
                match way {
                    3 => connect(&client, server, word).await,
                    _ => link(server, from, word).await,
                }
            };
            timeout(Duration::from_secs(10), held).await.map_err(io::Error::other)?
        });
        while let Some(one) = coming.try_join_next() {
            strangers.count(one.expect("no panic"));
        }
    }
    while let Some(one) = coming.join_next().await {
        strangers.count(one.expect("no panic"));
    }
    strangers
}

impl fmt::Display for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (connections, links) = (self.connections.len(), self.links.len());
        let Strangers { datagrams, refused, .. } = self;
        write!(f, "strangers: {connections} multipath and {links} TCP connections, ")?;
        write!(f, "{datagrams} first packets, {refused} refused")
    }
}

impl Strangers {
    fn count(&mut self, held: io::Result<Held>) {
        match held {
            Ok(Held::Connection(stream)) => self.connections.push(stream),
            Ok(Held::Link(stream)) => self.links.push(stream),
            Ok(Held::Datagram) => self.datagrams += 1,
            Err(_) => self.refused += 1,
        }
    }
}

async fn connect(client: &Client, server: SocketAddr, word: u32) -> io::Result<Held> {
    let mut stream = client.connect(server).await.map_err(io::Error::other)?;
    match word % 3 {
        0 => {}
        1 => stream.write_all(HALF_HELLO).await?,
        _ => stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await?,
    }
    Ok(Held::Connection(stream))
}

async fn link(server: SocketAddr, from: u32, word: u32) -> io::Result<Held> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source(from), 0).into())?;
    let mut stream = socket.connect(server).await?;
    match word % 4 {
        0 => {}
        1 => stream.write_all(&HALF_FRAME[..5]).await?,
        2 => stream.write_all(HALF_FRAME).await?,
        _ => stream.write_all(&HALF_HELLO[..11]).await?,
    }
    Ok(Held::Link(stream))
}

/// Returns a first SYN in a HANDSHAKE frame (docs/spec/udp-carrier.md, section 3), or a malformed one.
fn stray_packet(number: u32, kind: u32) -> Vec<u8> {
    let flow = u64::from(number) << 32 | 5;
    let frame = first_packet(flow, number as u16, capable(MpCapableForm::Syn));
    match kind {
        0 | 1 => frame,
        _ => {
            // Noise before the segment.
            let mut frame = frame;
            frame.splice(17..17, [number as u8; 400]);
            frame
        }
    }
}
