//! From the sockets to the core: batches of datagrams, each maybe a run that the kernel coalesced.

use core::net::{IpAddr, SocketAddr};
use std::io::{self, IoSliceMut};

use quinn_udp::{RecvMeta, UdpSockRef};

use super::shard::{Handover, Shard, State};
use super::socket::{UdpSock, ecn_of};
use crate::carrier::{Datagram, Outer, Received, SHORT_HEADER};
use marline_time::Instant;

/// Messages of one system call.
const MESSAGES: usize = 8;
/// Bytes of each: the most that the kernel coalesces.
const MESSAGE_BYTES: usize = 64 << 10;

/// Where datagrams are received into.
pub(super) struct ReceiveBuffer {
    bytes: Box<[u8]>,
    metas: [RecvMeta; MESSAGES],
}

/// What one system call brought.
pub(super) struct Batch {
    messages: usize,
    /// The socket is empty now.
    pub(super) drained: bool,
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        ReceiveBuffer {
            bytes: vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice(),
            metas: [RecvMeta::default(); MESSAGES],
        }
    }

    /// Receives what is there.
    pub(super) fn receive(&mut self, socket: &UdpSock) -> io::Result<Batch> {
        let mut chunks = self.bytes.chunks_mut(MESSAGE_BYTES);
        let mut slices: [IoSliceMut<'_>; MESSAGES] =
            core::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let reference = UdpSockRef::from(socket.fd.get_ref());
        let messages = socket.state.recv(reference, &mut slices, &mut self.metas)?;
        Ok(Batch { messages, drained: messages < MESSAGES })
    }

    /// The messages of a batch: what is known of each, and its bytes.
    fn messages(&self, batch: &Batch) -> impl Iterator<Item = (&RecvMeta, &[u8])> {
        self.metas.iter().zip(self.bytes.chunks(MESSAGE_BYTES)).take(batch.messages)
    }
}

impl Shard {
    /// Gives a batch to carrier and core.
    pub(super) fn on_batch(
        &self,
        state: &mut State,
        now: Instant,
        (index, local): (u16, SocketAddr),
        buffer: &ReceiveBuffer,
        batch: &Batch,
    ) {
        for (meta, bytes) in buffer.messages(batch) {
            let outer = Outer {
                socket: index,
                local: local_ip(meta.dst_ip, local),
                remote: plain(meta.addr),
            };
            let ecn = ecn_of(meta.ecn);
            let run = bytes.get(..meta.len).unwrap_or_default();
            for bytes in run.chunks(meta.stride.max(1)) {
                let local_port = local.port();
                let handed_over = false;
                self.on_datagram(
                    state,
                    now,
                    &Datagram { outer, local_port, ecn, handed_over, bytes },
                );
            }
        }
    }

    /// Gives one datagram to carrier and core.
    pub(super) fn on_datagram(&self, state: &mut State, now: Instant, datagram: &Datagram<'_>) {
        match state.carrier.receive(now, datagram) {
            Received::Segment(meta, segment) => {
                if let Some(capture) = &mut state.capture {
                    capture.received(&meta.path, meta.ecn, segment);
                }
                state.endpoint.handle_packet(now, &meta, segment);
            }
            Received::Elsewhere(owner) => self.hand_over(usize::from(owner), datagram),
            Received::Anywhere => {
                let shards = self.peers.get().map_or(0, Vec::len);
                for shard in 0..shards {
                    self.hand_over(shard, datagram);
                }
            }
            Received::Nothing => {}
        }
    }

    /// Rare: first SYNs of joins, or all if the kernel does not spread by flow id.
    fn hand_over(&self, shard: usize, datagram: &Datagram<'_>) {
        let Some(peer) = self.peers.get().and_then(|peers| peers.get(shard)) else { return };
        let bytes = datagram.bytes.to_vec();
        // A full queue drops it, as a full socket buffer would; TCP repeats it.
        let _ = peer.try_send(Handover { outer: datagram.outer, ecn: datagram.ecn, bytes });
    }

    /// Takes a datagram that another shard received.
    pub(super) fn on_handover(&self, state: &mut State, now: Instant, handover: &Handover) {
        let Some(Some(entry)) = state.sockets.get(usize::from(handover.outer.socket)) else {
            return;
        };
        let local_port = entry.socket.local.port();
        debug_assert!(handover.bytes.len() >= SHORT_HEADER);
        self.on_datagram(
            state,
            now,
            &Datagram {
                outer: handover.outer,
                local_port,
                ecn: handover.ecn,
                handed_over: true,
                bytes: &handover.bytes,
            },
        );
    }
}

fn local_ip(destination: Option<IpAddr>, bound: SocketAddr) -> IpAddr {
    if bound.ip().is_unspecified() { destination.unwrap_or(bound.ip()) } else { bound.ip() }
}

/// Without flow label and scope, which may differ between datagrams of one peer. The scope of a
/// link-local address is kept: without it no answer can be sent.
fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.flowinfo() != 0 => {
            core::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        other => other,
    }
}
