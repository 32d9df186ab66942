//! Requests for connections that the application must accept or refuse.
//!
//! A gateway (such as a TUN gateway in front of a proxy) does not know whether the destination can be reached when a
//! SYN arrives. It withholds the SYN/ACK ([`ConnectionConfig::withhold_syn_ack`](crate::ConnectionConfig)), notifies
//! the application with [`Event::Requested`], and sends the application's answer: SYN/ACK
//! ([`admit`](Endpoint::admit)), RST ([`refuse`](Endpoint::refuse)), or nothing
//! ([`forget_request`](Endpoint::forget_request)) when the carrier's owner sends an ICMP message instead. A request
//! is only the SYN. Connection, subflow and timers start with the SYN/ACK, so that round-trip estimates do not
//! include the wait. The client repeats its SYN meanwhile; the latest one is answered.

use marline_time::Instant;
use marline_wire::SeqNum;

use super::Endpoint;
use crate::connection::{AcceptedSyn, FastOpenVerdict};
use crate::tables::requests::Request;
use crate::{ConnectionId, Event, FourTuple, PacketMeta};

impl Endpoint {
    /// Queues a SYN for the application's decision. A SYN beyond the limits is dropped; the client repeats it.
    pub(super) fn queue_request(&mut self, meta: &PacketMeta, syn: &AcceptedSyn<'_>) {
        let request = Request::new(meta, syn.segment, syn.after);
        let Some(request) = self.requests.renew(request) else { return };
        let limits = &self.config.limits;
        if self.slots.count() + self.requests.count() >= limits.connections {
            self.out.counters.connections_refused += 1;
            return;
        }
        if self.requests.count() >= limits.syn_queue {
            self.out.counters.syn_queue_overflow += 1;
            return;
        }
        self.requests.add(request);
        self.out.event(Event::Requested(meta.path));
    }

    /// Answers a request with a SYN/ACK. [`Event::Incoming`] follows when the client completes the handshake,
    /// [`Event::Closed`] if it does not. `None` if the request no longer exists, or if there is no room for another
    /// connection; the client then gets a RST.
    pub fn admit(&mut self, now: Instant, path: &FourTuple) -> Option<ConnectionId> {
        let request = self.requests.remove(path)?;
        let room = self.slots.count() < self.config.limits.connections;
        let free = room && !self.flows.has_tuple(path);
        let Some(config) = self.accept.clone().filter(|_| free) else {
            self.refuse_request(now, request);
            return None;
        };
        let (ecn, peer_flow, after) =
            (request.ecn(), request.meta().peer_flow, request.expected_ack());
        let segment = request.into_segment();
        let fast_open = FastOpenVerdict::default();
        let syn = AcceptedSyn { segment: &segment, ecn, peer_flow, after, isn: None, fast_open };
        Some(self.open_passively(now, *path, config, &syn))
    }

    /// Refuses a request with RST. Returns false if there is no such request.
    pub fn refuse(&mut self, now: Instant, path: &FourTuple) -> bool {
        let Some(request) = self.requests.remove(path) else { return false };
        self.refuse_request(now, request);
        true
    }

    fn refuse_request(&mut self, now: Instant, request: Request) {
        self.out.counters.connections_refused += 1;
        let meta = *request.meta();
        self.answer_with_reset(now, &meta, &request.into_segment());
    }

    /// Drops a request without an answer. Returns the SYN's sequence number, which an ICMP message must quote to be
    /// accepted. `None` if there is no such request.
    pub fn forget_request(&mut self, path: &FourTuple) -> Option<SeqNum> {
        let request = self.requests.remove(path)?;
        self.out.counters.connections_refused += 1;
        Some(request.into_segment().header.seq)
    }

    /// Number of requests that wait for the application's decision.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.count()
    }
}
