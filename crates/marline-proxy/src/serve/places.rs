//! Places of a front's connections.
//!
//! A connection is silent until its client has sent something. When there is no place for a newcomer, a silent
//! connection is evicted: the oldest one of the source with the most silent connections, or of the newcomer's own
//! source if that has reached its limit. Connections whose clients have sent something are never evicted.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_io::{PendingId, PendingLimits, PendingPeers, Source};
use tokio::sync::oneshot;

use crate::relay::Traffic;
use crate::server::admission::Full;

/// No separate limits on silent connections, because the limits on all connections bound them.
const UNBOUNDED: PendingLimits = PendingLimits { total: usize::MAX, per_source: usize::MAX };

/// Places for connections, by source and in total.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    limits: PendingLimits,
    all: usize,
    by_source: BTreeMap<Source, usize>,
    /// Connections that were silent at the last check.
    silent: PendingPeers<SilentConnection>,
}

/// State of a silent connection. Dropping `first_bytes` evicts it.
#[derive(Debug)]
struct SilentConnection {
    source: Source,
    traffic: Arc<Traffic>,
    first_bytes: oneshot::Sender<()>,
}

/// A place. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    source: Source,
    id: PendingId,
    /// A message means that the connection was no longer silent. A closed channel means that it is evicted.
    eviction: oneshot::Receiver<()>,
    has_received: bool,
}

impl Places {
    pub(super) fn new(limits: PendingLimits) -> Places {
        let (by_source, silent) = (BTreeMap::new(), PendingPeers::new(UNBOUNDED));
        Places(Arc::new(Mutex::new(Table { limits, all: 0, by_source, silent })))
    }

    /// Changes the limits. Existing places are kept.
    pub(super) fn bound(&self, limits: PendingLimits) {
        self.lock().limits = limits;
    }

    /// Returns the number of occupied places.
    pub(super) fn count(&self) -> usize {
        self.lock().all
    }

    /// Takes a place for a connection that counts its bytes in `traffic`.
    ///
    /// # Errors
    /// A limit is reached, and no silent connection can be evicted.
    pub(super) fn take_place(&self, source: Source, traffic: &Arc<Traffic>) -> Result<Place, Full> {
        let mut table = self.lock();
        while table.count_of(source) >= table.limits.per_source {
            let oldest = table.silent.evict_oldest_of(source).ok_or(Full::Key)?;
            table.evict(oldest);
        }
        while table.all >= table.limits.total {
            let oldest = table.silent.make_room(source).ok_or(Full::Total)?;
            table.evict(oldest);
        }
        *table.by_source.entry(source).or_default() += 1;
        table.all += 1;
        let (sender, spoken) = oneshot::channel();
        let silent = SilentConnection { source, traffic: Arc::clone(traffic), first_bytes: sender };
        let (id, _) = table.silent.admit(source, silent);
        Ok(Place { places: self.clone(), source, id, eviction: spoken, has_received: false })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn count_of(&self, source: Source) -> usize {
        self.by_source.get(&source).copied().unwrap_or_default()
    }

    /// Evicts a connection if it is still silent. Otherwise it is only removed from the silent ones.
    fn evict(&mut self, connection: SilentConnection) {
        let (from_client, _) = connection.traffic.counts();
        if from_client > 0 {
            // A failed send means that the place is being dropped, which handles the end.
            let _ = connection.first_bytes.send(());
        } else {
            self.release(connection.source);
        }
    }

    fn release(&mut self, source: Source) {
        self.all -= 1;
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
    }
}

impl Place {
    /// Resolves when the connection has been evicted. Cancel safe.
    pub(super) async fn evicted(&mut self) {
        if !self.has_received && (&mut self.eviction).await.is_err() {
            return;
        }
        self.has_received = true;
        pending().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.places.lock();
        let was_silent = table.silent.remove(self.source, self.id).is_some();
        if was_silent || self.has_received || self.eviction.try_recv().is_ok() {
            table.release(self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> Source {
        Source::of([192, 0, 2, last].into())
    }

    #[test]
    fn places_are_counted_once_and_only_silent_ones_are_evicted() {
        let places = Places::new(PendingLimits { total: 3, per_source: 2 });
        let traffic = Arc::new(Traffic::default());
        traffic.count(0, 1);
        let spoken = places.take_place(source(1), &traffic).unwrap();
        let silent = places.take_place(source(1), &Arc::default()).unwrap();
        let again = places.take_place(source(1), &Arc::default()).unwrap();
        assert_eq!(places.count(), 2, "only the silent connection is evicted");
        drop(silent);
        assert_eq!(places.count(), 2);
        record_first_bytes(&again);
        let other = places.take_place(source(2), &traffic).unwrap();
        assert_eq!(places.take_place(source(3), &traffic).unwrap_err(), Full::Total);
        assert_eq!(places.take_place(source(1), &traffic).unwrap_err(), Full::Key);
        drop((spoken, again, other));
        let table = places.lock();
        assert_eq!((table.all, table.by_source.len(), table.silent.len()), (0, 0, 0));
    }

    fn record_first_bytes(place: &Place) {
        let mut table = place.places.lock();
        let silent = table.silent.remove(place.source, place.id).unwrap();
        silent.traffic.count(0, 1);
        table.silent.readmit(place.source, place.id, silent);
    }
}
