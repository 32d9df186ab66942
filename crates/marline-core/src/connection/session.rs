//! Negotiated state of a connection: mode and keys, checksums, the size of DSNs, extensions, and the point of a
//! fallback.

use marline_policy::{Dsn, Role, SentSegment, Ssn};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{
    CapableData, DataAck, Dss, Extensions, MpCapable, MpCapableForm, MptcpOption, WireDsn,
    WireMapping,
};
use marline_wire::{TcpOptions, Timestamps, unwrap32};

use super::fallback::{Fallback, InfiniteMapping, Point};
use super::keys::Keys;
use super::negotiation::{HelloOutcome, Negotiation};
use super::option_blackhole::{OptionBlackhole, TimeoutOutcome};
use crate::crypto::Key;
use crate::on_demand::OnDemand;
use crate::{ConnectionConfig, FallbackReason};

/// Number of bytes within a measured span above which 32-bit DSNs may be ambiguous: half of 2^31, because a segment
/// lifetime may overlap two spans.
const SHORT_DSN_SPAN: u64 = 1 << 30;
/// Maximum segment lifetime (RFC 9293 section 3.4.2).
const MAX_SEGMENT_LIFETIME: Duration = Duration::from_secs(120);

/// Mode of the stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Offered or expected; the first subflow's handshake decides.
    Offered,
    /// Multipath TCP. `confirmed` once the peer has proved it with a DSS: joins are then allowed.
    Multipath { confirmed: bool },
    /// Plain TCP on the one subflow. Our positions map one to one, starting at `tx`.
    Plain { reason: Option<FallbackReason>, tx: Point },
}

/// Negotiated state and knowledge about the peer.
#[derive(Debug)]
pub(super) struct Session {
    role: Role,
    mode: Mode,
    keys: Keys,
    /// Bytes sent with the client's SYN by Fast Open: mappings and DSNs do not count them. A server's stream has none:
    /// data in a SYN/ACK is neither sent nor accepted.
    unmapped: u16,
    /// DSS checksums are on, because either side required them.
    checksum: bool,
    /// Flag C of the peer: no joins to the address of the initial subflow.
    peer_denies_id0: bool,
    /// The peer used 64-bit DSNs, so it gets 64-bit DATA_ACKs.
    peer_uses_long_dsn: bool,
    /// We use 64-bit DSNs ourselves.
    sends_long_dsn: bool,
    /// Start time and position of the current measured span, at most a segment lifetime long. It shows whether 32-bit
    /// DSNs are sufficient.
    dsn_span_start: (Instant, Dsn),
    /// Announcement of a fallback.
    fallback: Fallback,
    negotiation: Negotiation,
    /// Client: detection of dropped options, while no segment with options was answered since the handshake.
    blackhole: OnDemand<OptionBlackhole>,
}

impl Session {
    pub(super) fn new(role: Role, mode: Mode, key: Key) -> Self {
        Session {
            role,
            mode,
            keys: Keys::new(key),
            unmapped: 0,
            checksum: false,
            peer_denies_id0: false,
            peer_uses_long_dsn: false,
            sends_long_dsn: false,
            dsn_span_start: (Instant::ZERO, Dsn(0)),
            fallback: Fallback::default(),
            negotiation: Negotiation::default(),
            blackhole: OnDemand::new(),
        }
    }

    pub(super) const fn role(&self) -> Role {
        self.role
    }

    pub(super) fn is_client(&self) -> bool {
        self.role == Role::Client
    }

    pub(super) fn is_server(&self) -> bool {
        self.role == Role::Server
    }

    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) const fn is_offered(&self) -> bool {
        matches!(self.mode, Mode::Offered)
    }

    pub(super) const fn is_plain(&self) -> bool {
        matches!(self.mode, Mode::Plain { .. })
    }

    pub(super) const fn is_multipath(&self) -> bool {
        matches!(self.mode, Mode::Multipath { .. })
    }

    pub(super) const fn is_confirmed(&self) -> bool {
        matches!(self.mode, Mode::Multipath { confirmed: true })
    }

    /// True for Multipath TCP that the peer has not yet confirmed with a DSS.
    pub(super) const fn is_unconfirmed(&self) -> bool {
        matches!(self.mode, Mode::Multipath { confirmed: false })
    }

    /// Reason for plain TCP, if Multipath TCP was requested.
    pub(super) const fn fallback_reason(&self) -> Option<FallbackReason> {
        match self.mode {
            Mode::Plain { reason, .. } => reason,
            _ => None,
        }
    }

    pub(super) const fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) const fn uses_checksum(&self) -> bool {
        self.checksum
    }

    pub(super) const fn sends_long_dsn(&self) -> bool {
        self.sends_long_dsn
    }

    pub(super) const fn peer_denies_id0(&self) -> bool {
        self.peer_denies_id0
    }

    /// Allows joins to the initial address after the peer announced it. Returns true if they were denied before.
    pub(super) const fn allow_id0(&mut self) -> bool {
        core::mem::replace(&mut self.peer_denies_id0, false)
    }

    /// MP_CAPABLE option of a handshake segment of the first subflow.
    pub(super) const fn capable_option(
        &self,
        config: &ConnectionConfig,
        form: MpCapableForm,
    ) -> MptcpOption {
        MptcpOption::Capable(MpCapable {
            version: 1,
            checksum_required: config.dss_checksum || self.checksum,
            extensibility: false,
            deny_join_id0: config.deny_join_id0,
            hmac_sha256: true,
            form,
        })
    }

    /// Applies the flags of the peer's SYN or SYN/ACK.
    pub(super) const fn on_capable(&mut self, config: &ConnectionConfig, capable: &MpCapable) {
        self.checksum = capable.checksum_required || config.dss_checksum;
        self.peer_denies_id0 = capable.deny_join_id0;
    }

    /// Sets the peer's key. Both keys are then known, so the connection uses Multipath TCP.
    pub(super) fn on_peer_key(&mut self, key: Key) {
        self.keys.set_remote(key);
        self.keys.skip_remote(self.first_mapped_by_peer().0);
        self.mode = Mode::Multipath { confirmed: false };
    }

    /// Records the bytes of our SYN that the peer accepted.
    pub(super) fn skip_local(&mut self, bytes: u64) {
        self.keys.skip_local(bytes);
        debug_assert!(self.is_client());
        self.unmapped = bytes as u16;
    }

    /// Records the accepted bytes of the peer's SYN; its key is not known yet.
    pub(super) fn skip_remote(&mut self, bytes: u64) {
        debug_assert!(self.is_server());
        self.unmapped = bytes as u16;
    }

    /// First byte of our stream that has a DSN.
    pub(super) fn first_mapped(&self) -> Dsn {
        Dsn(if self.is_client() { self.unmapped.into() } else { 0 })
    }

    /// First byte of the peer's stream that has a DSN.
    pub(super) fn first_mapped_by_peer(&self) -> Dsn {
        Dsn(if self.is_server() { self.unmapped.into() } else { 0 })
    }

    /// Subflow sequence number of a position in our mappings.
    pub(super) fn wire_ssn(&self, initial: bool, at: Ssn) -> u32 {
        let before = if initial { self.first_mapped().0 as u32 } else { 0 };
        (at.0 as u32).wrapping_sub(before)
    }

    /// Position of a subflow sequence number in the peer's mappings; `near` is the next position.
    pub(super) fn unwrap_ssn(&self, initial: bool, wire: u32, near: Ssn) -> Option<Ssn> {
        let before = if initial { self.first_mapped_by_peer().0 as u32 } else { 0 };
        unwrap32(wire.wrapping_add(before), near.0).map(Ssn)
    }

    /// Confirms that the peer speaks Multipath TCP. Returns true if it was unconfirmed.
    pub(super) fn confirm(&mut self) -> bool {
        let news = self.is_unconfirmed();
        if news {
            self.mode = Mode::Multipath { confirmed: true };
            self.blackhole.retire();
        }
        news
    }

    /// Counts a SYN/ACK repeated after our third ACK. Returns the total number.
    pub(super) fn count_repeated_syn_ack(&mut self) -> u32 {
        self.blackhole.count_repeated_syn_ack()
    }

    /// Handles a timeout of the first data while no segment with options was answered
    /// ([`OptionBlackhole::on_timeout`]).
    pub(super) fn on_unanswered_options(
        &mut self,
        now: Instant,
        heard_at: Instant,
        patience: u32,
        passes: bool,
    ) -> TimeoutOutcome {
        self.blackhole.on_timeout(now, heard_at, patience, passes)
    }

    /// Switches to plain TCP: our positions map one to one, starting at `tx`. For a peer that may have understood
    /// mappings, `announced` is the infinite mapping.
    pub(super) fn leave_multipath(
        &mut self,
        reason: FallbackReason,
        tx: Point,
        announced: Option<InfiniteMapping>,
    ) {
        if let Some(infinite) = announced {
            self.fallback.announce(infinite);
        }
        self.mode = Mode::Plain { reason: Some(reason), tx };
        self.blackhole.retire();
    }

    /// True if the fallback must be announced to the peer, which may have understood mappings.
    pub(super) const fn announces_fallback(&self) -> bool {
        self.fallback.is_announced()
    }

    /// Handles a segment from the peer with or without a DATA_ACK. Returns true if the announcement must be repeated.
    pub(super) fn record_peer_mode(&mut self, multipath: bool) -> bool {
        self.fallback.record_peer_mode(multipath)
    }

    /// Handles a timeout of data that starts at `una`. The peer's last segment arrived at `heard_at`. On plain TCP, a
    /// middlebox may drop the options that announce the fallback. Returns true if the peer should be probed.
    pub(super) fn on_plain_timeout(&mut self, now: Instant, una: Ssn, heard_at: Instant) -> bool {
        self.fallback.on_timeout(now, una, heard_at)
    }

    /// True if the peer's last segment still used Multipath TCP.
    pub(super) const fn is_contradicted(&self) -> bool {
        self.fallback.is_contradicted()
    }

    /// True if data has been sent since the fallback, with the infinite mapping. `next` is the first position not sent.
    pub(super) fn has_sent_plain(&self, next: Ssn) -> bool {
        self.fallback.is_announced()
            && !self.fallback.is_before_fallback(Ssn(next.0.saturating_sub(1)))
    }

    /// Both keys, until the client knows that the server has them.
    pub(super) fn unconfirmed_keys(&self, data: Option<CapableData>) -> Option<MpCapableForm> {
        if !self.is_client() || !self.is_unconfirmed() {
            return None;
        }
        let (initiator_key, listener_key) = (self.keys.local().0, self.keys.remote()?.0);
        Some(MpCapableForm::Ack { initiator_key, listener_key, data })
    }

    /// DATA_ACK of data before `next`.
    pub(super) const fn data_ack(&self, next: Dsn) -> DataAck {
        let ack = self.keys.remote_wire(next);
        if self.peer_uses_long_dsn { DataAck::Long(ack) } else { DataAck::Short(ack as u32) }
    }

    pub(super) const fn wire_dsn(&self, dsn: Dsn) -> WireDsn {
        let wire = self.keys.local_wire(dsn);
        if self.sends_long_dsn { WireDsn::Long(wire) } else { WireDsn::Short(wire as u32) }
    }

    /// Position that corresponds to a DSN on the wire; `near` is the next position. `None` before the start of the
    /// stream.
    pub(super) fn unwrap_dsn(&self, wire: WireDsn, near: Dsn) -> Option<Dsn> {
        match wire {
            WireDsn::Long(dsn) => {
                let offset = self.keys.remote_offset(dsn);
                // Offsets near 2^64 are positions before the first byte.
                (offset < 1 << 63).then_some(Dsn(offset))
            }
            WireDsn::Short(low) => self.unwrap_short_dsn(low, near),
        }
    }

    /// Position that corresponds to the low 32 bits of a DSN.
    pub(super) fn unwrap_short_dsn(&self, low: u32, near: Dsn) -> Option<Dsn> {
        let first = self.keys.remote_wire(Dsn(0));
        unwrap32(low.wrapping_sub(first as u32), near.0).map(Dsn)
    }

    /// Position that corresponds to a DATA_ACK on the wire; `near` is the last one. `None` before the start of the
    /// stream.
    pub(super) fn unwrap_ack(&self, ack: DataAck, near: Dsn) -> Option<Dsn> {
        let position = match ack {
            DataAck::Long(ack) => {
                let offset = self.keys.local_offset(ack);
                (offset < 1 << 63).then_some(offset)
            }
            DataAck::Short(low) => {
                let first = self.keys.local_wire(Dsn(0));
                unwrap32(low.wrapping_sub(first as u32), near.0)
            }
        };
        position.map(Dsn)
    }

    /// Records the size of the peer's DSNs: a peer that ever used 8 bytes gets 8-byte DATA_ACKs.
    pub(super) const fn record_dsn_size(&mut self, wire: &WireMapping) {
        self.peer_uses_long_dsn |= matches!(wire.dsn, WireDsn::Long(_));
    }

    /// Switches to 64-bit DSNs if needed. Thirty-two bits are unambiguous while fewer than 2^31 bytes pass within two
    /// minutes, the maximum segment lifetime. A faster connection uses 64 bits and keeps them. `sent` is the end of the
    /// sent data. A longer span does not predict the next: an application that was idle or slow may be fast now.
    pub(super) fn watch_dsn_speed(&mut self, now: Instant, sent: Dsn) {
        let (began_at, from) = self.dsn_span_start;
        if now.since(began_at) > MAX_SEGMENT_LIFETIME {
            self.dsn_span_start = (now, sent);
        } else if sent.since(from) >= SHORT_DSN_SPAN {
            self.sends_long_dsn = true;
            self.dsn_span_start = (now, sent);
        }
    }

    /// True if one mapping may cover a run of segments. With Multipath TCP, this requires that mappings have no
    /// checksums and that the peer is known to have the keys.
    pub(super) const fn maps_runs(&self, config: &ConnectionConfig) -> bool {
        config.mapping_runs
            && match self.mode {
                Mode::Multipath { confirmed } => confirmed && !self.checksum,
                Mode::Plain { .. } => !self.fallback.is_announced(),
                Mode::Offered => false,
            }
    }

    /// Adds the mapping of a data segment, new or repeated, to its options; `next` is the DATA_ACK position.
    pub(super) fn mapping_options(
        &self,
        config: &ConnectionConfig,
        initial: bool,
        segment: &SentSegment,
        next: Dsn,
        options: &mut TcpOptions,
    ) {
        let back = segment.start.since(segment.mapping_start);
        let first = Dsn(segment.dsn.0.saturating_sub(back));
        let unmapped =
            !self.fallback.is_before_fallback(segment.start) || self.fallback.drops_options();
        if self.is_plain() && unmapped {
            options.dss = self.infinite_mapping(segment);
            return;
        }
        let checksum = self.checksum.then_some(segment.mapping_checksum);
        // MP_CAPABLE maps the first bytes of both sequence spaces onto each other. Data repeated at a later position
        // needs its own mapping.
        let at_first = segment.mapping_start == Ssn(1).plus(self.first_mapped().0);
        let is_first = initial && first == self.first_mapped() && at_first;
        if is_first && segment.payload_len() > 0 {
            let data = CapableData { length: segment.mapping_len, checksum };
            if let Some(form) = self.unconfirmed_keys(Some(data)) {
                options.mptcp.push(self.capable_option(config, form));
                return;
            }
        }
        let mapping = (segment.payload_len() > 0).then(|| WireMapping {
            dsn: self.wire_dsn(first),
            ssn: self.wire_ssn(initial, segment.mapping_start),
            length: segment.mapping_len,
            checksum,
        });
        // Data mapped before a fallback keeps its mapping, but DATA_ACKs end.
        let data_ack = (!self.is_plain()).then(|| self.data_ack(next));
        options.dss = Some(Dss { data_ack, mapping, data_fin: false });
    }

    /// Infinite mapping of a FIN that is sent for the first time; `end` is the end of the sent data.
    pub(super) fn infinite_mapping_of_fin(&self, end: Ssn) -> Option<Dss> {
        let start = Ssn(end.0.saturating_sub(1));
        self.infinite_mapping(&SentSegment { start, end, fin: true, ..SentSegment::default() })
    }

    /// The infinite mapping is sent with the first data after the fallback, or with the FIN if there is none: without
    /// it, the peer would take a FIN as the end of only a subflow. The mapping's point is the first byte that was not
    /// DATA_ACKed at the fallback. After it, positions map one to one.
    fn infinite_mapping(&self, segment: &SentSegment) -> Option<Dss> {
        let Point { ssn, dsn } = self.fallback.point_at(segment.start)?;
        let wire = WireDsn::Long(self.keys.local_wire(dsn));
        let checksum = self.checksum.then_some(0);
        let mapping = WireMapping { dsn: wire, ssn: self.wire_ssn(true, ssn), length: 0, checksum };
        (!segment.is_empty()).then_some(Dss {
            data_ack: None,
            mapping: Some(mapping),
            data_fin: false,
        })
    }

    /// Options of the same length as those of a data segment.
    pub(super) fn data_options(
        &self,
        config: &ConnectionConfig,
        initial: bool,
        Point { ssn, dsn }: Point,
        timestamps: bool,
    ) -> TcpOptions {
        let template = SentSegment {
            start: ssn,
            end: ssn.plus(1),
            dsn,
            mapping_start: ssn,
            mapping_len: 1,
            ..SentSegment::default()
        };
        let timestamps = timestamps.then(Timestamps::default);
        let mut options = TcpOptions { timestamps, ..TcpOptions::default() };
        self.mapping_options(config, initial, &template, Dsn(0), &mut options);
        options
    }

    /// True if both sides agreed on all of these extensions.
    pub(super) const fn agreed_on(&self, extensions: Extensions) -> bool {
        self.is_multipath() && self.negotiation.agreed().contains(extensions)
    }

    /// Negotiated extensions.
    pub(super) const fn extensions(&self) -> Extensions {
        if self.is_multipath() { self.negotiation.agreed() } else { Extensions::NONE }
    }

    /// Client: true if these extensions were requested and the answer has not arrived.
    pub(super) fn awaits_extension_answer(
        &self,
        config: &ConnectionConfig,
        wanted: Extensions,
    ) -> bool {
        self.is_client()
            && self.is_multipath()
            && self.negotiation.awaits_extension_answer(config, wanted)
    }

    /// True if the peer marks its last data.
    pub(super) fn peer_marks_idle(&self) -> bool {
        self.is_client() && self.agreed_on(Extensions::IDLE)
    }

    /// True if we mark our last data.
    pub(super) fn marks_idle(&self) -> bool {
        self.is_server() && self.agreed_on(Extensions::IDLE)
    }

    /// Time of the next HELLO or request for a DATA_ACK.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.negotiation.next_timeout().into_iter().chain(self.next_data_ack_request_at()).min()
    }

    /// Client: starts the wait for a DATA_ACK before which no data may be sent. It may be lost.
    pub(super) fn wait_for_data_ack(&mut self, now: Instant, rto: Duration) {
        if self.is_unconfirmed() {
            self.blackhole.wait_for_data_ack(now, rto);
        }
    }

    /// Time of the next request for a DATA_ACK.
    pub(super) fn next_data_ack_request_at(&self) -> Option<Instant> {
        self.blackhole.next_request_at()
    }

    /// True if a request for a DATA_ACK is due ([`OptionBlackhole::is_request_due`]).
    pub(super) fn is_data_ack_request_due(
        &mut self,
        now: Instant,
        rto: Duration,
        busy: bool,
    ) -> bool {
        let blackhole = self.blackhole.if_used();
        blackhole.is_some_and(|blackhole| blackhole.is_request_due(now, rto, busy))
    }

    /// First HELLO of a client that requests extensions, after confirmation.
    pub(super) fn first_hello(
        &mut self,
        now: Instant,
        config: &ConnectionConfig,
        rto: Duration,
    ) -> Option<Extensions> {
        let wants = self.is_client() && self.negotiation.has_pending_requests(config);
        wants.then(|| self.negotiation.build_hello(now, config, rto))
    }

    /// Repeated HELLO, if it is due.
    pub(super) fn repeated_hello(
        &mut self,
        now: Instant,
        config: &ConnectionConfig,
        rto: Duration,
    ) -> Option<Extensions> {
        let due = self.negotiation.is_due(now) && self.is_multipath();
        due.then(|| self.negotiation.build_hello(now, config, rto))
    }

    /// Handles the peer's HELLO.
    pub(super) fn on_hello(
        &mut self,
        config: &ConnectionConfig,
        features: Extensions,
    ) -> HelloOutcome {
        self.negotiation.on_hello(self.role, config, features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// True if a connection that has sent these total bytes at these times, in seconds, uses 64-bit DSNs.
    fn uses_long_dsn(sent: &[(u64, u64)]) -> bool {
        let mut session = Session::new(Role::Client, Mode::Offered, Key(1));
        for &(at_s, bytes) in sent {
            session.watch_dsn_speed(Instant::from_secs(at_s), Dsn(bytes));
        }
        session.sends_long_dsn()
    }

    #[test]
    fn two_gigabytes_within_a_segment_lifetime_need_64_bit_dsns() {
        assert!(uses_long_dsn(&[(1, GIB / 2), (50, GIB), (100, 2 * GIB)]));
        assert!(!uses_long_dsn(&[(1, 0), (100, GIB / 2), (200, GIB), (300, 3 * GIB / 2)]));
    }

    #[test]
    fn the_time_before_a_burst_does_not_make_it_slow() {
        // The connection was idle or slow for an hour.
        assert!(uses_long_dsn(&[(3_600, 1_000), (3_601, 1_000), (3_620, 2 * GIB)]));
        assert!(uses_long_dsn(&[(1, 1), (1_800, 1_000), (3_600, 2_000), (3_620, GIB + 3_000)]));
    }
}
