//! Requests for connections: SYNs that wait for the application's word.
//!
//! A listener that stands for somebody else (a TUN gateway in front of a proxy) does not know whether the other
//! end can be reached when a SYN comes. It withholds the SYN/ACK
//! ([`ConnectionConfig::withhold_syn_ack`](crate::ConnectionConfig)), asks the application by
//! [`Event::Requested`], and answers when that is told: with a SYN/ACK
//! ([`admit`](Endpoint::admit)), with RST ([`refuse`](Endpoint::refuse)), or not at all
//! ([`forget_request`](Endpoint::forget_request)), when the refusal is an ICMP message that the carrier's owner
//! writes. A request is the SYN and nothing more: connection, subflow and timers begin with the SYN/ACK, so that
//! the wait is in no estimate of a round trip. The client repeats its SYN meanwhile; the latest is the one
//! that is answered.

use std::collections::BTreeMap;

use marline_time::Instant;
use marline_wire::{SeqNum, TcpHeader, TcpOptions, TcpSegment};

use super::Endpoint;
use crate::connection::Accepted;
use crate::{ConnectionId, Ecn, Event, FourTuple, PacketMeta};

/// A SYN that is not answered yet.
#[derive(Debug)]
struct Request {
    header: TcpHeader,
    options: TcpOptions,
    ecn: Ecn,
    flow: u64,
    peer_flow: u64,
    /// Our end of the connection between the same ends that it follows.
    after: Option<SeqNum>,
}

/// The SYNs that wait, by their ends.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: BTreeMap<FourTuple, Request>,
}

impl Requests {
    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }

    fn take(&mut self, path: &FourTuple) -> Option<Request> {
        self.waiting.remove(path)
    }
}

impl Endpoint {
    /// A SYN that the application is to be asked about. Beyond the bounds it is not heard: the client
    /// repeats it.
    pub(super) fn withhold(&mut self, meta: &PacketMeta, syn: &Accepted<'_>) {
        let TcpSegment { header, options, .. } = syn.segment.clone();
        if let Some(known) = self.requests.waiting.get_mut(&meta.path) {
            (known.header, known.options, known.ecn) = (header, options, syn.ecn);
            known.after = syn.after.or(known.after);
            return;
        }
        let limits = &self.config.limits;
        if self.slots.count() + self.requests.count() >= limits.connections {
            self.out.counters.connections_refused += 1;
            return;
        }
        if self.requests.count() >= limits.syn_queue {
            self.out.counters.syn_queue_overflow += 1;
            return;
        }
        let (ecn, after) = (syn.ecn, syn.after);
        let (flow, peer_flow) = (meta.flow, meta.peer_flow);
        let request = Request { header, options, ecn, flow, peer_flow, after };
        self.requests.waiting.insert(meta.path, request);
        self.out.event(Event::Requested(meta.path));
    }

    /// Answers a request with a SYN/ACK. [`Event::Incoming`] follows when the client has answered in turn,
    /// [`Event::Closed`] if it does not. `None`: there is no such request any more, or no room for another
    /// connection; the client gets RST then.
    pub fn admit(&mut self, now: Instant, path: &FourTuple) -> Option<ConnectionId> {
        let request = self.requests.take(path)?;
        let segment = TcpSegment { header: request.header, options: request.options, payload: &[] };
        let room = self.slots.count() < self.config.limits.connections;
        let free = room && !self.flows.has_tuple(path);
        let Some(config) = self.accept.clone().filter(|_| free) else {
            self.out.counters.connections_refused += 1;
            let meta = request_meta(path, request.ecn, (request.flow, request.peer_flow));
            self.answer_with_reset(now, &meta, &segment);
            return None;
        };
        let (ecn, peer_flow, after) = (request.ecn, request.peer_flow, request.after);
        let syn = Accepted { segment: &segment, ecn, peer_flow, after, isn: None };
        Some(self.open_passively(now, *path, config, &syn))
    }

    /// Refuses a request with RST. `false`: there is none.
    pub fn refuse(&mut self, now: Instant, path: &FourTuple) -> bool {
        let Some(request) = self.requests.take(path) else { return false };
        self.out.counters.connections_refused += 1;
        let segment = TcpSegment { header: request.header, options: request.options, payload: &[] };
        let meta = request_meta(path, request.ecn, (request.flow, request.peer_flow));
        self.answer_with_reset(now, &meta, &segment);
        true
    }

    /// Takes a request back without a word. Returns the SYN's sequence number, which an ICMP message has to
    /// quote to be believed. `None`: there is no such request.
    pub fn forget_request(&mut self, path: &FourTuple) -> Option<SeqNum> {
        let request = self.requests.take(path)?;
        self.out.counters.connections_refused += 1;
        Some(request.header.seq)
    }

    /// Requests that wait for the application's word.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.count()
    }
}

fn request_meta(path: &FourTuple, ecn: Ecn, (flow, peer_flow): (u64, u64)) -> PacketMeta {
    PacketMeta { path: *path, ecn, flow, peer_flow, checksum_verified: true }
}
