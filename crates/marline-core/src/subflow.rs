//! A Subflow: plain TCP (RFC 9293) that offers option space to its connection.
//!
//! It knows no MPTCP, no scheduler and no application bytes. Positions are [`Ssn`]s, unwrapped to
//! 64 bits; the payload of what it sends lies in the connection's send buffer and is named by DSN.
//!
//! A connection drives it so: `on_segment` for each segment in, then `pop_reassembled`; `on_timeout`
//! when `next_timeout` has come; then `poll_event` until there is none. To send: `next_egress` until
//! there is none (one segment for each), and `push_data` as long as `eligibility` allows.

mod config;
mod types;

pub(crate) use config::SubflowConfig;
pub(crate) use types::{Egress, HeaderFor, Ingress, SubflowEvent, SubflowStats};

use marline_policy::{
    AddressId, CongestionFactory, DataRange, Dsn, Eligibility, RecoveryFactory, SentSegment, Ssn,
    SubflowId, SubflowView,
};
use marline_time::Instant;
use marline_wire::{SeqNum, TcpHeader, TcpOptions, TcpSegment};

use crate::{Ecn, FourTuple, SubflowInfo, SubflowState};

/// One TCP connection of a Multipath TCP connection.
#[derive(Debug)]
pub(crate) struct Subflow {
    config: SubflowConfig,
    path: FourTuple,
    isn: SeqNum,
    id: SubflowId,
    stats: SubflowStats,
    released: Vec<DataRange>,
}

#[allow(unused_variables, clippy::unimplemented, reason = "the signatures; bodies follow")]
impl Subflow {
    pub(crate) fn connect(
        now: Instant,
        config: SubflowConfig,
        path: FourTuple,
        isn: SeqNum,
        congestion: &dyn CongestionFactory,
        recovery: &dyn RecoveryFactory,
    ) -> Subflow {
        Subflow {
            config,
            path,
            isn,
            id: SubflowId(0),
            stats: SubflowStats::default(),
            released: Vec::new(),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as connect, plus the SYN and its ECN field")]
    pub(crate) fn accept(
        now: Instant,
        config: SubflowConfig,
        path: FourTuple,
        isn: SeqNum,
        syn: &TcpSegment<'_>,
        ecn: Ecn,
        congestion: &dyn CongestionFactory,
        recovery: &dyn RecoveryFactory,
    ) -> Subflow {
        Self::connect(now, config, path, isn, congestion, recovery)
    }

    /// The slot it has in its connection (for views and coupled congestion control).
    pub(crate) fn set_id(&mut self, id: SubflowId) {
        self.id = id;
    }
    /// Siblings for coupled congestion control; skip when not [`wants_group`](Self::wants_group).
    pub(crate) fn set_group(&mut self, group: &[SubflowView]) {}
    pub(crate) fn wants_group(&self) -> bool {
        false
    }

    // --- ingress
    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
        accept_window: u64,
    ) -> Ingress {
        Ingress::default()
    }
    pub(crate) fn pop_reassembled(&mut self) -> Option<(Ssn, Vec<u8>)> {
        None
    }
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {}
    pub(crate) fn poll_event(&mut self) -> Option<SubflowEvent> {
        None
    }
    pub(crate) fn released(&mut self) -> &mut Vec<DataRange> {
        &mut self.released
    }
    /// Takes back the ACK that the last segment owes as a challenge (rate limit).
    pub(crate) fn withdraw_challenge(&mut self) {}

    // --- egress
    pub(crate) fn next_egress(&mut self, now: Instant, max_payload: usize) -> Option<Egress> {
        None
    }
    /// As `next_egress`, but leaves out a pure ACK: data that is about to go can carry it.
    pub(crate) fn next_egress_but_ack(
        &mut self,
        now: Instant,
        max_payload: usize,
    ) -> Option<Egress> {
        None
    }
    pub(crate) fn wants_new_data_probe(&self) -> bool {
        false
    }
    pub(crate) fn repeat_last_as_probe(&mut self) {}
    pub(crate) fn eligibility(&self, now: Instant) -> Eligibility {
        Eligibility::NotUsable
    }
    pub(crate) fn push_data(
        &mut self,
        now: Instant,
        dsn: Dsn,
        len: u16,
        mapping_checksum: u16,
    ) -> SentSegment {
        SentSegment {
            start: Ssn(1),
            end: Ssn(1 + u64::from(len)),
            dsn,
            mapping_start: Ssn(1),
            mapping_len: len,
            mapping_checksum,
            fin: false,
            sent_at: now,
            first_sent_at: now,
            transmissions: 1,
            sacked: false,
            lost: false,
            rate: marline_policy::RateStamp::default(),
        }
    }
    pub(crate) fn set_app_limited(&mut self) {}
    pub(crate) fn fill_header(
        &mut self,
        now: Instant,
        what: HeaderFor<'_>,
        rcv_window: u64,
        options: &mut TcpOptions,
    ) -> (TcpHeader, Ecn) {
        (TcpHeader::default(), Ecn::NotEct)
    }
    pub(crate) fn fill_sack(&mut self, options: &mut TcpOptions, room_bytes: usize) {}
    pub(crate) fn ack_now(&mut self) {}
    pub(crate) fn owes_ack(&self) -> bool {
        false
    }
    pub(crate) fn has_sack_blocks(&self) -> bool {
        false
    }
    pub(crate) fn request_probe(&mut self) {}
    /// The application read: the window offered on this subflow could be `window` bytes now. Owes
    /// an ACK if that is worth telling (silly window avoidance, RFC 9293 section 3.8.6.2.2).
    pub(crate) fn window_opened(&mut self, window: u64) {}
    pub(crate) fn close(&mut self) {}
    pub(crate) fn reset(&mut self) {}

    // --- time
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        None
    }
    pub(crate) fn on_timeout(&mut self, now: Instant) {}

    // --- views
    pub(crate) fn view(
        &self,
        now: Instant,
        id: SubflowId,
        local_id: AddressId,
        remote_id: AddressId,
        backup: bool,
    ) -> SubflowView {
        SubflowView {
            id,
            local_id,
            remote_id,
            backup,
            potentially_failed: false,
            phase: marline_policy::Phase::Open,
            eligibility: self.eligibility(now),
            mss: self.mss(),
            cwnd: 0,
            ssthresh: u64::MAX,
            bytes_in_flight: 0,
            bytes_queued: 0,
            srtt: None,
            rttvar: marline_time::Duration::ZERO,
            min_rtt: None,
            delivery_rate: None,
            bytes_since_loss: 0,
            bytes_between_losses: 0,
            last_sent_at: now,
            last_heard_at: now,
        }
    }
    pub(crate) fn info(&self, id: SubflowId, backup: bool) -> SubflowInfo {
        SubflowInfo {
            id,
            path: self.path,
            state: self.state(),
            phase: marline_policy::Phase::Open,
            backup,
            potentially_failed: false,
            srtt: None,
            rttvar: marline_time::Duration::ZERO,
            min_rtt: None,
            cwnd: 0,
            ssthresh: u64::MAX,
            in_flight: 0,
            mss: self.mss(),
            delivery_rate: None,
            bytes_sent: 0,
            bytes_received: 0,
            bytes_retransmitted: 0,
            bytes_reinjected: 0,
            bytes_duplicate: 0,
            rtos: 0,
            probes: 0,
            undone: 0,
            last_heard_at: Instant::ZERO,
        }
    }
    pub(crate) fn path(&self) -> FourTuple {
        self.path
    }
    pub(crate) fn state(&self) -> SubflowState {
        SubflowState::Closed
    }
    pub(crate) fn is_established(&self) -> bool {
        false
    }
    pub(crate) fn mss(&self) -> u32 {
        u32::from(self.config.base_segment)
    }
    pub(crate) fn max_segment(&self) -> usize {
        usize::from(self.config.base_segment)
    }
    pub(crate) fn snd_nxt(&self) -> Ssn {
        Ssn(0)
    }
    pub(crate) fn snd_una(&self) -> Ssn {
        Ssn(0)
    }
    pub(crate) fn rcv_nxt(&self) -> Ssn {
        Ssn(0)
    }
    /// The wire's number of one of our own positions.
    pub(crate) fn to_wire(&self, at: Ssn) -> SeqNum {
        self.isn.add(at.0 as u32)
    }
    /// The position that a number from the peer means, nearest to RCV.NXT.
    pub(crate) fn from_wire(&self, seq: SeqNum) -> Option<Ssn> {
        None
    }
    pub(crate) fn potentially_failed(&self) -> bool {
        false
    }
    pub(crate) fn rto(&self) -> marline_time::Duration {
        marline_time::Duration::ZERO
    }
    pub(crate) fn srtt(&self) -> Option<marline_time::Duration> {
        None
    }
    pub(crate) fn last_heard_at(&self) -> Instant {
        Instant::ZERO
    }
    pub(crate) fn cwnd(&self) -> u64 {
        0
    }
    pub(crate) fn uses_timestamps(&self) -> bool {
        true
    }
    pub(crate) fn peer_to_wire(&self, at: Ssn) -> Option<SeqNum> {
        None
    }
    pub(crate) fn penalise(&mut self, now: Instant) {}
    pub(crate) fn unacked(&self) -> impl Iterator<Item = &SentSegment> {
        core::iter::empty()
    }
    pub(crate) fn mss_changed(&mut self, now: Instant, max_segment: u16) {}
    pub(crate) fn stats_mut(&mut self) -> &mut SubflowStats {
        &mut self.stats
    }
}
