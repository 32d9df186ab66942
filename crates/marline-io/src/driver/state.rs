//! State of a shard, guarded by its mutex.

use core::task::Waker;
use std::sync::Arc;

use marline_core::{ConnectionId, Endpoint, FourTuple, MonitorEvent, TrafficFilter, TransmitBuf};
use marline_datagram::PathId;
use marline_time::Instant;
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;

use super::busy_poll::BusyPoll;
use super::carrier::Carrier;
use super::lanes::Lanes;
use super::link_flows::Rerouting;
use super::link_table::Links;
use super::observers::Observers;
use super::observers::SharedEventObserver;
use super::path_owners::PathOwners;
use super::sending::FrameBatch;
use super::sending::Gathered;
use super::socket::Sock;
use super::stalled::StalledQueue;
use super::streams::AcceptQueue;
use super::streams::PacketSink;
use super::streams::Slots;
use super::turns::Turns;
use crate::carrier::Outer;
use crate::links::UdpUse;

/// Maximum number of datagrams in one batch: those of a 64 KiB GSO send.
const BATCH_DATAGRAMS: usize = 44;
/// Carrier of a shard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CarrierKind {
    /// UDP datagrams.
    Udp {
        /// Idle time after which a flow that we opened sends a keepalive.
        keepalive: marline_time::Duration,
        /// Condition for moving our flows to links (TCP connections).
        udp: UdpUse,
    },
    /// IP packets on raw sockets.
    Raw,
    /// IP packets on TUN interfaces.
    Tun,
    /// IP packets on a TUN interface, as the gateway of the hosts behind it.
    Gateway,
}

/// Datagram for another shard.
#[derive(Debug)]
pub(super) struct Handover {
    pub(super) outer: crate::carrier::Outer,
    pub(super) ecn: marline_core::Ecn,
    pub(super) bytes: Vec<u8>,
}

/// Open socket, with its waiting batches and its error watch.
#[derive(Debug)]
pub(super) struct SocketEntry {
    pub(super) socket: Arc<Sock>,
    pub(super) stalled: StalledQueue,
    pub(super) _error_watch: Option<Watch>,
}

/// Auxiliary task of a shard, which is aborted when this is dropped.
#[derive(Debug)]
pub(super) struct Watch(pub(super) AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Second transmit buffer, for use while the first one is being sent.
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

    /// Sets if segments may be combined in one packet.
    pub(super) fn join_runs(&mut self, joined: bool) {
        self.joined = joined;
        self.buffer = None;
    }

    pub(super) fn give_back(&mut self, buffer: TransmitBuf) {
        self.buffer = Some(buffer);
    }
}

/// Data guarded by the mutex.
pub(super) struct State {
    pub(super) endpoint: Endpoint,
    /// Number of process pauses that endpoint and lanes have been notified of.
    pub(super) pauses: u64,
    pub(super) carrier: Carrier,
    pub(super) sockets: Vec<Option<SocketEntry>>,
    pub(super) slots: Slots,
    pub(super) lanes: Lanes,
    /// Index of the shard.
    pub(super) index: u8,
    pub(super) links: Arc<Links>,
    pub(super) rerouting: Rerouting,
    /// Shards that own native TCP paths.
    pub(super) owners: PathOwners,
    /// Frames of a lane that are being sent.
    pub(super) frames: FrameBatch<(Outer, PathId)>,
    /// Segments for one system call.
    pub(super) gathered: Gathered,
    pub(super) out: TransmitBuf,
    pub(super) spare: Spare,
    pub(super) scratch: Vec<u8>,
    pub(super) stall_retry_at: Option<Instant>,
    pub(super) armed: Option<Instant>,
    pub(super) observers: Observers,
    pub(super) driver: Option<Waker>,
    /// State of busy polling.
    pub(super) busy_poll: BusyPoll,
    pub(super) turns: Turns,
    /// Set while this process reads the sockets.
    pub(super) receiving: bool,
    /// Set when the sockets have changed and the task must update its list.
    pub(super) sockets_changed: bool,
    /// Set when the task has ended.
    pub(super) stopped: bool,
    pub(super) queue: Option<Arc<AcceptQueue>>,
    /// Receiver of a gateway's connection requests, followed by the sink of its other packets.
    pub(super) requests: Option<mpsc::UnboundedSender<FourTuple>>,
    pub(super) sink: Option<Box<dyn PacketSink>>,
    pub(super) monitor: Option<broadcast::Sender<MonitorEvent>>,
    /// Receivers of decisions, while there may be any.
    pub(super) decisions: Option<broadcast::Sender<MonitorEvent>>,
    /// Observer of all events and all traffic.
    pub(super) events: Option<SharedEventObserver>,
    /// Connection whose traffic events are sent, and their receivers, while there may be any.
    pub(super) traffic: Option<(ConnectionId, broadcast::Sender<MonitorEvent>)>,
}

impl State {
    /// Compares the number of process pauses and notifies endpoint and lanes of new ones. Data in transit during a
    /// pause says nothing about the network.
    pub(super) fn note_pauses(&mut self, pauses: u64) {
        if core::mem::replace(&mut self.pauses, pauses) != pauses {
            self.endpoint.note_pause();
            self.lanes.note_pause();
        }
    }

    /// Limits the core's traffic events to those that have subscribers.
    pub(super) fn update_traffic_filter(&mut self) {
        self.endpoint.tell_traffic(match (&self.events, &self.traffic) {
            (Some(_), _) => TrafficFilter::All,
            (None, Some((id, _))) => TrafficFilter::One(*id),
            (None, None) => TrafficFilter::Nobody,
        });
    }
}

/// Creates an empty buffer for one batch. With `joined`, its segments may be combined in one packet.
pub(super) fn transmit_buffer(headroom: usize, joined: bool) -> TransmitBuf {
    let mut buffer = TransmitBuf::new(headroom, BATCH_DATAGRAMS);
    buffer.join_runs(joined);
    buffer
}
