//! Application requests to the observers of a shard.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_time::Instant;
use tokio::sync::Notify;

use super::observer::{ObservedPath, PacketObserver};
use super::shard::Shard;
use crate::contacts::Contact;

impl Shard {
    /// Tells observers how a path is now.
    pub fn show_path(&self, path: &ObservedPath<'_>) {
        let now = self.clock.now();
        self.lock().observers.others.iter_mut().for_each(|observer| observer.path(now, path));
    }

    /// The time now, by the shard's clock, and what is known of each peer that was asked something.
    /// Nothing of a shard that accepts connections.
    pub fn contacts(&self) -> (Instant, Vec<Contact>) {
        let now = self.clock.now();
        (now, self.lock().observers.contacts.all())
    }

    /// There is no route from `local` to `remote`: nothing was sent.
    pub fn note_unroutable(&self, local: IpAddr, remote: SocketAddr, error: &std::io::Error) {
        let now = self.clock.now();
        let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
        self.lock().observers.contacts.unroutable(now, (local, remote), errno);
    }

    /// From now on the next news of a contact (a question, an objection, an answer nobody expected any
    /// more) wakes who waits here; later news does not, until asked for again.
    pub fn await_contacts(&self) -> Arc<Notify> {
        self.lock().observers.contacts.await_news()
    }
}
