//! Client and server endpoint whose packets reach each other immediately.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use marline_algos::{Registry, reference_policies};
use marline_core::{
    Capabilities, ChecksumScope, ConnectionConfig, ConnectionId, Endpoint, EndpointConfig, Event,
    FourTuple, Limits, PacketMeta, PathHealthMonitor, ReadError, Shard, SubflowState, Transmit,
    TransmitBuf, WriteError,
};
use marline_policy::{AddressId, LocalAddress};
use marline_time::{Duration, Instant, SeedTree};
use marline_wire::TcpSegment;

use super::bounded::BoundedFactory;
use super::{CHUNK, Setting};

/// MTU 1500 without the IPv4 header.
const MAX_SEGMENT: u16 = 1480;
/// Datagrams per batch, as on the UDP carrier.
const BATCH: usize = 44;
/// Time between the data and the ACKs: half a round trip. It is virtual, so that the work of a run does not depend on
/// other load on the machine.
const STEP: Duration = Duration::from_micros(10);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 443);

/// Two endpoints, and connections from the first to the second.
pub(crate) struct Pair {
    client: Side,
    server: Side,
    now: Instant,
    /// Client's and server's ids of each connection.
    connections: Vec<(ConnectionId, ConnectionId)>,
    chunk: Vec<u8>,
    buffer: Vec<u8>,
}

/// Segments in flight, with the metadata from the receiver's carrier.
#[derive(Default)]
pub(crate) struct Captured(Vec<(PacketMeta, Vec<u8>)>);

impl Captured {
    pub(crate) const fn segments(&self) -> usize {
        self.0.len()
    }

    /// Total payload in bytes.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let parsed = self.0.iter().map(|(_, bytes)| TcpSegment::parse(bytes).expect("our own"));
        parsed.map(|segment| segment.payload.len() as u64).sum()
    }
}

struct Side {
    endpoint: Endpoint,
    batch: TransmitBuf,
    incoming: Vec<ConnectionId>,
    connected: usize,
}

impl Pair {
    /// Opens `connections`, each subflow from its own address, and waits until they are established.
    pub(crate) fn connect(connections: usize, setting: Setting) -> Self {
        let mut pair = Pair {
            client: Side::new("client", None),
            server: Side::new("server", Some(config())),
            now: Instant::from_secs(1),
            connections: Vec::new(),
            chunk: super::chunk(),
            buffer: vec![0; CHUNK],
        };
        let config = client_config(setting);
        for _ in 0..connections {
            pair.open(setting.subflows, &config);
        }
        pair
    }

    /// Connects the server to this path health monitor.
    pub(crate) fn set_path_health_monitor(&mut self, monitor: &PathHealthMonitor) {
        self.server.endpoint.set_path_health_monitor(monitor.clone());
    }

    fn open(&mut self, subflows: usize, config: &Arc<ConnectionConfig>) {
        let local = SocketAddr::new(client_ip(0), 0);
        let client = self.client.endpoint.connect(self.now, Arc::clone(config), local, SERVER);
        let client = client.expect("room for a connection");
        let (known, connected) = (self.server.incoming.len(), self.client.connected);
        self.until("a connection", |pair| {
            pair.server.incoming.len() > known && pair.client.connected > connected
        });
        self.connections.push((client, self.server.incoming[known]));
        // One message in each direction: joins need it, and a connection without any data is not typical.
        self.say(200);
        self.until("all subflows", |pair| {
            let established = |side: &Endpoint, id| {
                let info = side.info(id).expect("the connection exists");
                info.subflows.iter().filter(|s| s.state == SubflowState::Established).count()
            };
            let (client, server) = pair.connections[pair.connections.len() - 1];
            established(&pair.client.endpoint, client) == subflows
                && established(&pair.server.endpoint, server) == subflows
        });
    }

    /// Sends `bytes` from the newest connection's client to its server, and back.
    fn say(&mut self, bytes: usize) {
        let now = self.now;
        let (client, server) = self.connections[self.connections.len() - 1];
        let word = vec![7; bytes];
        assert_eq!(self.client.endpoint.write(now, client, &word), Ok(bytes));
        let mut heard = vec![0; bytes];
        self.until("a word", |pair| {
            pair.server.endpoint.read(now, server, &mut heard) == Ok(bytes)
        });
        let now = self.now;
        assert_eq!(self.server.endpoint.write(now, server, &heard), Ok(bytes));
        self.until("an answer", |pair| {
            pair.client.endpoint.read(now, client, &mut heard) == Ok(bytes)
        });
        assert_eq!(heard, word);
    }

    /// Sends `bytes` over the first connection, and passes received bytes and their stream position to `check`.
    pub(crate) fn transfer(&mut self, bytes: u64, mut check: impl FnMut(u64, &[u8])) {
        let (mut sent, mut received) = (0, 0);
        while received < bytes {
            sent += self.write_some(sent, bytes);
            self.exchange();
            while let Some(got) = self.read_some() {
                check(received, &self.buffer[..got]);
                received += got as u64;
            }
        }
    }

    /// Payload bytes that each subflow of the first connection's client sent.
    pub(crate) fn sent_per_subflow(&self) -> Vec<u64> {
        let info = self.client.endpoint.info(self.connections[0].0).expect("the connection exists");
        info.subflows.iter().map(|subflow| subflow.bytes_sent).collect()
    }

    /// Segments sent by both ends so far.
    pub(crate) fn segments(&self) -> u64 {
        let sent = |side: &Side| side.endpoint.counters().segments_out;
        sent(&self.client) + sent(&self.server)
    }

    /// The client's application writes enough for this many full segments with any options. The buffer has room for
    /// all of it.
    pub(crate) fn write_segments(&mut self, segments: usize) {
        let (now, bytes) = (self.now, vec![0x5a; segments * usize::from(MAX_SEGMENT)]);
        let written = self.client.endpoint.write(now, self.connections[0].0, &bytes);
        assert_eq!(written, Ok(bytes.len()));
    }

    /// Discards segments that the client sends, until there were `most`. Returns their number.
    pub(crate) fn send_to_nowhere(&mut self, most: usize) -> usize {
        let mut segments = 0;
        while segments < most
            && let Some(transmit) = self.client.poll_transmit(self.now, most - segments)
        {
            segments += transmit.datagrams;
        }
        segments
    }

    /// Captures segments that the client sends, until there are `most`.
    pub(crate) fn capture_data(&mut self, most: usize) -> Captured {
        self.now += STEP;
        self.client.capture(self.now, most)
    }

    /// Passes the segments to the server, two at a time, and captures its answers.
    pub(crate) fn capture_acks(&mut self, data: &Captured) -> Captured {
        self.now += STEP;
        let mut acks = Captured::default();
        for segments in data.0.chunks(2) {
            self.server.take(self.now, segments);
            acks.0.append(&mut self.server.capture(self.now, usize::MAX).0);
        }
        self.now += STEP;
        acks
    }

    /// Passes these segments to the server.
    pub(crate) fn server_takes(&mut self, captured: &Captured) {
        self.server.take(self.now, &captured.0);
    }

    /// Passes these segments to the client.
    pub(crate) fn client_takes(&mut self, captured: &Captured) {
        self.client.take(self.now, &captured.0);
    }

    /// Bytes that the server's application may read, and bytes that the client sent and that are not acknowledged.
    pub(crate) fn readable_and_unacknowledged(&self) -> (u64, u64) {
        let (client, server) = self.connections[0];
        let client = self.client.endpoint.info(client).expect("the connection exists");
        let server = self.server.endpoint.info(server).expect("the connection exists");
        let sent: u64 = client.subflows.iter().map(|subflow| subflow.bytes_sent).sum();
        (server.readable, sent - client.bytes_acked)
    }

    /// Writes as much as fits of the stream whose first `sent` bytes are already written. The stream repeats the
    /// chunk.
    fn write_some(&mut self, sent: u64, end: u64) -> u64 {
        let start = sent as usize % CHUNK;
        let left = usize::try_from(end - sent).unwrap_or(CHUNK).min(CHUNK - start);
        let now = self.now;
        let words = &self.chunk[start..start + left];
        match self.client.endpoint.write(now, self.connections[0].0, words) {
            Ok(written) => written as u64,
            Err(WriteError::Blocked) => 0,
            _ if left == 0 => 0,
            Err(error) => panic!("write: {error:?}"),
        }
    }

    fn read_some(&mut self) -> Option<usize> {
        let now = self.now;
        match self.server.endpoint.read(now, self.connections[0].1, &mut self.buffer) {
            Ok(got) => Some(got),
            Err(ReadError::Blocked) => None,
            Err(error) => panic!("read: {error:?}"),
        }
    }

    /// Runs until `done`, for at most a few seconds.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now + Duration::from_secs(5);
        while !done(self) {
            self.exchange();
            assert!(self.now < limit, "no {what}");
        }
    }

    /// Sends everything in one direction, then in the other, and handles timers.
    fn exchange(&mut self) {
        self.now += STEP;
        self.client.send_all(self.now, &mut self.server.endpoint);
        self.now += STEP;
        self.server.send_all(self.now, &mut self.client.endpoint);
        for side in [&mut self.client, &mut self.server] {
            if side.endpoint.poll_timeout().is_some_and(|at| at <= self.now) {
                side.endpoint.handle_timeout(self.now);
            }
            side.drain_events();
        }
    }
}

impl Side {
    fn new(name: &str, accept: Option<ConnectionConfig>) -> Self {
        let capabilities = Capabilities {
            base_segment: MAX_SEGMENT,
            max_segment: MAX_SEGMENT,
            checksum: ChecksumScope::WithAddresses,
            flow_ids: false,
            ecn: false,
        };
        let config = EndpointConfig {
            capabilities,
            limits: Limits::default(),
            shard: Shard::SINGLE,
            accept,
            monitor: false,
        };
        let rng = SeedTree::new(1).stream(name);
        Side {
            endpoint: Endpoint::new(config, Box::new(rng)),
            batch: TransmitBuf::new(0, BATCH),
            incoming: Vec::new(),
            connected: 0,
        }
    }

    /// Passes every batch to `peer`.
    fn send_all(&mut self, now: Instant, peer: &mut Endpoint) {
        while let Some(transmit) = self.poll_transmit(now, BATCH) {
            let segments = self.batch.bytes().chunks(transmit.stride);
            peer.handle_packets(now, &at_peer(&transmit), segments);
        }
    }

    /// The next batch, of at most `most` segments.
    fn poll_transmit(&mut self, now: Instant, most: usize) -> Option<Transmit> {
        self.batch.set_max_datagrams(most.min(BATCH));
        self.endpoint.poll_transmit(now, &mut self.batch)
    }

    /// Captures segments to send, until there are `most`.
    fn capture(&mut self, now: Instant, most: usize) -> Captured {
        let mut captured = Captured::default();
        while captured.0.len() < most
            && let Some(transmit) = self.poll_transmit(now, most - captured.0.len())
        {
            let segments = self.batch.bytes().chunks(transmit.stride);
            captured.0.extend(segments.map(|bytes| (at_peer(&transmit), bytes.to_vec())));
        }
        captured
    }

    fn take(&mut self, now: Instant, segments: &[(PacketMeta, Vec<u8>)]) {
        for (meta, bytes) in segments {
            self.endpoint.handle_packet(now, meta, bytes);
        }
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Incoming(id) => self.incoming.push(id),
                Event::Connected { fallback, .. } => {
                    assert_eq!(fallback, None);
                    self.connected += 1;
                }
                Event::Closed { reason, .. } => panic!("closed: {reason:?}"),
                _ => {}
            }
        }
    }
}

/// Metadata of these segments at the peer's carrier.
fn at_peer(transmit: &Transmit) -> PacketMeta {
    let FourTuple { local, remote } = transmit.path;
    PacketMeta {
        path: FourTuple { local: remote, remote: local },
        ecn: transmit.ecn,
        flow: 0,
        peer_flow: 0,
        checksum_verified: false,
    }
}

fn config() -> ConnectionConfig {
    ConnectionConfig { mapping_runs: true, ..ConnectionConfig::new(reference_policies()) }
}

/// Configuration that all connections of a client share.
fn client_config(setting: Setting) -> Arc<ConnectionConfig> {
    let mut config = config();
    let scheduler = Registry::default().scheduler(setting.scheduler);
    config.policies.scheduler = scheduler.expect("a built-in scheduler");
    if let Some(segments) = setting.window_segments {
        let inner = Arc::clone(&config.policies.congestion);
        config.policies.congestion = Arc::new(BoundedFactory { inner, segments });
    }
    config.local_addresses = (0..setting.subflows).map(client_address).collect();
    Arc::new(config)
}

fn client_ip(index: usize) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 1 + index as u8).into()
}

fn client_address(index: usize) -> LocalAddress {
    LocalAddress::new(AddressId(index as u8), SocketAddr::new(client_ip(index), 0))
}
