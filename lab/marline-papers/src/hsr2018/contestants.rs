//! Contestants on the train, and their goodputs on a ride.

use marline_lab::experiment::Variant;
use marline_time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::ride::{Class, PATHS};
use crate::download::Download;
use crate::plain::{mptcp, tcp};

/// Time at the start of a run that is not evaluated.
const WARM_UP: Duration = Duration::from_secs(5);
/// Payload of the send and receive buffers, bytes, derived from the tables of PAPD's slides.
const BUFFERS: [u64; 2] = [700_000, 700_000];
/// Buffers of the study's Ubuntu, bytes: half of 4 and of 6 MB of kernel memory.
const STUDY_BUFFERS: [u64; 2] = [2_000_000, 3_000_000];
/// Schedulers over two carriers, in the order of [`Ride::two`].
pub(super) const SCHEDULERS: [(&str, &str); 4] = [
    ("min-RTT", "lowest-rtt"),
    ("OR&P", "lowest-rtt+orp"),
    ("PAPD with the rule", "lowest-rtt+orp+papd"),
    ("PAPD", "lowest-rtt+orp+papd,rule=off"),
];
/// Indexes into [`SCHEDULERS`].
pub(super) const MIN_RTT: usize = 0;
pub(super) const ORP: usize = 1;
/// Congestion controls of the study, in the order of [`StudiedRide::studied`].
pub(super) const STUDIED_CONTROLS: [(&str, &str); 3] =
    [("LIA", "lia"), ("OLIA", "olia"), ("Reno", "reno")];

/// Goodputs of a ride, Mbit/s.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ride {
    /// Each carrier alone.
    pub(super) alone: [f64; 3],
    /// Schedulers over the first two carriers.
    pub(super) two: [f64; 4],
    /// The first three schedulers over all three carriers.
    pub(super) three: [f64; 3],
}

/// Goodputs of a ride with the study's buffers, Mbit/s.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StudiedRide {
    /// Each carrier alone and the schedulers, over BBR.
    pub(super) alone: [f64; 2],
    pub(super) two: [f64; 3],
    /// Multipath TCP as in the study, by congestion control.
    pub(super) studied: [f64; 3],
    /// Reno alone on each carrier, on this ride and on another one.
    pub(super) reno: [f64; 2],
    pub(super) later_reno: [f64; 2],
}

/// Settings of one run.
struct Stack<'a> {
    download: &'a Download,
    congestion: &'a str,
    buffers: [u64; 2],
    seed: u64,
}

impl Stack<'_> {
    fn goodput(&self, variant: Variant) -> anyhow::Result<f64> {
        let [send, receive] = self.buffers;
        let variant = variant.congestion(self.congestion).buffers(Some(send), Some(receive));
        let report = self.download.run(&variant, self.seed)?;
        // A quick run is shorter than the usual warm-up.
        let start = WARM_UP.min(self.download.length / 2);
        let end = Instant::ZERO + self.download.length;
        let goodput = report.goodput(Instant::ZERO + start, end);
        Ok((goodput.bits_per_s() as f64 / 1e2).round() / 1e4)
    }

    /// Goodputs of the first `N` schedulers.
    fn run_bonded<const N: usize>(&self) -> anyhow::Result<[f64; N]> {
        let mut all = [0.0; N];
        for (goodput, (name, spec)) in all.iter_mut().zip(SCHEDULERS) {
            *goodput = self.goodput(mptcp(name).scheduler(spec))?;
        }
        Ok(all)
    }

    /// Goodputs of plain TCP on each of the first `N` carriers.
    fn single_path_goodputs<const N: usize>(&self) -> anyhow::Result<[f64; N]> {
        let mut all = [0.0; N];
        for (goodput, path) in all.iter_mut().zip(PATHS) {
            *goodput = self.goodput(tcp(path, path))?;
        }
        Ok(all)
    }
}

/// Goodputs of the schedulers over BBR and of each carrier alone.
pub(super) fn measure_bbr<const S: usize, const P: usize>(
    download: &Download,
    wide: bool,
    seed: u64,
) -> anyhow::Result<([f64; S], [f64; P])> {
    let buffers = if wide { STUDY_BUFFERS } else { BUFFERS };
    let stack = Stack { download, congestion: "bbr", buffers, seed };
    Ok((stack.run_bonded()?, stack.single_path_goodputs()?))
}

/// Download over `count` carriers on a ride of this class and length.
pub(super) fn carriers(
    class: &Class,
    count: usize,
    length: Duration,
    seed: u64,
) -> anyhow::Result<Download> {
    let mut download = Download { length, ..class.ride(seed)? };
    download.paths.truncate(count);
    Ok(download)
}

/// Results of a ride of a class with two carriers and with three.
pub(super) fn ride(class: &Class, length: Duration, seed: u64) -> anyhow::Result<Ride> {
    let (three, alone) = measure_bbr(&carriers(class, 3, length, seed)?, false, seed)?;
    let (two, []) = measure_bbr(&carriers(class, 2, length, seed)?, false, seed)?;
    Ok(Ride { alone, two, three })
}

/// Results of a ride of a class with the study's buffers. `later` is the seed of another ride of that class.
pub(super) fn ride_of_study(
    class: &Class,
    length: Duration,
    seed: u64,
    later: u64,
) -> anyhow::Result<StudiedRide> {
    let this = carriers(class, 2, length, seed)?;
    let other = carriers(class, 2, length, later)?;
    let (two, alone) = measure_bbr(&this, true, seed)?;
    let over = |congestion| Stack { download: &this, congestion, buffers: STUDY_BUFFERS, seed };
    let mut studied = [0.0; 3];
    for (goodput, (name, congestion)) in studied.iter_mut().zip(STUDIED_CONTROLS) {
        let variant = mptcp(name).scheduler(SCHEDULERS[ORP].1);
        *goodput = over(congestion).goodput(variant)?;
    }
    let afterwards = Stack { download: &other, seed: later, ..over("reno") };
    Ok(StudiedRide {
        alone,
        two,
        studied,
        reno: over("reno").single_path_goodputs()?,
        later_reno: afterwards.single_path_goodputs()?,
    })
}
