//! Comparison of a link with datagrams on a route that appears rate-limited.
//!
//! *Problem.* A network may limit the rate of UDP. A link is then many times as fast.
//!
//! *Solution.* If a route looks policed ([`Paces`](super::Paces)), its flows use a link for a few seconds, and the data
//! rates decide. A clearly faster link is kept. Datagrams are tried again after ten minutes; this time doubles whenever
//! they are slower. It also doubles whenever a link was not faster.

use marline_time::{Duration, Instant};

use super::{Backoff, LeaveReason, Order, Routes, TransportChoice, UdpUse};
use crate::carrier::FlowEnds;
use crate::links::pace::{DataDirection, LaneBytes, PolicedRoute};

/// Duration of a link trial. Its first moments also count, because a transfer may end during the trial.
pub(super) const TRIAL_DURATION: Duration = Duration::from_secs(4);
/// Minimum rate of a link that counts as faster, in percent of the rate of datagrams.
const FASTER_PERCENT: u64 = 150;
/// First and longest delay until the next comparison.
pub(super) const COMPARISON_DELAYS: Backoff =
    Backoff { first: Duration::from_secs(600), longest: Duration::from_secs(7_200) };
/// Delay until the next comparison after an inconclusive one.
pub(super) const INCONCLUSIVE_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Result of comparing UDP and TCP on a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CarrierRates {
    /// Data rate over UDP.
    pub udp_bits_per_s: u64,
    /// Data rate over TCP.
    pub tcp_bits_per_s: u64,
}

/// Comparison of a route's link with datagrams.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// A link is being opened or is in use for a trial, which ends at `measured_at`.
    Running { datagrams: PolicedRoute, measured_at: Option<Instant> },
    /// The link is faster; it is kept until the next comparison.
    Faster { rates: CarrierRates, until: Instant },
}

impl Routes {
    /// Returns true if segments must be passed to [`on_segments`](Self::on_segments).
    pub(crate) fn compares(&self) -> bool {
        self.udp == UdpUse::Preferred
    }

    /// Counts segments of a flow on a route, with any carrier.
    pub(crate) fn on_segments<'a>(
        &mut self,
        now: Instant,
        ends: FlowEnds,
        flow: u64,
        heading: DataDirection,
        segments: impl Iterator<Item = &'a [u8]>,
    ) {
        let policed = self.paces.note(now, ends, flow, heading, segments);
        self.start_comparison(now, ends, policed);
    }

    /// Counts bytes of a lane on a route, with any carrier.
    pub(crate) fn on_lane(
        &mut self,
        now: Instant,
        ends: FlowEnds,
        heading: DataDirection,
        bytes: LaneBytes,
    ) {
        let policed = self.paces.count_lane_bytes(now, ends, heading, bytes);
        self.start_comparison(now, ends, policed);
    }

    /// Opens a link for a comparison if the route looks policed.
    fn start_comparison(&mut self, now: Instant, ends: FlowEnds, policed: Option<PolicedRoute>) {
        let Some(datagrams) = policed else { return };
        let Some(route) = self.routes.get_mut(&ends) else { return };
        if route.way == TransportChoice::Datagrams
            && route.comparison.is_none()
            && route.compare_at <= now
        {
            route.comparison = Some(Comparison::Running { datagrams, measured_at: None });
            (route.way, route.link_requested_at) = (TransportChoice::Opening, now);
            self.orders.push_back(Order::Open(ends));
        }
    }

    /// Performs the due step of a comparison.
    pub(super) fn on_comparison_due(&mut self, now: Instant, ends: FlowEnds) {
        let Some(route) = self.routes.get_mut(&ends) else { return };
        let TransportChoice::Link(link) = route.way else { return };
        let leaving = match route.comparison.take() {
            None => return,
            Some(Comparison::Running { datagrams, .. }) => {
                let PolicedRoute { bits_per_s, .. } = datagrams;
                let rate = self.paces.trial_rate(now, &ends, &datagrams);
                let link_rate = rate.unwrap_or_default();
                if link_rate >= bits_per_s.saturating_mul(FASTER_PERCENT) / 100 {
                    let rates =
                        CarrierRates { udp_bits_per_s: bits_per_s, tcp_bits_per_s: link_rate };
                    let until = now + COMPARISON_DELAYS.delay_after(route.slower);
                    route.slower = route.slower.saturating_add(1);
                    route.comparison = Some(Comparison::Faster { rates, until });
                    self.orders.push_back(Order::Keep(ends, rates));
                    return;
                }
                let pause = match rate {
                    None => INCONCLUSIVE_RETRY_DELAY,
                    Some(_) => COMPARISON_DELAYS.delay_after(route.failed_attempts),
                };
                route.failed_attempts =
                    route.failed_attempts.saturating_add(u32::from(rate.is_some()));
                route.compare_at = now + pause;
                LeaveReason::NotFaster
            }
            Some(Comparison::Faster { .. }) => {
                route.compare_at = now;
                LeaveReason::NextComparison
            }
        };
        route.choose_transport(now, TransportChoice::Datagrams);
        route.heard_at = Some(now);
        self.paces.drop_route(&ends);
        self.orders.push_back(Order::Leave(ends, leaving));
        self.orders.push_back(Order::Close(link));
    }

    /// Returns the routes that use a link because it is faster than datagrams, with the measured rates.
    pub(crate) fn routes_faster_over_tcp(&self) -> Vec<(FlowEnds, CarrierRates)> {
        let slower = self.routes.iter().filter_map(|(ends, route)| match route.comparison {
            Some(Comparison::Faster { rates, .. }) => Some((*ends, rates)),
            _ => None,
        });
        slower.collect()
    }
}
