//! Stalled batches.

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use marline_core::Ecn;
use marline_time::Instant;

use super::socket::Sock;
use crate::carrier::Outer;

/// Maximum number of batches that wait for room in the kernel. Further ones are dropped, as in a router.
const STALLED_CAPACITY: usize = 32;

/// Batch for which the kernel had no room.
#[derive(Debug)]
pub(crate) struct Stalled {
    pub(crate) outer: Outer,
    pub(crate) ecn: Ecn,
    pub(crate) stride: usize,
    pub(crate) bytes: Vec<u8>,
}

/// Batches that wait for room, in order, by source address: a slow network does not hold up the others.
#[derive(Debug, Default)]
pub(crate) struct StalledQueue {
    batches: BTreeMap<IpAddr, VecDeque<Stalled>>,
}

impl StalledQueue {
    /// Returns true if a batch from this address already waits.
    pub(crate) fn holds(&self, local: IpAddr) -> bool {
        self.batches.contains_key(&local)
    }

    pub(crate) fn push(&mut self, batch: Stalled) {
        let queue = self.batches.entry(batch.outer.local).or_default();
        // A batch that does not fit is lost, as in a router.
        if queue.len() < STALLED_CAPACITY {
            queue.push_back(batch);
        }
    }

    /// Tries all batches again. Returns true if some still wait.
    pub(crate) fn retry(&mut self, now: Instant, socket: &Sock) -> bool {
        self.batches.retain(|_, queue| {
            while let Some(batch) = queue.front_mut() {
                let sent = socket.send(now, &batch.outer, batch.ecn, batch.stride, &batch.bytes);
                match sent {
                    Err(failed) if failed.would_block() => {
                        batch.bytes.drain(..failed.sent.min(batch.bytes.len()));
                        return true;
                    }
                    // On any other error the batch is lost, like any datagram.
                    _ => queue.pop_front(),
                };
            }
            false
        });
        !self.batches.is_empty()
    }
}
