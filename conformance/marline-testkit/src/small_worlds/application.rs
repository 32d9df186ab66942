//! One end of a small world: an endpoint, and the application on it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use marline_core::{
    CloseReason, ConnectionId, Endpoint, Event, FallbackReason, MonitorEvent, MonitorKind,
    ReadError, Transmit, TransmitBuf, WriteError,
};
use marline_time::{Duration, Instant};

use super::scene::{Action, Step, Trigger};
use super::state_text;
use crate::Side;

/// Rounds of an application and its endpoint without time passing. More is a loop.
const MAX_ROUNDS: usize = 1_000;
/// Datagrams of a batch.
const MAX_DATAGRAMS: usize = 16;

/// How long an application waits for a join.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end.
#[derive(Debug)]
pub(super) struct End {
    side: Side,
    pub(super) endpoint: Endpoint,
    pub(super) id: Option<ConnectionId>,
    /// The connection that the application has let go of, as it is over.
    released: Option<ConnectionId>,
    steps: Vec<Step>,
    next_step: usize,
    connected: bool,
    /// When the application gives up waiting for a join.
    patience_ends: Option<Instant>,
    /// It gave up.
    pub(super) lacks_join: bool,
    pub(super) written: usize,
    pub(super) received: usize,
    pub(super) at_end: bool,
    pub(super) read_error: Option<ReadError>,
    pub(super) write_error: Option<WriteError>,
    pub(super) closed: Option<CloseReason>,
    pub(super) fallback: Option<FallbackReason>,
    /// Its peer had finished before it went over to plain TCP.
    pub(super) late_fallback: bool,
    /// A byte that was read is not the one that was written.
    pub(super) wrong_byte: Option<usize>,
    /// Connections that went over to plain TCP, also those that the application does not have yet.
    fallbacks: Vec<(ConnectionId, FallbackReason)>,
    /// A second connection arrived although the first had data.
    pub(super) crowded: bool,
    /// Hash of everything that this end was given so far.
    inputs: u64,
    /// Everything that the endpoint reported.
    pub(super) events: Vec<Event>,
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
            patience_ends: None,
            lacks_join: false,
            written: 0,
            received: 0,
            at_end: false,
            read_error: None,
            write_error: None,
            closed: None,
            fallback: None,
            late_fallback: false,
            wrong_byte: None,
            fallbacks: Vec::new(),
            crowded: false,
            inputs: 0,
            events: Vec::new(),
        }
    }

    /// Notes what the endpoint is given.
    pub(super) fn note_input(&mut self, now: Instant, kind: u8, bytes: &[u8]) {
        let mut hasher = DefaultHasher::new();
        (self.inputs, now.as_nanos(), kind).hash(&mut hasher);
        bytes.hash(&mut hasher);
        self.inputs = hasher.finish();
    }

    /// Hash of everything that this end was given; equal inputs have made equal ends.
    pub(super) const fn inputs(&self) -> u64 {
        self.inputs
    }

    /// Hash of the state of endpoint and application.
    pub(super) fn state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (state_text::hash(&self.endpoint), self.id).hash(&mut hasher);
        (self.next_step, self.connected).hash(&mut hasher);
        (self.patience_ends.map(Instant::as_nanos), self.lacks_join).hash(&mut hasher);
        (self.written, self.received, self.at_end, self.wrong_byte).hash(&mut hasher);
        let ends = (self.read_error, self.write_error, self.closed, self.fallback, self.joined());
        format!("{ends:?}").hash(&mut hasher);
        hasher.finish()
    }

    /// The connection is over, and the application has let go of it.
    pub(super) const fn is_over(&self) -> bool {
        self.closed.is_some()
    }

    /// When the next timer of the endpoint or of the application runs.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let patience = self.patience_ends.filter(|_| self.id.is_some());
        [self.endpoint.poll_timeout(), patience].into_iter().flatten().min()
    }

    /// It opens the connection, rather than to wait for one.
    pub(super) fn side_connects(&self) -> bool {
        self.side == Side::A
    }

    /// Subflows beyond the first that came up.
    pub(super) fn joined(&self) -> usize {
        let is_up = |event: &&Event| match event {
            Event::Monitor(event) => matches!(event.kind, MonitorKind::SubflowEstablished { .. }),
            _ => false,
        };
        self.events.iter().filter(is_up).count()
    }

    /// Bytes that the application will have written, if nothing breaks.
    pub(super) fn all_written(&self) -> usize {
        let sizes = self.steps.iter().map(|(_, action)| match action {
            Action::Write(size) => *size,
            Action::Shutdown => 0,
        });
        sizes.sum()
    }

    /// Lets the endpoint send and the application act until neither has anything to do. Whether an event or a
    /// packet came of it.
    ///
    /// # Panics
    /// If that never ends.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        buf: &mut TransmitBuf,
        send: &mut dyn FnMut(Side, &Transmit, &[u8]),
    ) -> bool {
        let mut acted = false;
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "{:?} never rests at {now:?}", self.side);
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
                // Also when its application has gone: the end of the subflow may bring it.
                if self.id.or(self.released) == Some(connection) {
                    self.fallback = Some(reason);
                }
            }
            _ => {}
        }
    }

    /// Serves a connection. One before it on which nothing came is given up; there is no third.
    fn take_incoming(&mut self, now: Instant, id: ConnectionId) {
        if let Some(other) = self.id.filter(|_| self.received == 0 && self.next_step == 0) {
            self.endpoint.abort(now, other);
            self.endpoint.release(now, other);
            self.id = None;
        }
        if self.id.is_some() || self.closed.is_some() {
            self.crowded = true;
            return;
        }
        (self.id, self.connected) = (Some(id), true);
        let known = self.fallbacks.iter().find(|(connection, _)| *connection == id);
        self.fallback = known.map(|(_, reason)| *reason);
    }

    /// Reads, takes the steps whose time has come, and releases a connection that is over. Whether it did anything.
    fn run_application(&mut self, now: Instant) -> bool {
        let Some(id) = self.id else { return false };
        let mut acted = self.read(now, id);
        while let Some((trigger, action)) = self.steps.get(self.next_step).copied() {
            let ready = match trigger {
                Trigger::Connected => self.connected,
                Trigger::Received(count) => self.received >= count,
                Trigger::End => self.at_end,
                Trigger::Joined => self.has_join(now),
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

    /// A join is up, or the application is tired of waiting for it.
    fn has_join(&mut self, now: Instant) -> bool {
        if !self.connected {
            return false;
        }
        let ends = *self.patience_ends.get_or_insert(now + PATIENCE);
        let joined = self.joined() > 0;
        self.lacks_join = !joined && now >= ends;
        if joined || self.lacks_join {
            self.patience_ends = None;
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
