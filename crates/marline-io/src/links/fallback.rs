//! Choice between datagrams and a link, for each address pair that a client uses.
//!
//! *Problem.* Some networks silently drop UDP, either all of it or to most ports. To a client, such a network looks
//! like one that has failed. A TCP connection to the same server distinguishes the two: if it is established while
//! datagrams remain unanswered, the network blocks datagrams.
//!
//! A route starts with datagrams. When one that elicits an answer gets none for some time, a link is opened in
//! parallel, and another datagram is sent, because the first may have been lost by chance. If the link is established
//! and there is still no answer, the route's flows move to the link. Silence alone moves nothing: if the link attempt
//! is not answered either, the network has failed, and other paths are used. While the route uses the link, datagrams
//! are tried at growing intervals. Several consecutive answers bring the route back. After each mistaken return, the
//! next one is later, so that a network that passes only some UDP does not move flows back and forth. RFC 8305 does the
//! same for addresses, without the return.
//!
//! A link may be established only because its answer was faster: if the server or this process is short of processor
//! time, one answer comes before the other. So the route moves only after datagrams have had as much additional time as
//! it took to establish the link.
//!
//! A network may also pass datagrams but limit their rate: see `fallback/comparing.rs`.

mod comparing;

use core::net::IpAddr;
use core::ops::RangeInclusive;
use std::collections::{BTreeMap, VecDeque};

use marline_time::{Duration, Instant};

use super::pace::Paces;
use crate::carrier::{FIRST_QUIET, FlowEnds};
pub use comparing::CarrierRates;
use comparing::{COMPARISON_DELAYS, Comparison, INCONCLUSIVE_RETRY_DELAY, TRIAL_DURATION};

/// Time to wait for an answer from a server that has not yet answered a datagram on this route.
const INITIAL_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Time to wait for an answer from a server that has answered a datagram on this route.
const ANSWERED_TIMEOUT: Duration = Duration::from_millis(1_500);
/// A link is opened only if a datagram was sent within this time.
const RECENT_SEND_TIME: Duration = Duration::from_secs(30);
/// First and longest delay after a failed link attempt.
const RETRY_DELAYS: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
/// Number of unanswered attempts, taking about five minutes, after which a client that sends no datagrams tries less
/// often.
const MAX_LINK_ONLY_ATTEMPTS: u32 = 37;

/// Reason why a link was not established.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There was no answer.
    Unanswered,
    /// The server's machine or this machine refused the connection.
    Answered,
}

/// First and longest interval between probe datagrams while a link is in use.
const PROBE_INTERVALS: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
/// Number of consecutive answers that bring a route back to datagrams.
const ANSWERS_TO_RETURN: u8 = 3;
/// Minimum time that a route stays on its link: the first value, doubled after each mistaken return, up to the
/// second.
const MIN_STAY: Backoff =
    Backoff { first: Duration::from_secs(3), longest: Duration::from_secs(300) };
/// Time after which a return to datagrams no longer counts as mistaken.
const SETTLED_AFTER: Duration = Duration::from_secs(120);
/// Bounds on the additional time that datagrams have to be answered after a link is established. Normally as long as
/// establishing the link took.
const CONFIRMATION_TIME: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(2);
/// Maximum number of routes; the least recently used one is dropped.
const MAX_ROUTES: usize = 64;

/// Use of datagrams and links by a client of the UDP carrier.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum UdpUse {
    /// Datagrams only.
    #[default]
    Always,
    /// Datagrams, and links if they get no answer.
    Preferred,
    /// Links only.
    Never,
}

/// Action for the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Open a link.
    Open(FlowEnds),
    /// Move the flows between these addresses to this link.
    Use(FlowEnds, u16),
    /// Move these flows for a few seconds, to compare the link with datagrams.
    Compare(FlowEnds, u16),
    /// Keep the flows on the compared link, which is faster.
    Keep(FlowEnds, CarrierRates),
    /// Move the flows back to datagrams.
    Leave(FlowEnds, LeaveReason),
    /// Close this link, which is not needed.
    Close(u16),
    /// Send a probe datagram with an id that does not exist.
    Probe(FlowEnds),
}

/// Reason why flows leave a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    /// Datagrams are answered.
    DatagramsWork,
    /// The link has ended.
    LinkEnded,
    /// The comparison has shown that the link is not clearly faster.
    NotFaster,
    /// The link is faster, and datagrams are due for the next comparison.
    NextComparison,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum TransportChoice {
    Datagrams,
    /// A link is being opened.
    Opening,
    /// This link was established; unless datagrams are answered before this time, the route moves.
    Confirming(u16, Instant),
    Link(u16),
}

#[derive(Clone, Debug)]
struct Route {
    way: TransportChoice,
    /// Send times of the oldest and the newest unanswered datagram.
    asked: Option<(Instant, Instant)>,
    /// Time of the last answer to a datagram on this route.
    heard_at: Option<Instant>,
    /// True if datagrams on this route went unanswered, and none has been answered since.
    is_suspected: bool,
    /// True if a network error was withheld.
    refused: bool,
    /// Number of consecutive failed link attempts.
    failures: u32,
    retry_at: Instant,
    /// Time at which the route moved to its current carrier.
    since: Instant,
    /// Number of consecutive mistaken returns to datagrams.
    mistakes: u32,
    probe: Probe,
    /// Time at which the pending link was requested.
    link_requested_at: Instant,
    /// Time at which the link stalled.
    stalled_at: Option<Instant>,
    comparison: Option<Comparison>,
    /// Time of the next possible comparison, and the number of comparisons in which datagrams were slower (`slower`) or
    /// the link was not faster (`failed_attempts`).
    compare_at: Instant,
    slower: u32,
    failed_attempts: u32,
}

#[derive(Copy, Clone, Debug, Default)]
struct Probe {
    at: Option<Instant>,
    pause: Duration,
    id: Option<u64>,
    answers: u8,
}

impl Route {
    fn new(now: Instant) -> Self {
        Route {
            way: TransportChoice::Datagrams,
            asked: None,
            heard_at: None,
            is_suspected: false,
            refused: false,
            failures: 0,
            retry_at: now,
            since: now,
            mistakes: 0,
            probe: Probe::default(),
            link_requested_at: now,
            stalled_at: None,
            comparison: None,
            compare_at: now,
            slower: 0,
            failed_attempts: 0,
        }
    }

    /// Returns the time at which a link will be opened if nothing changes.
    fn open_at(&self, udp: UdpUse) -> Option<Instant> {
        let (since, latest) = self.asked.filter(|_| self.way == TransportChoice::Datagrams)?;
        let patience = match () {
            () if self.is_suspected || udp == UdpUse::Never => Duration::ZERO,
            () if self.heard_at.is_some() => ANSWERED_TIMEOUT,
            () => INITIAL_ANSWER_TIMEOUT,
        };
        let at = (since + patience).max(self.retry_at);
        (at <= latest + RECENT_SEND_TIME).then_some(at)
    }

    fn choose_transport(&mut self, now: Instant, way: TransportChoice) {
        (self.way, self.since) = (way, now);
        self.asked = None;
    }
}

/// Delay that doubles after each failure.
#[derive(Copy, Clone, Debug)]
struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Returns the first delay, doubled `times` times.
    fn delay_after(self, times: u32) -> Duration {
        self.first.saturating_mul(1 << times.min(16)).min(self.longest)
    }
}

/// Routes of a client.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    udp: UdpUse,
    routes: BTreeMap<FlowEnds, Route>,
    orders: VecDeque<Order>,
    paces: Paces,
}

impl Routes {
    pub(crate) fn new(udp: UdpUse) -> Self {
        Routes { udp, ..Routes::default() }
    }

    /// Returns true if datagrams may be sent at all.
    pub(crate) fn sends_datagrams(&self) -> bool {
        self.udp != UdpUse::Never
    }

    /// Returns true if links may be used at all.
    pub(crate) fn uses_links(&self) -> bool {
        self.udp != UdpUse::Always
    }

    /// Records a datagram that elicits an answer.
    pub(crate) fn sent(&mut self, now: Instant, ends: FlowEnds) {
        if !self.uses_links() {
            return;
        }
        self.make_room(&ends);
        let route = self.routes.entry(ends).or_insert_with(|| Route::new(now));
        let first = route.asked.map_or(now, |(first, _)| first);
        route.asked = Some((first, now));
    }

    /// Returns true if the server should be probed because a flow is quiet. This requires that no other flow has
    /// received anything for as long, which would show that datagrams pass, and that no answer is pending. One probe
    /// per flow could require more answers than a server may send per second.
    pub(crate) fn is_quiet(&self, now: Instant, ends: &FlowEnds) -> bool {
        let Some(route) = self.routes.get(ends) else { return true };
        route.asked.is_none() && route.heard_at.is_none_or(|at| at + FIRST_QUIET <= now)
    }

    /// Records an incoming datagram.
    pub(crate) fn on_udp_received(&mut self, now: Instant, ends: FlowEnds) {
        let Some(route) = self.routes.get_mut(&ends) else { return };
        route.heard_at = Some(now);
        match route.way {
            TransportChoice::Link(_) => return,
            TransportChoice::Confirming(link, _) => {
                route.way = TransportChoice::Datagrams;
                self.orders.push_back(Order::Close(link));
            }
            TransportChoice::Datagrams | TransportChoice::Opening => {}
        }
        (route.asked, route.is_suspected) = (None, false);
    }

    /// Handles an error that the network or this machine reported for datagrams. Returns true if a link is tried first
    /// and the error must be withheld.
    pub(crate) fn refused(&mut self, now: Instant, ends: FlowEnds) -> bool {
        let Some(route) = self.routes.get_mut(&ends) else { return false };
        match route.way {
            TransportChoice::Link(_) => true,
            TransportChoice::Opening | TransportChoice::Confirming(..) => {
                route.refused = true;
                true
            }
            TransportChoice::Datagrams if route.failures > 0 => false,
            TransportChoice::Datagrams => {
                (route.is_suspected, route.refused) = (true, true);
                route.asked.get_or_insert((now, now));
                true
            }
        }
    }

    /// Handles an established link.
    pub(crate) fn on_link_opened(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let wanted = |route: &&mut Route| route.way == TransportChoice::Opening;
        let Some(route) = self.routes.get_mut(&ends).filter(wanted) else {
            self.orders.push_back(Order::Close(link));
            return;
        };
        (route.failures, route.refused) = (0, false);
        if let Some(Comparison::Running { datagrams, .. }) = route.comparison {
            route.choose_transport(now, TransportChoice::Link(link));
            let measured_at = Some(now + TRIAL_DURATION);
            route.comparison = Some(Comparison::Running { datagrams, measured_at });
            self.paces.begin_trial(now, ends);
            route.probe = Probe::default();
            self.orders.push_back(Order::Compare(ends, link));
            return;
        }
        if route.asked.is_none() {
            // A datagram was answered in the meantime.
            route.way = TransportChoice::Datagrams;
            self.orders.push_back(Order::Close(link));
            return;
        }
        if self.udp == UdpUse::Preferred && !route.is_suspected {
            let took = now.since(route.link_requested_at);
            route.way = TransportChoice::Confirming(
                link,
                now + took.clamp(*CONFIRMATION_TIME.start(), *CONFIRMATION_TIME.end()),
            );
            self.orders.push_back(Order::Probe(ends));
            return;
        }
        self.move_route_to_link(now, ends, link);
    }

    /// Moves the route's flows to this link because datagrams are not answered.
    fn move_route_to_link(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let Some(route) = self.routes.get_mut(&ends) else { return };
        let mistake = route.mistakes > 0 && now < route.since + SETTLED_AFTER;
        route.mistakes = if mistake { route.mistakes } else { 0 };
        route.choose_transport(now, TransportChoice::Link(link));
        route.is_suspected = true;
        let at = (self.udp == UdpUse::Preferred).then_some(now + PROBE_INTERVALS.first);
        route.probe = Probe { at, pause: PROBE_INTERVALS.first, ..Probe::default() };
        self.orders.push_back(Order::Use(ends, link));
    }

    /// Handles a failed link attempt. Returns true for the first failure, which should be logged.
    pub(crate) fn on_link_failure(
        &mut self,
        now: Instant,
        ends: FlowEnds,
        failure: Failure,
    ) -> bool {
        let sends_datagrams = self.sends_datagrams();
        let Some(route) = self.routes.get_mut(&ends) else { return false };
        if route.way == TransportChoice::Opening {
            route.way = TransportChoice::Datagrams;
        }
        if route.comparison.take().is_some() {
            route.compare_at = now + COMPARISON_DELAYS.delay_after(route.failed_attempts);
            route.failed_attempts = route.failed_attempts.saturating_add(1);
            return false;
        }
        // Only a link attempt can detect that the path works again: datagrams are not sent, or were not answered
        // earlier.
        let is_alone = !sends_datagrams || route.is_suspected;
        route.retry_at = match failure {
            // The kernel retransmits SYNs at the same interval.
            Failure::Unanswered if is_alone && route.failures < MAX_LINK_ONLY_ATTEMPTS => {
                now.max(route.link_requested_at + RETRY_DELAYS.first)
            }
            Failure::Unanswered | Failure::Answered => {
                now + RETRY_DELAYS.delay_after(route.failures)
            }
        };
        route.failures = route.failures.saturating_add(1);
        route.failures == 1
    }

    /// Returns true if a network error was withheld since the last call.
    pub(crate) fn take_held_error(&mut self, ends: &FlowEnds) -> bool {
        self.routes.get_mut(ends).is_some_and(|route| core::mem::take(&mut route.refused))
    }

    /// Records that the link in use has stalled and is being closed.
    pub(crate) fn on_stalled(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let used = |route: &&mut Route| route.way == TransportChoice::Link(link);
        if let Some(route) = self.routes.get_mut(&ends).filter(used) {
            route.stalled_at = Some(now);
        }
    }

    /// Returns true if the previous link has just stalled.
    pub(crate) fn take_stall(&mut self, now: Instant, ends: &FlowEnds) -> bool {
        let stalled_at = self.routes.get_mut(ends).and_then(|route| route.stalled_at.take());
        stalled_at.is_some_and(|at| now.since(at) < RETRY_DELAYS.first)
    }

    /// Handles the end of a link. If it was in use, flows use datagrams until another link is established.
    pub(crate) fn on_link_closed(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let Some(route) = self.routes.get_mut(&ends) else { return };
        match route.way {
            TransportChoice::Link(used) if used == link => {
                if route.comparison.take().is_some() {
                    route.compare_at = now + INCONCLUSIVE_RETRY_DELAY;
                }
                route.choose_transport(now, TransportChoice::Datagrams);
                self.orders.push_back(Order::Leave(ends, LeaveReason::LinkEnded));
            }
            TransportChoice::Confirming(known, _) if known == link => {
                route.way = TransportChoice::Datagrams
            }
            _ => {}
        }
    }

    /// Handles the answer to the probe with this id.
    pub(crate) fn on_link_answer(&mut self, now: Instant, ends: FlowEnds, id: u64) {
        let udp = self.udp;
        let Some(route) = self.routes.get_mut(&ends) else { return };
        let TransportChoice::Link(link) = route.way else { return };
        if route.probe.id.take_if(|asked| *asked == id).is_none() || udp != UdpUse::Preferred {
            return;
        }
        route.probe.answers = route.probe.answers.saturating_add(1);
        route.probe.pause = PROBE_INTERVALS.first;
        route.probe.at = Some(now + PROBE_INTERVALS.first);
        if route.probe.answers < ANSWERS_TO_RETURN
            || now < route.since + MIN_STAY.delay_after(route.mistakes)
        {
            return;
        }
        route.choose_transport(now, TransportChoice::Datagrams);
        (route.is_suspected, route.heard_at) = (false, Some(now));
        route.mistakes = route.mistakes.saturating_add(1);
        self.orders.push_back(Order::Leave(ends, LeaveReason::DatagramsWork));
        self.orders.push_back(Order::Close(link));
    }

    /// Sets the id of the probe that was ordered.
    pub(crate) fn probes(&mut self, ends: FlowEnds, id: u64) {
        if let Some(route) = self.routes.get_mut(&ends) {
            route.probe.id = Some(id);
        }
    }

    /// Returns true if this route is known.
    pub(crate) fn is_tracked(&self, ends: &FlowEnds) -> bool {
        self.routes.contains_key(ends)
    }

    /// Returns true if flows between these addresses use a link.
    pub(crate) fn uses_link(&self, ends: &FlowEnds) -> bool {
        self.routes.get(ends).is_some_and(|route| matches!(route.way, TransportChoice::Link(_)))
    }

    /// Returns the routes that use a link, except for a comparison.
    pub(crate) fn flows_on_links(&self) -> Vec<FlowEnds> {
        let compared = |route: &Route| matches!(route.comparison, Some(Comparison::Running { .. }));
        let linked =
            |route: &Route| matches!(route.way, TransportChoice::Link(_)) && !compared(route);
        let linked = self.routes.iter().filter(|(_, route)| linked(route));
        linked.map(|(ends, _)| *ends).collect()
    }

    /// Drops the routes of a local address that is gone.
    pub(crate) fn forget(&mut self, local: IpAddr) {
        for (_, route) in self.routes.extract_if(.., |ends, _| ends.local == local) {
            if let TransportChoice::Link(link) | TransportChoice::Confirming(link, _) = route.way {
                self.orders.push_back(Order::Close(link));
            }
        }
    }

    /// Returns the time at which [`on_timeout`](Self::on_timeout) must be called.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.routes.values().filter_map(|route| self.due_at(route)).min()
    }

    fn due_at(&self, route: &Route) -> Option<Instant> {
        match route.way {
            TransportChoice::Datagrams => route.open_at(self.udp),
            TransportChoice::Opening => None,
            TransportChoice::Confirming(_, until) => Some(until),
            TransportChoice::Link(_) => match route.comparison {
                Some(Comparison::Running { measured_at, .. }) => measured_at,
                Some(Comparison::Faster { until, .. }) => Some(until),
                None => route.probe.at,
            },
        }
    }

    /// Handles due timers. Early or late calls are harmless.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        let due =
            self.routes.iter().filter(|(_, route)| self.due_at(route).is_some_and(|at| at <= now));
        let due: Vec<(FlowEnds, TransportChoice)> =
            due.map(|(ends, route)| (*ends, route.way)).collect();
        for (ends, way) in due {
            match way {
                TransportChoice::Confirming(link, _) => self.move_route_to_link(now, ends, link),
                TransportChoice::Link(_) => self.on_comparison_due(now, ends),
                TransportChoice::Datagrams | TransportChoice::Opening => {}
            }
        }
        for (ends, route) in &mut self.routes {
            match route.way {
                TransportChoice::Datagrams
                    if route.open_at(self.udp).is_some_and(|at| at <= now) =>
                {
                    (route.way, route.link_requested_at) = (TransportChoice::Opening, now);
                    self.orders.push_back(Order::Open(*ends));
                    if self.udp == UdpUse::Preferred {
                        self.orders.push_back(Order::Probe(*ends));
                    }
                }
                TransportChoice::Link(_)
                    if route.comparison.is_none() && route.probe.at.is_some_and(|at| at <= now) =>
                {
                    let probe = &mut route.probe;
                    if probe.id.is_some() {
                        probe.answers = 0;
                        probe.pause = probe.pause.saturating_mul(2).min(PROBE_INTERVALS.longest);
                    }
                    probe.at = Some(now + probe.pause);
                    self.orders.push_back(Order::Probe(*ends));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    fn make_room(&mut self, ends: &FlowEnds) {
        if self.routes.len() < MAX_ROUTES || self.routes.contains_key(ends) {
            return;
        }
        let used = |route: &Route| route.asked.map_or(route.since, |(_, latest)| latest);
        let idle = self.routes.iter().filter(|(_, route)| route.way == TransportChoice::Datagrams);
        if let Some(oldest) = idle.min_by_key(|(_, route)| used(route)).map(|(ends, _)| *ends) {
            self.routes.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
