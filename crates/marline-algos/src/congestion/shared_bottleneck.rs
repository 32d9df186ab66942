//! Detects subflows behind the same bottleneck, and computes each one's share of a single TCP's growth.
//!
//! *Problem.* Subflows that each grow like a TCP take several shares of a common bottleneck, such as an access line
//! with two addresses or the server's uplink. Always coupling all of them, as RFC 6356 does, gives up capacity that
//! separate paths could use in competition with other flows.
//!
//! *How.* Subflows behind one bottleneck share one queue, so the queueing delays of all of them rise and fall together.
//! While its window is the limit, a subflow examines its siblings at intervals (half of the longest round trip, at
//! least [`MIN_SPAN`]). It tracks the correlation of its own queueing delay (SRTT minus the smallest RTT) with that of
//! each sibling, over about [`MEMORY`] samples. A sibling counts as sharing the bottleneck once the correlation exceeds
//! [`SHARED`], until it falls below [`MIN_SHARED_CORRELATION`]. A delay that hardly varies is not evidence. Among
//! subflows that share a bottleneck, growth is coupled as in RFC 6356: each takes w max(w/r^2) / sum(w/r)^2 of one
//! TCP's growth, with windows w and round trips r, so that together they grow like one TCP on the best subflow.
//!
//! *Sources.* RFC 6356 section 3 for the share. Detection by the variation of delays: Rubenstein, Kurose and Towsley
//! (IEEE/ACM ToN 2002), and RFC 8382, which groups flows by statistics of the delay.
//!
//! *What differs.* RFC 8382 compares summaries that receivers report. Here both delays are available locally. LIA
//! couples Reno's growth; here the steepness of CUBIC's curve and its estimate of Reno's window are coupled.
//!
//! *p99 of a small message:* unchanged, except that the queue is shorter behind bulk data of the connection on a shared
//! bottleneck.

use marline_policy::{SubflowId, SubflowView};
use marline_time::Duration;

/// Minimum time between two samples.
const MIN_SPAN: Duration = Duration::from_millis(25);
/// Number of samples after which the weight of a sample has decayed to about a third.
const MEMORY: f32 = 100.0;
/// Number of samples needed for a verdict.
const MIN_SAMPLES: u16 = 30;
/// A sibling counts as sharing the bottleneck once the correlation exceeds the first value, until it falls below the
/// second.
const SHARED: f32 = 0.75;
const MIN_SHARED_CORRELATION: f32 = 0.4;
/// A queueing delay with a smaller standard deviation, in seconds, is not evidence.
const MIN_DEVIATION: f32 = 0.001;
/// Maximum number of siblings tracked.
const MAX_SIBLINGS: usize = 7;

/// Statistics of two delays, in seconds, that are sampled together: exponentially weighted means, variances and
/// covariance.
#[derive(Copy, Clone, Debug, Default)]
struct DelayPair {
    looks: u16,
    means: [f32; 2],
    variances: [f32; 2],
    covariance: f32,
}

impl DelayPair {
    fn add(&mut self, mine: f32, other: f32) {
        self.looks = self.looks.saturating_add(1);
        let weight = (1.0 / f32::from(self.looks)).max(1.0 / MEMORY);
        let [off_mine, off_other] = [mine - self.means[0], other - self.means[1]];
        self.means[0] += weight * off_mine;
        self.means[1] += weight * off_other;
        let keep = 1.0 - weight;
        self.variances[0] = keep * (self.variances[0] + weight * off_mine * off_mine);
        self.variances[1] = keep * (self.variances[1] + weight * off_other * off_other);
        self.covariance = keep * (self.covariance + weight * off_mine * off_other);
    }

    /// Returns the correlation from -1 to 1; `None` if there were too few samples or the delays hardly varied.
    fn correlation(&self) -> Option<f32> {
        let deviations = self.variances.map(f32::sqrt);
        let varies = deviations.iter().all(|deviation| *deviation >= MIN_DEVIATION);
        (self.looks >= MIN_SAMPLES && varies)
            .then(|| self.covariance / (deviations[0] * deviations[1]))
    }
}

/// Another subflow of this connection.
#[derive(Copy, Clone, Debug)]
struct Sibling {
    id: SubflowId,
    delays: DelayPair,
    shares: bool,
}

/// Bottlenecks that a subflow shares with other subflows of the connection, as measured by that subflow.
#[derive(Debug)]
pub(super) struct SharedBottleneck {
    siblings: Vec<Sibling>,
    share: f64,
}

impl SharedBottleneck {
    /// The initial state, without samples.
    pub(super) const fn new() -> Self {
        SharedBottleneck { siblings: Vec::new(), share: 1.0 }
    }

    /// This subflow's share of one TCP's growth, more than 0 and at most 1.
    pub(super) const fn growth_share(&self) -> f64 {
        self.share
    }

    /// Adds a sample of all subflows of the connection.
    pub(super) fn take_samples(&mut self, me: SubflowId, group: &[SubflowView]) {
        let Some(mine) = group.iter().find(|view| view.id == me) else { return };
        let Some(queueing) = queueing_delay(mine) else { return };
        let others = || group.iter().filter(|view| view.id != me && view.is_active());
        self.siblings.retain(|sibling| others().any(|view| view.id == sibling.id));
        // A sibling that pauses has no queue to compare and needs no share of the growth.
        let busy = || others().filter(|view| view.bytes_in_flight > 0);
        for other in busy() {
            if let Some(theirs) = queueing_delay(other) {
                self.record_sample(other.id, queueing, theirs);
            }
        }
        let shares = |view: &&SubflowView| {
            self.siblings.iter().any(|sibling| sibling.id == view.id && sibling.shares)
        };
        self.share = coupled_share(mine, busy().filter(shares));
    }

    fn record_sample(&mut self, id: SubflowId, mine: f32, theirs: f32) {
        let at = match self.siblings.iter().position(|sibling| sibling.id == id) {
            Some(at) => at,
            None if self.siblings.len() == MAX_SIBLINGS => return,
            None => {
                self.siblings.push(Sibling { id, delays: DelayPair::default(), shares: false });
                self.siblings.len() - 1
            }
        };
        let sibling = &mut self.siblings[at];
        sibling.delays.add(mine, theirs);
        let limit = if sibling.shares { MIN_SHARED_CORRELATION } else { SHARED };
        sibling.shares = sibling.delays.correlation().is_some_and(|found| found > limit);
    }
}

/// Time between two samples.
pub(super) fn sampling_interval(group: &[SubflowView]) -> Duration {
    let longest = group.iter().filter_map(|view| view.srtt).max().unwrap_or_default();
    (longest / 2).max(MIN_SPAN)
}

/// Returns the queueing delay within a round trip, in seconds.
fn queueing_delay(view: &SubflowView) -> Option<f32> {
    let queueing = view.srtt?.saturating_sub(view.min_rtt?);
    Some(queueing.as_nanos() as f32 / 1e9)
}

/// Returns RFC 6356's share of growth of `mine` among the subflows that share its bottleneck.
fn coupled_share<'a>(mine: &SubflowView, others: impl Iterator<Item = &'a SubflowView>) -> f64 {
    let window_and_rtt = |view: &SubflowView| {
        let rtt = view.srtt.filter(|srtt| !srtt.is_zero())?.as_nanos() as f64 / 1e9;
        Some((view.cwnd.max(1) as f64, rtt))
    };
    let mut others = others.filter_map(window_and_rtt).peekable();
    let (Some((window, rtt)), Some(_)) = (window_and_rtt(mine), others.peek()) else { return 1.0 };
    let (mut best, mut rates) = (window / (rtt * rtt), window / rtt);
    for (other, rtt) in others {
        best = best.max(other / (rtt * rtt));
        rates += other / rtt;
    }
    (window * best / (rates * rates)).min(1.0)
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{MSS, ms, view};

    use super::*;

    /// Builds a subflow of 40 ms with a window of `segments` and a queue of `queue_ms`.
    fn behind(id: u8, segments: u64, queue_ms: u64) -> SubflowView {
        SubflowView {
            srtt: Some(ms(40 + queue_ms)),
            min_rtt: Some(ms(40)),
            cwnd: segments * u64::from(MSS),
            bytes_in_flight: u64::from(MSS),
            ..view(id, 40)
        }
    }

    /// Adds samples of queues that fill and are halved. The second subflow's queue has this period and starts `later`
    /// samples later.
    fn look(shared: &mut SharedBottleneck, looks: u64, period: u64, later: u64) {
        for step in 0..looks {
            let queue_ms = |period: u64, step: u64| 20 + 40 * (step % period) / period;
            let other = queue_ms(period, step + later);
            let group = [behind(0, 20, queue_ms(40, step)), behind(1, 20, other)];
            shared.take_samples(SubflowId(0), &group);
        }
    }

    #[test]
    fn two_subflows_with_correlated_queues_share_the_growth_of_one_tcp() {
        let mut shared = SharedBottleneck::new();
        look(&mut shared, 20, 40, 0);
        assert_eq!(shared.growth_share(), 1.0, "before enough samples");
        look(&mut shared, 200, 40, 0);
        assert!((shared.growth_share() - 0.25).abs() < 1e-9, "{}", shared.growth_share());
    }

    #[test]
    fn subflows_with_unrelated_queues_keep_their_growth() {
        for (period, later) in [(23, 0), (67, 11), (40, 20)] {
            let mut shared = SharedBottleneck::new();
            look(&mut shared, 2_000, period, later);
            assert_eq!(shared.growth_share(), 1.0, "a period of {period}, {later} later");
        }
    }

    #[test]
    fn a_nearly_constant_delay_is_not_evidence_of_sharing() {
        let mut shared = SharedBottleneck::new();
        for step in 0..500 {
            let queued = Some(ms(40) + Duration::from_micros(500 * (step % 2)));
            let group = [0, 1].map(|id| SubflowView { srtt: queued, ..behind(id, 20, 0) });
            shared.take_samples(SubflowId(0), &group);
        }
        assert_eq!(shared.growth_share(), 1.0);
    }

    #[test]
    fn a_subflow_without_an_active_sibling_grows_like_a_tcp() {
        let mut shared = SharedBottleneck::new();
        look(&mut shared, 200, 40, 0);
        let pausing = SubflowView { bytes_in_flight: 0, ..behind(1, 20, 30) };
        shared.take_samples(SubflowId(0), &[behind(0, 20, 30), pausing]);
        assert_eq!(shared.growth_share(), 1.0);
        shared.take_samples(SubflowId(0), &[behind(0, 20, 30), behind(1, 20, 30)]);
        assert!(shared.growth_share() < 0.3);
        shared.take_samples(SubflowId(0), &[behind(0, 20, 30)]);
        shared.take_samples(SubflowId(0), &[behind(0, 20, 30), behind(1, 20, 30)]);
        assert_eq!(shared.growth_share(), 1.0, "the state of the closed subflow was dropped");
    }

    #[test]
    fn there_is_a_bound_on_siblings_that_are_remembered() {
        let mut shared = SharedBottleneck::new();
        let group: Vec<SubflowView> = (0..20).map(|id| behind(id, 20, 30)).collect();
        shared.take_samples(SubflowId(0), &group);
        assert_eq!(shared.siblings.len(), MAX_SIBLINGS);
    }

    #[test]
    fn the_share_is_that_of_rfc_6356() {
        let mine = behind(0, 20, 0);
        let share = |others: &[SubflowView]| coupled_share(&mine, others.iter());
        assert_eq!(share(&[]), 1.0);
        assert!((share(&[behind(1, 20, 0)]) - 0.25).abs() < 1e-9);
        // Three equal subflows take a ninth each. With a subflow of three times the window: 20 x 60 / 80^2.
        assert!((share(&[behind(1, 20, 0), behind(2, 20, 0)]) - 1.0 / 9.0).abs() < 1e-9);
        assert!((share(&[behind(1, 60, 0)]) - 1_200.0 / 6_400.0).abs() < 1e-9);
    }
}
