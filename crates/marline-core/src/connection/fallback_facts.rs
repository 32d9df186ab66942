//! Facts about both directions that decide whether a connection may fall back to plain TCP.
//!
//! Options that are removed on the path are detected in the handshake, when the first data arrives without a mapping,
//! or is acknowledged without a DATA_ACK. Then the stream is plain TCP from the first byte, for both sides: all data
//! so far is contiguous on the one subflow.
//!
//! Later, only a failed checksum on the only subflow leads to a fallback. The receiver keeps its data and sends
//! MP_FAIL. The sender answers with MP_FAIL and marks its next data with an infinite mapping. Nothing is sent twice:
//! either sign shows the receiver that the kept bytes continue the stream. MP_FAIL is sent on a pure ACK, which may
//! be lost, so it is repeated until the answer arrives. If the data is not contiguous (another subflow carried some
//! of it), the subflow is reset instead, and its data is sent on the other subflows, or on the next one.

use marline_policy::{Dsn, Ssn, SubflowId};
use marline_wire::{TcpFlags, TcpSegment};

use super::fallback::{self, OtherSubflows, Point, StreamFacts, Trigger, Verdict};
use super::handshake::mp_capable;
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::sender::Sender;
use super::session::{Mode, Session};
use super::subflow_context::SubflowContext;
use crate::ConnectionConfig;
use crate::subflow::Ingress;

/// Parts of a connection that show what each side has received and knows.
#[derive(Copy, Clone)]
pub(super) struct FallbackFacts<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a Session,
    pub(super) paths: &'a PathSet,
    pub(super) sender: &'a Sender,
    pub(super) receiver: &'a Receiver,
}

impl FallbackFacts<'_> {
    /// State of both directions on this subflow.
    pub(super) fn gather(&self, id: SubflowId) -> StreamFacts {
        let (mut sent_whole, mut sent_tail, mut usable, mut initial) = (false, false, false, false);
        if let Some(subflow) = self.paths.get(id) {
            let (una, end, next) = (self.sender.una(), self.sender.sent(), subflow.tcp().snd_nxt());
            let Point { ssn: from, dsn: first } = self.contiguous_from(id, next);
            // A FIN occupies a sequence number on the subflow but no position in the stream.
            sent_whole = self.sender.is_contiguous(id) && next.0.wrapping_sub(end.0 + 1) <= 1;
            sent_tail = first <= una && end.since(first) == next.since(from);
            (usable, initial) = (subflow.is_active(), subflow.is_initial() && subflow.is_up());
        }
        let was_alone = !self.paths.has_lost_joins();
        // A DATA_ACK on another subflow proves this too, and that subflow may have ended.
        let proven = self.sender.is_proven(id) || initial && self.sender.was_mapped_acked(id);
        StreamFacts {
            initial: initial && was_alone,
            others: self.other_subflows(id),
            sent_whole,
            sent_tail,
            received_whole: self.receiver.is_contiguous(id) && self.receiver.expects_plain(id),
            received_tail: self.receiver.is_in_step(id),
            proven,
            proven_to_peer: self.is_proven_to_peer(id),
            has_no_data_ack: usable && !proven && self.is_within_first_window(id),
        }
    }

    /// State of the other subflows.
    fn other_subflows(&self, id: SubflowId) -> OtherSubflows {
        let mut others = OtherSubflows::None;
        for (_, subflow) in self.paths.with_ids().filter(|(other, _)| *other != id) {
            let kind = if subflow.is_active() {
                OtherSubflows::Usable
            } else if subflow.was_joined() {
                OtherSubflows::Closing
            } else if subflow.may_be_established_at_peer() {
                OtherSubflows::Answered
            } else {
                OtherSubflows::Opening
            };
            others = others.max(kind);
        }
        others
    }

    /// Point from which unacknowledged data is contiguous on a subflow. `next` is the first position not sent there.
    pub(super) fn contiguous_from(&self, id: SubflowId, next: Ssn) -> Point {
        let (una, end) = (self.sender.una(), self.sender.sent());
        if una == end { Point { ssn: next, dsn: una } } else { self.sender.run(id) }
    }

    /// True if mapped data beyond the data with the peer's keys may have been DATA_ACKed.
    fn is_proven_to_peer(&self, id: SubflowId) -> bool {
        let keyed = self.session.first_mapped_by_peer().plus(self.receiver.keyed(id).into());
        self.receiver.delivered(id) > Ssn(1).plus(keyed.0)
    }

    /// True if none of our data is DATA_ACKed and the peer has sent at most a first window of data, and probes.
    fn is_within_first_window(&self, id: SubflowId) -> bool {
        let segment = self.paths.get(id).map_or(0, |subflow| subflow.tcp().max_segment() as u64);
        let window = 2 * u64::from(self.config.initial_window) * segment;
        self.sender.una() == Dsn(0) && self.receiver.delivered(id).0 <= window
    }

    pub(super) fn judge(&self, id: SubflowId, trigger: Trigger) -> Verdict {
        fallback::judge(trigger, &self.gather(id))
    }

    /// True if none of our data was ever DATA_ACKed, no other subflow exists or has received payload, both directions
    /// are contiguous from their first byte, and the peer has sent at most a first window of data, and probes.
    fn is_unacknowledged(&self, id: SubflowId) -> bool {
        matches!(self.judge(id, Trigger::FirstByteRepeated), Verdict::FromFirstByte { .. })
    }

    /// True for a server that has DATA_ACKed no mapped data and so may still fall back to plain TCP.
    pub(super) fn may_be_plain(&self, id: SubflowId) -> bool {
        self.session.is_server()
            && !self.sender.is_proven(id)
            && !self.is_proven_to_peer(id)
            && matches!(self.judge(id, Trigger::UnmappedData), Verdict::FromFirstByte { .. })
    }

    /// True if the client's first data was not acknowledged and nothing was received since the handshake.
    pub(super) fn is_unanswered(&self, id: SubflowId) -> bool {
        let first = Ssn(self.session.first_mapped().0 + 1);
        let silent = |s: &SubflowContext| s.is_initial() && s.tcp().snd_una() == first;
        self.session.is_unconfirmed()
            && self.session.is_client()
            && self.paths.get(id).is_some_and(silent)
            && self.receiver.delivered(id) == Ssn(1)
    }

    /// Plain TCP: end of the stream data acknowledged on the subflow.
    pub(super) fn acked_by_tcp(&self, id: SubflowId) -> Option<Dsn> {
        let Mode::Plain { tx: Point { ssn, dsn }, .. } = self.session.mode() else { return None };
        let una = self.paths.get(id)?.tcp().snd_una();
        Some(dsn.plus(una.since(ssn)).min(self.sender.sent()))
    }

    /// Plain TCP: true if the peer's last DATA_ACK shows that it lacks data that its TCP acknowledged.
    pub(super) fn peer_lacks_bytes(&self, id: SubflowId) -> bool {
        self.acked_by_tcp(id).is_some_and(|acked| acked > self.sender.una())
    }

    /// True if data with our infinite mapping was sent.
    pub(super) fn has_sent_infinite_mapping(&self, id: SubflowId) -> bool {
        let next = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt());
        next.is_some_and(|next| self.session.has_sent_plain(next))
    }

    /// Server: true if a segment with a DSS, or data without options, overtook the third ACK and the first data,
    /// which carry the keys. Such a segment cannot be interpreted yet and is not plain TCP either. It is dropped, and
    /// the peer sends it again.
    ///
    /// A first byte with neither keys nor mapping did not overtake anything. Linux (6.18) sends data in this form if
    /// it was rejected with the SYN, and continues in plain TCP with a peer that does so. Neither did a DATA_FIN that
    /// answers a repeated SYN/ACK: Linux sends it instead of the keys if its application shut down before the first
    /// SYN/ACK arrived, and never sends the keys.
    pub(super) fn arrived_before_keys(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        if !self.session.is_server() || !self.session.is_offered() {
            return false;
        }
        let Some(tcp) = self.paths.get(id).map(SubflowContext::tcp) else { return false };
        let first = tcp.peer_to_wire(tcp.rcv_nxt()) == segment.header.seq;
        let carries = !segment.payload.is_empty();
        match segment.options.dss {
            Some(dss) => {
                let unmapped = dss.mapping.is_none() && carries && first;
                let ends = dss.data_fin && !carries && first && tcp.syns_sent() > 1;
                !unmapped && !ends && mp_capable(segment).is_none()
            }
            None => carries && !first && mp_capable(segment).is_none(),
        }
    }

    /// Server: true if the segment is a probe without options, which a client sends if no segment with options is
    /// answered (`option_blackhole`), and none of our data was ever DATA_ACKed. The answer has no options either,
    /// because our options may be the ones that are dropped. The probe alone does not cause a fallback: the client
    /// decides after our answer.
    pub(super) fn is_probe_without_options(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        let Some(tcp) = self.paths.get(id).map(SubflowContext::tcp) else { return false };
        let others = TcpFlags::SYN.with(TcpFlags::FIN).with(TcpFlags::RST);
        let flags = segment.header.flags;
        let asks = segment.header.seq == tcp.peer_to_wire(Ssn(0))
            && segment.payload.is_empty()
            && flags.contains(TcpFlags::ACK)
            && !flags.intersects(others)
            && !segment.options.has_mptcp();
        let multipath = self.session.is_multipath();
        self.session.is_server()
            && asks
            && (self.session.is_offered() || multipath && self.is_unacknowledged(id))
    }

    /// Server: true if the first byte is repeated without the option that it had at first. The client does not know
    /// that we received it, because our answers also carry options and are dropped.
    pub(super) fn repeats_first_data(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        if self.receiver.delivered(id) <= Ssn(1) {
            return false;
        }
        let Some(subflow) = self.paths.get(id) else { return false };
        segment.header.seq == subflow.tcp().peer_to_wire(Ssn(1))
            && !segment.payload.is_empty()
            && !segment.options.has_mptcp()
            && self.session.is_server()
            && self.session.is_multipath()
    }

    /// True for a segment without payload and without MPTCP options on an established subflow.
    pub(super) fn lacks_options(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        let bare = !segment.options.has_mptcp() && segment.payload.is_empty();
        bare && !segment.header.flags.contains(TcpFlags::SYN)
            && self.paths.get(id).is_some_and(SubflowContext::is_up)
    }

    /// Reason to consider a fallback after a segment without any MPTCP option: a DSS is missing if the segment
    /// acknowledges data. Data without a mapping is evaluated once it is in order: a middlebox that splits segments
    /// leaves the options on one piece, and another piece may overtake it. For this reason, such a piece does not
    /// count as an ACK without a DATA_ACK either.
    pub(super) fn missing_dss(
        &self,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) -> Option<Trigger> {
        let tcp = self.paths.get(id)?.tcp();
        // Only plain TCP ends a stream in this way.
        let fin = segment.header.flags.contains(TcpFlags::FIN)
            && tcp.peer_to_wire(tcp.rcv_nxt()) == segment.header.seq.add(1)
            && !self.receiver.fin_reached();
        if fin {
            return Some(Trigger::UnmappedData);
        }
        let sent = self.sender.sent() > Dsn(0) || !self.sender.is_contiguous(id);
        let acks = ingress.newly_acked > 0 && sent && tcp.snd_una() > Ssn(1);
        acks.then_some(Trigger::BareAck)
    }

    /// True for a repeated SYN or SYN/ACK.
    pub(super) fn repeats_handshake(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        let flags = segment.header.flags;
        let opens = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::RST);
        let first = |s: &SubflowContext| segment.header.seq == s.tcp().peer_to_wire(Ssn(0));
        opens && self.paths.get(id).is_some_and(first)
    }
}
