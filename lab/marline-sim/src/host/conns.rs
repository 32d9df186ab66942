//! Connections of a host with their applications, indexed by id and by wake-up time, because a host may have thousands
//! of connections and each packet belongs to only one.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::{ConnectionId, Endpoint};
use marline_time::Instant;

use crate::app::{App, Call, Socket, SocketStatus};

/// A connection and its application.
pub(super) struct Conn {
    pub(super) id: ConnectionId,
    pub(super) app: Box<dyn App>,
    pub(super) status: SocketStatus,
    /// Current timer entry.
    timer_at: Option<Instant>,
}

/// All connections of a host, in the order of creation.
#[derive(Default)]
pub(super) struct ConnectionTable {
    all: Vec<Conn>,
    places: BTreeMap<ConnectionId, usize>,
    timers: BTreeSet<(Instant, usize)>,
}

impl ConnectionTable {
    pub(super) fn push(&mut self, id: ConnectionId, app: Box<dyn App>, status: SocketStatus) {
        let place = self.all.len();
        self.all.push(Conn { id, app, status, timer_at: None });
        self.places.insert(id, place);
        self.set_timer(place);
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.all.iter()
    }

    pub(super) fn get(&self, place: usize) -> Option<&Conn> {
        self.all.get(place)
    }

    pub(super) fn set_status(&mut self, id: ConnectionId, status: SocketStatus) {
        if let Some(conn) = self.places.get(&id).and_then(|place| self.all.get_mut(*place)) {
            conn.status = status;
        }
    }

    /// Lets the application of a connection act. Returns the number of bytes that it has read so far, and its
    /// requests.
    pub(super) fn wake(
        &mut self,
        now: Instant,
        id: ConnectionId,
        endpoint: &mut Endpoint,
    ) -> Option<(u64, Vec<Call>)> {
        let place = *self.places.get(&id)?;
        let conn = self.all.get_mut(place)?;
        let mut socket = Socket::new(endpoint, now, id, conn.status);
        conn.app.wake(&mut socket);
        let (read, calls) = (conn.app.report().read, socket.take_requests());
        self.set_timer(place);
        Some((read, calls))
    }

    /// Updates the timer. Applications, and so their wake-up times, change only in [`wake`](Self::wake).
    fn set_timer(&mut self, place: usize) {
        let conn = &mut self.all[place];
        let wanted = conn.app.next_timeout();
        if wanted == conn.timer_at {
            return;
        }
        if let Some(before) = conn.timer_at {
            self.timers.remove(&(before, place));
        }
        if let Some(at) = wanted {
            self.timers.insert((at, place));
        }
        conn.timer_at = wanted;
    }

    /// The connections whose applications are due, in the order of creation.
    pub(super) fn due(&self, now: Instant) -> Vec<ConnectionId> {
        let due = self.timers.range(..=(now, usize::MAX));
        let mut places: Vec<usize> = due.map(|(_, place)| *place).collect();
        places.sort_unstable();
        places.into_iter().map(|place| self.all[place].id).collect()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }
}
