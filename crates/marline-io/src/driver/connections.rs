//! Wakers and outcomes of a shard's connections.

use core::task::{Context, Waker};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use marline_core::{CloseReason, ConnectionId, FallbackReason};

use crate::carrier::IdHasher;

/// Driver state of a connection that an application holds.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    pub(crate) connecting: Option<Waker>,
    pub(crate) connected: Option<Option<FallbackReason>>,
    pub(crate) closed: Option<CloseReason>,
}

impl Slot {
    /// Wakes all tasks that wait for this connection.
    pub(crate) fn wake_all(&mut self) {
        for waker in [self.reader.take(), self.writer.take(), self.connecting.take()] {
            wake(waker);
        }
    }
}

/// Wakes a waiting task. Returns false if there was none.
pub(crate) fn wake(waker: Option<Waker>) -> bool {
    waker.is_some_and(|waker| {
        waker.wake();
        true
    })
}

/// Stores the waker of the current task.
pub(crate) fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

/// Slots by connection id.
pub(crate) type Slots = HashMap<ConnectionId, Slot, BuildHasherDefault<IdHasher>>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    use super::*;

    /// The lower half of an id counts slots; the upper half counts how often the slot was used.
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
