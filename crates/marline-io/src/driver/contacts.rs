//! Contact book of a client's shard, and its subscribers.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_core::FourTuple;
use marline_time::Instant;
use tokio::sync::Notify;

use super::observer::{Direction, ObservedSegments, PacketObserver};
use crate::contacts::{Contact, Contacts, DeliveryErrorKind};
use crate::edge::network_error::NetworkError;

/// Contacts of a client, and notification of their changes.
#[derive(Debug, Default)]
pub(super) struct ContactBook {
    /// `None` in a shard that accepts connections: it has as many peers as there are clients.
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

    /// Records that there is no route from `local` to `remote`; nothing was sent.
    pub(super) fn unroutable(&mut self, now: Instant, ends: (IpAddr, SocketAddr), errno: i32) {
        self.note(|contacts| contacts.unroutable(now, ends, errno));
    }

    /// Returns all contacts.
    pub(super) fn all(&self) -> Vec<Contact> {
        self.contacts.as_ref().map_or_else(Vec::new, |contacts| contacts.all().to_vec())
    }

    /// Requests one notification: the next change wakes the waiter, and later changes do not until the next request.
    pub(super) fn await_news(&mut self) -> Arc<Notify> {
        if let Some(contacts) = &mut self.contacts {
            contacts.await_news();
        }
        Arc::clone(&self.news)
    }

    /// Discards everything learned over this local address.
    pub(super) fn forget(&mut self, local: IpAddr) {
        if let Some(contacts) = &mut self.contacts {
            contacts.forget(local);
        }
    }

    /// Records an ICMP error for a packet from `local` to `remote`.
    pub(super) fn record_icmp_error(
        &mut self,
        now: Instant,
        (local, remote): (IpAddr, SocketAddr),
        error: &NetworkError,
    ) {
        let kind = match error.icmp {
            Some((kind, code)) => DeliveryErrorKind::of_icmp(remote.is_ipv6(), kind, code),
            None => DeliveryErrorKind::NotSent(error.errno),
        };
        self.note(|contacts| {
            contacts.record_delivery_error(now, (local, remote), (error.offender, kind))
        });
    }

    /// Records that the server's machine reset a TCP connection for traffic from `local`.
    pub(super) fn refused(&mut self, now: Instant, (local, remote): (IpAddr, SocketAddr)) {
        let said = (Some(remote.ip()), DeliveryErrorKind::PortClosed);
        self.note(|contacts| contacts.record_delivery_error(now, (local, remote), said));
    }

    /// Records that this machine refused to send.
    pub(super) fn record_send_refusal(&mut self, now: Instant, path: &FourTuple, errno: i32) {
        let said = (None, DeliveryErrorKind::NotSent(errno));
        self.note(|contacts| {
            contacts.record_delivery_error(now, (path.local.ip(), path.remote), said)
        });
    }
}

impl PacketObserver for ContactBook {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let (now, ends) = (observed.at, (observed.local_ip(), observed.path.remote));
        self.note(|contacts| match observed.direction {
            Direction::Out => contacts.sent(now, ends, observed.segments()),
            Direction::In => {
                let mut news = false;
                for segment in observed.segments() {
                    news |= contacts.came(now, ends, segment);
                }
                news
            }
        });
    }
}
