//! What an emulated link did, and how far its own timing can be believed.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Lateness is kept up to this long; later is counted as this.
const LONGEST_US: u64 = 10_000_000;

/// Microseconds, collected in a histogram of two significant digits and bounded size.
#[derive(Clone, Debug)]
pub(super) struct Micros(Histogram<u64>);

impl Micros {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_US, 2);
        Micros(histogram.unwrap_or_else(|_| unreachable!("the bounds are constants")))
    }

    pub(super) fn record(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(micros);
    }

    pub(super) fn summary(&self) -> Lateness {
        Lateness {
            count: self.0.len(),
            p50_us: self.0.value_at_quantile(0.50),
            p95_us: self.0.value_at_quantile(0.95),
            p99_us: self.0.value_at_quantile(0.99),
            max_us: self.0.max(),
        }
    }
}

/// Percentiles of a delay that should be zero.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Datagrams measured.
    pub count: u64,
    /// Median, microseconds.
    pub p50_us: u64,
    /// 95th percentile, microseconds.
    pub p95_us: u64,
    /// 99th percentile, microseconds.
    pub p99_us: u64,
    /// Largest, microseconds.
    pub max_us: u64,
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lateness { count, p50_us, p95_us, p99_us, max_us } = self;
        write!(f, "p50 {p50_us} us, p95 {p95_us} us, p99 {p99_us} us, max {max_us} us ({count})")
    }
}

/// One direction of a relay.
#[derive(Clone, Debug)]
pub struct WayReport {
    /// What the link model counted.
    pub stats: marline_link::LinkStats,
    /// Packets pass now.
    pub up: bool,
    /// Bytes waiting now.
    pub queued_bytes: u64,
    /// How long datagrams waited in the kernel before the emulator read them. The model is told the
    /// time they came, so this makes nothing late unless it exceeds the link's delay.
    pub waited: Lateness,
    /// How much later than the model said datagrams left.
    pub late: Lateness,
    /// Datagrams the system refused to send.
    pub send_errors: u64,
    /// Datagrams lost because the sending socket was full.
    pub send_blocked: u64,
}

/// A relay since its start.
#[derive(Clone, Debug)]
pub struct RelayReport {
    /// Its name.
    pub name: String,
    /// How long it has been running.
    pub running: Duration,
    /// Client addresses it knows.
    pub flows: usize,
    /// Datagrams of clients there was no room for.
    pub flows_refused: u64,
    /// Ports changed by command.
    pub rebinds: u64,
    /// Datagrams the kernel dropped before the link model saw them.
    pub kernel_drops: u64,
    /// From the client.
    pub up: WayReport,
    /// To the client.
    pub down: WayReport,
}

impl RelayReport {
    /// Lateness above this at the 99th percentile is a link that was not asked for.
    pub const DOUBTFUL_P99_US: u64 = 1_000;

    /// Reasons not to believe a result measured over this relay; empty if there are none.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.kernel_drops > 0 {
            doubts.push(format!(
                "the kernel dropped {} datagrams before the link saw them (overload)",
                self.kernel_drops
            ));
        }
        for (way, name) in [(&self.up, "up"), (&self.down, "down")] {
            // Of a handful, one late datagram is no percentile.
            if way.late.count >= 100 && way.late.p99_us > Self::DOUBTFUL_P99_US {
                doubts.push(format!(
                    "1 % of the datagrams {name} left more than {} us late",
                    way.late.p99_us
                ));
            }
            if way.send_blocked > 0 {
                doubts.push(format!("{} datagrams {name} found a full socket", way.send_blocked));
            }
        }
        doubts
    }
}
