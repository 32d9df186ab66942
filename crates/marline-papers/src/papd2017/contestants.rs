//! Contestants, their links and buffers, and the result of a case.

use marline_lab::experiment::Variant;

/// The kernel's scheduler of the time.
const MIN_RTT: &str = "lowest-rtt+orp";
const PAPD: &str = "lowest-rtt+orp+papd";
/// 100 Mbit/s of Ethernet in IP packets of 1500 bytes.
pub(super) const LINK: &str = "rate=97.5M,queue=1200kB";
/// Bytes of payload, of both buffers.
pub(super) const SMALL_BUFFER: u64 = 700_000;
pub(super) const LARGE_BUFFER: u64 = 8_000_000;
/// The paths, by the names that their losses are drawn by.
pub(super) const NAMES: [&str; 2] = ["first", "second"];

/// Who takes part: minRTT, PAPD, and each path alone, all over BBR with this buffer.
pub(super) fn contestants(buffer: u64, paths: [&str; 2]) -> [Variant; 4] {
    let with = |variant: Variant| variant.congestion("bbr").buffers(Some(buffer), Some(buffer));
    [
        with(Variant::new("minRTT").scheduler(MIN_RTT)),
        with(Variant::new("PAPD").scheduler(PAPD)),
        with(Variant::alone(paths[0], paths[0])),
        with(Variant::alone(paths[1], paths[1])),
    ]
}

/// Mbit/s of a case.
#[derive(Copy, Clone, Debug)]
pub(super) struct Measured {
    pub(super) min_rtt: f64,
    pub(super) papd: f64,
    /// The better of the two paths alone.
    pub(super) best: f64,
}

impl Measured {
    /// From the runs of the four contestants, seed after seed.
    pub(super) fn of(runs: &[f64]) -> Measured {
        let seeds = (runs.len() / 4).max(1) as f64;
        let mean = |number: usize| runs.iter().skip(number).step_by(4).sum::<f64>() / seeds;
        Measured { min_rtt: mean(0), papd: mean(1), best: mean(2).max(mean(3)) }
    }
}
