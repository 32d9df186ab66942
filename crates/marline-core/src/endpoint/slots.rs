//! Connections of an endpoint, each in a slot with the endpoint's own state for it.

use marline_time::Instant;

use crate::ConnectionId;
use crate::connection::Connection;

/// One slot: a connection, or none, with the endpoint's state for it.
#[derive(Debug)]
struct Slot {
    connection: Option<Box<Connection>>,
    generation: u32,
    /// Time of the endpoint's next alarm for the connection.
    armed: Instant,
    /// The connection is in the endpoint's list of connections that are ready to send.
    queued: bool,
    /// The connection counts toward the limit on connections of unauthenticated peers that wait for a path.
    waiting: bool,
    /// The connection counts as half-open.
    half_open: bool,
    /// The connection counts toward the limit on connections that Fast Open delivered before their third ACK.
    fast_pending: bool,
}

impl Slot {
    const fn empty(generation: u32) -> Self {
        let armed = Instant::FAR_FUTURE;
        Slot {
            connection: None,
            generation,
            armed,
            queued: false,
            waiting: false,
            half_open: false,
            fast_pending: false,
        }
    }
}

/// Slots and the list of free ones.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    count: usize,
}

impl Slots {
    /// Number of connections.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Reserves a slot for a new connection.
    pub(super) fn reserve(&mut self) -> (ConnectionId, u32) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::empty(0));
            (self.slots.len() - 1) as u32
        });
        let generation = self.slots[slot as usize].generation;
        (ConnectionId(u64::from(generation) << 32 | u64::from(slot)), slot)
    }

    /// Puts the connection into its slot.
    pub(super) fn fill(&mut self, slot: u32, connection: Connection) {
        self.slots[slot as usize].connection = Some(Box::new(connection));
        self.count += 1;
    }

    /// Frees a slot. Ids of the connection that was there become invalid.
    pub(super) fn free(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        *entry = Slot::empty(entry.generation.wrapping_add(1));
        self.free.push(slot);
        self.count -= 1;
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Connection> {
        self.slots.get(slot as usize)?.connection.as_deref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.connection.as_deref_mut()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.slots.iter_mut().filter_map(|slot| slot.connection.as_deref_mut())
    }

    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.slots.iter().filter_map(|slot| slot.connection.as_ref()).map(|c| c.id()).collect()
    }

    /// Marks the connection as ready to send. Returns false if it already was or is gone.
    pub(super) fn enqueue(&mut self, slot: u32) -> bool {
        let there = self.slots.get_mut(slot as usize).filter(|slot| slot.connection.is_some());
        there.is_some_and(|slot| !core::mem::replace(&mut slot.queued, true))
    }

    /// Marks the connection as taken from the ready list.
    pub(super) fn dequeue(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.queued = false;
        }
    }

    /// Time of the alarm that is set for a slot.
    pub(super) fn alarm_at(&self, slot: u32) -> Option<Instant> {
        let slot = self.slots.get(slot as usize)?;
        slot.connection.as_ref().map(|_| slot.armed)
    }

    /// Sets an alarm, unless an earlier one is already set.
    pub(super) fn arm(&mut self, slot: u32, at: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return false };
        let earlier = at < slot.armed;
        if earlier {
            slot.armed = at;
        }
        earlier
    }

    /// Handles the alarm for `at`. An alarm that was replaced by an earlier one must not set another; otherwise
    /// alarms would multiply.
    pub(super) fn handle_alarm(&mut self, slot: u32, at: Instant) -> bool {
        let is_set = self.alarm_at(slot) == Some(at);
        if is_set {
            self.slots[slot as usize].armed = Instant::FAR_FUTURE;
        }
        is_set
    }

    /// Updates whether the connection belongs to an unauthenticated peer and waits for a path; returns any change.
    pub(super) fn record_waiting(&mut self, slot: u32) -> Option<(ConnectionId, Option<bool>)> {
        let entry = self.slots.get_mut(slot as usize)?;
        let connection = entry.connection.as_deref()?;
        let waits = connection.is_unauthenticated_without_path();
        let before = core::mem::replace(&mut entry.waiting, waits);
        Some((connection.id(), (waits != before).then_some(waits)))
    }

    pub(super) fn is_waiting(&self, id: ConnectionId) -> bool {
        let entry = self.slots.get(id.0 as u32 as usize);
        let there = |slot: &&Slot| slot.connection.as_ref().is_some_and(|c| c.id() == id);
        entry.filter(there).is_some_and(|slot| slot.waiting)
    }

    /// Updates whether the connection counts as half-open; returns any change.
    pub(super) fn record_half_open(&mut self, slot: u32) -> Option<bool> {
        let entry = self.slots.get_mut(slot as usize)?;
        let holds = entry.connection.as_deref().is_some_and(Connection::counts_as_half_open);
        let before = core::mem::replace(&mut entry.half_open, holds);
        (holds != before).then_some(holds)
    }

    /// Updates whether Fast Open delivered the connection and its third ACK has not arrived; returns any change.
    pub(super) fn record_fast_pending(&mut self, slot: u32) -> Option<bool> {
        let entry = self.slots.get_mut(slot as usize)?;
        let pending = entry.connection.as_deref().is_some_and(Connection::is_fast_pending);
        let before = core::mem::replace(&mut entry.fast_pending, pending);
        (pending != before).then_some(pending)
    }
}
