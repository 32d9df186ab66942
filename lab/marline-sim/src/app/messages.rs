//! Message application: messages of any size on one connection, in both directions, according to the plans of both
//! ends.
//!
//! The stream has no frames. Instead, both ends share a ledger for each direction: the writer appends each message
//! when it starts writing it, and the reader takes the message when all its bytes have arrived.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use marline_core::ConnectionId;
use marline_time::Instant;

use super::stream::Stream;
use super::{App, Call, Report, Socket};

/// A message in one direction of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Workload of the message.
    pub flow: u16,
    /// Message number within its workload.
    pub index: u32,
    /// Size in bytes, at least 1.
    pub bytes: u64,
    /// Size of the requested answer; 0 for none.
    pub answer_bytes: u64,
    /// True for the last piece of a message, which may be written in several pieces.
    pub ends: bool,
    /// When the writer reports the message as sent.
    pub sent: SentAt,
}

/// Moment at which a message counts as sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SentAt {
    /// When the first byte is written.
    Begin,
    /// When the connection has accepted the last byte.
    Accepted,
    /// Never, as for an answer or a later piece.
    Never,
}

/// Messages in transit in one direction of a connection.
#[derive(Clone, Debug, Default)]
struct Ledger(Rc<RefCell<VecDeque<Message>>>);

/// The messages that one end of a connection writes, and its reactions to those it reads.
pub trait Plan: core::fmt::Debug {
    /// Called when the connection is open.
    fn on_open(&mut self, _id: ConnectionId) {}

    /// Returns the next message, to be written now. Called when the connection has accepted all earlier ones.
    fn next_message(&mut self, now: Instant) -> Option<Message>;

    /// Time at which [`next_message`](Self::next_message) may return a message even if nothing arrives.
    fn next_timeout(&self) -> Option<Instant>;

    /// Called when a message counts as sent.
    fn on_sent(&mut self, now: Instant, message: &Message);

    /// Called when a message from the peer has been read.
    fn on_message(&mut self, now: Instant, message: &Message);

    /// Requests to other connections of the host.
    fn take_requests(&mut self) -> Vec<Call> {
        Vec::new()
    }

    /// Number of messages skipped so far.
    fn skipped_count(&self) -> u64 {
        0
    }

    /// True if this end closes the connection now.
    fn closes(&self) -> bool {
        false
    }
}

/// One end of a connection with messages. In its report, `sent` contains the time at which writing of each message
/// began, and `received` the time at which each of the peer's messages had been read.
#[derive(Debug)]
pub struct Messages {
    plan: Box<dyn Plan>,
    sends: Ledger,
    reads: Ledger,
    /// Total bytes of all started messages, and the last message until it has been accepted.
    started_bytes: u64,
    current: Option<Message>,
    /// Total bytes of all messages read.
    complete: u64,
    /// True if a message was partly accepted. The socket wakes the application when there is more room.
    blocked: bool,
    stream: Stream,
}

impl Messages {
    /// Creates both ends of a connection with these plans: the one that opens it, and the one that accepts it. Each
    /// writes the bytes of its seed.
    #[must_use]
    pub fn pair(plans: [Box<dyn Plan>; 2], seeds: [u64; 2]) -> [Messages; 2] {
        let (forth, back) = (Ledger::default(), Ledger::default());
        let end = |plan, sends: &Ledger, reads: &Ledger, write_seed, read_seed| Messages {
            plan,
            sends: sends.clone(),
            reads: reads.clone(),
            started_bytes: 0,
            current: None,
            complete: 0,
            blocked: false,
            stream: Stream::new(write_seed, read_seed),
        };
        let ([opens, accepts], [a, b]) = (plans, seeds);
        [end(opens, &forth, &back, a, b), end(accepts, &back, &forth, b, a)]
    }

    fn read(&mut self, socket: &mut Socket<'_>) {
        self.stream.read(socket, u64::MAX);
        while let Some(message) = self.reads.take_completed(self.stream.report.read - self.complete)
        {
            self.complete += message.bytes;
            if message.ends && message.answer_bytes == 0 {
                self.stream.report.received.push(socket.now());
            }
            self.plan.on_message(socket.now(), &message);
        }
    }

    fn write(&mut self, socket: &mut Socket<'_>) {
        loop {
            self.blocked = !self.stream.write_to(socket, self.started_bytes);
            if self.blocked {
                return;
            }
            if let Some(message) = self.current.take() {
                self.record_sent(socket.now(), &message, SentAt::Accepted);
            }
            let next = self.plan.next_message(socket.now());
            self.stream.report.skipped = self.plan.skipped_count();
            let Some(message) = next else { return };
            self.started_bytes += message.bytes;
            self.current = Some(message);
            self.sends.0.borrow_mut().push_back(message);
            self.record_sent(socket.now(), &message, SentAt::Begin);
        }
    }

    fn record_sent(&mut self, now: Instant, message: &Message, moment: SentAt) {
        if message.sent == moment {
            self.stream.report.sent.push(now);
            self.plan.on_sent(now, message);
        }
    }
}

impl Ledger {
    /// Takes the oldest message if this many bytes complete it.
    fn take_completed(&self, bytes: u64) -> Option<Message> {
        self.0.borrow_mut().pop_front_if(|message| message.bytes <= bytes)
    }
}

impl App for Messages {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        let was_open = self.stream.report.opened_at.is_some();
        if !self.stream.begin(socket) {
            return;
        }
        if !was_open {
            self.plan.on_open(socket.id());
        }
        self.read(socket);
        self.write(socket);
        self.plan.take_requests().into_iter().for_each(|call| socket.call(call));
        if !self.blocked && (self.plan.closes() || self.stream.report.eof_at.is_some()) {
            self.stream.shutdown(socket);
        }
        self.stream.release_if_finished(socket);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.plan.next_timeout().filter(|_| !self.blocked).and_then(|at| self.stream.timer(at))
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}
