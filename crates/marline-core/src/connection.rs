//! A Connection: one byte stream each way over any number of subflows (RFC 8684).
//!
//! It speaks data sequence numbers. Its subflows speak TCP and know nothing of each other; what the
//! connection knows of each beyond TCP stands in its [`Leg`]. This file holds the state and the
//! order of things; each phase has its own file below.

mod addresses;
mod asked;
mod closing;
mod data_ack;
mod delivery;
mod dss_rx;
mod ebb;
mod egress;
mod extensions;
mod fallback;
mod fast_answer;
mod fast_join;
mod handshake;
mod idle;
mod info;
mod ingress;
mod join;
mod keys;
mod leg;
mod mapping_rx;
mod mapping_tx;
mod nagle;
mod negotiation;
mod netpath;
mod open;
mod options;
mod paths;
mod receive_buffer;
mod receive_timer;
mod receiver;
mod reinjection;
mod repair_rx;
mod repair_tx;
mod rto_exchange;
mod scheduling;
mod segment;
mod send_buffer;
mod sender;
mod session;
mod silence;
mod subflow_events;
mod suspicion;
mod timers;
mod views;
mod vigil;
mod wait;
mod wiring;

use marline_policy::{PathManager, SubflowId, SubflowSet};
use marline_time::{Duration, Instant};

use self::addresses::Addresses;
use self::asked::Asked;
use self::closing::Closing;
use self::fast_answer::ReplayGuard;
use self::leg::Leg;
use self::receiver::Receiver;
use self::scheduling::Scheduling;
use self::sender::Sender;
use self::session::{Mode, Session};
use self::silence::Silence;
use self::wait::Wait;
use crate::tables::Context;
use crate::{
    CloseReason, ConnectionConfig, ConnectionId, Event, Keepalive, MonitorKind, ReadError, Setting,
    SubflowInfo, WriteError,
};

pub(crate) use self::fast_join::fast_join_token;
pub(crate) use self::handshake::{mp_capable, offers_multipath};
pub(crate) use self::join::{mp_join, reason as rst_reason};
pub(crate) use self::open::{Accepted, Origin};
use self::paths::SubflowPathPair;

/// Round trip assumed where none was measured.
const UNKNOWN_RTT: Duration = Duration::from_millis(100);

/// Data-level timers and what they count.
#[derive(Copy, Clone, Debug, Default)]
struct DataTimers {
    /// DATA_FIN retransmission.
    fin_at: Option<Instant>,
    fin_count: u32,
    /// The subflows that the DATA_FIN has yet to go on now.
    fin_on: SubflowSet,
    /// Those it went on last.
    fin_went_on: SubflowSet,
    /// Whether anything was heard between two of them.
    fin: Asked,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    id: ConnectionId,
    /// Its place in the endpoint's slab.
    slot: u32,
    config: Box<ConnectionConfig>,
    session: Session,
    legs: Vec<Option<Box<Leg>>>,
    sender: Sender,
    receiver: Receiver,
    scheduling: Scheduling,
    path_manager: Box<dyn PathManager>,
    path_manager_name: String,
    addresses: Addresses,
    replay_guard: ReplayGuard,
    closing: Closing,
    timers: DataTimers,
    wait: Wait,
    silence: Silence,
    ebb: ebb::Ebb,
    vigil: vigil::Vigil,
    rto_exchange: rto_exchange::RtoExchange,
    /// How the application wants silence met, if it said so.
    keepalive: Option<Option<Keepalive>>,
    /// Segments of the batch that is being filled.
    batched: usize,
    /// Where the search for owed segments starts, so that every subflow gets its turn.
    next_leg: usize,
    /// Subflows that we had to reset since the stream last moved on in either direction.
    futile_resets: u32,
    gone: Vec<SubflowInfo>,
}

impl Connection {
    /// Takes bytes to send. Returns how many fit.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, WriteError> {
        if let Some(reason) = self.closing.closed {
            return Err(WriteError::Closed(reason));
        }
        if self.closing.shutdown {
            return Err(WriteError::Shutdown);
        }
        let taken = self.sender.write(bytes);
        if taken == 0 && !bytes.is_empty() { Err(WriteError::Blocked) } else { Ok(taken) }
    }

    /// The application changes something.
    pub(crate) fn set(&mut self, now: Instant, setting: Setting) {
        match setting {
            Setting::Nagle(on) => self.sender.set_nagle(on),
            Setting::Hold(hold) => self.sender.set_hold(hold),
            Setting::NotSentLowat(bytes) => self.sender.set_lowat(bytes),
            Setting::UserTimeout(timeout) => {
                self.sender.set_user_timeout(timeout);
                self.watch_progress(now);
            }
            Setting::SendBuffer(bytes) => self.sender.resize(bytes),
            Setting::KnownPeer => self.config.linger.stranger = None,
            Setting::Keepalive(times) => {
                self.keepalive = Some(times);
                for leg in self.legs.iter_mut().flatten() {
                    leg.tcp.set_keepalive(times);
                }
            }
        }
    }

    /// What was written so far ends here: no segment will have bytes from both sides.
    pub(crate) fn end_record(&mut self) {
        self.sender.end_record();
    }

    /// Data was sent: a writer who was refused for what lay unsent hears of it.
    fn tell_of_sent(&mut self, cx: &mut Context<'_>) {
        if self.sender.take_writable_for_sent() && !self.closing.released {
            cx.out.event(Event::Writable(self.id));
        }
    }

    /// Gives received bytes to the application. `Ok(0)` is the end of the stream.
    pub(crate) fn read(&mut self, now: Instant, out: &mut [u8]) -> Result<usize, ReadError> {
        let Some((n, window_opened)) = self.receiver.read(out) else {
            return self.read_nothing();
        };
        self.receiver.follow_reader(now, self.largest_rtt());
        if window_opened {
            self.announce_window();
        }
        Ok(n)
    }

    /// As [`read`](Self::read), and the bytes stay to be read.
    pub(crate) fn peek(&mut self, out: &mut [u8]) -> Result<usize, ReadError> {
        match self.receiver.peek(out) {
            Some(n) => Ok(n),
            None => self.read_nothing(),
        }
    }

    fn read_nothing(&mut self) -> Result<usize, ReadError> {
        if self.receiver.at_end() {
            return Ok(0);
        }
        if let Some(reason) = self.closing.closed {
            return Err(ReadError::Closed(reason));
        }
        self.receiver.found_nothing();
        Err(ReadError::Blocked)
    }

    /// Tells the peer of the window, on the subflow heard last.
    fn announce_window(&mut self) {
        let latest = self.legs.iter_mut().flatten().filter(|leg| leg.is_usable());
        if let Some(leg) = latest.max_by_key(|leg| leg.tcp.last_heard_at()) {
            leg.tcp.ack_now();
        }
    }

    /// Tells the application once that it may read.
    fn tell_readable(&mut self, cx: &mut Context<'_>) {
        if !self.closing.released && self.receiver.tell() {
            cx.out.event(Event::Readable(self.id));
        }
    }

    /// A value under both keys that names this connection.
    pub(crate) fn export_binding(&self, label: &[u8]) -> Option<[u8; 32]> {
        self.session.keys().binding(self.session.role(), label)
    }

    fn leg(&self, id: SubflowId) -> Option<&Leg> {
        self.legs.get(usize::from(id.0))?.as_deref()
    }

    fn leg_mut(&mut self, id: SubflowId) -> Option<&mut Leg> {
        self.legs.get_mut(usize::from(id.0))?.as_deref_mut()
    }

    /// Slots in use, in order.
    fn leg_ids(&self) -> impl Iterator<Item = SubflowId> + use<> {
        let used = self.legs.iter().enumerate().filter(|(_, leg)| leg.is_some());
        let mut set = SubflowSet::EMPTY;
        used.for_each(|(slot, _)| set.insert(SubflowId(slot as u8)));
        set.iter()
    }

    fn usable_legs(&self) -> usize {
        self.legs.iter().flatten().filter(|leg| leg.is_usable()).count()
    }

    /// The round trip that the receive window is measured by: that of the slowest usable subflow.
    fn largest_rtt(&self) -> Duration {
        let rtts =
            self.legs.iter().flatten().filter(|l| l.is_usable()).filter_map(|l| l.tcp.srtt());
        rtts.max().unwrap_or(UNKNOWN_RTT)
    }

    /// The RTO that data-level timers build on: the largest of the usable subflows.
    fn largest_rto(&self) -> Duration {
        let rtos = self.legs.iter().flatten().filter(|l| l.is_usable()).map(|l| l.tcp.rto());
        rtos.max().unwrap_or(self.config.rtt.initial_rto)
    }

    /// The connection is over for the application; subflows may linger.
    fn finish(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        let now = cx.now;
        if self.closing.closed.is_some() {
            return;
        }
        self.closing.closed = Some(reason);
        self.closing.leaving_since = Some(now);
        self.sender.clear_reinjections();
        cx.out.monitor(now, self.id, MonitorKind::Closed(reason));
        if self.closing.announced_to_application {
            cx.out.event(Event::Closed { connection: self.id, reason });
        }
    }

    /// Nothing is left to do: the endpoint may drop it.
    pub(crate) fn is_gone(&self) -> bool {
        self.closing.closed.is_some()
            && (self.closing.released || !self.closing.announced_to_application)
            && self.legs.iter().all(Option::is_none)
    }
}
