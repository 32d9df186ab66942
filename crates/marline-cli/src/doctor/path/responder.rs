//! Responder of `marline doctor --listen`: an echo server that reports the segments it received.
//!
//! Any host that can reach the responder may use it, so it is minimal. It echoes data, and reports to an address
//! only segments from and to that address, and only to a client that knows the initial sequence number of its
//! connection. The connections, their age, and the recorded segments are bounded.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline::config::Linger;
use marline::{Server, ServerBuilder, Stream};
use marline_io::{SegmentLog, TappedSegment};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::exchange::{ANSWER, GREETING};
use super::seen::{self, SeenSegment};

/// Maximum number of recorded segments.
const MAX_LOGGED_SEGMENTS: usize = 65_536;
/// Maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 32;
/// Maximum number of connections for which reports can be requested.
const MAX_KNOWN: usize = 256;
/// Largest duration of a connection.
const MAX_LIFETIME: Duration = Duration::from_secs(120);
/// Longest time between a connection's first SYN and its first line, in microseconds.
const OPENING_US: u64 = 30_000_000;

/// A connection for which a report can be requested.
#[derive(Copy, Clone, Debug)]
struct KnownConnection {
    nonce: u64,
    peer: SocketAddr,
    since_us: u64,
}

#[derive(Debug)]
struct Responder {
    log: SegmentLog,
    known: Mutex<VecDeque<KnownConnection>>,
}

/// Returns a server to be bound at this address, with a carrier of raw sockets, and the log of its segments.
pub fn responder(listen: SocketAddr) -> (ServerBuilder, SegmentLog) {
    let log = SegmentLog::new(MAX_LOGGED_SEGMENTS);
    let mut server = Server::builder();
    server.listen(listen).segment_log(log.clone());
    server.transport_mut().linger(Linger::new(Duration::from_secs(20)));
    (server, log)
}

/// Serves until stopped.
///
/// # Errors
/// The server cannot listen at the address.
pub async fn respond(
    server: ServerBuilder,
    log: SegmentLog,
    ready: impl FnOnce(SocketAddr),
) -> anyhow::Result<()> {
    let server = server.bind().await?;
    ready(server.local_addr());
    let responder = Arc::new(Responder { log, known: Mutex::default() });
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Some((stream, peer)) = server.accept().await {
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            stream.abort();
            continue;
        };
        let responder = Arc::clone(&responder);
        tokio::spawn(async move {
            // A client that stops early is not an error.
            let _ = timeout(MAX_LIFETIME, responder.serve(stream, peer)).await;
            drop(place);
        });
    }
    Ok(())
}

impl Responder {
    async fn serve(&self, mut stream: Stream, peer: SocketAddr) -> io::Result<()> {
        let line = first_line(&mut stream).await?;
        let rest = line.strip_prefix(GREETING).and_then(|rest| rest.trim().split_once(' '));
        let asked =
            rest.and_then(|(what, nonce)| Some((what, u64::from_str_radix(nonce, 16).ok()?)));
        match asked {
            Some(("echo", nonce)) => {
                self.remember(nonce, peer);
                stream.write_all(ANSWER).await?;
                echo(&mut stream).await
            }
            Some(("report", nonce)) => {
                let mut text = String::new();
                for entry in self.report(nonce, peer) {
                    seen::write_line(&entry, &mut text);
                }
                text.push_str("end\n");
                stream.write_all(text.as_bytes()).await?;
                stream.shutdown().await
            }
            _ => {
                stream.abort();
                Ok(())
            }
        }
    }

    fn remember(&self, nonce: u64, peer: SocketAddr) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.pop_front();
        }
        let earliest_us = self.log.now_us().saturating_sub(OPENING_US);
        let since_us =
            connection_start(&self.log.entries(), peer, earliest_us).unwrap_or(earliest_us);
        known.push_back(KnownConnection { nonce, peer, since_us });
    }

    /// Returns the segments of the client's connection, without those of the request for the report.
    fn report(&self, nonce: u64, peer: SocketAddr) -> Vec<TappedSegment> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |known: &&KnownConnection| known.nonce == nonce && known.peer.ip() == peer.ip();
        let Some(known) = known.iter().find(same) else { return Vec::new() };
        report_entries(&self.log.entries(), known.peer, peer, known.since_us)
    }
}

/// Returns the report on the connection opened at the time `opened`: the segments of its address since then, without
/// those of the requesting port and the last segments of ports that were active before.
pub(super) fn report_entries(
    entries: &[TappedSegment],
    opened: SocketAddr,
    asks: SocketAddr,
    since_us: u64,
) -> Vec<TappedSegment> {
    let before = entries.iter().filter(|entry| entry.at_us < since_us);
    let others: BTreeSet<SocketAddr> =
        before.map(|entry| entry.remote).filter(|remote| *remote != opened).collect();
    let about = |entry: &&TappedSegment| {
        let known = entry.remote.ip() == opened.ip() && entry.remote != asks;
        known && entry.at_us >= since_us && !others.contains(&entry.remote)
    };
    entries.iter().filter(about).cloned().collect()
}

/// Returns the time of the first SYN of the connection from `peer`. Earlier segments belong to an earlier diagnosis,
/// or to one over another path behind the same NAT.
pub(super) fn connection_start(
    entries: &[TappedSegment],
    peer: SocketAddr,
    earliest_us: u64,
) -> Option<u64> {
    let mut candidates = entries.iter().filter(|entry| entry.at_us >= earliest_us);
    let is_first = |entry: &&TappedSegment| {
        !entry.sent && entry.remote == peer && SeenSegment::from_entry(entry, false).is_syn()
    };
    candidates.find(is_first).map(|syn| syn.at_us)
}

async fn first_line(stream: &mut Stream) -> io::Result<String> {
    const MAX_LINE: usize = 64;
    let mut line = Vec::new();
    while line.len() < MAX_LINE {
        let byte = stream.read_u8().await?;
        if byte == b'\n' {
            return String::from_utf8(line).map_err(io::Error::other);
        }
        line.push(byte);
    }
    Err(io::ErrorKind::InvalidData.into())
}

async fn echo(stream: &mut Stream) -> io::Result<()> {
    let mut buffer = vec![0; 16_384];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_leaves_out_the_previous_examination() {
        let (here, other): (SocketAddr, SocketAddr) =
            ("10.0.0.1:7000".parse().unwrap(), "10.0.0.2:1111".parse().unwrap());
        let segment = |at_us, sent, remote: SocketAddr, flags: u8| {
            let mut header = [0; 20];
            (header[12], header[13]) = (0x50, flags);
            TappedSegment::of(at_us, sent, here, remote, &header).expect("a segment")
        };
        let peer = SocketAddr::new(other.ip(), 2222);
        let entries = [
            segment(10, false, other, 0x02),
            segment(11, true, other, 0x12),
            segment(20, false, other, 0x11),
            // The same ports in an earlier connection.
            segment(25, false, peer, 0x02),
            segment(40, false, peer, 0x02),
            segment(41, true, peer, 0x12),
            segment(60, false, peer, 0x02),
        ];
        assert_eq!(connection_start(&entries, peer, 30), Some(40));
        assert_eq!(connection_start(&entries, other, 0), Some(10));
        assert_eq!(connection_start(&entries, other, 30), None);
    }
}
