//! SYN cookies, so that a SYN flood does not block legitimate clients (RFC 4987 section 3.6).
//!
//! When more than half of the half-open connections are in use, a SYN on native TCP is answered without keeping
//! state. The necessary information is encoded in the SYN/ACK and returns with the third ACK, or with the first data
//! if that ACK is lost. The sequence number holds one of eight segment sizes, a time slot, and 24 bits of a keyed
//! hash of both endpoints and the client's initial sequence number. The last six bits of the timestamp hold window
//! scale and SACK; both are left out without timestamps. The MPTCP key is a keyed hash of the same input, and the
//! client's third ACK repeats both keys, so no more has to be stored (RFC 8684 section 3.1). ECN is not negotiated,
//! as there is no room to store it. If the SYN had no MPTCP option, neither has the ACK, and the connection falls
//! back to TCP.
//!
//! A cookie is valid for a minute. Cookies are checked only if one was issued recently. A guess succeeds once in 16
//! million tries.

use core::net::IpAddr;
use std::sync::Arc;

use marline_time::{Duration, Instant};
use marline_wire::mptcp::{MpCapable, MpCapableForm, MptcpOption};
use marline_wire::{SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment, Timestamps};

use super::Endpoint;
use super::listener::MAX_REPLIES;
use crate::connection::{
    AcceptedSyn, Connection, FastOpenVerdict, Origin, mp_capable, offers_multipath,
};
use crate::crypto::Key;
use crate::subflow::{Egress, HeaderFor, InitialValues, Subflow, SynRetries};
use crate::tables::demux::FlowKey;
use crate::tables::initial_numbers::InitialNumbers;
use crate::tables::stateless_reply::StatelessReply;
use crate::transmit::TransmitBuf;
use crate::{ConnectionConfig, FourTuple, PacketMeta, Shard};

/// Segment sizes that a cookie can encode, ascending: those of common paths and of tunnels.
const SIZES: [u16; 8] = [88, 536, 1_220, 1_300, 1_360, 1_400, 1_440, 1_460];
/// Length of a time slot in seconds; a cookie holds the slot in five bits.
const SLOT_S: u64 = 16;
const SLOTS: u8 = 32;
/// A cookie is valid in its time slot and in this many later ones.
const VALID_SLOTS: u8 = 3;
/// Mask of the timestamp bits that encode options, and the values of its fields.
const OPTION_BITS: u32 = 0x3f;
const NO_SCALE: u8 = 0xf;
const SACK: u8 = 0x10;
/// Maximum window of the SYN/ACK in bytes, where it is not scaled.
const FIRST_WINDOW: u64 = 65_535;

/// The parts of a SYN that can be recovered when the handshake ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct SynParts {
    /// Index into [`SIZES`].
    size: u8,
    timestamps: Option<Timestamps>,
    window_scale: Option<u8>,
    sack: bool,
    capable: Option<MpCapable>,
}

impl SynParts {
    fn from_syn(syn: &TcpSegment<'_>) -> Self {
        let options = &syn.options;
        let mss = options.mss.unwrap_or(536);
        let size = SIZES.iter().rposition(|size| *size <= mss).unwrap_or(0) as u8;
        let with = options.timestamps.is_some();
        let scale = options.window_scale.map(|scale| scale.min(14));
        SynParts {
            size,
            timestamps: options.timestamps,
            window_scale: scale.filter(|_| with),
            sack: options.sack_permitted && with,
            capable: mp_capable(syn).filter(offers_multipath),
        }
    }

    /// Encodes the options for the last bits of our timestamp.
    fn bits(&self) -> u8 {
        self.window_scale.unwrap_or(NO_SCALE) | if self.sack { SACK } else { 0 }
    }

    /// The SYN, reconstructed.
    fn syn(&self, header: TcpHeader) -> TcpSegment<'static> {
        let mut options = TcpOptions {
            mss: Some(SIZES[usize::from(self.size) % SIZES.len()]),
            window_scale: self.window_scale,
            sack_permitted: self.sack,
            timestamps: self.timestamps,
            ..TcpOptions::default()
        };
        if let Some(capable) = self.capable {
            options
                .mptcp
                .push(MptcpOption::Capable(MpCapable { form: MpCapableForm::Syn, ..capable }));
        }
        let header = TcpHeader { flags: TcpFlags::SYN, ack: SeqNum(0), ..header };
        TcpSegment { header, options, payload: &[], raw_options: &[] }
    }
}

/// A cookie and the MPTCP key derived with it.
struct CookieAndKey {
    isn: SeqNum,
    key: Key,
}

/// Creates a cookie. Of the keys derived from its input, the first is used whose token belongs to this shard, so that
/// joins arrive here.
fn create_cookie(
    shard: Shard,
    initial: &InitialNumbers,
    path: FourTuple,
    theirs: SeqNum,
    size: u8,
    slot: u8,
) -> CookieAndKey {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let hash = initial.cookie(&[
        &octets(path.local.ip()),
        &path.local.port().to_be_bytes(),
        &octets(path.remote.ip()),
        &path.remote.port().to_be_bytes(),
        &theirs.0.to_be_bytes(),
        &[size, slot],
    ]);
    let head = u32::from(size) << 29 | u32::from(slot) << 24;
    let tail = u32::from_be_bytes([0, hash[0], hash[1], hash[2]]);
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[8..16]);
    let mut key = Key(u64::from_be_bytes(bytes));
    while Shard::index_for_token(key.derive().0.0, shard.count) != shard.index {
        bytes.copy_from_slice(&initial.cookie(&[&key.0.to_be_bytes()])[..8]);
        key = Key(u64::from_be_bytes(bytes));
    }
    CookieAndKey { isn: SeqNum(head | tail), key }
}

fn slot_of(now: Instant) -> u8 {
    (now.since(Instant::ZERO).as_secs() / SLOT_S % u64::from(SLOTS)) as u8
}

impl Endpoint {
    /// Answers a SYN with a cookie, without keeping state.
    pub(super) fn answer_with_cookie(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
        config: &Arc<ConnectionConfig>,
    ) {
        let said = SynParts::from_syn(segment);
        let cookie_and_key = create_cookie(
            self.config.shard,
            self.flows.initial(),
            meta.path,
            segment.header.seq,
            said.size,
            slot_of(now),
        );
        // The chance of a token collision is one in four billion for each connection.
        if self.out.replies() >= MAX_REPLIES
            || self.flows.token(cookie_and_key.key.derive().0).is_some()
        {
            return;
        }
        let syn = said.syn(segment.header);
        let offset = self.flows.initial().timestamp_offset(meta.path);
        let clock = (now.as_millis() as u32).wrapping_add(offset);
        let lag = clock.wrapping_sub(u32::from(said.bits())) & OPTION_BITS;
        let capabilities = self.config.capabilities.for_path(meta.path);
        let start = InitialValues { isn: cookie_and_key.isn, ts_offset: offset.wrapping_sub(lag) };
        let limits = &self.config.limits;
        let with =
            self.settings.for_subflow(config, capabilities, limits, SynRetries::first(config));
        let (congestion, recovery) = (&*config.policies.congestion, &*config.policies.recovery);
        let mut tcp =
            Subflow::accept(now, with, meta.path, start, &syn, meta.ecn, congestion, recovery);
        let mut options = TcpOptions::default();
        let window = config.receive_buffer.min(FIRST_WINDOW);
        let what = HeaderFor::Egress(&Egress::SynAck);
        let (header, _) = tcp.fill_header(now, what, window, &mut options);
        if let Some(capable) = said.capable.filter(|_| config.mptcp) {
            options.mptcp.push(MptcpOption::Capable(MpCapable {
                version: 1,
                checksum_required: capable.checksum_required || config.dss_checksum,
                extensibility: false,
                deny_join_id0: config.deny_join_id0,
                hmac_sha256: true,
                form: MpCapableForm::SynAck { listener_key: cookie_and_key.key.0 },
            }));
        }
        let key = FlowKey { path: meta.path, local_flow: 0, peer_flow: 0 };
        self.out.reply(StatelessReply { header, options, key });
        self.out.counters.syn_cookies_sent += 1;
        self.cookie_sent_at = Some(now);
    }

    /// If a segment without a flow ends a handshake that was answered with a cookie, opens the connection, passes it
    /// the segment and returns true. Returns false if the limit on connections is reached or the key's token is in
    /// use.
    pub(super) fn accept_cookie(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let ends = self.may_contain_cookie(now, segment);
        let Some(config) = self.accept.clone().filter(|_| ends) else { return false };
        let Some((cookie_and_key, syn)) = self.read_cookie(now, meta, segment) else {
            return false;
        };
        let taken = self.flows.token(cookie_and_key.key.derive().0).is_some();
        if taken || self.slots.count() >= self.config.limits.connections {
            self.out.counters.connections_refused += 1;
            return false;
        }
        self.out.counters.syn_cookies_received += 1;
        let path = meta.path;
        let (ecn, peer_flow, isn) = (meta.ecn, 0, Some(cookie_and_key.isn));
        let fast_open = FastOpenVerdict::default();
        let accepted = AcceptedSyn { segment: &syn, ecn, peer_flow, after: None, isn, fast_open };
        let (id, slot) = self.insert(now, |cx, id, slot| {
            let origin = Origin { id, slot, path, key: cookie_and_key.key };
            Connection::accept(cx, config, &origin, &accepted)
        });
        if self.slots.record_half_open(slot) == Some(true) {
            self.half_open.add(slot, id, path.remote.ip());
        }
        // The SYN/ACK was already sent, with the cookie, so this one is discarded.
        let mut sent = TransmitBuf::new(0, 1);
        let (slots, mut cx) = self.split_context(now);
        slots.get_mut(slot).and_then(|connection| connection.poll_transmit(&mut cx, &mut sent));
        if let Some(flow) = self.flows.find(&path, 0, 0) {
            self.on_segment(now, meta, segment, flow);
        }
        if self.connection(id).is_some_and(Connection::is_half_open) {
            self.with_connection(now, id, |c, cx| c.drop_if_half_open(cx));
            self.settle_idle(slot);
        }
        true
    }

    /// Returns true if a segment without a flow is a keepalive probe, one octet before the client's first, for a SYN
    /// that was answered with a cookie. The ACK that ends that handshake is in flight or was lost
    /// (`connection/option_blackhole.rs`); a RST would reach the client first.
    pub(super) fn awaits_cookie(
        &self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let asks = segment.payload.is_empty() && !segment.options.has_mptcp();
        asks && self.accept.is_some()
            && self.may_contain_cookie(now, segment)
            && self.cookie_and_key(now, meta, segment.header.seq, segment.header.ack).is_some()
    }

    /// Returns true if a segment without a flow belongs to a handshake that was answered with a cookie: its last ACK,
    /// or a keepalive probe.
    pub(super) fn belongs_to_cookie(
        &self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
    ) -> bool {
        self.awaits_cookie(now, meta, segment)
            || self.may_contain_cookie(now, segment)
                && self.read_cookie(now, meta, segment).is_some()
    }

    fn may_contain_cookie(&self, now: Instant, segment: &TcpSegment<'_>) -> bool {
        let good = Duration::from_secs(SLOT_S * u64::from(VALID_SLOTS + 1));
        let fresh = self.cookie_sent_at.is_some_and(|at| now < at + good);
        let flags = segment.header.flags;
        fresh && flags.contains(TcpFlags::ACK) && !flags.contains(TcpFlags::SYN)
    }

    /// The cookie that this ACK repeats, if it was issued for a SYN with this sequence number, and its segment size.
    fn cookie_and_key(
        &self,
        now: Instant,
        meta: &PacketMeta,
        theirs: SeqNum,
        ack: SeqNum,
    ) -> Option<(CookieAndKey, u8)> {
        let isn = SeqNum(ack.0.wrapping_sub(1));
        let (size, slot) = ((isn.0 >> 29) as u8, (isn.0 >> 24) as u8 % SLOTS);
        if slot_of(now).wrapping_sub(slot) % SLOTS > VALID_SLOTS {
            return None;
        }
        let cookie_and_key =
            create_cookie(self.config.shard, self.flows.initial(), meta.path, theirs, size, slot);
        (cookie_and_key.isn == isn).then_some((cookie_and_key, size))
    }

    /// Decodes the segment's sequence numbers, if they contain one of our cookies.
    fn read_cookie(
        &self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
    ) -> Option<(CookieAndKey, TcpSegment<'static>)> {
        let theirs = SeqNum(segment.header.seq.0.wrapping_sub(1));
        let (cookie_and_key, size) = self.cookie_and_key(now, meta, theirs, segment.header.ack)?;
        let timestamps = segment.options.timestamps;
        let bits = timestamps.map_or(NO_SCALE, |stamps| (stamps.echo & OPTION_BITS) as u8);
        let scale = bits & NO_SCALE;
        let said = SynParts {
            size,
            timestamps: timestamps.map(|stamps| Timestamps { echo: 0, ..stamps }),
            window_scale: (scale != NO_SCALE).then_some(scale),
            sack: bits & SACK != 0,
            capable: mp_capable(segment),
        };
        Some((cookie_and_key, said.syn(TcpHeader { seq: theirs, ..segment.header })))
    }
}
