//! Plain TCP of smoltcp in the setting of the bench: two interfaces whose packets reach each other
//! through queues in memory.
//!
//! In common with Marline's pair: IPv4 with an MTU of 1500, TCP checksums computed and verified, virtual time, an
//! application that writes and reads 128 KiB at a time, and one side's burst is processed by the other before it
//! answers. In smoltcp's favor: no timestamps, no congestion control, no pacing (its defaults). Not in its favor: it
//! also writes and reads the 20 bytes of IPv4 header, which Marline's core leaves to the carrier.

use smoltcp::iface::{
    Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet,
};
use smoltcp::phy::{self, Checksum, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Address};

use super::CHUNK;

const MTU: usize = 1500;
/// Packets that a queue holds.
const QUEUE: usize = 256;
/// Send and receive buffer of a socket. Larger ones exceed the processor's L2 cache, and smaller ones shorten the
/// bursts. Both are slower.
const BUFFER: usize = 128 << 10;
const STEP: Duration = Duration::from_micros(10);
const CLIENT: Ipv4Address = Ipv4Address::new(192, 0, 2, 1);
const SERVER: Ipv4Address = Ipv4Address::new(198, 51, 100, 1);
const PORT: u16 = 443;

/// A client and a server with one connection between them.
pub(crate) struct PlainTcp {
    client: Side,
    server: Side,
    now: Instant,
    chunk: Vec<u8>,
    buffer: Vec<u8>,
}

struct Side {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    link: Link,
}

impl PlainTcp {
    /// Opens the connection.
    pub(crate) fn connect() -> Self {
        let mut pair = PlainTcp {
            client: Side::new(CLIENT, SERVER),
            server: Side::new(SERVER, CLIENT),
            now: Instant::from_secs(1),
            chunk: super::chunk(),
            buffer: vec![0; CHUNK],
        };
        pair.server.socket().listen(PORT).expect("a free port");
        let Side { interface, sockets, socket, .. } = &mut pair.client;
        let socket = sockets.get_mut::<tcp::Socket<'_>>(*socket);
        socket.connect(interface.context(), (SERVER, PORT), 50_000).expect("a free socket");
        for _ in 0..4 {
            pair.exchange(&mut |_, _| ());
        }
        assert!(pair.client.socket().may_send() && pair.server.socket().may_recv());
        pair
    }

    /// Sends `bytes`, and passes received bytes and their stream position to `check`.
    pub(crate) fn transfer(&mut self, bytes: u64, mut check: impl FnMut(u64, &[u8])) {
        let (mut sent, mut received) = (0, 0);
        while received < bytes {
            let start = sent as usize % CHUNK;
            let left = usize::try_from(bytes - sent).unwrap_or(CHUNK).min(CHUNK - start);
            let words = &self.chunk[start..start + left];
            let client = self.client.sockets.get_mut::<tcp::Socket<'_>>(self.client.socket);
            sent += client.send_slice(words).expect("an open connection") as u64;
            self.exchange(&mut |socket, buffer| {
                while socket.can_recv() {
                    let got = socket.recv_slice(buffer).expect("an open connection");
                    check(received, &buffer[..got]);
                    received += got as u64;
                }
            });
        }
    }

    /// Packets sent by both ends so far.
    pub(crate) const fn segments(&self) -> u64 {
        self.client.link.sent + self.server.link.sent
    }

    /// The client sends, then the server, which reads before it answers, so that the ACK opens the whole window.
    fn exchange(&mut self, read: &mut impl FnMut(&mut tcp::Socket<'static>, &mut [u8])) {
        self.now += STEP;
        self.client.send_all(self.now);
        self.now += STEP;
        self.server.link.take_from(&mut self.client.link);
        self.server.receive_all(self.now);
        read(self.server.socket(), &mut self.buffer);
        self.server.send_all(self.now);
        self.client.link.take_from(&mut self.server.link);
        self.client.receive_all(self.now);
    }
}

impl Side {
    fn new(address: Ipv4Address, gateway: Ipv4Address) -> Self {
        let mut link = Link::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = 1;
        let mut interface = Interface::new(config, &mut link, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address.into(), 32)).expect("room for one");
        });
        interface.routes_mut().add_default_ipv4_route(gateway).expect("room for one");
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Side { interface, sockets, socket, link }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn send_all(&mut self, now: Instant) {
        while self.link.has_room()
            && self.interface.poll_egress(now, &mut self.link, &mut self.sockets)
                == PollResult::SocketStateChanged
        {}
    }

    fn receive_all(&mut self, now: Instant) {
        while self.interface.poll_ingress_single(now, &mut self.link, &mut self.sockets)
            != PollIngressSingleResult::None
        {}
    }
}

/// One end of the link: received packets and packets to send.
#[derive(Default)]
struct Link {
    incoming: Queue,
    outgoing: Queue,
    sent: u64,
}

/// Packets in the order in which they were sent. The queue is emptied before it is filled again.
struct Queue {
    memory: Vec<[u8; MTU]>,
    lengths: Vec<usize>,
    taken: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { memory: vec![[0; MTU]; QUEUE], lengths: Vec::with_capacity(QUEUE), taken: 0 }
    }
}

impl Link {
    fn has_room(&self) -> bool {
        self.outgoing.lengths.len() < QUEUE
    }

    /// Moves everything that the peer sent to this end.
    fn take_from(&mut self, peer: &mut Link) {
        std::mem::swap(&mut self.incoming, &mut peer.outgoing);
        peer.outgoing.lengths.clear();
        peer.outgoing.taken = 0;
    }
}

impl Device for Link {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Free<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, Free<'_>)> {
        let at = self.incoming.taken;
        let length = *self.incoming.lengths.get(at)?;
        self.incoming.taken += 1;
        let free = Free { queue: &mut self.outgoing, sent: &mut self.sent };
        Some((Received(&self.incoming.memory[at][..length]), free))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Free<'_>> {
        self.has_room().then_some(Free { queue: &mut self.outgoing, sent: &mut self.sent })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities.checksum.ipv4 = Checksum::Both;
        capabilities.checksum.tcp = Checksum::Both;
        capabilities
    }
}

struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

struct Free<'a> {
    queue: &'a mut Queue,
    sent: &'a mut u64,
}

impl phy::TxToken for Free<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let at = self.queue.lengths.len();
        self.queue.lengths.push(length);
        *self.sent += 1;
        write(&mut self.queue.memory[at][..length])
    }
}
