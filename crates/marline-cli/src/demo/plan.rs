//! Setup of the demo: contenders, links and durations.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use marline_link::DuplexSpec;

use crate::config::policies::{Mode, Side};

/// The WiFi-like link: fast and near, some loss. Round numbers, not a measurement.
pub const WIFI: &str = "rate=30M,up.rate=15M,delay=8ms,jitter=uniform:2ms,queue=80ms,loss=0.5%";

/// The LTE-like link: slower, farther, a deep queue.
pub const LTE: &str = "rate=15M,up.rate=6M,delay=30ms,jitter=uniform:4ms,queue=250ms,loss=0.02%";

/// One run of the demo.
#[derive(Clone, Debug)]
pub struct DemoPlan {
    /// How long the applications run.
    pub run: Duration,
    /// Seed of links and file.
    pub seed: u64,
    /// The link that dies.
    pub wifi: DuplexSpec,
    /// The link that stays.
    pub lte: DuplexSpec,
    /// Where traces lie that the links name.
    pub trace_dir: Option<PathBuf>,
    /// Bytes per second of the file transfer; `None`: as fast as it goes.
    pub pace: Option<u64>,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Where the client of the way [that is shown](Way::is_shown) has its dashboard.
    pub dashboard: Option<SocketAddr>,
    /// Where traces go of that way.
    pub qlog: Option<PathBuf>,
}

impl DemoPlan {
    /// Echo messages a second.
    pub const ECHOES_PER_S: u32 = 20;

    /// Time after the run in which stalled connections may catch up.
    pub const GRACE: Duration = Duration::from_secs(8);

    /// When the WiFi-like link dies.
    #[must_use]
    pub fn dies(&self) -> Duration {
        self.run.mul_f64(0.40)
    }

    /// When it returns.
    #[must_use]
    pub fn returns(&self) -> Duration {
        self.run.mul_f64(0.65)
    }

    /// Echo messages of a run.
    #[must_use]
    pub fn echoes(&self) -> u32 {
        (self.run.as_secs_f64() * f64::from(Self::ECHOES_PER_S)) as u32
    }
}

/// One of the compared ways to use the links.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its name in the table.
    pub name: &'static str,
    /// It has the WiFi-like link.
    pub wifi: bool,
    /// It has the LTE-like link.
    pub lte: bool,
    /// The scheduler of both ends.
    pub scheduler: &'static str,
}

impl Way {
    /// Its client's dashboard is shown: Marline as it is by default.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.is_multipath() && self.scheduler == DEFAULT
    }

    /// Several paths.
    #[must_use]
    pub const fn is_multipath(&self) -> bool {
        self.wifi && self.lte
    }
}

/// The schedulers of the default mode and of `redundant`.
const DEFAULT: &str = Mode::Balanced.policies(Side::Client).0;
const REDUNDANT: &str = Mode::Redundant.policies(Side::Client).0;

/// What is compared. A single path is Marline with one path: the same TCP, TLS and proxy, so that
/// the paths are the only difference.
pub const WAYS: [Way; 4] = [
    Way { name: "WiFi alone", wifi: true, lte: false, scheduler: DEFAULT },
    Way { name: "LTE alone", wifi: false, lte: true, scheduler: DEFAULT },
    Way { name: "Marline", wifi: true, lte: true, scheduler: DEFAULT },
    Way { name: "redundant", wifi: true, lte: true, scheduler: REDUNDANT },
];
