//! Subflow: plain TCP (RFC 9293) that offers option space to its connection.
//!
//! It does not know MPTCP, schedulers or application bytes. Positions are [`Ssn`]s, unwrapped to 64 bits; the payload
//! of its segments is in the connection's send buffer and is identified by DSN.
//!
//! Calls by the connection: `on_segment` for each received segment, then `pop_reassembled`; `on_timeout` when
//! `next_timeout` is reached; then `poll_event` until it returns `None`. To send, `next_egress` until it returns
//! `None` (one segment each), and `push_data` as long as `eligibility` allows it.
//!
//! One file per phase of a segment: [`handshake`], [`accept`] (acceptability), [`receive`], [`ack`], [`false_acks`],
//! [`loss`] (repair), [`egress`], [`segment`] (other headers), [`timers`], [`health`]. Parts that do not depend on
//! the subflow are separate types.

mod accept;
mod ack;
mod config;
mod delayed_ack;
mod early_repeat;
mod ecn;
mod egress;
mod false_acks;
mod fast_open;
mod forecast_score;
mod handshake;
mod health;
mod loss;
mod mtu;
mod pacer;
mod path_health;
mod peer_migration;
mod prediction;
mod prr;
mod rate;
mod receive;
mod reliable;
mod reorder;
mod segment;
mod state;
mod syn_data;
mod timers;
mod timestamps;
mod transmission;
mod types;
mod view;

pub(crate) use config::{InitialValues, SubflowConfig, SynRetries};
pub(crate) use handshake::DEFAULT_MSS;
pub(crate) use health::{EndOfSilence, SubflowHealth, VerdictChange};
pub(crate) use types::{
    Egress, HeaderFor, Ingress, PayloadRoom, PlainSegment, SegmentSize, SubflowEvent, SubflowStats,
};

use core::cell::Cell;
use core::net::IpAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use marline_policy::{
    CongestionController, CongestionFactory, CongestionSignal, DataRange, DeliveredSegment,
    LossRecovery, PathQueue, Penalty, RecoveryFactory, SentSegment, Ssn, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};
use marline_wire::SeqNum;

use crate::compact_path::CompactPath;
use crate::on_demand::{OnDemand, UnusedState};
use crate::traffic::LostSegments;
use crate::{ChecksumScope, FourTuple};
use delayed_ack::DelayedAck;
use ecn::EcnState;
use false_acks::FalseAcks;
use fast_open::FastOpen;
use handshake::Handshake;
use loss::RetransmissionMode;
use mtu::MtuSearch;
use pacer::Pacer;
use receive::Reception;
use segment::{DSS_OPTION_BYTES, HEADER_BYTES, TIMESTAMP_OPTION_BYTES};
use state::State;
use syn_data::SynData;
use timers::Keepalive;
use timestamps::TimestampState;
use transmission::Transmission;

/// A pending reset.
#[derive(Copy, Clone, Debug)]
enum Rst {
    /// We are ending the subflow.
    Own,
    /// Answers a segment that acknowledged data never sent: its ACK is our sequence number.
    Answer(SeqNum),
}

/// Pending segments that have no other trigger.
#[derive(Copy, Clone, Debug, Default)]
struct PendingSegments {
    syn: bool,
    probe: bool,
    plain: Option<PlainSegment>,
    rst: Option<Rst>,
}

/// Buffers reused for each ACK.
#[derive(Debug, Default)]
struct Scratch {
    delivered: Vec<DeliveredSegment>,
    lost: Vec<Ssn>,
    /// Data that was newly SACKed.
    sacked: Vec<DataRange>,
}

impl UnusedState for FalseAcks {
    const UNUSED: &'static Self = &FalseAcks::NONE;
}

impl UnusedState for Scratch {
    const UNUSED: &'static Self =
        &Scratch { delivered: Vec::new(), lost: Vec::new(), sacked: Vec::new() };
}

/// One TCP connection of a Multipath TCP connection.
#[derive(Debug)]
pub(crate) struct Subflow {
    config: Arc<SubflowConfig>,
    path: CompactPath,
    id: SubflowId,
    state: State,
    iss: SeqNum,
    irs: SeqNum,
    tx: Transmission,
    rx: Reception,
    congestion: Box<dyn CongestionController>,
    recovery: Box<dyn LossRecovery>,
    pacer: Pacer,
    timestamps: TimestampState,
    ecn: EcnState,
    ack: DelayedAck,
    mtu: MtuSearch,
    handshake: Handshake,
    keepalive: Keepalive,
    /// Keepalive setting of the application, if there is one.
    keepalive_times: Option<Arc<Option<crate::Keepalive>>>,
    syn_data: Option<Box<SynData>>,
    /// See [`Subflow::acknowledge_syn_alone`].
    syn_alone: bool,
    fast_open: FastOpen,
    pending: PendingSegments,
    rst_to_fill: Option<Rst>,
    false_acks: OnDemand<FalseAcks>,
    /// `close` was called, and the FIN has not been sent yet.
    fin_wanted: bool,
    /// The subflow was given up or reset by us, and ignores further segments.
    is_dead: bool,
    /// The peer's SYN had a window scale option.
    peer_scales: bool,
    health: SubflowHealth,
    /// The pending ACK is only a challenge.
    withdrawable: bool,
    /// Time of the last answer to an unacceptable segment.
    answered_at: Option<Instant>,
    /// End of the application's data so far, where a segment gets PSH.
    push_end: Ssn,
    last_rx_at: Instant,
    /// State of retransmissions.
    repeats: RetransmissionMode,
    /// The last RTT sample if it was implausibly long, otherwise 0.
    implausible_rtt_ms: u32,
    /// Time at which the pacer allows the next packet; set when the eligibility check fails. A cell, because that check
    /// takes `&self`.
    pacer_wait: Cell<Option<Instant>>,
    time_wait_until: Option<Instant>,
    events: OnDemand<VecDeque<SubflowEvent>>,
    stats: SubflowStats,
    /// Buffers that the endpoint lends while it handles segments and timers.
    scratch: OnDemand<Scratch>,
    /// All subflows of the connection, for coupled congestion control.
    group: OnDemand<Vec<SubflowView>>,
}

/// Buffers that an endpoint lends to one subflow after another.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    scratch: OnDemand<Scratch>,
    released: OnDemand<Vec<DataRange>>,
}

impl Subflow {
    fn new(
        now: Instant,
        config: Arc<SubflowConfig>,
        path: FourTuple,
        start: InitialValues,
        congestion: &dyn CongestionFactory,
        recovery: &dyn RecoveryFactory,
    ) -> Subflow {
        let mtu = MtuSearch::new(config.base_segment, config.max_segment);
        let mss = payload_of(mtu.current(), config.timestamps);
        let initial_window = u64::from(config.initial_window) * u64::from(mss);
        Subflow {
            path: path.into(),
            id: SubflowId(0),
            state: State::syn_sent(),
            iss: start.isn,
            irs: SeqNum(0),
            tx: Transmission::new(&config, mss, now),
            rx: Reception::new(config.out_of_order_ranges, config.window_scale),
            congestion: congestion.build(mss, initial_window, now),
            recovery: recovery.build(),
            pacer: config.pacer(initial_window),
            timestamps: TimestampState::new(config.timestamps, start.ts_offset),
            ecn: EcnState::default(),
            ack: DelayedAck::new(
                config.ack_delay,
                config.max_segment - segment::HEADER_BYTES as u16,
            ),
            mtu,
            handshake: Handshake::default(),
            keepalive: Keepalive::default(),
            keepalive_times: None,
            syn_data: None,
            syn_alone: false,
            fast_open: FastOpen::default(),
            pending: PendingSegments::default(),
            rst_to_fill: None,
            false_acks: OnDemand::new(),
            fin_wanted: false,
            is_dead: false,
            peer_scales: false,
            health: SubflowHealth::default(),
            withdrawable: false,
            answered_at: None,
            push_end: Ssn(0),
            last_rx_at: now,
            repeats: RetransmissionMode::default(),
            implausible_rtt_ms: 0,
            pacer_wait: Cell::new(None),
            time_wait_until: None,
            events: OnDemand::new(),
            stats: SubflowStats::default(),
            scratch: OnDemand::new(),
            group: OnDemand::new(),
            config,
        }
    }

    /// Both addresses.
    pub(crate) fn path(&self) -> FourTuple {
        self.path.path()
    }

    /// Local and remote address, if checksums of this scope cover them.
    pub(crate) fn checksum_addresses(&self, scope: ChecksumScope) -> Option<(IpAddr, IpAddr)> {
        match scope {
            ChecksumScope::WithAddresses => Some(self.path.ips()),
            ChecksumScope::WithoutAddresses => None,
        }
    }

    /// Sets the slot in the connection.
    pub(crate) fn set_id(&mut self, id: SubflowId) {
        self.id = id;
    }

    /// True if congestion control reads the other subflows.
    pub(crate) fn wants_group(&self) -> bool {
        self.congestion.wants_group()
    }

    /// True if congestion control needs the path's queue.
    pub(crate) fn wants_queue(&self) -> bool {
        self.congestion.wants_queue()
    }

    /// Passes the path's queue to congestion control.
    pub(crate) fn share_queue(&mut self, queue: PathQueue) {
        self.congestion.share_queue(queue);
    }

    /// Sets the views of all subflows for coupled congestion control; call before `on_segment` and `on_timeout` if
    /// [`wants_group`](Self::wants_group).
    pub(crate) fn set_group(&mut self, group: &[SubflowView]) {
        self.group.clear();
        self.group.extend_from_slice(group);
    }

    /// Next event for the connection.
    pub(crate) fn poll_event(&mut self) -> Option<SubflowEvent> {
        self.next_event(|_| true)
    }

    /// Next event if it satisfies `wanted`. Events are rare, so no memory is kept for later ones.
    fn next_event(&mut self, wanted: impl Fn(&SubflowEvent) -> bool) -> Option<SubflowEvent> {
        let events = self.events.if_used()?;
        let event = events.pop_front_if(|event| wanted(event));
        if events.is_empty() {
            self.events.retire();
        }
        event
    }

    /// Like [`Self::poll_event`], but stops before the peer's FIN, because the payload of a segment precedes its FIN.
    pub(crate) fn poll_event_before_fin(&mut self) -> Option<SubflowEvent> {
        let is_end = |e: &SubflowEvent| matches!(e, SubflowEvent::PeerFin | SubflowEvent::Finished);
        self.next_event(|event| !is_end(event))
    }

    /// Exchanges buffers with the endpoint, before and after a call.
    pub(crate) fn swap_buffers(&mut self, lent: &mut Workspace) {
        core::mem::swap(&mut self.scratch, &mut lent.scratch);
        // Released data that has not been taken stays with the subflow.
        if self.tx.released.is_empty() {
            core::mem::swap(&mut self.tx.released, &mut lent.released);
        }
    }

    /// Data whose segments were cumulatively acknowledged since this list was last emptied.
    pub(crate) const fn released(&mut self) -> &mut OnDemand<Vec<DataRange>> {
        &mut self.tx.released
    }

    /// True if a segment in this call SACKed new data.
    pub(crate) fn has_sacked(&self) -> bool {
        !self.scratch.sacked.is_empty()
    }

    /// The data SACKed in this call, to be taken before the buffers are exchanged again.
    pub(crate) fn take_sacked(&mut self) -> Vec<DataRange> {
        self.scratch
            .if_used()
            .map(|scratch| core::mem::take(&mut scratch.sacked))
            .unwrap_or_default()
    }

    /// Withdraws the challenge ACK for the last segment (rate limit).
    pub(crate) fn withdraw_challenge(&mut self) {
        if core::mem::take(&mut self.withdrawable) {
            self.ack.withdraw();
        }
    }

    /// True if the subflow was reset or given up, so that received segments no longer have any effect.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_dead
    }

    /// True if the subflow is established, so that data may be sent.
    pub(crate) fn is_established(&self) -> bool {
        !self.is_dead && self.may_send()
    }

    /// Payload, in bytes, of a full segment of the size in use.
    pub(crate) const fn mss(&self) -> u32 {
        self.tx.mss
    }

    /// Payload, in bytes, of full segments of the size in use.
    pub(crate) fn segment_size(&self) -> SegmentSize {
        let usual = u64::from(self.tx.mss.max(1));
        let header =
            HEADER_BYTES + if self.timestamps.enabled { TIMESTAMP_OPTION_BYTES } else { 0 };
        let largest = self.settled_segment().saturating_sub(header) as u64;
        SegmentSize { usual, largest: largest.max(usual) }
    }

    /// Size in bytes of the next data segment, including header and options. If a path MTU probe is wanted, this is the
    /// probe's size.
    pub(crate) fn max_segment(&self) -> usize {
        usize::from(self.mtu.next_segment())
    }

    pub(crate) fn snd_nxt(&self) -> Ssn {
        self.tx.nxt
    }

    pub(crate) fn snd_una(&self) -> Ssn {
        self.tx.una
    }

    /// Receive window of the peer's newest segment, in bytes, relative to SND.UNA.
    pub(crate) const fn peer_window(&self) -> u64 {
        self.tx.window
    }

    /// Largest window that the peer ever offered, in bytes.
    pub(crate) const fn largest_peer_window(&self) -> u64 {
        self.tx.max_window
    }

    pub(crate) fn rcv_nxt(&self) -> Ssn {
        self.rx.nxt
    }

    /// Wire sequence number of a position in our data.
    pub(crate) fn to_wire(&self, at: Ssn) -> SeqNum {
        self.iss.add(at.0 as u32)
    }

    /// Memory for segments received out of order, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.rx.queue.memory()
    }

    /// Memory of the lists of sent segments, in bytes.
    pub(crate) fn bookkeeping(&self) -> u64 {
        self.tx.memory()
    }

    /// Number of bytes that wait behind a gap.
    pub(crate) fn held_out_of_order(&self) -> u64 {
        self.rx.queue.held_bytes()
    }

    /// Sets the number of further bytes that may wait behind gaps.
    pub(crate) const fn set_out_of_order_room(&mut self, bytes: u64) {
        self.rx.room = bytes;
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        self.rx.queue.shrink();
        self.tx.shrink();
        self.recovery.shrink();
        self.scratch.retire();
        self.false_acks.retire();
    }

    /// Wire sequence number of a position in the peer's data.
    pub(crate) fn peer_to_wire(&self, at: Ssn) -> SeqNum {
        self.irs.add(at.0 as u32)
    }

    pub(crate) const fn health(&self) -> &SubflowHealth {
        &self.health
    }

    /// Mutable access to the health, for facts from outside TCP.
    pub(crate) const fn health_mut(&mut self) -> &mut SubflowHealth {
        &mut self.health
    }

    /// True if a middlebox acknowledged data that the peer does not have and will not get on this subflow, as the
    /// answer to the last transmission shows.
    pub(crate) fn has_false_acks(&self) -> bool {
        self.false_acks.is_proof(self.rto(), self.tx.last_sent_at)
    }

    /// True if the retransmission timer has fired and SND.UNA has not advanced since then.
    pub(crate) const fn has_retransmission_timeout(&self) -> bool {
        self.tx.rto.count > 0
    }

    /// Consecutive expiries of the retransmission timer since SND.UNA last advanced, or timeouts of the SYN.
    pub(crate) const fn retransmission_timeouts(&self) -> u32 {
        self.tx.rto.count
    }

    /// Retransmission timeout without backoff.
    pub(crate) fn rto(&self) -> Duration {
        self.tx.rto_without_backoff()
    }

    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.tx.rtt.srtt()
    }

    pub(crate) fn rttvar(&self) -> Duration {
        self.tx.rtt.rttvar()
    }

    /// Time of the last segment sent with a sequence number.
    pub(crate) fn last_sent_at(&self) -> Instant {
        self.tx.last_sent_at
    }

    /// Time of the last acceptable segment.
    pub(crate) fn last_rx_at(&self) -> Instant {
        self.last_rx_at
    }

    /// True if segments carry the timestamps option.
    pub(crate) fn uses_timestamps(&self) -> bool {
        self.timestamps.enabled
    }

    /// Segment size in use, regardless of a wanted probe.
    pub(crate) fn settled_segment(&self) -> usize {
        usize::from(self.mtu.current())
    }

    /// Reduces the rate at a scheduler's request.
    pub(crate) fn penalize(&mut self, now: Instant, penalty: Penalty) {
        self.congestion.on_signal(CongestionSignal::Penalty(penalty), now, self.id, &self.group);
    }

    /// Sent stream data that is not cumulatively acknowledged, oldest first.
    pub(crate) fn unacked(&self) -> impl Iterator<Item = &SentSegment> {
        self.tx.board.iter().filter(|segment| !segment.repair)
    }

    /// Segments marked lost and not yet retransmitted, including repairs.
    pub(crate) fn lost_segments(&self) -> LostSegments {
        let mut lost = LostSegments::default();
        if self.tx.board.bytes_lost() == 0 {
            return lost;
        }
        for segment in self.tx.board.iter().filter(|segment| segment.lost) {
            let data = if segment.repair { 0 } else { segment.payload_len() };
            let range = DataRange::new(segment.dsn, segment.dsn.plus(data));
            lost.push(segment.start.0, range, segment.len());
        }
        lost
    }

    /// True if the newest event is a probe that repeats data.
    pub(crate) fn repeats_as_probe(&self) -> bool {
        matches!(self.events.back(), Some(SubflowEvent::ProbeRepeated { .. }))
    }

    /// Handles a router's report that segments larger than `max_segment` bytes do not pass. Sizes below the minimum of
    /// every path are ignored.
    pub(crate) fn reduce_segment(&mut self, max_segment: u16) {
        let least = mtu::min_reported_mss(self.path.ips().1.is_ipv6());
        if self.mtu.reduce(max_segment, least) {
            self.apply_mss();
        }
    }

    /// Marks data in flight as untimed, because the process was suspended for a while.
    pub(crate) fn record_pause(&mut self) {
        self.tx.board.mark_untimed();
        self.handshake.untimed |= self.state.is_handshake();
    }

    /// True if a segment with this sequence number may be in flight.
    pub(crate) fn is_in_flight(&self, seq: SeqNum) -> bool {
        let sent = self.tx.nxt.since(self.tx.una) as u32;
        seq.offset_from(self.to_wire(self.tx.una)) < sent.max(1)
    }

    /// Mutable counters; the connection updates some of them.
    pub(crate) fn stats_mut(&mut self) -> &mut SubflowStats {
        &mut self.stats
    }

    /// Size in bytes of a segment with this much payload and the smallest header possible.
    fn bytes_of_segment(&self, payload: u64) -> u64 {
        let header =
            HEADER_BYTES + if self.timestamps.enabled { TIMESTAMP_OPTION_BYTES } else { 0 };
        payload + header as u64
    }

    /// Applies the segment size in use.
    fn apply_mss(&mut self) {
        let mss = payload_of(self.mtu.current(), self.timestamps.enabled);
        if mss != self.tx.mss {
            self.tx.mss = mss;
            self.congestion.on_mss_change(mss);
        }
    }

    /// Ends the subflow with this event.
    fn finish(&mut self, event: SubflowEvent) {
        self.finish_silently();
        self.events.push_back(event);
    }

    fn finish_silently(&mut self) {
        self.state.move_to_closed();
        self.pending = PendingSegments::default();
        self.stop_timers();
    }

    /// Ends the subflow after all retries.
    fn end_after_retries(&mut self) {
        self.is_dead = true;
        self.stop_timers();
        self.events.push_back(SubflowEvent::Dead);
    }
}

/// Payload, in bytes, of a segment of `size` bytes with a DSS option.
fn payload_of(size: u16, timestamps: bool) -> u32 {
    let options = DSS_OPTION_BYTES + if timestamps { TIMESTAMP_OPTION_BYTES } else { 0 };
    u32::from(size).saturating_sub((HEADER_BYTES + options) as u32).max(1)
}

#[cfg(test)]
mod tests;
