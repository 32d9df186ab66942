//! Setup of the demo: compared variants, links and durations.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use marline_link::DuplexSpec;

use crate::config::policies::{Mode, Side};

/// The WiFi-like link: fast, with a short delay and some loss. These are round numbers, not a measurement.
pub const WIFI: &str = "rate=30M,up.rate=15M,delay=8ms,jitter=uniform:2ms,queue=80ms,loss=0.5%";

/// The LTE-like link: slower, with a longer delay and a deep queue.
pub const LTE: &str = "rate=15M,up.rate=6M,delay=30ms,jitter=uniform:4ms,queue=250ms,loss=0.02%";

/// One run of the demo.
#[derive(Clone, Debug)]
pub struct DemoPlan {
    /// Duration of the applications.
    pub run: Duration,
    /// Seed for the links and the file.
    pub seed: u64,
    /// The link that fails.
    pub wifi: DuplexSpec,
    /// The link that keeps working.
    pub lte: DuplexSpec,
    /// Directory of the traces that the links name.
    pub trace_dir: Option<PathBuf>,
    /// Rate of the file transfer in bytes per second; `None` for no limit.
    pub pace: Option<u64>,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Address of the dashboard of the [displayed](Setup::shows_dashboard) variant.
    pub dashboard: Option<SocketAddr>,
    /// Directory for the traces of that variant.
    pub qlog: Option<PathBuf>,
}

impl DemoPlan {
    /// Number of echo messages per second.
    pub const ECHOES_PER_S: u32 = 20;

    /// Time after the run in which stalled connections may catch up.
    pub const GRACE: Duration = Duration::from_secs(8);

    /// Returns the time at which the WiFi-like link fails.
    #[must_use]
    pub fn failure_time(&self) -> Duration {
        self.run.mul_f64(0.40)
    }

    /// Returns the time at which the link returns.
    #[must_use]
    pub fn return_time(&self) -> Duration {
        self.run.mul_f64(0.65)
    }

    /// Returns the number of echo messages in a run.
    #[must_use]
    pub fn echoes(&self) -> u32 {
        (self.run.as_secs_f64() * f64::from(Self::ECHOES_PER_S)) as u32
    }
}

/// One of the compared variants, each of which uses the links in its own way.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Name in the table.
    pub name: &'static str,
    /// True if the variant uses the WiFi-like link.
    pub wifi: bool,
    /// True if the variant uses the LTE-like link.
    pub lte: bool,
    /// Scheduler of both ends.
    pub scheduler: &'static str,
}

impl Setup {
    /// Returns true for Marline with default settings, whose client has the dashboard.
    #[must_use]
    pub fn shows_dashboard(&self) -> bool {
        self.is_multipath() && self.scheduler == DEFAULT
    }

    /// Returns true if the variant uses several paths.
    #[must_use]
    pub const fn is_multipath(&self) -> bool {
        self.wifi && self.lte
    }
}

/// Schedulers of the default mode and of `redundant`.
const DEFAULT: &str = Mode::Balanced.policies(Side::Client).0;
const REDUNDANT: &str = Mode::Redundant.policies(Side::Client).0;

/// The compared variants. A single path is also Marline, with the same TCP, TLS and proxy, so that the paths are the
/// only difference.
pub const SETUPS: [Setup; 4] = [
    Setup { name: "WiFi alone", wifi: true, lte: false, scheduler: DEFAULT },
    Setup { name: "LTE alone", wifi: false, lte: true, scheduler: DEFAULT },
    Setup { name: "Marline", wifi: true, lte: true, scheduler: DEFAULT },
    Setup { name: "redundant", wifi: true, lte: true, scheduler: REDUNDANT },
];
