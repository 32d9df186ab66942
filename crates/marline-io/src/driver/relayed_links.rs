//! Links whose frames belong to several processes: a TCP connection carries all flows of a client between two
//! addresses, including flows of older processes, and only one process can write to it.
//!
//! The newest process owns the links. For each older process that frames on a link belong to, it creates a pair of
//! unix sockets, keeps one end and sends the other to that process, with the addresses of the link. There it is
//! treated as any other link: same framing, same limits, and a full socket makes its shards wait. The newest process
//! writes the frames that come back to the TCP connection, frame by frame.

use core::sync::atomic::Ordering;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use marline_time::Duration;
use tokio::net::UnixStream;

use super::elders::{OlderProcess, OlderProcesses};
use super::links::{Link, LinkStream, Links, Sent, count};
use crate::links::FrameDecoder;
use crate::succession::Message;

/// Delay before a full link is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Bytes per read from a relay.
const READ_BYTES: usize = 16 << 10;
/// Stands for no shard: a relay notifies none when it has room.
const NO_SHARD: u8 = 127;

/// Passes on the frames of a link that belong to older processes. Returns the rest.
pub(super) fn sift<'a>(
    links: &Links,
    elders: &OlderProcesses,
    link: &Arc<Link>,
    frames: Vec<&'a [u8]>,
) -> Vec<&'a [u8]> {
    let all = elders.all();
    let mut ours = Vec::new();
    for frame in frames {
        let (receivers, keep) = elders.receivers(&all, frame);
        for elder in receivers {
            if let Some(relay) = relay_to(link, elder)
                && relay.send(NO_SHARD, false, 0, frame) == Sent::Dropped
            {
                count(&links.counters.dropped);
            }
        }
        if keep {
            ours.push(frame);
        }
    }
    ours
}

/// Returns the relay to an older process for the frames of a link, and creates it if needed.
fn relay_to(link: &Arc<Link>, elder: &OlderProcess) -> Option<Arc<Link>> {
    if let Some(known) = link.relay_of(elder.generation) {
        return Some(known);
    }
    let (here, there) = UnixStream::pair().ok()?;
    let there = OwnedFd::from(there.into_std().ok()?);
    let (local, remote, port) = (link.outer.local, link.outer.remote, link.port);
    let message = Message::Link { local, remote, port }.to_bytes();
    // If the process is busy, the next frame tries again.
    elder.send(&[&message], Some(&there)).ok()?;
    let relay = Arc::new(Link::relay(LinkStream::Unix(here), link));
    link.add_relay(elder.generation, &relay);
    tokio::spawn(write(Arc::clone(&relay)));
    tokio::spawn(back(Arc::clone(link), Arc::clone(&relay), elder.generation));
    Some(relay)
}

/// Writes waiting frames to an older process whenever its socket has room.
async fn write(relay: Arc<Link>) {
    loop {
        relay.work.notified().await;
        loop {
            if relay.is_broken() || relay.stream.writable().await.is_err() {
                return;
            }
            match relay.flush() {
                Ok(None) => {}
                Ok(Some(_)) => break,
                Err(_) => return relay.close(),
            }
        }
    }
}

/// Writes frames of an older process to the link, until one of them ends.
async fn back(link: Arc<Link>, relay: Arc<Link>, generation: u8) {
    let mut unpacker = FrameDecoder::greeted();
    let mut buffer = vec![0; READ_BYTES];
    while relay.stream.readable().await.is_ok() && !link.is_broken() {
        let kept = unpacker.restore(&mut buffer);
        let len = match relay.stream.try_read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(len) => kept + len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => kept,
            Err(_) => break,
        };
        let mut sent = Sent::All;
        let write = |frame: &[u8]| {
            if link.send(NO_SHARD, false, 0, frame) != Sent::All {
                sent = Sent::Full;
            }
        };
        if unpacker.unpack(&buffer[..len], write).is_err() {
            break;
        }
        while sent == Sent::Full && link.is_waiting() && !link.is_broken() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    relay.close();
    let was_last = link.remove_relay(generation, &relay);
    // The older process has closed its end. If no flow was validated on the link by any process, it is closed.
    if was_last && !link.proven.load(Ordering::Relaxed) {
        link.close();
    }
}
