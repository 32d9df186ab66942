//! Contents of `TCP_INFO`, as far as the core provides them.

use libc::c_int;
use marline_core::{SubflowInfo, SubflowState};
use marline_policy::Phase;
use marline_time::{Duration, Instant};

use crate::machine::State;
use crate::sockets::{Clocks, Kind};

/// Length of the filled part of the structure, in bytes.
pub(crate) const LEN: usize = 248;

/// Value of `tcpi_ssthresh` while there is no threshold.
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// `TCP_CLOSE` and `TCP_LISTEN`.
const CLOSED: u8 = 7;
const LISTEN: u8 = 10;
/// Bits of `tcpi_options`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const SCALED: u8 = 4;
const ECN: u8 = 8;
const SYN_DATA: u8 = 32;

const fn state(state: SubflowState) -> u8 {
    match state {
        SubflowState::Established => 1,
        SubflowState::SynSent => 2,
        SubflowState::SynReceived => 3,
        SubflowState::FinWait1 => 4,
        SubflowState::FinWait2 => 5,
        SubflowState::TimeWait => 6,
        SubflowState::Closed => CLOSED,
        SubflowState::CloseWait => 8,
        SubflowState::LastAck => 9,
        SubflowState::Closing => 11,
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// Encodes the structure for a socket. Unknown fields are zero.
pub(crate) fn of(state: &mut State, fd: c_int) -> Result<[u8; LEN], c_int> {
    let now = state.now;
    let announced = state.announced_mss(fd);
    let id = match state.sockets.get(fd)?.kind {
        Kind::Stream(id) => id,
        Kind::Listener(_) => return Ok(only(LISTEN)),
        Kind::Unconnected => return Ok(only(CLOSED)),
    };
    let Some(flow) = state.subflow_info(fd) else { return Ok(only(CLOSED)) };
    let over = state.sockets.connections.get(&id).is_some_and(|life| life.over.is_some());
    let mut out = encode(&flow, announced);
    if over {
        out[0] = CLOSED;
    }
    let mut long = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    if let Some(info) = state.endpoint.info(id) {
        long(120, info.bytes_acked);
        out[144..148].copy_from_slice(&(info.unsent as u32).to_ne_bytes());
    }
    if let Some(life) = state.sockets.connections.get(&id) {
        add_clocks(&mut out, &life.clocks, &flow, now);
    }
    Ok(out)
}

fn only(state: u8) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[0] = state;
    out
}

fn add_clocks(out: &mut [u8; LEN], clocks: &Clocks, flow: &SubflowInfo, now: Instant) {
    let mut long = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    long(168, clocks.busy.as_micros() as u64);
    long(176, clocks.window_limited.as_micros() as u64);
    long(184, clocks.buffer_limited.as_micros() as u64);
    let ms_since = |at: Instant| u32::try_from(now.since(at).as_millis()).unwrap_or(u32::MAX);
    let mut word = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    word(44, ms_since(flow.tcp.last_sent_at));
    // Before any data was received, the handshake counts.
    word(52, ms_since(flow.tcp.last_data_at.unwrap_or(clocks.since)));
    word(56, ms_since(flow.last_rx_at));
}

fn encode(info: &SubflowInfo, announced_mss: u16) -> [u8; LEN] {
    let mut out = [0; LEN];
    let tcp = &info.tcp;
    out[0] = state(info.state);
    out[1] = match info.phase {
        Phase::Open if info.sacked > 0 => 1,
        Phase::Open => 0,
        Phase::Recovery => 3,
        Phase::Loss => 4,
    };
    out[2] = u8::try_from(tcp.backoff).unwrap_or(u8::MAX);
    out[4] = out[2];
    let bit = |on: bool, bit: u8| if on { bit } else { 0 };
    out[5] = bit(tcp.timestamps, TIMESTAMPS)
        | bit(tcp.sack, SACK)
        | bit(tcp.window_scales.is_some(), SCALED)
        | bit(tcp.ecn, ECN)
        | bit(tcp.took_syn_data, SYN_DATA);
    let (ours, theirs) = tcp.window_scales.unwrap_or_default();
    out[6] = theirs & 15 | ours << 4;
    let mss = u64::from(info.mss.max(1));
    let segments = |bytes: u64| u32::try_from(bytes.div_ceil(mss)).unwrap_or(NO_THRESHOLD);
    let mut word = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    let backed_off = tcp.rto.as_micros().saturating_mul(1 << tcp.backoff.min(16));
    word(8, u32::try_from(backed_off).unwrap_or(u32::MAX));
    word(16, info.mss);
    word(20, tcp.largest_received.max(INITIAL_RECEIVED_MSS));
    word(24, tcp.unacked_segments);
    word(28, segments(info.sacked));
    // The kernel counts lost segments until they are acknowledged, even after retransmission.
    word(32, segments(info.lost + info.repeats_in_flight));
    word(36, segments(info.repeats_in_flight));
    word(68, info.srtt.map_or(0, micros));
    word(72, micros(info.rttvar));
    word(76, segments(info.ssthresh));
    // In this configuration the window counts whole segments.
    word(80, u32::try_from(info.cwnd / mss).unwrap_or(NO_THRESHOLD));
    word(84, u32::from(announced_mss));
    word(88, tcp.reordering.max(INITIAL_REORDERING));
    word(100, segments(info.bytes_retransmitted));
    word(148, info.min_rtt.map_or(u32::MAX, micros));
    word(220, tcp.reorderings);
    word(228, u32::try_from(tcp.peer_window).unwrap_or(u32::MAX));
    let mut long = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    long(128, info.bytes_received);
    long(160, info.delivery_rate.map_or(0, |rate| rate.bytes_per_s()));
    long(200, info.bytes_sent);
    long(208, info.bytes_retransmitted);
    out
}

/// Value of `tcpi_reordering` before any reordering was seen.
const INITIAL_REORDERING: u32 = 3;
/// Value of `tcpi_rcv_mss` before anything was received.
const INITIAL_RECEIVED_MSS: u32 = 536;
