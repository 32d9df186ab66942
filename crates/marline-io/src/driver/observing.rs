//! Application requests to the observers of a shard.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_time::Instant;
use tokio::sync::Notify;

use super::observers::{ObservedPath, PacketObserver};
use super::shard::Shard;
use crate::contacts::Contact;

impl Shard {
    /// Reports the current state of a path to the observers.
    pub fn show_path(&self, path: &ObservedPath<'_>) {
        let now = self.clock.now();
        self.lock().observers.others.iter_mut().for_each(|observer| observer.path(now, path));
    }

    /// Current time of the shard's clock, and the contacts with each peer. There are none in a shard that accepts
    /// connections.
    pub fn contacts(&self) -> (Instant, Vec<Contact>) {
        let now = self.clock.now();
        (now, self.lock().observers.contacts.all())
    }

    /// Local address and peer of each established subflow that is doubtful or silent.
    #[must_use]
    pub fn doubted_paths(&self) -> Vec<(IpAddr, SocketAddr)> {
        let doubted = self.lock().endpoint.doubted_paths();
        doubted.into_iter().map(|path| (path.local.ip(), path.remote)).collect()
    }

    /// Records that there is no route from `local` to `remote`, and that nothing was sent.
    pub fn note_unroutable(&self, local: IpAddr, remote: SocketAddr, error: &std::io::Error) {
        let now = self.clock.now();
        let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
        self.lock().observers.contacts.unroutable(now, local, remote, errno);
    }

    /// Requests one notification: the next change of a contact wakes the waiter (an unanswered packet, an error
    /// report, or a late answer). Later changes are not reported until this is called again.
    pub fn await_contacts(&self) -> Arc<Notify> {
        self.lock().observers.contacts.await_news()
    }
}
