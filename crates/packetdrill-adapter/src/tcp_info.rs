//! `TCP_INFO`, as far as the core tells.

use marline_core::{SubflowInfo, SubflowState};
use marline_policy::Phase;
use marline_time::Duration;

/// Bytes of the structure, as far as it is filled in.
pub(crate) const LEN: usize = 232;

/// What `tcpi_ssthresh` says while there is no threshold.
const NO_THRESHOLD: u32 = 0x7fff_ffff;

const fn state(state: SubflowState) -> u8 {
    match state {
        SubflowState::Established => 1,
        SubflowState::SynSent => 2,
        SubflowState::SynReceived => 3,
        SubflowState::FinWait1 => 4,
        SubflowState::FinWait2 => 5,
        SubflowState::TimeWait => 6,
        SubflowState::Closed => 7,
        SubflowState::CloseWait => 8,
        SubflowState::LastAck => 9,
        SubflowState::Closing => 11,
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// The structure's bytes; fields that the core does not tell are zero.
pub(crate) fn encode(info: &SubflowInfo, announced_mss: u16) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[0] = state(info.state);
    out[1] = match info.phase {
        Phase::Open if info.sacked > 0 => 1,
        Phase::Open => 0,
        Phase::Recovery => 3,
        Phase::Loss => 4,
    };
    let mss = u64::from(info.mss.max(1));
    let segments = |bytes: u64| u32::try_from(bytes.div_ceil(mss)).unwrap_or(NO_THRESHOLD);
    let mut word = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    word(16, info.mss);
    word(24, segments(info.in_flight + info.sacked + info.lost));
    word(28, segments(info.sacked));
    // The kernel counts what is lost until it is acknowledged, repeated or not.
    word(32, segments(info.lost + info.repeats_in_flight));
    word(36, segments(info.repeats_in_flight));
    word(68, info.srtt.map_or(0, micros));
    word(72, micros(info.rttvar));
    word(76, segments(info.ssthresh));
    word(80, segments(info.cwnd));
    word(84, u32::from(announced_mss));
    word(100, segments(info.bytes_retransmitted));
    word(148, info.min_rtt.map_or(u32::MAX, micros));
    let mut long = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    long(128, info.bytes_received);
    long(160, info.delivery_rate.map_or(0, |rate| rate.bytes_per_s()));
    long(200, info.bytes_sent);
    long(208, info.bytes_retransmitted);
    out
}
