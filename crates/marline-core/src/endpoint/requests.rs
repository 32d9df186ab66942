//! Requests for connections, and the application's word on them.
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

use marline_time::Instant;
use marline_wire::SeqNum;

use super::Endpoint;
use crate::connection::{Accepted, FastOpenVerdict};
use crate::tables::requests::Request;
use crate::{ConnectionId, Event, FourTuple, PacketMeta};

impl Endpoint {
    /// A SYN that the application is to be asked about. Beyond the bounds it is not heard: the client
    /// repeats it.
    pub(super) fn withhold(&mut self, meta: &PacketMeta, syn: &Accepted<'_>) {
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

    /// Answers a request with a SYN/ACK. [`Event::Incoming`] follows when the client has answered in turn,
    /// [`Event::Closed`] if it does not. `None`: there is no such request any more, or no room for another
    /// connection; the client gets RST then.
    pub fn admit(&mut self, now: Instant, path: &FourTuple) -> Option<ConnectionId> {
        let request = self.requests.take(path)?;
        let room = self.slots.count() < self.config.limits.connections;
        let free = room && !self.flows.has_tuple(path);
        let Some(config) = self.accept.clone().filter(|_| free) else {
            self.refuse_request(now, request);
            return None;
        };
        let (ecn, peer_flow, after) = (request.ecn(), request.meta().peer_flow, request.after());
        let segment = request.into_segment();
        let fast_open = FastOpenVerdict::default();
        let syn = Accepted { segment: &segment, ecn, peer_flow, after, isn: None, fast_open };
        Some(self.open_passively(now, *path, config, &syn))
    }

    /// Refuses a request with RST. `false`: there is none.
    pub fn refuse(&mut self, now: Instant, path: &FourTuple) -> bool {
        let Some(request) = self.requests.take(path) else { return false };
        self.refuse_request(now, request);
        true
    }

    fn refuse_request(&mut self, now: Instant, request: Request) {
        self.out.counters.connections_refused += 1;
        let meta = *request.meta();
        self.answer_with_reset(now, &meta, &request.into_segment());
    }

    /// Takes a request back without a word. Returns the SYN's sequence number, which an ICMP message has to
    /// quote to be believed. `None`: there is no such request.
    pub fn forget_request(&mut self, path: &FourTuple) -> Option<SeqNum> {
        let request = self.requests.take(path)?;
        self.out.counters.connections_refused += 1;
        Some(request.into_segment().header.seq)
    }

    /// Requests that wait for the application's word.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.count()
    }
}
