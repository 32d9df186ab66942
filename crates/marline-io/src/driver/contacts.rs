//! What a client's shard notes of its contacts, and who is told.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_core::FourTuple;
use marline_time::Instant;
use tokio::sync::Notify;

use super::shard::Shard;
use super::state::State;
use crate::contacts::{Contact, Contacts, ObjectionKind};
use crate::sys::error_queue::NetworkError;

/// The contacts and who waits for news of them.
#[derive(Debug, Default)]
pub(super) struct ContactBook {
    /// A shard that accepts connections keeps none: it has as many peers as there are clients.
    contacts: Option<Contacts>,
    news: Arc<Notify>,
}

impl ContactBook {
    pub(super) fn new(opens_connections: bool) -> Self {
        let contacts = opens_connections.then(Contacts::default);
        ContactBook { contacts, news: Arc::default() }
    }

    fn note(&mut self, what: impl FnOnce(&mut Contacts) -> bool) {
        if let Some(contacts) = &mut self.contacts
            && what(contacts)
        {
            self.news.notify_one();
        }
    }

    /// Segments of a batch leave.
    pub(super) fn sent<'a>(
        &mut self,
        now: Instant,
        path: &FourTuple,
        segments: impl Iterator<Item = &'a [u8]>,
    ) {
        self.note(|contacts| contacts.sent(now, (path.local.ip(), path.remote), segments));
    }

    /// A segment came in.
    pub(super) fn came(&mut self, now: Instant, path: &FourTuple, segment: &[u8]) {
        self.note(|contacts| contacts.came(now, (path.local.ip(), path.remote), segment));
    }

    /// ICMP said something of what went from `local` to `remote`.
    pub(super) fn network_said(
        &mut self,
        now: Instant,
        (local, remote): (IpAddr, SocketAddr),
        error: &NetworkError,
    ) {
        let kind = match error.icmp {
            Some((kind, code)) => ObjectionKind::of_icmp(remote.is_ipv6(), kind, code),
            None => ObjectionKind::NotSent(error.errno),
        };
        self.note(|contacts| contacts.objected(now, (local, remote), (error.offender, kind)));
    }

    /// This machine would not send.
    pub(super) fn not_sent(&mut self, now: Instant, path: &FourTuple, errno: i32) {
        let said = (None, ObjectionKind::NotSent(errno));
        self.note(|contacts| contacts.objected(now, (path.local.ip(), path.remote), said));
    }
}

impl State {
    /// What was learnt over this address belongs to the past.
    pub(super) fn forget_contacts(&mut self, local: IpAddr) {
        if let Some(contacts) = &mut self.contacts.contacts {
            contacts.forget(local);
        }
    }
}

impl Shard {
    /// The time now, by the shard's clock, and what is known of each peer that was asked something.
    /// Nothing of a shard that accepts connections.
    pub fn contacts(&self) -> (Instant, Vec<Contact>) {
        let now = self.clock.now();
        let state = self.lock();
        (now, state.contacts.contacts.as_ref().map_or_else(Vec::new, |c| c.all().to_vec()))
    }

    /// There is no route from `local` to `remote`: nothing was sent.
    pub fn note_unroutable(&self, local: IpAddr, remote: SocketAddr, error: &std::io::Error) {
        let now = self.clock.now();
        let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
        self.lock().contacts.note(|contacts| contacts.unroutable(now, (local, remote), errno));
    }

    /// From now on the next news of a contact (a question, an objection, an answer nobody expected any
    /// more) wakes who waits here; later news does not, until asked for again.
    pub fn await_contacts(&self) -> Arc<Notify> {
        let mut state = self.lock();
        if let Some(contacts) = &mut state.contacts.contacts {
            contacts.await_news();
        }
        Arc::clone(&state.contacts.news)
    }
}
