//! Tap on links between namespaces: a copy of each packet at either end, for a capture.
//!
//! The emulator's thread has deadlines, so it only copies: whoever holds the [`Tapped`] makes files of what it has,
//! best when the run is over. All links of an emulator are on one thread, so packets come in the order of their times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use marline_time::Duration;

/// A packet as an end of a link sent or got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedPacket {
    /// The link's number.
    pub link: u32,
    /// Whether it is the client's end.
    pub at_client: bool,
    /// Whether that end sent it; else it was handed to it.
    pub sent: bool,
    /// When, from the links' time zero.
    pub at: Duration,
    /// The IP packet.
    pub bytes: Vec<u8>,
}

/// What a link tells of its packets.
#[derive(Clone, Debug)]
pub struct Tap {
    link: u32,
    packets: Sender<TappedPacket>,
    bound: Arc<Bound>,
}

/// What taps have seen so far.
#[derive(Debug)]
pub struct Tapped {
    packets: Receiver<TappedPacket>,
    bound: Arc<Bound>,
}

/// Bytes there is room for at each end, and packets there was none for.
#[derive(Debug)]
struct Bound {
    room: [AtomicU64; 2],
    left_out: [AtomicU64; 2],
}

impl Tap {
    /// Taps for so many links, which copy at most so many bytes of packets at each end, and what they see.
    #[must_use]
    pub fn new(links: usize, max_bytes: u64) -> (Vec<Tap>, Tapped) {
        let (sender, packets) = channel();
        let room = [AtomicU64::new(max_bytes), AtomicU64::new(max_bytes)];
        let bound = Arc::new(Bound { room, left_out: Default::default() });
        let tap = |link| Tap { link, packets: sender.clone(), bound: Arc::clone(&bound) };
        ((0..links as u32).map(tap).collect(), Tapped { packets, bound })
    }

    pub(crate) fn see(&self, at: Duration, (at_client, sent): (bool, bool), bytes: &[u8]) {
        // One thread writes; whoever reads does so for a report.
        let end = usize::from(at_client);
        let room = &self.bound.room[end];
        let left = room.load(Ordering::Relaxed);
        let Some(left) = left.checked_sub(bytes.len() as u64) else {
            self.bound.left_out[end].fetch_add(1, Ordering::Relaxed);
            return;
        };
        room.store(left, Ordering::Relaxed);
        let packet = TappedPacket { link: self.link, at_client, sent, at, bytes: bytes.to_vec() };
        // Nobody looks any more: that is no error.
        let _ = self.packets.send(packet);
    }
}

impl Tapped {
    /// The packets that nobody took yet, in the order of their times.
    pub fn packets(&self) -> impl Iterator<Item = TappedPacket> {
        self.packets.try_iter()
    }

    /// Packets of an end there was no room for.
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
        taps[0].see(at, (true, true), &[1; 60]);
        taps[1].see(at, (true, false), &[2; 60]);
        taps[1].see(at, (false, false), &[3; 60]);
        taps[0].see(at, (true, false), &[4; 40]);
        let seen: Vec<(u32, bool, bool, u8)> =
            tapped.packets().map(|p| (p.link, p.at_client, p.sent, p.bytes[0])).collect();
        assert_eq!(seen, [(0, true, true, 1), (1, false, false, 3), (0, true, false, 4)]);
        assert_eq!((tapped.left_out(true), tapped.left_out(false)), (1, 0));
        assert_eq!(tapped.packets().count(), 0);
    }
}
