//! Observers of a shard: capture files, the segment log, the contacts, observers that the application registered, and
//! subscribers of events.
//!
//! Each observer of segments sees every segment once: outgoing ones before the carrier's header is written, incoming
//! ones after it was removed. No observer can change or delay a segment.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use marline_core::{
    ConnectionId, Ecn, FourTuple, MonitorEvent, PacketMeta, TrafficFilter, Transmit,
};
use marline_time::Instant;
use tokio::sync::{Notify, broadcast};

use super::carrier::Carrier;
use crate::capture::Captures;
use crate::carrier::{FlowEnds, Outer};
use crate::contacts::{Contact, Contacts, DeliveryErrorKind};
use crate::edge::network_error::NetworkError;
use crate::path_spec::PathSpec;
use crate::tap::SegmentLog;

/// Direction in which segments pass.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the peer.
    Sent,
    /// From the peer.
    Received,
}

/// Segments of one path that are sent or received together.
#[derive(Debug)]
pub struct ObservedSegments<'a> {
    /// Time by the clock of the drivers ([`Clock`](crate::Clock)).
    pub at: Instant,
    /// Direction of the segments.
    pub direction: Direction,
    /// Local and remote address.
    pub path: &'a FourTuple,
    ecn: Ecn,
    datagrams: &'a [u8],
    stride: usize,
    /// Number of bytes before each segment.
    headroom: usize,
    /// Length of the carrier's headers between the IP header and the segment, in bytes.
    carrier_header: usize,
}

impl<'a> ObservedSegments<'a> {
    /// Describes a batch of the core, with headroom for the carrier's header before each segment.
    pub(super) fn on_sent(
        now: Instant,
        batch: &'a Transmit,
        bytes: &'a [u8],
        carrier: &Carrier,
    ) -> Self {
        ObservedSegments {
            at: now,
            direction: Direction::Sent,
            path: &batch.path,
            ecn: batch.ecn,
            datagrams: bytes,
            stride: batch.stride,
            headroom: carrier.headroom(),
            carrier_header: carrier.header(),
        }
    }

    /// Describes an incoming segment, with the length of the carrier's headers.
    pub(super) fn on_received(
        now: Instant,
        meta: &'a PacketMeta,
        segment: &'a [u8],
        carrier_header: usize,
    ) -> Self {
        ObservedSegments {
            at: now,
            direction: Direction::Received,
            path: &meta.path,
            ecn: meta.ecn,
            datagrams: segment,
            stride: segment.len(),
            headroom: 0,
            carrier_header,
        }
    }

    /// Returns the TCP segments, each starting at its header.
    pub fn segments(&self) -> impl Iterator<Item = &'a [u8]> {
        let headroom = self.headroom;
        let datagrams = self.datagrams.chunks(self.stride.max(1));
        datagrams.map(move |datagram| datagram.get(headroom..).unwrap_or_default())
    }

    /// Returns the local address.
    #[must_use]
    pub const fn local_ip(&self) -> IpAddr {
        self.path.local.ip()
    }

    /// Returns the total length of the IP packets of all segments, including the carrier's headers.
    #[must_use]
    pub fn packet_bytes(&self) -> u64 {
        let ip = if self.path.local.is_ipv4() { 20 } else { 40 };
        let header = ip + self.carrier_header;
        let bytes: usize = self.segments().map(|segment| segment.len() + header).sum();
        bytes as u64
    }
}

/// State of a client's path, as reported to observers.
#[derive(Copy, Clone, Debug)]
pub struct ObservedPath<'a> {
    /// Number among the client's paths, starting at 0.
    pub number: usize,
    /// Spec of the path, as configured or discovered.
    pub spec: &'a PathSpec,
    /// Interface that the path uses now, if known.
    pub interface: Option<&'a str>,
    /// Current addresses; empty if the path cannot be used.
    pub addresses: &'a [IpAddr],
}

/// Observer of every segment of a driver: outgoing ones before the carrier's header is written, incoming ones after
/// it was removed. An observer can neither change nor delay them.
///
/// The driver is locked during the call, so an observer must return quickly and must not call anything that sends.
pub trait PacketObserver: fmt::Debug + Send {
    /// Called for segments that are sent or received.
    fn observe(&mut self, observed: &ObservedSegments<'_>);

    /// Called for frames without segments: lane frames and control frames. `bytes` is the approximate length of the IP
    /// packets.
    fn frames(&mut self, _direction: Direction, _local: IpAddr, _remote: SocketAddr, _bytes: u64) {}

    /// Called with the state of a client's path at the time `at`. All paths are reported whenever one of them may have
    /// changed.
    fn path(&mut self, _at: Instant, _path: &ObservedPath<'_>) {}
}

/// Observer whose owner can also query it.
pub type SharedObserver = Arc<Mutex<dyn PacketObserver>>;

impl PacketObserver for SharedObserver {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).observe(observed);
    }

    fn frames(&mut self, direction: Direction, local: IpAddr, remote: SocketAddr, bytes: u64) {
        let mut observer = self.lock().unwrap_or_else(PoisonError::into_inner);
        observer.frames(direction, local, remote, bytes);
    }

    fn path(&mut self, at: Instant, path: &ObservedPath<'_>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).path(at, path);
    }
}

/// Observer of all events of a driver's connections: monitor events, and the traffic of all connections
/// ([`MonitorKind::Traffic`](marline_core::MonitorKind::Traffic)). Decisions are included only while they have a
/// subscriber.
///
/// The driver is locked during the call, so an observer must return quickly. Unlike receivers of monitor events, it
/// misses no event, but it costs time for each segment.
pub trait EventObserver: fmt::Debug + Send {
    /// Called for each event. Connection ids are public ids, as applications use them.
    fn event(&mut self, event: &MonitorEvent);

    /// Returns true if more events are wanted. Called after each event; after false, no more events follow.
    fn is_open(&self) -> bool {
        true
    }
}

/// Event observer that several drivers can share.
pub type SharedEventObserver = Arc<Mutex<dyn EventObserver>>;

/// Contacts of a client, with a notification when they change.
#[derive(Debug, Default)]
pub(super) struct ContactBook {
    /// `None` in a shard that accepts connections, because it has as many peers as there are clients.
    contacts: Option<Contacts>,
    changed: Arc<Notify>,
}

impl ContactBook {
    pub(super) fn new(opens_connections: bool) -> Self {
        let contacts = opens_connections.then(Contacts::default);
        ContactBook { contacts, changed: Arc::default() }
    }

    fn update(&mut self, what: impl FnOnce(&mut Contacts) -> bool) {
        if let Some(contacts) = &mut self.contacts
            && what(contacts)
        {
            self.changed.notify_one();
        }
    }

    /// Records that there is no route from `local` to `remote`; nothing was sent.
    pub(super) fn on_unroutable(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
        errno: i32,
    ) {
        self.update(|contacts| contacts.on_unroutable(now, FlowEnds::new(local, remote), errno));
    }

    /// Returns all contacts.
    pub(super) fn all(&self) -> Vec<Contact> {
        self.contacts.as_ref().map_or_else(Vec::new, |contacts| contacts.all().to_vec())
    }

    /// Requests one notification: the next change wakes the waiter. Later changes do so only after another request.
    pub(super) fn await_contact_change(&mut self) -> Arc<Notify> {
        if let Some(contacts) = &mut self.contacts {
            contacts.await_contact_change();
        }
        Arc::clone(&self.changed)
    }

    /// Discards everything recorded for this local address.
    pub(super) fn forget(&mut self, local: IpAddr) {
        if let Some(contacts) = &mut self.contacts {
            contacts.forget(local);
        }
    }

    /// Records an ICMP error for a packet from `local` to `remote`.
    pub(super) fn record_icmp_error(
        &mut self,
        now: Instant,
        local: IpAddr,
        remote: SocketAddr,
        error: &NetworkError,
    ) {
        let kind = match error.icmp {
            Some((kind, code)) => DeliveryErrorKind::from_icmp(remote.is_ipv6(), kind, code),
            None => DeliveryErrorKind::NotSent(error.errno),
        };
        self.update(|contacts| {
            contacts.record_delivery_error(now, FlowEnds::new(local, remote), error.offender, kind)
        });
    }

    /// Records that the server's machine reset a TCP connection from `local`.
    pub(super) fn refused(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) {
        let ends = FlowEnds::new(local, remote);
        self.update(|contacts| {
            let kind = DeliveryErrorKind::PortClosed;
            contacts.record_delivery_error(now, ends, Some(remote.ip()), kind)
        });
    }

    /// Records that this machine refused to send.
    pub(super) fn record_send_refusal(&mut self, now: Instant, path: &FourTuple, errno: i32) {
        let ends = FlowEnds::new(path.local.ip(), path.remote);
        self.update(|contacts| {
            contacts.record_delivery_error(now, ends, None, DeliveryErrorKind::NotSent(errno))
        });
    }
}

impl PacketObserver for ContactBook {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let (now, ends) = (observed.at, FlowEnds::new(observed.local_ip(), observed.path.remote));
        self.update(|contacts| match observed.direction {
            Direction::Sent => contacts.sent(now, ends, observed.segments()),
            Direction::Received => {
                let mut news = false;
                for segment in observed.segments() {
                    news |= contacts.on_received(now, ends, segment);
                }
                news
            }
        });
    }
}

impl PacketObserver for Captures {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        for segment in observed.segments() {
            match observed.direction {
                Direction::Sent => self.sent(observed.path, observed.ecn, segment),
                Direction::Received => self.record_received(observed.path, observed.ecn, segment),
            }
        }
    }
}

impl PacketObserver for SegmentLog {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let sent = observed.direction == Direction::Sent;
        observed.segments().for_each(|segment| self.note(sent, observed.path, segment));
    }
}

/// Returns the length of the IP and UDP headers of a frame.
const fn headers(local: IpAddr) -> usize {
    if local.is_ipv4() { 28 } else { 48 }
}

/// All observers of a shard.
#[derive(Debug)]
pub(super) struct Observers {
    captures: Option<Captures>,
    log: Option<SegmentLog>,
    contacts: ContactBook,
    /// Observers that the application has registered.
    registered_observers: Vec<SharedObserver>,
    monitor: Option<broadcast::Sender<MonitorEvent>>,
    /// Receivers of decisions, until a send fails.
    decisions: Option<broadcast::Sender<MonitorEvent>>,
    /// Observer of all events and all traffic.
    events: Option<SharedEventObserver>,
    /// Connection whose traffic events are sent, and their receivers, until a send fails.
    traffic: Option<(ConnectionId, broadcast::Sender<MonitorEvent>)>,
}

/// Observers of segments.
impl Observers {
    pub(super) fn new(
        opens_connections: bool,
        registered_observers: Vec<SharedObserver>,
    ) -> Observers {
        Observers {
            captures: None,
            log: None,
            contacts: ContactBook::new(opens_connections),
            registered_observers,
            monitor: None,
            decisions: None,
            events: None,
            traffic: None,
        }
    }

    pub(super) fn set_log(&mut self, log: Option<SegmentLog>) {
        self.log = log;
    }

    /// Replaces the capture files.
    pub(super) fn set_captures(&mut self, captures: Option<Captures>) {
        // Flush the previous files first: the new set may use the same files.
        self.captures = None;
        self.captures = captures;
    }

    pub(super) const fn contacts(&mut self) -> &mut ContactBook {
        &mut self.contacts
    }

    /// Reports the state of a path to the application's observers.
    pub(super) fn show_path(&mut self, now: Instant, path: &ObservedPath<'_>) {
        self.registered_observers.iter_mut().for_each(|observer| observer.path(now, path));
    }

    /// Notifies the application's observers of frames without segments, `stride` bytes each (0 for a single frame).
    pub(super) fn frames(
        &mut self,
        direction: Direction,
        outer: &Outer,
        bytes: usize,
        stride: usize,
    ) {
        if self.registered_observers.is_empty() {
            return;
        }
        let count = if stride == 0 { 1 } else { bytes.div_ceil(stride) };
        let bytes = (bytes + count * headers(outer.local)) as u64;
        for observer in &mut self.registered_observers {
            observer.frames(direction, outer.local, outer.remote, bytes);
        }
    }

    /// Passes segments to all observers.
    pub(super) fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let own: [Option<&mut dyn PacketObserver>; 3] = [
            self.captures.as_mut().map(|captures| captures as _),
            Some(&mut self.contacts),
            self.log.as_mut().map(|log| log as _),
        ];
        own.into_iter().flatten().for_each(|observer| observer.observe(observed));
        self.registered_observers.iter_mut().for_each(|observer| observer.observe(observed));
    }
}

/// Receivers of events. [`pass_to_observer`](Self::pass_to_observer) and [`pass_traffic`](Self::pass_traffic) return
/// the traffic that the core must now report, if it has changed.
impl Observers {
    pub(super) fn set_monitor(&mut self, monitor: Option<broadcast::Sender<MonitorEvent>>) {
        self.monitor = monitor;
    }

    /// Returns the traffic events that have subscribers.
    pub(super) fn traffic_filter(&self) -> TrafficFilter {
        match (&self.events, &self.traffic) {
            (Some(_), _) => TrafficFilter::All,
            (None, Some((id, _))) => TrafficFilter::One(*id),
            (None, None) => TrafficFilter::None,
        }
    }

    /// Replaces the event observer. Returns the previous one.
    pub(super) fn set_event_observer(
        &mut self,
        observer: Option<SharedEventObserver>,
    ) -> Option<SharedEventObserver> {
        core::mem::replace(&mut self.events, observer)
    }

    /// Sets the receivers of decisions.
    pub(super) fn set_decision_listeners(&mut self, listeners: broadcast::Sender<MonitorEvent>) {
        self.decisions = Some(listeners);
    }

    /// Sets the connection whose traffic events are sent, and their receivers.
    pub(super) fn set_traffic_listeners(
        &mut self,
        of: ConnectionId,
        listeners: broadcast::Sender<MonitorEvent>,
    ) {
        self.traffic = Some((of, listeners));
    }

    /// Passes an event to the observer of all events, if there is one, and removes the observer once it is closed.
    pub(super) fn pass_to_observer(&mut self, event: &MonitorEvent) -> Option<TrafficFilter> {
        let events = self.events.as_ref()?;
        let mut observer = events.lock().unwrap_or_else(PoisonError::into_inner);
        observer.event(event);
        let open = observer.is_open();
        drop(observer);
        if open {
            return None;
        }
        self.events = None;
        Some(self.traffic_filter())
    }

    /// Sends a traffic event to the subscribers of this connection. The first failed send ends the subscription.
    pub(super) fn pass_traffic(
        &mut self,
        id: ConnectionId,
        event: MonitorEvent,
    ) -> Option<TrafficFilter> {
        let (of, listeners) = self.traffic.as_ref()?;
        if *of != id || listeners.send(event).is_ok() {
            return None;
        }
        self.traffic = None;
        Some(self.traffic_filter())
    }

    /// Sends a decision event to the subscribers. The first failed send ends the subscription and returns false.
    pub(super) fn pass_decision(&mut self, event: MonitorEvent) -> bool {
        let is_heard =
            self.decisions.as_ref().is_some_and(|listeners| listeners.send(event).is_ok());
        if !is_heard {
            self.decisions = None;
        }
        is_heard
    }

    /// Sends any other event to the subscribers.
    pub(super) fn pass_event(&self, event: MonitorEvent) {
        if let Some(monitor) = &self.monitor {
            // Having no subscriber is not an error.
            let _ = monitor.send(event);
        }
    }
}
