//! Contacts: unanswered packets, replies and errors, per local address and peer.
//!
//! A connection knows its own subflows, but the reachability of a server over a *path* outlives
//! them. So the driver of a client records, per local address and peer, the packets that need an
//! answer, when something was last received, and the errors since. The evaluation is left to the
//! owner of the paths.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use marline_time::{Duration, Instant};

use crate::carrier::FlowEnds;

/// Maximum number of contacts. A client has a few servers. One that connects directly to its targets has many, and
/// the least recently contacted ones are dropped.
const CAPACITY: usize = 64;

/// Number of remembered acknowledgments, which distinguish an answer from other packets from a peer.
const MAX_REMEMBERED_ACKS: usize = 64;

/// Delay after which an answer counts as late and triggers a notification.
const LATE_AFTER: Duration = Duration::from_secs(1);

/// Length of a TCP header without options.
const TCP_HEADER: usize = 20;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// State of a peer as seen from one of our addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Local address.
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Unanswered packets since the last packet from the peer; `None` if everything was answered.
    pub question: Option<UnansweredPackets>,
    /// Time of the last packet from the peer.
    pub heard_at: Option<Instant>,
    /// Last error since then.
    pub delivery_error: Option<DeliveryError>,
}

impl Contact {
    fn record_request(&mut self, now: Instant) {
        match &mut self.question {
            Some(question) => {
                question.last_at = now;
                question.tries = question.tries.saturating_add(1);
            }
            open => *open = Some(UnansweredPackets { since: now, last_at: now, tries: 1 }),
        }
    }
}

/// Unanswered packets that need an answer: SYN, FIN or payload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct UnansweredPackets {
    /// Time of the first unanswered packet.
    pub since: Instant,
    /// Time of the latest.
    pub last_at: Instant,
    /// Number of attempts.
    pub tries: u32,
}

/// Report that packets were not delivered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeliveryError {
    /// Time of the first report since the last answer.
    pub since: Instant,
    /// Time of the latest report.
    pub last_at: Instant,
    /// Sender of the report; `None` if it was this machine.
    pub by: Option<IpAddr>,
    /// Kind of error.
    pub kind: DeliveryErrorKind,
}

/// Kind of an error report.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DeliveryErrorKind {
    /// Port unreachable (ICMP), or a reset in answer to a SYN.
    PortClosed,
    /// Communication is administratively prohibited (ICMP).
    Prohibited,
    /// The host is unreachable (ICMP), or does not answer neighbor discovery.
    HostUnreachable,
    /// The network is unreachable (ICMP).
    NetUnreachable,
    /// Another "destination unreachable" message: ICMP type and code.
    Other(u8, u8),
    /// This machine could not send: error number.
    NotSent(i32),
}

impl DeliveryErrorKind {
    /// Converts an ICMP type and code (RFC 792, RFC 1812 section 5.2.7.1, RFC 4443 section 3.1).
    pub(crate) const fn from_icmp(v6: bool, kind: u8, code: u8) -> DeliveryErrorKind {
        match (v6, kind, code) {
            (false, 3, 3) | (true, 1, 4) => DeliveryErrorKind::PortClosed,
            (false, 3, 9 | 10 | 13) | (true, 1, 1 | 5 | 6) => DeliveryErrorKind::Prohibited,
            (false, 3, 1 | 7 | 8 | 12) | (true, 1, 2 | 3) => DeliveryErrorKind::HostUnreachable,
            (false, 3, 0 | 6 | 11) | (true, 1, 0) => DeliveryErrorKind::NetUnreachable,
            _ => DeliveryErrorKind::Other(kind, code),
        }
    }
}

/// All contacts of a shard that opens connections.
#[derive(Debug, Default)]
pub(crate) struct Contacts {
    known: Vec<Contact>,
    /// Peer, local port and acknowledgment number of received segments.
    acknowledged: VecDeque<(SocketAddr, [u8; 2], [u8; 4])>,
    /// True while a task waits for a change.
    has_waiter: bool,
}

impl Contacts {
    pub(crate) fn all(&self) -> &[Contact] {
        &self.known
    }

    /// Requests one notification: the first change makes one of the methods below return true. A change is an
    /// unanswered packet, an error report, or a late answer.
    pub(crate) fn await_contact_change(&mut self) {
        self.has_waiter = true;
    }

    /// Records a batch of outgoing segments.
    pub(crate) fn sent<'a>(
        &mut self,
        now: Instant,
        ends: FlowEnds,
        mut segments: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        if !segments.any(needs_answer) {
            return false;
        }
        self.entry(ends.local, ends.remote).record_request(now);
        core::mem::take(&mut self.has_waiter)
    }

    /// Records an answer. A late answer counts as a change.
    fn record_answer(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) -> bool {
        let Some(at) = self.position(local, remote) else { return false };
        let contact = &mut self.known[at];
        let (question, objection) = (contact.question.take(), contact.delivery_error.take());
        contact.heard_at = Some(now);
        let late = question.is_some_and(|question| now.since(question.since) >= LATE_AFTER);
        (late || objection.is_some()) && core::mem::take(&mut self.has_waiter)
    }

    /// Records an incoming segment: an answer, or the refusal of a SYN.
    pub(crate) fn on_received(&mut self, now: Instant, ends: FlowEnds, segment: &[u8]) -> bool {
        let FlowEnds { local, remote } = ends;
        if !is_syn_refusal(segment) {
            let asked =
                self.position(local, remote).is_some_and(|at| self.known[at].question.is_some());
            // A peer that repeats its acknowledgment does not receive our packets: only one direction works.
            return (self.is_new(remote, segment) || !asked)
                && self.record_answer(now, local, remote);
        }
        self.record_delivery_error(now, ends, Some(remote.ip()), DeliveryErrorKind::PortClosed)
    }

    /// Returns true if a segment acknowledges something new.
    fn is_new(&mut self, remote: SocketAddr, segment: &[u8]) -> bool {
        let (Some(port), Some(number)) = (segment.get(2..4), segment.get(8..12)) else {
            return false;
        };
        let mut seen = (remote, [0; 2], [0; 4]);
        seen.1.copy_from_slice(port);
        seen.2.copy_from_slice(number);
        if self.acknowledged.contains(&seen) {
            return false;
        }
        // The latest number of each port is enough, because numbers do not recur soon.
        let same = |old: &(SocketAddr, [u8; 2], [u8; 4])| (old.0, old.1) == (remote, seen.1);
        if let Some(at) = self.acknowledged.iter().position(same) {
            self.acknowledged.remove(at);
        } else if self.acknowledged.len() >= MAX_REMEMBERED_ACKS {
            self.acknowledged.pop_front();
        }
        self.acknowledged.push_back(seen);
        true
    }

    /// Records an error report from ICMP or from this machine. Unknown peers are ignored.
    pub(crate) fn record_delivery_error(
        &mut self,
        now: Instant,
        ends: FlowEnds,
        by: Option<IpAddr>,
        kind: DeliveryErrorKind,
    ) -> bool {
        let Some(at) = self.position(ends.local, ends.remote) else { return false };
        let error = &mut self.known[at].delivery_error;
        let since = error.map_or(now, |before| before.since);
        *error = Some(DeliveryError { since, last_at: now, by, kind });
        core::mem::take(&mut self.has_waiter)
    }

    /// Records that this machine has no route to a peer.
    pub(crate) fn on_unroutable(&mut self, now: Instant, ends: FlowEnds, errno: i32) -> bool {
        self.entry(ends.local, ends.remote).record_request(now);
        self.record_delivery_error(now, ends, None, DeliveryErrorKind::NotSent(errno))
    }

    /// Discards everything recorded for this local address, which now belongs to another network.
    pub(crate) fn forget(&mut self, local: IpAddr) {
        self.known.retain(|contact| contact.local != local);
    }

    fn position(&self, local: IpAddr, remote: SocketAddr) -> Option<usize> {
        self.known.iter().position(|c| c.remote == remote && c.local == local)
    }

    fn entry(&mut self, local: IpAddr, remote: SocketAddr) -> &mut Contact {
        let at = self.position(local, remote).unwrap_or_else(|| {
            let new =
                Contact { local, remote, question: None, heard_at: None, delivery_error: None };
            if self.known.len() < CAPACITY {
                self.known.push(new);
                return self.known.len() - 1;
            }
            let last = |c: &Contact| c.question.map(|q| q.last_at).max(c.heard_at);
            let oldest = (0..self.known.len()).min_by_key(|at| last(&self.known[*at])).unwrap_or(0);
            self.known[oldest] = new;
            oldest
        });
        &mut self.known[at]
    }
}

fn flags(segment: &[u8]) -> u8 {
    segment.get(13).copied().unwrap_or(0)
}

/// Returns true if a reachable peer answers this segment.
fn needs_answer(segment: &[u8]) -> bool {
    let header = segment.get(12).map_or(TCP_HEADER, |offset| usize::from(offset >> 4) * 4);
    let carries = segment.len() > header || flags(segment) & (SYN | FIN) != 0;
    carries && flags(segment) & RST == 0
}

/// Returns true for the refusal of a SYN (RFC 9293 section 3.5.2): a reset from a closed port has sequence number 0 and
/// the ACK bit.
fn is_syn_refusal(segment: &[u8]) -> bool {
    flags(segment) & (RST | ACK) == RST | ACK && segment.get(4..8) == Some(&[0; 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: FlowEnds = FlowEnds::new(
        IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2)),
        SocketAddr::new(IpAddr::V4(core::net::Ipv4Addr::new(9, 9, 9, 1)), 7_777),
    );

    fn segment(flags: u8, seq: u32, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0; TCP_HEADER + payload];
        bytes[4..8].copy_from_slice(&seq.to_be_bytes());
        bytes[12] = 5 << 4;
        bytes[13] = flags;
        bytes
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn send(contacts: &mut Contacts, ms: u64, segment: &[u8]) -> bool {
        contacts.sent(at(ms), ENDS, [segment].into_iter())
    }

    #[test]
    fn attempts_are_counted_until_a_packet_arrives() {
        let mut contacts = Contacts::default();
        send(&mut contacts, 0, &segment(ACK, 1, 0));
        assert!(contacts.all().is_empty(), "an acknowledgment does not expect an answer");
        for ms in [10, 1_010, 3_010] {
            send(&mut contacts, ms, &segment(SYN, 1, 0));
        }
        let open = UnansweredPackets { since: at(10), last_at: at(3_010), tries: 3 };
        assert_eq!(contacts.all()[0].question, Some(open));
        contacts.record_answer(at(3_050), ENDS.local, ENDS.remote);
        assert_eq!(contacts.all()[0].question, None);
        assert_eq!(contacts.all()[0].heard_at, Some(at(3_050)));
        send(&mut contacts, 4_000, &segment(ACK, 1, 5));
        let open = UnansweredPackets { since: at(4_000), last_at: at(4_000), tries: 1 };
        assert_eq!(contacts.all()[0].question, Some(open));
    }

    #[test]
    fn a_peer_that_repeats_itself_has_not_answered() {
        let mut contacts = Contacts::default();
        let acking = |number: u32| {
            let mut bytes = segment(ACK, 77, 10);
            bytes[8..12].copy_from_slice(&number.to_be_bytes());
            bytes
        };
        send(&mut contacts, 0, &segment(SYN, 1, 0));
        contacts.on_received(at(20), ENDS, &acking(2));
        assert_eq!(contacts.all()[0].question, None);
        // Unsolicited data counts as received data.
        contacts.on_received(at(40), ENDS, &acking(2));
        assert_eq!(contacts.all()[0].heard_at, Some(at(40)));
        send(&mut contacts, 50, &segment(ACK, 2, 5));
        contacts.on_received(at(900), ENDS, &acking(2));
        assert!(contacts.all()[0].question.is_some(), "the peer does not receive our packets");
        contacts.on_received(at(950), ENDS, &acking(7));
        assert_eq!(contacts.all()[0].question, None);
    }

    #[test]
    fn an_error_lasts_until_an_answer_and_keeps_its_start_time() {
        let mut contacts = Contacts::default();
        let router: IpAddr = "192.168.1.1".parse().unwrap();
        let (by, kind) = (Some(router), DeliveryErrorKind::Prohibited);
        contacts.record_delivery_error(at(0), ENDS, by, kind);
        assert!(contacts.all().is_empty(), "from an unknown remote address");
        send(&mut contacts, 0, &segment(SYN, 1, 0));
        contacts.record_delivery_error(at(5), ENDS, by, kind);
        contacts.record_delivery_error(at(900), ENDS, by, kind);
        let expected = DeliveryError { since: at(5), last_at: at(900), by, kind };
        assert_eq!(contacts.all()[0].delivery_error, Some(expected));
        contacts.record_answer(at(1_000), ENDS.local, ENDS.remote);
        assert_eq!(contacts.all()[0].delivery_error, None);
    }

    #[test]
    fn only_a_reset_that_answers_a_syn_is_a_refusal() {
        let mut contacts = Contacts::default();
        send(&mut contacts, 0, &segment(SYN, 1, 0));
        contacts.on_received(at(5), ENDS, &segment(RST, 77, 0));
        assert_eq!(contacts.all()[0].delivery_error, None);
        contacts.on_received(at(9), ENDS, &segment(RST | ACK, 0, 0));
        let objection = contacts.all()[0].delivery_error.expect("refused");
        assert_eq!(
            (objection.by, objection.kind),
            (Some(ENDS.remote.ip()), DeliveryErrorKind::PortClosed)
        );
    }

    #[test]
    fn a_waiting_watcher_is_notified_once() {
        let mut contacts = Contacts::default();
        let syn = segment(SYN, 1, 0);
        assert!(!send(&mut contacts, 0, &syn), "no waiting task");
        contacts.await_contact_change();
        assert!(send(&mut contacts, 1, &syn));
        assert!(!send(&mut contacts, 2, &syn));
        contacts.await_contact_change();
        assert!(!contacts.record_answer(at(20), ENDS.local, ENDS.remote), "an ordinary answer");
        send(&mut contacts, 30, &syn);
        contacts.await_contact_change();
        assert!(
            contacts.record_answer(at(4_000), ENDS.local, ENDS.remote),
            "an answer to a late request"
        );
    }

    #[test]
    fn the_table_is_bounded_and_evicts_the_least_recent_contact() {
        let mut contacts = Contacts::default();
        let remote = |port| SocketAddr::new(ENDS.remote.ip(), port);
        for port in 0..200 {
            let ends = FlowEnds::new(ENDS.local, remote(port));
            contacts.sent(at(u64::from(port)), ends, [&segment(SYN, 1, 0)[..]].into_iter());
        }
        assert_eq!(contacts.all().len(), CAPACITY);
        assert!(contacts.all().iter().all(|c| c.remote.port() >= 136), "{contacts:?}");
        contacts.forget(ENDS.local);
        assert!(contacts.all().is_empty());
    }

    #[test]
    fn icmp_codes_map_to_error_kinds() {
        for (v6, kind, code, expected) in [
            (false, 3, 3, DeliveryErrorKind::PortClosed),
            (true, 1, 4, DeliveryErrorKind::PortClosed),
            (false, 3, 13, DeliveryErrorKind::Prohibited),
            (true, 1, 1, DeliveryErrorKind::Prohibited),
            (false, 3, 1, DeliveryErrorKind::HostUnreachable),
            (true, 1, 0, DeliveryErrorKind::NetUnreachable),
            (false, 3, 2, DeliveryErrorKind::Other(3, 2)),
        ] {
            assert_eq!(
                DeliveryErrorKind::from_icmp(v6, kind, code),
                expected,
                "{v6} {kind} {code}"
            );
        }
    }
}
