//! A call: both ends send 600 bytes every 10 ms (480 kbit/s) and count packets that arrive within 150 ms, the one-way
//! delay for good quality (ITU-T G.114). Events: `ours SENT ON-TIME`, `theirs SENT ON-TIME`, at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::event;
use crate::clock;
use crate::dial::{Dial, Stream};
use crate::protocol::CALL;

const BYTES: usize = 600;
const INTERVAL: Duration = Duration::from_millis(10);
const ON_TIME_NS: u64 = 150_000_000;
/// Time after the last packet during which packets may still arrive.
const TAIL: Duration = Duration::from_millis(1_500);

/// Packet counts of one end.
#[derive(Default)]
struct End {
    sent: u64,
    on_time: u64,
    /// Number of our packets that the peer received on time.
    reported: u64,
}

impl End {
    /// The next packet: kind, total number of packets to send, time, and number that arrived on time so far.
    fn packet(&mut self, packets: u64) -> [u8; BYTES] {
        let mut packet = [CALL; BYTES];
        packet[1..9].copy_from_slice(&packets.to_be_bytes());
        packet[9..17].copy_from_slice(&clock::now().to_be_bytes());
        packet[17..25].copy_from_slice(&self.on_time.to_be_bytes());
        self.sent += 1;
        packet
    }

    fn receive(&mut self, packet: &[u8]) {
        let word = |at: usize| {
            packet.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_be_bytes)
        };
        let (Some(sent), Some(reported)) = (word(9), word(17)) else { return };
        self.on_time += u64::from(clock::now().saturating_sub(sent) <= ON_TIME_NS);
        self.reported = self.reported.max(reported);
    }
}

/// Number of packets in a call of this length; the final packets carry the last count.
fn packets(seconds: u64) -> u64 {
    seconds * 1_000 / INTERVAL.as_millis() as u64
}

fn print(end: &End, sent: u64) {
    event("ours", &[sent, end.reported]);
    event("theirs", &[sent, end.on_time]);
}

/// Runs the call over a stream, for systems without datagrams.
pub async fn over_stream(dial: &Dial, seconds: u64) -> anyhow::Result<()> {
    let mut stream = dial.stream().await?;
    stream.write_u8(CALL).await?;
    stream.write_u64(packets(seconds)).await?;
    event("start", &[clock::now()]);
    let end = talk(stream, packets(seconds)).await;
    print(&end, packets(seconds));
    Ok(())
}

/// Serves a call over a stream.
pub async fn serve_stream(stream: &mut Stream) -> anyhow::Result<()> {
    let packets = stream.read_u64().await?;
    talk(stream, packets).await;
    Ok(())
}

/// Sends and receives until the end; a failed stream delivers nothing more.
async fn talk(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite, packets: u64) -> End {
    let (mut from, mut to) = tokio::io::split(stream);
    let end = std::sync::Mutex::new(End::default());
    let lock = || end.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let reader = async {
        let mut packet = [0; BYTES];
        while from.read_exact(&mut packet).await.is_ok() {
            lock().receive(&packet);
        }
        std::future::pending::<()>().await;
    };
    let writer = async {
        let mut ticks = tokio::time::interval(INTERVAL);
        // After the last counted packet, a few packets repeat the last count.
        for _ in 0..packets + TAIL.as_millis() as u64 / INTERVAL.as_millis() as u64 {
            ticks.tick().await;
            let mut packet = lock().packet(packets);
            if lock().sent > packets {
                packet[9..17].copy_from_slice(&0u64.to_be_bytes());
            }
            if to.write_all(&packet).await.is_err() || to.flush().await.is_err() {
                break;
            }
        }
        tokio::time::sleep(TAIL / 3).await;
    };
    tokio::select! {
        () = reader => {}
        () = writer => {}
    }
    end.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs the call over datagrams.
pub async fn over_datagrams(dial: &Dial, seconds: u64) -> anyhow::Result<()> {
    let socket = Arc::new(dial.datagrams().await?);
    event("start", &[clock::now()]);
    let (arrivals, received) = mpsc::unbounded_channel();
    let reading = socket.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 2_048];
        loop {
            match reading.recv(&mut buffer).await {
                Ok(bytes) => drop(arrivals.send(buffer[..bytes].to_vec())),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    });
    let peer = socket.peer_addr().context("the socket is not connected")?;
    let end = exchange(&socket, peer, packets(seconds), received).await;
    print(&end, packets(seconds));
    Ok(())
}

/// The server's ends of calls over datagrams, by the client's address.
pub struct Datagrams {
    socket: Arc<UdpSocket>,
    ends: Vec<(SocketAddr, mpsc::UnboundedSender<Vec<u8>>)>,
}

impl Datagrams {
    /// Creates an empty set.
    pub fn new(socket: Arc<UdpSocket>) -> Self {
        Datagrams { socket, ends: Vec::new() }
    }

    /// Handles an arriving packet.
    pub fn receive(&mut self, packet: &[u8], from: SocketAddr) {
        self.ends.retain(|(_, end)| !end.is_closed());
        if !self.ends.iter().any(|(peer, _)| *peer == from) {
            let Some(word) = packet.get(1..9).and_then(|word| word.try_into().ok()) else { return };
            let (sender, received) = mpsc::unbounded_channel();
            let socket = self.socket.clone();
            tokio::spawn(async move {
                exchange(&socket, from, u64::from_be_bytes(word), received).await
            });
            self.ends.push((from, sender));
        }
        for (_, end) in self.ends.iter().filter(|(peer, _)| *peer == from) {
            // An end that has finished no longer counts.
            let _ = end.send(packet.to_vec());
        }
    }
}

async fn exchange(
    socket: &UdpSocket,
    peer: SocketAddr,
    packets: u64,
    mut received: mpsc::UnboundedReceiver<Vec<u8>>,
) -> End {
    let mut end = End::default();
    let mut ticks = tokio::time::interval(INTERVAL);
    let all = packets + TAIL.as_millis() as u64 / INTERVAL.as_millis() as u64;
    while end.sent < all {
        tokio::select! {
            Some(packet) = received.recv() => end.receive(&packet),
            _ = ticks.tick() => {
                let mut packet = end.packet(packets);
                if end.sent > packets {
                    packet[9..17].copy_from_slice(&0u64.to_be_bytes());
                }
                // A connected socket needs no address.
                let sent = match socket.peer_addr() {
                    Ok(_) => socket.send(&packet).await,
                    Err(_) => socket.send_to(&packet, peer).await,
                };
                // A packet that cannot be sent is lost.
                drop(sent);
            }
        }
    }
    end
}
