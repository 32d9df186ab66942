//! Report of an emulated link: its counters, and the accuracy of its timing.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use marline_link::radio::RadioReading;

/// Maximum recorded lateness in microseconds. Larger values count as this one.
const MAX_LATENESS_US: u64 = 10_000_000;

/// Histogram of microseconds with two significant digits and bounded size.
#[derive(Clone, Debug)]
pub(crate) struct Micros(Histogram<u64>);

impl Micros {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_LATENESS_US, 2);
        Micros(histogram.unwrap_or_else(|_| unreachable!("the bounds are valid constants")))
    }

    pub(crate) fn record(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(micros);
    }

    pub(crate) fn summary(&self) -> Lateness {
        Lateness {
            count: self.0.len(),
            p50_us: self.0.value_at_quantile(0.50),
            p95_us: self.0.value_at_quantile(0.95),
            p99_us: self.0.value_at_quantile(0.99),
            max_us: self.0.max(),
        }
    }
}

/// Percentiles of a delay that is ideally zero.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Number of datagrams measured.
    pub count: u64,
    /// Median in microseconds.
    pub p50_us: u64,
    /// 95th percentile in microseconds.
    pub p95_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
    /// Maximum in microseconds.
    pub max_us: u64,
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lateness { count, p50_us, p95_us, p99_us, max_us } = self;
        write!(f, "p50 {p50_us} us, p95 {p95_us} us, p99 {p99_us} us, max {max_us} us ({count})")
    }
}

/// Time for which the emulator's thread waited for a processor.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorWait {
    /// Total since the start in microseconds.
    pub total_us: u64,
    /// Maximum single wait in microseconds.
    pub longest_us: u64,
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct DirectionReport {
    /// Counters of the link model.
    pub stats: marline_link::LinkStats,
    /// True if the link is up now.
    pub up: bool,
    /// Bytes waiting now.
    pub queued_bytes: u64,
    /// Time that datagrams waited in the kernel before the emulator read them. The model uses their arrival times, so
    /// this adds no delay unless it exceeds the link's delay.
    pub waited: Lateness,
    /// Lateness of departing datagrams relative to the model.
    pub late: Lateness,
    /// Datagrams the system refused to send.
    pub send_errors: u64,
    /// Datagrams lost because the sending socket's buffer was full.
    pub send_blocked: u64,
}

/// Report on a link since its start.
#[derive(Clone, Debug)]
pub struct RelayReport {
    /// Name of the link.
    pub name: String,
    /// Time since the start.
    pub running: Duration,
    /// Number of client addresses.
    pub flows: usize,
    /// Datagrams of clients refused because the table was full.
    pub flows_refused: u64,
    /// Port changes by command.
    pub rebinds: u64,
    /// Datagrams the kernel dropped before the link model saw them.
    pub kernel_drops: u64,
    /// Interfaces that were removed while the link ran.
    pub lost_interfaces: Vec<String>,
    /// Time for which the emulator's thread, which all links share, waited for a processor.
    pub starved: ProcessorWait,
    /// From the client.
    pub up: DirectionReport,
    /// To the client.
    pub down: DirectionReport,
    /// Energy drawn by the link's radio, if it has one.
    pub radio: Option<RadioReading>,
}

impl RelayReport {
    /// Limit on the 99th percentile of lateness, above which the link does not behave as configured.
    pub const UNRELIABLE_P99_US: u64 = 1_000;
    /// Limit on the lateness of one packet. A later one indicates a stall, which affects maxima and tails.
    pub const UNRELIABLE_MAX_US: u64 = 20_000;
    /// Limit on the wait for a processor. After a longer one, packets were read late without any other indication.
    pub const UNRELIABLE_WAIT_US: u64 = 20_000;

    /// Reasons why results measured over this link may be unreliable; empty if there are none.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.kernel_drops > 0 {
            doubts.push(format!(
                "the kernel dropped {} packets before they reached the link (overload)",
                self.kernel_drops
            ));
        }
        for name in &self.lost_interfaces {
            doubts.push(format!("the interface {name} was removed while the link ran"));
        }
        let wait_us = self.starved.longest_us;
        if wait_us > Self::UNRELIABLE_WAIT_US {
            doubts.push(format!("the link waited {wait_us} us for a processor"));
        }
        for (way, name) in [(&self.up, "up"), (&self.down, "down")] {
            // A percentile needs more than a few datagrams.
            if way.late.count >= 100 && way.late.p99_us > Self::UNRELIABLE_P99_US {
                doubts.push(format!(
                    "1 % of the {name}link packets were sent more than {} us late",
                    way.late.p99_us
                ));
            } else if way.late.max_us > Self::UNRELIABLE_MAX_US {
                doubts.push(format!("one {name}link packet was sent {} us late", way.late.max_us));
            }
            if way.send_blocked > 0 {
                doubts.push(format!(
                    "{} {name}link packets were lost because a socket buffer was full",
                    way.send_blocked
                ));
            }
        }
        doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(late_us: &[u64]) -> DirectionReport {
        let mut late = Micros::new();
        late_us.iter().for_each(|us| late.record(Duration::from_micros(*us)));
        DirectionReport {
            stats: marline_link::LinkStats::default(),
            up: true,
            queued_bytes: 0,
            waited: Lateness::default(),
            late: late.summary(),
            send_errors: 0,
            send_blocked: 0,
        }
    }

    fn report(late_us: &[u64]) -> RelayReport {
        RelayReport {
            name: "wifi".to_owned(),
            running: Duration::from_secs(9),
            flows: 0,
            flows_refused: 0,
            rebinds: 0,
            kernel_drops: 0,
            lost_interfaces: Vec::new(),
            starved: ProcessorWait::default(),
            up: way(late_us),
            down: way(&[]),
            radio: None,
        }
    }

    #[test]
    fn each_cause_of_unreliable_results_is_listed_once() {
        let mut lates = vec![20; 1_000];
        lates.extend([900; 20]);
        assert_eq!(report(&lates).doubts(), Vec::<String>::new());
        // A few late packets of many are a stall only if they are very late.
        lates.extend([19_000; 5]);
        assert_eq!(report(&lates).doubts(), Vec::<String>::new());
        lates.push(25_000);
        let said = |report: &RelayReport| report.doubts().join("; ");
        assert!(
            said(&report(&lates)).contains("uplink packet was sent 25"),
            "{}",
            said(&report(&lates))
        );
        let slow = report(&[1_500; 100]);
        assert!(said(&slow).contains("1 % of the uplink packets"), "{}", said(&slow));
        // A percentile needs more than a few datagrams.
        assert_eq!(report(&[1_500; 99]).doubts(), Vec::<String>::new());
        let mut other = report(&[]);
        other.kernel_drops = 3;
        other.starved = ProcessorWait { total_us: 90_000, longest_us: 30_000 };
        other.lost_interfaces.push("lte".to_owned());
        other.down.send_blocked = 2;
        let doubts = other.doubts();
        let words = ["dropped 3", "lte was removed", "30000 us for a processor", "buffer was full"];
        assert_eq!(doubts.len(), words.len(), "{doubts:?}");
        for (doubt, word) in doubts.iter().zip(words) {
            assert!(doubt.contains(word), "{doubt}");
        }
    }
}
