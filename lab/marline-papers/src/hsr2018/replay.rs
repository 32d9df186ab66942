//! Replay of the one recording that has both carriers, from positions that the roots draw.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use marline_link::trace::ArrivalTrace;
use marline_link::{DuplexConfig, RateConfig, Steps};
use marline_time::{Duration, Rate, Rng};
use serde::{Deserialize, Serialize};

use super::contestants::measure_bbr;
use super::ride::{LENGTH, PATHS};
use crate::download::{Download, link};
use crate::roots::Root;

/// The recording with both carriers, in the order of [`PATHS`].
const RECORDED: [&str; 2] = [
    "hsr-mptcp-2018/elephant_1529470329_olia_M3_wlan3.arrivals.csv.gz",
    "hsr-mptcp-2018/elephant_1529470329_olia_U4_wlan16.arrivals.csv.gz",
];

/// Goodputs of a replay, Mbit/s: the schedulers, and each carrier alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Replay {
    pub(super) two: [f64; 4],
    pub(super) alone: [f64; 2],
}

/// The rates of the recording, carrier by carrier.
pub(super) struct Recording(Vec<Arc<Steps<Rate>>>);

impl Recording {
    pub(super) fn read(traces: &Path) -> anyhow::Result<Recording> {
        let window = Duration::from_millis(200);
        let mut all = Vec::new();
        for file in RECORDED {
            let place = traces.join(file);
            let bytes = std::fs::read(&place).with_context(|| place.display().to_string())?;
            let trace = ArrivalTrace::parse(file, &bytes)?;
            // Size of the IP and TCP headers with timestamps and DSS.
            all.push(trace.rate_steps(window, 72).map_err(anyhow::Error::msg)?);
        }
        Ok(Recording(all))
    }

    /// Replays the recording from a random start position, drawn from the root.
    pub(super) fn replay(&self, length: Duration, root: &Root) -> anyhow::Result<Replay> {
        let place = root.rng("place").unit();
        let mut paths: Vec<(&'static str, DuplexConfig)> = Vec::new();
        for (name, steps) in PATHS.iter().zip(&self.0) {
            let mut both = link("up.rate=5M,delay=41.5ms,queue=300kB")?;
            let start = steps.period().unwrap_or(LENGTH).mul_f64(place);
            both.down.rate =
                RateConfig::Steps(Arc::new(steps.with_start(start).map_err(anyhow::Error::msg)?));
            paths.push((*name, both));
        }
        let download = Download { paths, length };
        let (two, alone) = measure_bbr(&download, false, root.seed)?;
        Ok(Replay { two, alone })
    }
}
