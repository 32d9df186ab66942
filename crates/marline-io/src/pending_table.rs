//! Table of unauthenticated peers ([`PendingPeers`]), shared between tasks.
//!
//! The holder of a [`PendingEntry`] drops it once the peer is authenticated or gone, and closes the connection when
//! [`PendingEntry::evicted`] resolves.

use core::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::{PendingId, PendingLimits, PendingPeers, Source};
use tokio::sync::oneshot;

/// Table of unauthenticated peers that tasks share.
#[derive(Clone, Debug)]
pub struct PendingTable {
    peers: Arc<Mutex<PendingPeers<oneshot::Sender<()>>>>,
}

/// Entry of a peer in a [`PendingTable`]. Dropping it removes the peer.
#[derive(Debug)]
pub struct PendingEntry {
    table: PendingTable,
    source: Source,
    id: PendingId,
    evicted: oneshot::Receiver<()>,
}

impl PendingTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new(limits: PendingLimits) -> PendingTable {
        PendingTable { peers: Arc::new(Mutex::new(PendingPeers::new(limits))) }
    }

    /// Adds a peer that has just arrived from `address`. Another peer may be evicted.
    #[must_use]
    pub fn admit(&self, address: IpAddr) -> PendingEntry {
        let source = Source::of(address);
        let (sender, evicted) = oneshot::channel();
        // Dropping the evicted entry's sender resolves its `evicted`.
        let (id, _) = self.lock().admit(source, sender);
        PendingEntry { table: self.clone(), source, id, evicted }
    }

    /// Returns the number of peers in the table.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, PendingPeers<oneshot::Sender<()>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingEntry {
    /// Resolves when the peer has been evicted. Cancel-safe.
    pub async fn evicted(&mut self) {
        // The sender never sends anything and is only dropped.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for PendingEntry {
    fn drop(&mut self) {
        self.table.lock().remove(self.source, self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn only_the_evicted_peer_is_notified() {
        let table = PendingTable::new(PendingLimits { total: 2, per_source: 2 });
        let mut first = table.admit("192.0.2.1".parse().unwrap());
        let mut honest = table.admit("192.0.2.2".parse().unwrap());
        let flood = table.admit("192.0.2.1".parse().unwrap());
        timeout(Duration::from_secs(5), first.evicted()).await.unwrap();
        assert!(timeout(Duration::from_millis(20), honest.evicted()).await.is_err());
        assert_eq!(table.count(), 2);
        drop((first, honest, flood));
        assert_eq!(table.count(), 0);
    }
}
