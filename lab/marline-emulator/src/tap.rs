//! Tap on links between namespaces: a copy of each packet at either end, for captures.
//!
//! The emulator's thread has deadlines, so it only copies. The owner of the [`TappedPackets`] writes files from the
//! copies, ideally after the run. All links of an emulator are on one thread, so packets are in order of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use marline_time::Duration;

/// A packet that an end of a link sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedPacket {
    /// Index of the link.
    pub link: u32,
    /// True for the client's end.
    pub at_client: bool,
    /// True if that end sent it, false if it received it.
    pub sent: bool,
    /// Time since the links' time zero.
    pub at: Duration,
    /// The IP packet.
    pub bytes: Vec<u8>,
}

/// Recorder of one link's packets.
#[derive(Clone, Debug)]
pub struct Tap {
    link: u32,
    packets: Sender<TappedPacket>,
    bound: Arc<CopyLimit>,
}

/// Packets recorded by the taps.
#[derive(Debug)]
pub struct TappedPackets {
    packets: Receiver<TappedPacket>,
    bound: Arc<CopyLimit>,
}

/// Remaining bytes at each end, and the number of packets that exceeded the limit.
#[derive(Debug)]
struct CopyLimit {
    room: [AtomicU64; 2],
    left_out: [AtomicU64; 2],
}

impl Tap {
    /// Creates taps for `links` links, which copy at most `max_bytes` bytes of packets at each end, and the store
    /// of their packets.
    #[must_use]
    pub fn new(links: usize, max_bytes: u64) -> (Vec<Tap>, TappedPackets) {
        let (sender, packets) = channel();
        let room = [AtomicU64::new(max_bytes), AtomicU64::new(max_bytes)];
        let bound = Arc::new(CopyLimit { room, left_out: Default::default() });
        let tap = |link| Tap { link, packets: sender.clone(), bound: Arc::clone(&bound) };
        ((0..links as u32).map(tap).collect(), TappedPackets { packets, bound })
    }

    /// Copies a packet that an end sends.
    pub(crate) fn on_sent(&self, at: Duration, at_client: bool, bytes: &[u8]) {
        self.copy(at, at_client, true, bytes);
    }

    /// Copies a packet that is delivered to an end.
    pub(crate) fn on_delivered(&self, at: Duration, at_client: bool, bytes: &[u8]) {
        self.copy(at, at_client, false, bytes);
    }

    fn copy(&self, at: Duration, at_client: bool, sent: bool, bytes: &[u8]) {
        // One thread writes; readers only need the values for a report.
        let end = usize::from(at_client);
        let room = &self.bound.room[end];
        let left = room.load(Ordering::Relaxed);
        let Some(left) = left.checked_sub(bytes.len() as u64) else {
            self.bound.left_out[end].fetch_add(1, Ordering::Relaxed);
            return;
        };
        room.store(left, Ordering::Relaxed);
        let packet = TappedPacket { link: self.link, at_client, sent, at, bytes: bytes.to_vec() };
        // The reader may have been dropped, which is not an error.
        let _ = self.packets.send(packet);
    }
}

impl TappedPackets {
    /// Takes the packets recorded so far, in order of time.
    pub fn packets(&self) -> impl Iterator<Item = TappedPacket> {
        self.packets.try_iter()
    }

    /// Number of packets at an end beyond the size limit.
    #[must_use]
    pub fn left_out(&self, at_client: bool) -> u64 {
        self.bound.left_out[usize::from(at_client)].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_capture_has_its_own_limit() {
        let (taps, tapped) = Tap::new(2, 100);
        let at = Duration::from_millis(1);
        taps[0].on_sent(at, true, &[1; 60]);
        taps[1].on_delivered(at, true, &[2; 60]);
        taps[1].on_delivered(at, false, &[3; 60]);
        taps[0].on_delivered(at, true, &[4; 40]);
        let seen: Vec<(u32, bool, bool, u8)> =
            tapped.packets().map(|p| (p.link, p.at_client, p.sent, p.bytes[0])).collect();
        assert_eq!(seen, [(0, true, true, 1), (1, false, false, 3), (0, true, false, 4)]);
        assert_eq!((tapped.left_out(true), tapped.left_out(false)), (1, 0));
        assert_eq!(tapped.packets().count(), 0);
    }
}
