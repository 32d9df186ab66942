//! State of a shard, guarded by its mutex.

use core::task::Waker;
use std::sync::Arc;

use marline_core::{ConnectionId, Endpoint, FourTuple, MonitorEvent, TrafficOf, TransmitBuf};
use marline_datagram::PathId;
use marline_time::Instant;
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;

use super::accept::AcceptQueue;
use super::busy_poll::BusyPoll;
use super::carrier::Carrier;
use super::connections::Slots;
use super::frame_batch::FrameBatch;
use super::gathered::Gathered;
use super::lanes::Lanes;
use super::link_flows::Rerouting;
use super::links::Links;
use super::observer::SharedEventObserver;
use super::observers::Observers;
use super::packet_sink::PacketSink;
use super::path_owners::PathOwners;
use super::socket::{Sock, StalledQueue};
use super::turns::Turns;
use crate::carrier::Outer;
use crate::links::UdpUse;

/// Datagrams of one batch: what fits the 64 KiB of a GSO send.
const BATCH_DATAGRAMS: usize = 44;
/// Carrier of a shard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CarrierKind {
    /// In UDP datagrams.
    Udp {
        /// Silence after which a flow we opened sends a keepalive.
        keepalive: marline_time::Duration,
        /// When flows that we open go by links (TCP connections) instead.
        udp: UdpUse,
    },
    /// In IP packets, on raw sockets.
    Raw,
    /// In IP packets, on TUN interfaces.
    Tun,
    /// In IP packets, on a TUN interface behind which are the hosts that this shard is everybody else for.
    Gateway,
}

/// A datagram for another shard.
#[derive(Debug)]
pub(super) struct Handover {
    pub(super) outer: crate::carrier::Outer,
    pub(super) ecn: marline_core::Ecn,
    pub(super) bytes: Vec<u8>,
}

/// An open socket and what waits for it.
#[derive(Debug)]
pub(super) struct SocketEntry {
    pub(super) socket: Arc<Sock>,
    pub(super) stalled: StalledQueue,
    pub(super) _error_watch: Option<Watch>,
}

/// A task beside the shard's that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watch(pub(super) AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The second transmit buffer: while one is lent out for sending, the other stands in.
pub(super) struct Spare {
    buffer: Option<TransmitBuf>,
    headroom: usize,
    joined: bool,
}

impl Spare {
    pub(super) const fn new(headroom: usize) -> Spare {
        Spare { buffer: None, headroom, joined: false }
    }

    pub(super) fn take(&mut self) -> TransmitBuf {
        self.buffer.take().unwrap_or_else(|| transmit_buffer(self.headroom, self.joined))
    }

    /// Whether segments may leave as one packet.
    pub(super) fn join_runs(&mut self, joined: bool) {
        self.joined = joined;
        self.buffer = None;
    }

    pub(super) fn give_back(&mut self, buffer: TransmitBuf) {
        self.buffer = Some(buffer);
    }
}

/// What the mutex guards.
pub(super) struct State {
    pub(super) endpoint: Endpoint,
    /// Pauses of the process that endpoint and lanes know of.
    pub(super) pauses: u64,
    pub(super) carrier: Carrier,
    pub(super) sockets: Vec<Option<SocketEntry>>,
    pub(super) slots: Slots,
    pub(super) lanes: Lanes,
    /// The shard's index.
    pub(super) index: u8,
    pub(super) links: Arc<Links>,
    pub(super) rerouting: Rerouting,
    /// Which other shard has what comes by a path of native TCP.
    pub(super) owners: PathOwners,
    /// Frames of a lane that are on their way to the kernel.
    pub(super) frames: FrameBatch<(Outer, PathId)>,
    /// Segments that leave in one call.
    pub(super) gathered: Gathered,
    pub(super) out: TransmitBuf,
    pub(super) spare: Spare,
    pub(super) scratch: Vec<u8>,
    pub(super) stall_retry_at: Option<Instant>,
    pub(super) armed: Option<Instant>,
    pub(super) observers: Observers,
    pub(super) driver: Option<Waker>,
    /// Whether its sockets are polled now.
    pub(super) busy_poll: BusyPoll,
    pub(super) turns: Turns,
    /// The sockets are this process's to read.
    pub(super) receiving: bool,
    /// The set of sockets changed: the task must look.
    pub(super) sockets_changed: bool,
    /// The task is gone.
    pub(super) stopped: bool,
    pub(super) queue: Option<Arc<AcceptQueue>>,
    /// Whom a gateway tells of requests, and who takes what is not TCP.
    pub(super) requests: Option<mpsc::UnboundedSender<FourTuple>>,
    pub(super) sink: Option<Box<dyn PacketSink>>,
    pub(super) monitor: Option<broadcast::Sender<MonitorEvent>>,
    /// Receivers of decisions, while there may be any.
    pub(super) decisions: Option<broadcast::Sender<MonitorEvent>>,
    /// Observer of all events and all traffic.
    pub(super) events: Option<SharedEventObserver>,
    /// The connection whose traffic is told, and receivers, while there may be any.
    pub(super) traffic: Option<(ConnectionId, broadcast::Sender<MonitorEvent>)>,
}

impl State {
    /// The process has not run for a while as often as this says. What endpoint and lanes have under way is no measure
    /// of the network then.
    pub(super) fn note_pauses(&mut self, pauses: u64) {
        if core::mem::replace(&mut self.pauses, pauses) != pauses {
            self.endpoint.note_pause();
            self.lanes.note_pause();
        }
    }

    /// Has the core tell the traffic that somebody wants, and no other.
    pub(super) fn want_traffic(&mut self) {
        self.endpoint.tell_traffic(match (&self.events, &self.traffic) {
            (Some(_), _) => TrafficOf::All,
            (None, Some((id, _))) => TrafficOf::One(*id),
            (None, None) => TrafficOf::Nobody,
        });
    }
}

/// An empty buffer for one batch. `joined`: its segments may leave as one packet.
pub(super) fn transmit_buffer(headroom: usize, joined: bool) -> TransmitBuf {
    let mut buffer = TransmitBuf::new(headroom, BATCH_DATAGRAMS);
    buffer.join_runs(joined);
    buffer
}
