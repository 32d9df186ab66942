//! One end of a small world: an endpoint, and the application on it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, Endpoint, Event, FallbackReason, MonitorEvent,
    MonitorKind, ReadError, SubflowInfo, SubflowState, Transmit, TransmitBuf, WriteError,
};
use marline_policy::AddressId;
use marline_time::{Duration, Instant};

use super::scene::{Action, Step, Trigger, client_address};
use super::state_text;
use crate::Side;

/// Maximum number of rounds of an application and its endpoint without time passing. A larger number indicates an
/// endless loop.
const MAX_ROUNDS: usize = 1_000;
/// Maximum number of datagrams in a batch.
const MAX_DATAGRAMS: usize = 16;

/// Maximum time that an application waits for a join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// One end of a world.
#[derive(Debug)]
pub(super) struct End {
    side: Side,
    pub(super) endpoint: Endpoint,
    id: Option<ConnectionId>,
    /// The ended connection that the application has released.
    released: Option<ConnectionId>,
    steps: Vec<Step>,
    next_step: usize,
    connected: bool,
    /// The time at which the application stops waiting for a join.
    join_deadline: Option<Instant>,
    /// True if it stopped waiting for a join.
    lacks_join: bool,
    written: usize,
    received: usize,
    at_end: bool,
    read_error: Option<ReadError>,
    write_error: Option<WriteError>,
    closed: Option<CloseReason>,
    fallback: Option<FallbackReason>,
    wrong_byte: Option<usize>,
    /// Connections that fell back to plain TCP, including those that the application has not accepted yet.
    fallbacks: Vec<(ConnectionId, FallbackReason)>,
    has_second_connection: bool,
    joined: usize,
    was_reset: bool,
    keeps_withdrawn: bool,
    /// Events since the last [`take_events`](Self::take_events).
    events: Vec<Event>,
}

/// Observable state of an end.
#[derive(Clone, Debug)]
pub(super) struct EndState {
    /// True if this end opens the connection, false if it waits for one.
    pub(super) connects: bool,
    /// True if the application has a connection that has not ended.
    pub(super) is_open: bool,
    /// Number of bytes that the application will have written if there is no error.
    pub(super) all_written: usize,
    pub(super) written: usize,
    pub(super) received: usize,
    pub(super) at_end: bool,
    pub(super) read_error: Option<ReadError>,
    pub(super) write_error: Option<WriteError>,
    pub(super) closed: Option<CloseReason>,
    pub(super) fallback: Option<FallbackReason>,
    /// Position of the first byte that was read and differs from the written one.
    pub(super) wrong_byte: Option<usize>,
    /// True if the application stopped waiting for a join.
    pub(super) lacks_join: bool,
    /// True if a second connection arrived although the first had data.
    pub(super) has_second_connection: bool,
    /// Number of established subflows, excluding the first.
    pub(super) joined: usize,
    /// True if the peer reset a subflow, or caused the endpoint to reset it.
    pub(super) was_reset: bool,
    /// True if the peer withdrew an address, and a subflow to it stayed.
    pub(super) keeps_withdrawn: bool,
    /// True if the endpoint holds a connection or an ended subflow.
    pub(super) has_state: bool,
    /// The time of the next timer in the endpoint or the application.
    pub(super) deadline: Option<Instant>,
}

/// A byte of the stream that an end writes.
fn byte(side: Side, at: usize) -> u8 {
    let salt = if side == Side::A { 0 } else { 0x5a };
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ salt
}

impl End {
    pub(super) fn new(side: Side, endpoint: Endpoint, steps: &[Step]) -> End {
        End {
            side,
            endpoint,
            id: None,
            released: None,
            steps: steps.to_vec(),
            next_step: 0,
            connected: false,
            join_deadline: None,
            lacks_join: false,
            written: 0,
            received: 0,
            at_end: false,
            read_error: None,
            write_error: None,
            closed: None,
            fallback: None,
            wrong_byte: None,
            fallbacks: Vec::new(),
            has_second_connection: false,
            joined: 0,
            was_reset: false,
            keeps_withdrawn: false,
            events: Vec::new(),
        }
    }

    /// Opens the connection.
    ///
    /// # Panics
    /// If the endpoint has no room.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        config: Arc<ConnectionConfig>,
        [local, remote]: [SocketAddr; 2],
    ) {
        let id = self.endpoint.connect(now, config, local, remote);
        self.id = Some(id.expect("the endpoint has room for a connection"));
    }

    /// Observable state of this end.
    pub(super) fn facts(&self) -> EndState {
        let sizes = self.steps.iter().map(|(_, action)| match action {
            Action::Write(size) => *size,
            Action::Shutdown | Action::Abort => 0,
        });
        EndState {
            connects: self.side == Side::A,
            is_open: self.id.is_some(),
            all_written: sizes.sum(),
            written: self.written,
            received: self.received,
            at_end: self.at_end,
            read_error: self.read_error,
            write_error: self.write_error,
            closed: self.closed,
            fallback: self.fallback,
            wrong_byte: self.wrong_byte,
            lacks_join: self.lacks_join,
            has_second_connection: self.has_second_connection,
            joined: self.joined,
            was_reset: self.was_reset,
            keeps_withdrawn: self.keeps_withdrawn,
            has_state: !self.endpoint.connections().is_empty() || self.endpoint.in_time_wait(),
            deadline: self.deadline(),
        }
    }

    /// Hash of the endpoint's and the application's state.
    pub(super) fn state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        state_text::hash(&self.endpoint).hash(&mut hasher);
        (self.side as u8, self.next_step, self.connected, self.join_deadline).hash(&mut hasher);
        state_text::hash(&self.facts()).hash(&mut hasher);
        state_text::hash(&(self.id, self.released, &self.fallbacks)).hash(&mut hasher);
        hasher.finish()
    }

    /// The time of the next timer in the endpoint or the application.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let patience = self.join_deadline.filter(|_| self.id.is_some());
        [self.endpoint.poll_timeout(), patience].into_iter().flatten().min()
    }

    /// Takes the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        mem::take(&mut self.events)
    }

    /// Lets the endpoint send and the application act until both are idle. Returns true if there was an event or a
    /// packet.
    ///
    /// # Panics
    /// If they never become idle.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        buf: &mut TransmitBuf,
        send: &mut dyn FnMut(Side, &Transmit, &[u8]),
    ) -> bool {
        let mut acted = false;
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "{:?} never becomes idle at {now:?}", self.side);
            let mut sent = false;
            while let Some(transmit) = self.endpoint.poll_transmit(now, buf) {
                sent = true;
                for segment in buf.bytes().chunks(transmit.stride.max(1)) {
                    send(self.side, &transmit, segment);
                }
            }
            let mut told = false;
            while let Some(event) = self.endpoint.poll_event() {
                told = true;
                self.events.push(event.clone());
                self.on_event(now, event);
            }
            acted |= sent || told;
            if !self.run_application(now) && !sent && !told {
                break;
            }
        }
        acted
    }

    /// A buffer for [`settle`](Self::settle).
    pub(super) fn transmit_buf() -> TransmitBuf {
        TransmitBuf::new(0, MAX_DATAGRAMS)
    }

    fn on_event(&mut self, now: Instant, event: Event) {
        if let Event::Monitor(MonitorEvent { connection, kind, .. }) = &event {
            self.record_subflow(*connection, kind);
        }
        match event {
            Event::Incoming(id) => self.take_incoming(now, id),
            Event::Connected { fallback, .. } => {
                self.connected = true;
                self.fallback = self.fallback.or(fallback);
            }
            Event::Closed { connection, reason } if self.id == Some(connection) => {
                self.closed = Some(reason);
            }
            Event::Monitor(MonitorEvent {
                connection,
                kind: MonitorKind::Fallback(reason),
                ..
            }) => {
                self.fallbacks.push((connection, reason));
                // This also applies after the application has released it, because the end of the subflow may cause the
                // fallback.
                if self.id.or(self.released) == Some(connection) {
                    self.fallback = Some(reason);
                }
            }
            _ => {}
        }
    }

    fn record_subflow(&mut self, connection: ConnectionId, kind: &MonitorKind) {
        match kind {
            MonitorKind::SubflowEstablished { .. } => self.joined += 1,
            MonitorKind::SubflowClosed {
                reason: CloseReason::PeerReset | CloseReason::PeerMisbehaved,
                ..
            } => self.was_reset = true,
            MonitorKind::Removed(id) => {
                self.keeps_withdrawn |= self.has_subflow_to(connection, *id)
            }
            _ => {}
        }
    }

    /// Returns true if a subflow to the client's address with this id is open next to others. The id of the first
    /// address can also be 0.
    fn has_subflow_to(&self, connection: ConnectionId, id: AddressId) -> bool {
        let path = usize::from(id.0.saturating_sub(1));
        let address = client_address(path).address.ip();
        let info = self.endpoint.info(connection);
        let subflows = info.map(|info| info.subflows).unwrap_or_default();
        let is_open = |s: &SubflowInfo| s.state == SubflowState::Established;
        subflows.len() > 1 && subflows.iter().any(|s| s.path.remote.ip() == address && is_open(s))
    }

    /// Serves a new connection. Aborts an earlier one that received no data.
    fn take_incoming(&mut self, now: Instant, id: ConnectionId) {
        if let Some(other) = self.id.filter(|_| self.received == 0 && self.next_step == 0) {
            self.endpoint.abort(now, other);
            self.endpoint.release(now, other);
            self.id = None;
        }
        if self.id.is_some() || self.closed.is_some() {
            self.has_second_connection = true;
            return;
        }
        (self.id, self.connected) = (Some(id), true);
        let known = self.fallbacks.iter().find(|(connection, _)| *connection == id);
        self.fallback = known.map(|(_, reason)| *reason);
    }

    /// Reads, performs due steps, and releases an ended connection. Returns true if it did anything.
    fn run_application(&mut self, now: Instant) -> bool {
        let Some(id) = self.id else { return false };
        let mut acted = self.read(now, id);
        while let Some((trigger, action)) = self.steps.get(self.next_step).copied() {
            let ready = match trigger {
                Trigger::Connected => self.connected,
                Trigger::Received(count) => self.received >= count,
                Trigger::End => self.at_end,
                Trigger::Joined => self.is_join_settled(now),
            };
            if !ready || !self.take(now, id, action) {
                break;
            }
            self.next_step += 1;
            acted = true;
        }
        if self.closed.is_some() {
            self.read(now, id);
            self.endpoint.release(now, id);
            (self.id, self.released) = (None, Some(id));
            return true;
        }
        acted
    }

    /// Returns true if a join is established, or if the application has stopped waiting for one.
    fn is_join_settled(&mut self, now: Instant) -> bool {
        if !self.connected {
            return false;
        }
        let ends = *self.join_deadline.get_or_insert(now + JOIN_TIMEOUT);
        let joined = self.joined > 0;
        self.lacks_join = !joined && now >= ends;
        if joined || self.lacks_join {
            self.join_deadline = None;
        }
        joined || self.lacks_join
    }

    fn read(&mut self, now: Instant, id: ConnectionId) -> bool {
        let mut buffer = [0; 2_048];
        let mut acted = false;
        while !self.at_end && self.read_error.is_none() {
            match self.endpoint.read(now, id, &mut buffer) {
                Ok(0) => self.at_end = true,
                Ok(count) => {
                    let wanted = |at: usize| byte(self.side.other(), self.received + at);
                    let wrong = (0..count).find(|at| buffer[*at] != wanted(*at));
                    self.wrong_byte = self.wrong_byte.or(wrong.map(|at| self.received + at));
                    self.received += count;
                }
                Err(ReadError::Blocked) => break,
                Err(error) => self.read_error = Some(error),
            }
            acted = true;
        }
        acted
    }

    fn take(&mut self, now: Instant, id: ConnectionId, action: Action) -> bool {
        match action {
            Action::Shutdown => self.endpoint.shutdown(now, id),
            Action::Abort => self.endpoint.abort(now, id),
            Action::Write(size) => {
                let bytes: Vec<u8> =
                    (self.written..self.written + size).map(|at| byte(self.side, at)).collect();
                match self.endpoint.write(now, id, &bytes) {
                    Ok(count) => {
                        assert_eq!(count, size, "a send buffer holds a few segments");
                        self.written += size;
                    }
                    Err(WriteError::Blocked) => return false,
                    Err(error) => self.write_error = Some(error),
                }
            }
        }
        true
    }
}
