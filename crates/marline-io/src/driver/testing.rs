//! Shards for tests, and a socket that shows which datagrams were sent in one call.

use core::net::{Ipv4Addr, SocketAddr};
use std::io::IoSliceMut;
use std::sync::Arc;

use marline_core::{ConnectionConfig, Limits, Shard as Part};
use marline_time::Duration;
use quinn_udp::{RecvMeta, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::carrier::CarrierKind;
use super::shard::{Shard, ShardConfig, ShardHandle};
use super::sockets::SocketOptions;
use super::streams::AcceptQueue;
use crate::edge::socket_spec::PortSharing;
use crate::links::UdpUse;

/// Starts a shard with one socket and returns its address. If a queue is given, the shard accepts connections.
pub(super) fn shard(
    accept: Option<(ConnectionConfig, Arc<AcceptQueue>)>,
) -> (Arc<ShardHandle>, SocketAddr) {
    with_socket(UdpUse::Always, accept)
}

/// Starts a shard that opens connections, with this use of UDP and links.
pub(super) fn connecting_shard(udp: UdpUse) -> (Arc<ShardHandle>, SocketAddr) {
    with_socket(udp, None)
}

fn with_socket(
    udp: UdpUse,
    accept: Option<(ConnectionConfig, Arc<AcceptQueue>)>,
) -> (Arc<ShardHandle>, SocketAddr) {
    let carrier = CarrierKind::Udp { keepalive: Duration::from_secs(60), udp };
    let shard = without_sockets(carrier, accept);
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options =
        SocketOptions { local, alias: None, interface: None, port: PortSharing::Alone, mark: 0 };
    let local = shard.open_socket(options).expect("a socket");
    (shard, local)
}

/// Starts a shard with this carrier and without sockets.
pub(super) fn without_sockets(
    carrier: CarrierKind,
    accept: Option<(ConnectionConfig, Arc<AcceptQueue>)>,
) -> Arc<ShardHandle> {
    let (accept, queue) = accept.unzip();
    start(carrier, Part::SINGLE, accept, queue)
}

/// Starts one of several shards without sockets. It accepts connections, but has no queue.
pub(super) fn start_one_of_several(
    carrier: CarrierKind,
    part: Part,
    accept: ConnectionConfig,
) -> Arc<ShardHandle> {
    start(carrier, part, Some(accept), None)
}

fn start(
    carrier: CarrierKind,
    shard: Part,
    accept: Option<ConnectionConfig>,
    queue: Option<Arc<AcceptQueue>>,
) -> Arc<ShardHandle> {
    let shard = Shard::start(ShardConfig {
        carrier,
        shard,
        reset_seed: None,
        accept,
        limits: Limits::default(),
        queue,
        monitor: None,
        capture: None,
        tap: None,
        links: Arc::default(),
        observers: Vec::new(),
        events: None,
        busy_poll: Duration::ZERO,
    });
    shard.expect("started")
}

/// Socket that receives the datagrams of one send call over loopback as one message (GRO).
pub(super) struct Target {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Target {
    pub(super) fn new() -> Target {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        socket.set_nonblocking(true).expect("a socket");
        let state = UdpSocketState::new((&socket).into()).expect("a socket");
        Target { socket: UdpSocket::from_std(socket).expect("must run in a runtime"), state }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    /// Receives the next message: source, stride and bytes.
    pub(super) async fn receive(&self) -> (SocketAddr, usize, Vec<u8>) {
        let mut bytes = vec![0; 1 << 16];
        let mut meta = [RecvMeta::default()];
        let receive = || {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            self.state.recv((&self.socket).into(), &mut slices, &mut meta)
        };
        self.socket.async_io(Interest::READABLE, receive).await.expect("a message");
        bytes.truncate(meta[0].len);
        (meta[0].addr, meta[0].stride, bytes)
    }

    pub(super) async fn send(&self, to: SocketAddr, datagram: &[u8]) {
        self.socket.send_to(datagram, to).await.expect("sent");
    }
}
