//! Wakers and outcomes of a shard's connections.

use core::task::{Context, Waker};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use marline_core::{CloseReason, ConnectionId, FallbackReason};

use crate::carrier::IdHasher;

/// What the driver remembers of a connection that an application holds.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    pub(crate) connecting: Option<Waker>,
    pub(crate) connected: Option<Option<FallbackReason>>,
    pub(crate) closed: Option<CloseReason>,
}

impl Slot {
    /// Wakes everybody who waits for this connection.
    pub(crate) fn wake_all(&mut self) {
        for waker in [self.reader.take(), self.writer.take(), self.connecting.take()] {
            wake(waker);
        }
    }
}

/// Wakes who waits, if anybody does; says whether.
pub(crate) fn wake(waker: Option<Waker>) -> bool {
    waker.is_some_and(|waker| {
        waker.wake();
        true
    })
}

/// Remembers who waits.
pub(crate) fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

/// The slots, by connection.
pub(crate) type Slots = HashMap<ConnectionId, Slot, BuildHasherDefault<IdHasher>>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    use super::*;

    /// Ids count in their lower half, and in the upper one how often that number was used.
    #[test]
    fn connections_lie_apart_in_the_table() {
        const CONNECTIONS: u64 = 16_384;
        for (generation, step) in [(0, 1), (1, 1), (7, 1), (1, 2), (1, 16)] {
            let ids = (0..CONNECTIONS).map(|slot| ConnectionId((generation << 32) | (slot * step)));
            let hashes: Vec<u64> = ids.map(|id| Slots::default().hasher().hash_one(id)).collect();
            let places: BTreeSet<u64> = hashes.iter().map(|hash| hash % CONNECTIONS).collect();
            let tags: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(
                places.len() as u64 >= CONNECTIONS / step,
                "{generation} {step}: {}",
                places.len()
            );
            assert_eq!(tags.len(), 128, "{generation} {step}");
        }
    }
}
