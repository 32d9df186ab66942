//! Host: the real endpoint behind the `Node` trait, with applications on its connections.

mod conns;

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use marline_core::{
    ConnectError, ConnectionConfig, ConnectionId, Endpoint, EndpointConfig, Event, FourTuple,
    MonitorEvent, MonitorKind, NetworkError, PacketMeta, SocketOption, TrafficFilter, TransmitBuf,
};
use marline_policy::{AddressId, LocalAddress};
use marline_time::{Instant, ProcessClock, Rng};
use marline_wire::SeqNum;

use crate::app::{App, Call, Report, SocketStatus};
use crate::lane::{LANE_PORT, LaneHost};
use crate::{Digest, Node, Outbox, Packet};
use conns::ConnectionTable;

/// Creates the application for each accepted connection, given the number of earlier ones.
pub type Listen = Box<dyn FnMut(u64) -> Box<dyn App>>;

/// Creates the application for an accepted connection to this port. `None`: no application.
pub type ListenByPort = Box<dyn FnMut(u16) -> Option<Box<dyn App>>>;

/// Receives the monitor events of a host's endpoint.
pub type Watcher = Box<dyn FnMut(&MonitorEvent)>;

/// Configuration of a host.
#[derive(Debug)]
pub struct HostConfig {
    /// The endpoint.
    pub endpoint: EndpointConfig,
    /// Addresses with their flags. The world must use these addresses.
    pub addresses: Vec<LocalAddress>,
    /// The peer's addresses, as from DNS. A connection may also use the one of the other address family.
    pub peers: Vec<IpAddr>,
    /// Size of the headers between IP and TCP in bytes (UDP carrier: 8 and its framing; native TCP: 0).
    pub carrier_overhead: u16,
}

/// A host with an endpoint.
pub struct Host {
    endpoint: Endpoint,
    config: HostConfig,
    buffer: TransmitBuf,
    conns: ConnectionTable,
    /// Configuration and addresses of the last connection that was opened.
    last: Option<(ConnectionConfig, SocketAddr, SocketAddr)>,
    /// Pending requests of applications.
    calls: VecDeque<Call>,
    listen: Option<ListenByPort>,
    /// The application authenticates its clients, which are one user.
    authenticates: bool,
    /// Lane for datagrams, on the same addresses as the streams.
    lane: Option<Box<LaneHost>>,
    monitor: Vec<MonitorEvent>,
    watcher: Option<Watcher>,
    digest: Digest,
    clock: ProcessClock,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("connections", &self.conns.len()).finish_non_exhaustive()
    }
}

impl Host {
    /// Maximum number of monitor events kept.
    const MAX_MONITOR_EVENTS: usize = 100_000;
    /// Maximum number of rounds of events and wake-ups at one instant. A larger number indicates a faulty application.
    const MAX_ROUNDS: usize = 100_000;

    /// Creates a host whose endpoint draws from `rng`.
    #[must_use]
    pub fn new(config: HostConfig, rng: Box<dyn Rng>) -> Self {
        Host {
            endpoint: Endpoint::new(config.endpoint.clone(), rng),
            buffer: TransmitBuf::new(0, 16),
            conns: ConnectionTable::default(),
            last: None,
            calls: VecDeque::new(),
            listen: None,
            authenticates: false,
            lane: None,
            monitor: Vec::new(),
            watcher: None,
            digest: Digest::default(),
            clock: ProcessClock::default(),
            config,
        }
    }

    /// Accepts connections with applications from `listen`.
    pub fn listen(&mut self, listen: ListenByPort) {
        self.listen = Some(listen);
    }

    /// Authenticates the clients of accepted connections, all as the same user.
    pub const fn authenticate_clients(&mut self) {
        self.authenticates = true;
    }

    /// Adds a lane for datagrams to the host.
    pub fn set_lane(&mut self, lane: LaneHost) {
        self.lane = Some(Box::new(lane));
    }

    /// The lane, to add applications.
    pub fn lane_mut(&mut self) -> Option<&mut LaneHost> {
        self.lane.as_deref_mut()
    }

    /// The lane.
    #[must_use]
    pub fn lane(&self) -> Option<&LaneHost> {
        self.lane.as_deref()
    }

    /// Opens a connection for `app`.
    ///
    /// # Errors
    /// The endpoint refuses the connection.
    pub fn connect(
        &mut self,
        now: Instant,
        config: ConnectionConfig,
        local: SocketAddr,
        remote: SocketAddr,
        app: Box<dyn App>,
    ) -> Result<ConnectionId, ConnectError> {
        let now = self.read_clock(now);
        self.last = Some((config.clone(), local, remote));
        let id = self.endpoint.connect(now, config, local, remote)?;
        self.conns.push(id, app, SocketStatus::Connecting);
        self.handle_all(now);
        Ok(id)
    }

    /// The endpoint, for reading.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The endpoint, for commands that bypass the applications.
    pub const fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Connections that had an application, in the order of creation.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionId, &SocketStatus)> {
        self.conns.iter().map(|conn| (conn.id, &conn.status))
    }

    /// The application report of the connection with this index in the order of creation.
    #[must_use]
    pub fn report(&self, index: usize) -> Option<&Report> {
        self.conns.get(index).map(|conn| conn.app.report())
    }

    /// The reports of all applications, in the order of creation of their connections.
    pub fn reports(&self) -> impl Iterator<Item = &Report> {
        self.conns.iter().map(|conn| conn.app.report())
    }

    /// Monitor events so far.
    #[must_use]
    pub fn monitor(&self) -> &[MonitorEvent] {
        &self.monitor
    }

    /// Passes all later monitor events to `watcher`, including traffic and decisions, which are not kept. The run is
    /// the same with and without a watcher.
    pub fn set_watcher(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
        self.endpoint.report_traffic(TrafficFilter::All);
        self.endpoint.report_decisions(true);
    }

    fn due(&self) -> Option<Instant> {
        [self.conns.next_timeout(), self.endpoint.poll_timeout()].into_iter().flatten().min()
    }

    /// The lane, if the packet between these ports belongs to it.
    fn lane_for(&mut self, packet: &Packet) -> Option<&mut LaneHost> {
        let is_lanes =
            packet.path.local.port() == LANE_PORT && packet.path.remote.port() == LANE_PORT;
        self.lane.as_deref_mut().filter(|_| is_lanes)
    }

    /// The process's clock, which does not advance while the world has stopped this host.
    fn read_clock(&mut self, now: Instant) -> Instant {
        let mut clock = self.clock;
        let now = clock.read(now, || self.due());
        if clock.pauses() > self.clock.pauses() {
            self.endpoint.record_pause();
        }
        self.clock = clock;
        now
    }

    /// Handles events and lets applications act until nothing more happens at this instant.
    fn handle_all(&mut self, now: Instant) {
        for round in 0.. {
            if let Some(event) = self.endpoint.poll_event() {
                assert!(round < Self::MAX_ROUNDS, "endless events at {now:?}, last {event:?}");
                self.on_event(now, event);
            } else if let Some(call) = self.calls.pop_front() {
                assert!(round < Self::MAX_ROUNDS, "endless calls at {now:?}, last {call:?}");
                self.answer(now, call);
            } else {
                break;
            }
        }
    }

    /// Executes an application's request.
    fn answer(&mut self, now: Instant, call: Call) {
        match call {
            Call::Wake(id) => self.wake(now, id),
            Call::Open { port, app } => {
                let Some((config, local, mut remote)) = self.last.clone() else { return };
                remote.set_port(port);
                if let Ok(id) = self.endpoint.connect(now, config, local, remote) {
                    self.conns.push(id, app, SocketStatus::Connecting);
                }
            }
        }
    }

    fn on_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Incoming(id) => {
                let Some(app) = self.create_app(id) else {
                    return self.endpoint.abort(now, id);
                };
                if self.authenticates {
                    self.endpoint.set(now, id, SocketOption::KnownPeer);
                }
                self.conns.push(id, app, SocketStatus::Open);
                self.wake(now, id);
            }
            // Simulated listeners accept every request.
            Event::Requested(path) => drop(self.endpoint.admit(now, &path)),
            Event::Connected { connection, .. } => {
                self.conns.set_status(connection, SocketStatus::Open);
                self.add_other_family(now, connection);
                self.wake(now, connection);
            }
            Event::Readable(id) | Event::Writable(id) => self.wake(now, id),
            Event::Closed { connection, reason } => {
                self.conns.set_status(connection, SocketStatus::Closed(reason));
                self.wake(now, connection);
            }
            Event::Monitor(event) => {
                let passing =
                    matches!(event.kind, MonitorKind::Traffic { .. } | MonitorKind::Decided { .. });
                if let Some(watcher) = &mut self.watcher {
                    watcher(&event);
                    if passing {
                        return;
                    }
                }
                if self.monitor.len() < Self::MAX_MONITOR_EVENTS {
                    self.monitor.push(event);
                }
            }
            Event::FlowEnded { .. } | Event::FlowGone { .. } => {}
        }
    }

    /// Adds the peer's address of the other family to a new connection, as a client does that knows it from DNS.
    fn add_other_family(&mut self, now: Instant, id: ConnectionId) {
        if self.config.peers.len() < 2 {
            return;
        }
        let info = self.endpoint.info(id);
        let used = info.and_then(|info| Some(info.subflows.first()?.path.remote));
        let Some(used) = used else { return };
        for peer in self.config.peers.iter().filter(|peer| peer.is_ipv4() != used.is_ipv4()) {
            self.endpoint.add_remote_address(now, id, SocketAddr::new(*peer, used.port()));
        }
    }

    /// The application for an accepted connection.
    fn create_app(&mut self, id: ConnectionId) -> Option<Box<dyn App>> {
        let port = self.endpoint.info(id)?.subflows.first()?.path.local.port();
        self.listen.as_mut()?(port)
    }

    fn wake(&mut self, now: Instant, id: ConnectionId) {
        if let Some((read, calls)) = self.conns.wake(now, id, &mut self.endpoint) {
            self.calls.extend(calls);
            self.digest.time(now);
            self.digest.number(id.0);
            self.digest.number(read);
        }
    }
}

impl Node for Host {
    fn handle_packet(&mut self, now: Instant, packet: &Packet) {
        if let Some(lane) = self.lane_for(packet) {
            return lane.handle_packet(now, packet);
        }
        let now = self.read_clock(now);
        let path = FourTuple { local: packet.path.remote, remote: packet.path.local };
        let meta = PacketMeta {
            path,
            ecn: packet.ecn,
            flow: packet.flow,
            peer_flow: packet.peer_flow,
            checksum_verified: packet.is_unmodified,
        };
        self.endpoint.handle_packet(now, &meta, &packet.segment);
        self.handle_all(now);
    }

    fn handle_too_big(&mut self, now: Instant, quoted: &Packet, mtu_bytes: u32) {
        if let Some(lane) = self.lane_for(quoted) {
            return lane.handle_too_big(now, quoted, mtu_bytes);
        }
        let now = self.read_clock(now);
        // Sizes below what every path must support (RFC 791, RFC 8200) are ignored, as with real carriers.
        let least = if quoted.path.remote.is_ipv4() { 576 } else { 1_280 };
        let header =
            Packet::ip_header_bytes(quoted.path.remote.ip()) + self.config.carrier_overhead;
        let max_segment = mtu_bytes.max(least).saturating_sub(u32::from(header));
        let max_segment = u16::try_from(max_segment).unwrap_or(u16::MAX);
        let [_, _, _, _, a, b, c, d, ..] = quoted.segment[..] else { return };
        let seq = SeqNum(u32::from_be_bytes([a, b, c, d]));
        let path = FourTuple { local: quoted.path.remote, remote: quoted.path.local };
        // An error about a segment that is no longer in flight changes nothing.
        let _ = self.endpoint.network_error(now, &path, seq, NetworkError::TooBig { max_segment });
        self.handle_all(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if let Some(lane) = self.lane.as_deref_mut()
            && lane.poll_timeout().is_some_and(|at| at <= now)
        {
            lane.handle_timeout(now);
        }
        let now = self.read_clock(now);
        if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            self.endpoint.handle_timeout(now);
            self.handle_all(now);
        }
        for id in self.conns.due(now) {
            self.wake(now, id);
        }
        self.handle_all(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let own = self.due().map(|due| self.clock.system_time(due));
        own.into_iter().chain(self.lane.as_ref().and_then(|lane| lane.poll_timeout())).min()
    }

    fn transmit(&mut self, now: Instant, outbox: &mut Outbox<'_>) {
        if let Some(lane) = self.lane.as_deref_mut() {
            lane.transmit(now, outbox);
        }
        let now = self.read_clock(now);
        while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) {
            let ip_header = Packet::ip_header_bytes(transmit.path.remote.ip());
            let template = Packet {
                ecn: transmit.ecn,
                flow: transmit.peer_flow,
                peer_flow: if transmit.handshake { transmit.local_flow } else { 0 },
                is_unmodified: true,
                ..Packet::new(transmit.path, ip_header + self.config.carrier_overhead)
            };
            for segment in self.buffer.bytes().chunks(transmit.stride.max(1)) {
                outbox.push(&template, segment);
            }
        }
        self.handle_all(now);
    }

    fn set_address(&mut self, now: Instant, address: IpAddr, up: bool) {
        if let Some(lane) = self.lane.as_deref_mut() {
            lane.set_address(now, address, up);
        }
        let now = self.read_clock(now);
        let known = self.config.addresses.iter_mut().find(|known| known.address.ip() == address);
        let changed = match known {
            Some(known) => {
                known.up = up;
                *known
            }
            None => {
                let id = self.config.addresses.iter().map(|known| known.id.0).max();
                let fresh = LocalAddress {
                    up,
                    ..LocalAddress::new(
                        AddressId(id.map_or(0, |id| id.wrapping_add(1))),
                        SocketAddr::new(address, 0),
                    )
                };
                self.config.addresses.push(fresh);
                fresh
            }
        };
        self.endpoint.set_local_address(now, None, changed);
        self.handle_all(now);
    }

    fn digest(&self) -> u64 {
        let mut digest = self.digest;
        if let Some(lane) = &self.lane {
            digest.number(lane.digest());
        }
        digest.value()
    }
}
