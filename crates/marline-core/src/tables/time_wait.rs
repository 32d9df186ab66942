//! Remaining state of subflows that ended: enough to answer late segments (RFC 9293 section 3.6.1).
//!
//! A subflow in TIME-WAIT repeats its last ACK when the peer repeats its FIN. A subflow that was reset repeats the
//! RST, because the peer would continue to send after a lost RST. If the local address is gone, the RST is sent when
//! it returns; a peer with nothing to send would otherwise keep the subflow forever. Entries are small and expire,
//! and the oldest is evicted when the table is full.

use core::net::IpAddr;
use std::collections::VecDeque;

use marline_policy::SubflowId;
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{Dss, MpFastclose, MptcpOption};
use marline_wire::{SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment, Timestamps};

use super::demux::{Demux, FlowKey, FlowRef};
use super::outbox::Outbox;
use super::stateless_reply::StatelessReply;
use crate::Event;
#[cfg(test)]
use crate::FourTuple;

/// Slot numbers with this bit refer to entries in the TIME-WAIT table.
pub(crate) const TIME_WAIT_BIT: u32 = 1 << 31;

/// Answer to a late segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The last ACK.
    Ack,
    /// A RST.
    Rst,
}

/// An ended subflow.
#[derive(Copy, Clone, Debug)]
pub(crate) struct EndedSubflow {
    pub(crate) key: FlowKey,
    pub(crate) answer: Answer,
    /// Sequence number of the peer's SYN.
    pub(crate) peer_isn: SeqNum,
    /// Header of the answer.
    pub(crate) header: TcpHeader,
    /// Timestamps of the answer, without which the peer's PAWS would drop it (RFC 7323 section 5.2).
    pub(crate) timestamps: Option<Timestamps>,
    /// Last DATA_ACK.
    pub(crate) dss: Option<Dss>,
    /// The RST ended the whole connection.
    pub(crate) fastclose: Option<MpFastclose>,
    /// The RST could not be sent because its local address was gone. It is sent when the address returns.
    pub(crate) unsent: bool,
    pub(crate) until: Instant,
}

impl EndedSubflow {
    /// True if this SYN opens a new connection between these addresses and is not a late segment.
    ///
    /// In TIME-WAIT, its timestamp, or else its sequence number, must be newer than the end of the old connection
    /// (RFC 6191 section 2, RFC 9293 section 3.10.7.4). After a reset, the only old segment that can be confused with
    /// it is a repetition of the refused SYN.
    pub(crate) fn may_be_replaced_by(&self, syn: &TcpSegment<'_>) -> bool {
        if self.answer == Answer::Rst {
            return syn.header.seq != self.peer_isn;
        }
        let beyond = syn.header.seq.offset_from(self.header.ack) < 1 << 31;
        match (self.timestamps, syn.options.timestamps) {
            (Some(ours), Some(theirs)) if theirs.value != ours.echo => {
                theirs.value.wrapping_sub(ours.echo) < 1 << 31
            }
            _ => beyond,
        }
    }

    /// Builds the answer to a late segment.
    pub(crate) fn final_segment(&self) -> StatelessReply {
        let mut options =
            TcpOptions { timestamps: self.timestamps, dss: self.dss, ..TcpOptions::default() };
        if let Some(fastclose) = self.fastclose {
            options.mptcp.push(MptcpOption::Fastclose(fastclose));
        }
        StatelessReply { header: self.header, options, key: self.key }
    }

    /// Builds the answer to a late segment with an ACK. A RST is accepted only with exactly the sequence number that
    /// the peer expects (RFC 5961 section 3.2). If data was in flight at the reset, this is not our next number, so
    /// it is taken from the ACK (RFC 9293 section 3.10.7.1).
    pub(crate) fn answer_to(&self, late: &TcpHeader) -> StatelessReply {
        let mut reply = self.final_segment();
        if self.answer == Answer::Rst && late.flags.contains(TcpFlags::ACK) {
            reply.header.seq = late.ack;
            (reply.header.flags, reply.header.ack) = (TcpFlags::RST, SeqNum(0));
            reply.options.timestamps = None;
        }
        reply
    }
}

/// Ring of entries in order of insertion.
#[derive(Debug)]
pub(crate) struct TimeWait {
    entries: VecDeque<Option<EndedSubflow>>,
    /// Number of the first entry in the ring, so that numbers stay valid when entries expire.
    first: u32,
    limit: usize,
}

impl TimeWait {
    pub(crate) const fn new(limit: usize) -> Self {
        TimeWait { entries: VecDeque::new(), first: 0, limit }
    }

    /// Adds a subflow. The oldest one is evicted if there are too many.
    pub(crate) fn insert(&mut self, ended: EndedSubflow, demux: &mut Demux, out: &mut Outbox) {
        demux.remove(&ended.key);
        if self.limit == 0 {
            out.event(flow_gone(&ended.key));
            return;
        }
        if self.entries.len() >= self.limit {
            self.pop(demux, out);
        }
        let number = self.first.wrapping_add(self.entries.len() as u32) & !TIME_WAIT_BIT;
        demux.insert(ended.key, FlowRef { slot: TIME_WAIT_BIT | number, subflow: SubflowId(0) });
        out.event(Event::FlowEnded { local_flow: ended.key.local_flow });
        self.entries.push_back(Some(ended));
    }

    /// Entry in a slot with [`TIME_WAIT_BIT`].
    pub(crate) fn get(&self, slot: u32) -> Option<&EndedSubflow> {
        self.entries.get(self.index(slot))?.as_ref()
    }

    /// Sends resets that could not be sent before a local address came back.
    pub(crate) fn send_unsent(&mut self, from: IpAddr, out: &mut Outbox) {
        let is_from = |ended: &&mut EndedSubflow| ended.unsent && ended.key.path.local.ip() == from;
        for ended in self.entries.iter_mut().flatten().filter(is_from) {
            ended.unsent = false;
            out.counters.resets_out += 1;
            out.reply(ended.final_segment());
        }
    }

    /// Drops an entry early, because its address pair is needed for a new connection.
    pub(crate) fn evict(&mut self, slot: u32, demux: &mut Demux, out: &mut Outbox) {
        let index = self.index(slot);
        if let Some(ended) = self.entries.get_mut(index).and_then(Option::take) {
            demux.remove(&ended.key);
            out.event(flow_gone(&ended.key));
        }
    }

    /// Drops expired entries.
    pub(crate) fn expire(&mut self, now: Instant, demux: &mut Demux, out: &mut Outbox) {
        while self.entries.front().is_some_and(|e| e.is_none_or(|e| e.until <= now)) {
            self.pop(demux, out);
        }
    }

    /// Expiry of the oldest entry. Entries are in order of insertion, so one that expires before an older one is kept
    /// until that expires.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.entries.iter().flatten().next().map(|e| e.until)
    }

    fn index(&self, slot: u32) -> usize {
        (slot.wrapping_sub(self.first) & !TIME_WAIT_BIT) as usize
    }

    fn pop(&mut self, demux: &mut Demux, out: &mut Outbox) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.first = self.first.wrapping_add(1);
        if let Some(ended) = entry {
            demux.remove(&ended.key);
            out.event(flow_gone(&ended.key));
        }
    }
}

fn flow_gone(key: &FlowKey) -> Event {
    Event::FlowGone { local_flow: key.local_flow, path: key.path }
}

/// Time for which a reset subflow still answers late segments.
pub(crate) const RESET_MEMORY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn ended(port: u16, until: u64) -> EndedSubflow {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let path = FourTuple { local: at(80), remote: at(port) };
        let key = FlowKey { path, local_flow: 0, peer_flow: 0 };
        let header = TcpHeader::default();
        let until = Instant::from_secs(until);
        EndedSubflow {
            key,
            answer: Answer::Ack,
            peer_isn: SeqNum(0),
            header,
            timestamps: None,
            dss: None,
            fastclose: None,
            unsent: false,
            until,
        }
    }

    #[test]
    fn entries_are_found_by_packet_bounded_and_expire_in_order() {
        let (mut demux, mut out) = (Demux::new(1), Outbox::default());
        let mut table = TimeWait::new(2);
        for (port, until) in [(1, 10), (2, 20), (3, 30)] {
            table.insert(ended(port, until), &mut demux, &mut out);
        }
        let gone = |out: &mut Outbox| {
            let events: Vec<Event> = std::iter::from_fn(|| out.next_event()).collect();
            events.iter().filter(|event| matches!(event, Event::FlowGone { .. })).count()
        };
        assert_eq!(gone(&mut out), 1, "three ended, one was removed already");
        assert!(demux.find(&ended(1, 0).key.path, 0, 0).is_none());
        let slot = demux.find(&ended(3, 0).key.path, 0, 0).unwrap().slot;
        assert_eq!(table.get(slot).unwrap().until, Instant::from_secs(30));
        table.expire(Instant::from_secs(20), &mut demux, &mut out);
        assert_eq!(table.get(slot).unwrap().key.path.remote.port(), 3);
        table.evict(slot, &mut demux, &mut out);
        assert!(table.get(slot).is_none() && table.next_timeout().is_none());
        assert_eq!(gone(&mut out), 2);
    }

    #[test]
    fn an_unsent_reset_is_sent_once_when_its_address_is_back() {
        let (mut demux, mut out) = (Demux::new(1), Outbox::default());
        let mut table = TimeWait::new(4);
        for (port, unsent) in [(1, true), (2, false), (3, true)] {
            let ended = EndedSubflow { unsent, answer: Answer::Rst, ..ended(port, 60) };
            table.insert(ended, &mut demux, &mut out);
        }
        table.send_unsent(IpAddr::from([192, 0, 2, 2]), &mut out);
        assert_eq!(out.replies(), 0, "an unrelated address");
        for _ in 0..2 {
            table.send_unsent(IpAddr::from([192, 0, 2, 1]), &mut out);
            assert_eq!(out.replies(), 2);
        }
    }
}
