//! A host behind a gateway and a network in front of it, both controlled by the test.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use marline_core::{
    ConnectionConfig, ConnectionId, Endpoint, EndpointConfig, Event, FourTuple, PacketMeta,
    ReadError, Transmit, TransmitBuf, WriteError,
};
use marline_proxy::client::open::{Open, OpenError};
use marline_proxy::client::open_targets::OpenTargets;
use marline_proxy::shutdown::Stopper;
use marline_proxy::target::Target;
use marline_testkit::timeline::plain;
use marline_testkit::{Seg, endpoint_config};
use marline_time::{Instant, SeedTree};
use marline_tun::addresses::Addresses;
use marline_tun::datagram::Datagrams;
use marline_tun::gateway::{Gateway, GatewaySettings, PacketSource};
use marline_tun::resolver::Resolvers;
use marline_wire::{
    IpPacket, PROTOCOL_TCP, PROTOCOL_UDP, UDP_HEADER_LEN, emit_ip, emit_udp, fill_udp_checksum,
    ip_header_len,
};
use tokio::io::DuplexStream;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Timeout that is never reached in a passing test.
const PATIENCE: Duration = Duration::from_secs(20);
/// Duration without packets that counts as silence.
const SILENCE: Duration = Duration::from_millis(150);
/// Capacity of a stream, in bytes.
pub(crate) const PIPE: usize = 64 << 10;

/// Request for a target, with a sender for the result.
pub(crate) type Asked = (Target, oneshot::Sender<Result<DuplexStream, OpenError>>);

/// Opener of targets controlled by the test.
#[derive(Debug)]
pub(crate) struct ByHand(mpsc::UnboundedSender<Asked>);

impl Open for ByHand {
    type Stream = DuplexStream;

    async fn open(&self, target: &Target) -> Result<DuplexStream, OpenError> {
        let (answer, answered) = oneshot::channel();
        self.0.send((target.clone(), answer)).expect("the test");
        match answered.await {
            Ok(opened) => opened,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Maximum number of connections of the gateway.
pub(crate) const CONNECTIONS: u16 = 64;

/// A gateway with both its sides.
pub(crate) struct World {
    pub(crate) wire: UnixDatagram,
    pub(crate) asked: mpsc::UnboundedReceiver<Asked>,
    pub(crate) addresses: Addresses,
    pub(crate) stopper: Stopper,
}

impl World {
    pub(crate) fn new(resolver: Option<&str>, datagrams: Box<dyn Datagrams>) -> World {
        let (wire, theirs) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        wire.set_nonblocking(true).expect("non-blocking");
        let addresses = Addresses::default();
        let target = |text: &str| text.parse().expect("a target");
        let resolvers = resolver.map(|text| Resolvers::new(target(text), []));
        let settings = GatewaySettings {
            memory: Default::default(),
            addresses,
            resolvers,
            served: PacketSource::Program,
            connections: CONNECTIONS.into(),
            targets: OpenTargets::default(),
        };
        let gateway = Gateway::start(theirs.into(), settings, datagrams).expect("started");
        let (ask, asked) = mpsc::unbounded_channel();
        let stopper = Stopper::default();
        tokio::spawn(gateway.serve(Arc::new(ByHand(ask)), stopper.listen()));
        let wire = UnixDatagram::from_std(wire).expect("a runtime");
        World { wire, asked, addresses, stopper }
    }

    /// Returns the next request for a target.
    pub(crate) async fn asked(&mut self) -> Asked {
        timeout(PATIENCE, self.asked.recv()).await.expect("in time").expect("a target is requested")
    }

    /// Opens the next requested target, and returns the far end of its stream.
    pub(crate) async fn open(&mut self) -> DuplexStream {
        let (_, answer) = self.asked().await;
        let (near, far) = tokio::io::duplex(PIPE);
        answer.send(Ok(near)).expect("still requested");
        far
    }

    /// Returns the next packet from the gateway.
    pub(crate) async fn packet(&self) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 16];
        let len = timeout(PATIENCE, self.wire.recv(&mut buffer)).await.expect("in time");
        buffer.truncate(len.expect("received"));
        buffer
    }

    /// Checks that the gateway sends nothing.
    pub(crate) async fn expect_silence(&self) {
        let mut buffer = vec![0; 1 << 16];
        let heard = timeout(SILENCE, self.wire.recv(&mut buffer)).await;
        assert!(heard.is_err(), "{:?}", IpPacket::parse(&buffer));
    }

    pub(crate) async fn send(&self, packet: &[u8]) {
        timeout(PATIENCE, self.wire.send(packet)).await.expect("in time").expect("sent");
    }
}

/// Returns the addresses of a connection from the host to this target.
pub(crate) fn path(target: &str, port: u16) -> FourTuple {
    let target: SocketAddr = target.parse().expect("an address");
    let addresses = Addresses::default();
    let host: IpAddr =
        if target.is_ipv4() { addresses.host_v4.into() } else { addresses.host_v6.into() };
    FourTuple { local: SocketAddr::new(host, port), remote: target }
}

/// Encodes a TCP segment from the host in a packet.
pub(crate) fn tcp(path: FourTuple, seg: Seg) -> Vec<u8> {
    let ends = (path.local.ip(), path.remote.ip());
    let segment = seg.ports(path.local.port(), path.remote.port()).bytes(Some(ends));
    in_ip(ends.0, ends.1, PROTOCOL_TCP, &segment)
}

/// Encodes a datagram from the host in a packet.
pub(crate) fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; UDP_HEADER_LEN];
    emit_udp(from.port(), to.port(), payload.len(), &mut bytes).expect("the packet fits");
    bytes.extend(payload);
    fill_udp_checksum(from.ip(), to.ip(), &mut bytes);
    in_ip(from.ip(), to.ip(), PROTOCOL_UDP, &bytes)
}

pub(crate) fn in_ip(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; ip_header_len(src)];
    emit_ip(src, dst, protocol, 0, payload.len(), &mut packet).expect("one family");
    packet.extend(payload);
    packet
}

/// A complete TCP stack of the host, based on the core, in real time.
pub(crate) struct Host {
    endpoint: Endpoint,
    out: TransmitBuf,
    started: std::time::Instant,
}

impl Host {
    pub(crate) fn new() -> Host {
        let config = EndpointConfig { ..endpoint_config(None) };
        Host {
            endpoint: Endpoint::new(config, Box::new(SeedTree::new(5).stream("host"))),
            out: TransmitBuf::new(0, 16),
            started: std::time::Instant::now(),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_secs(1) + self.started.elapsed()
    }

    pub(crate) fn connect(&mut self, path: FourTuple) -> ConnectionId {
        let config = ConnectionConfig { send_buffer: 256 << 10, ..plain() };
        self.endpoint.connect(self.now(), config, path.local, path.remote).expect("room")
    }

    pub(crate) fn shutdown(&mut self, id: ConnectionId) {
        self.endpoint.shutdown(self.now(), id);
    }

    pub(crate) fn abort(&mut self, id: ConnectionId) {
        self.endpoint.abort(self.now(), id);
    }

    pub(crate) fn write(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<usize, WriteError> {
        self.endpoint.write(self.now(), id, bytes)
    }

    pub(crate) fn read(&mut self, id: ConnectionId, out: &mut [u8]) -> Result<usize, ReadError> {
        self.endpoint.read(self.now(), id, out)
    }

    /// Sends and receives until `done` returns true for an event, or for `time`.
    pub(crate) async fn run(
        &mut self,
        world: &World,
        time: Duration,
        mut done: impl FnMut(&Event) -> bool,
    ) -> bool {
        let until = tokio::time::Instant::now() + time;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let now = self.now();
            if self.endpoint.poll_timeout().is_some_and(|at| at <= now) {
                self.endpoint.handle_timeout(now);
            }
            while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.out) {
                send_all(world, &transmit, self.out.bytes()).await;
            }
            while let Some(event) = self.endpoint.poll_event() {
                if done(&event) {
                    return true;
                }
            }
            let tick = until.min(tokio::time::Instant::now() + Duration::from_millis(2));
            let heard = tokio::time::timeout_at(tick, world.wire.recv(&mut buffer)).await;
            if let Ok(len) = heard {
                self.take(&buffer[..len.expect("received")]);
            } else if tokio::time::Instant::now() >= until {
                return false;
            }
        }
    }

    /// Sends and receives until `done` returns true, which must happen.
    pub(crate) async fn run_until(&mut self, world: &World, done: impl FnMut(&Event) -> bool) {
        assert!(self.run(world, PATIENCE, done).await, "it did not happen");
    }

    fn take(&mut self, packet: &[u8]) {
        let ip = IpPacket::parse(packet).expect("a packet");
        assert_eq!(ip.protocol, PROTOCOL_TCP);
        self.endpoint.handle_packet(self.now(), &meta_of(&ip), ip.payload);
    }
}

/// Metadata of a TCP packet for the core. The packet must contain at least the ports.
pub(crate) fn meta_of(ip: &IpPacket<'_>) -> PacketMeta {
    let port = |at: usize| u16::from_be_bytes([ip.payload[at], ip.payload[at + 1]]);
    let path = FourTuple {
        local: SocketAddr::new(ip.dst, port(2)),
        remote: SocketAddr::new(ip.src, port(0)),
    };
    let (ecn, flow, peer_flow) = (marline_core::Ecn::NotEct, 0, 0);
    PacketMeta { path, ecn, flow, peer_flow, checksum_verified: false }
}

async fn send_all(world: &World, transmit: &Transmit, bytes: &[u8]) {
    let ends = (transmit.path.local.ip(), transmit.path.remote.ip());
    for segment in bytes.chunks(transmit.stride.max(1)) {
        world.send(&in_ip(ends.0, ends.1, PROTOCOL_TCP, segment)).await;
    }
}
