//! Choice between datagrams and a link, for each pair of addresses that a client uses.
//!
//! *Problem.* Some networks drop UDP, all of it or that to most ports, and say nothing. To a client such a network
//! looks like a dead one. A TCP connection to the same server tells the two apart: where it comes about while
//! datagrams stay unanswered, they are what is blocked.
//!
//! A route starts with datagrams. When one that wants an answer got none for a while, a link is opened beside, and
//! another datagram asks, since the first may have been lost by itself; if the link comes about and there is still no
//! answer, the route's flows go over to it. Silence alone moves nothing: where the
//! link is not answered either, the network is gone, and other paths are the remedy. While the route uses the link,
//! datagrams are tried at growing intervals. Several answers in a row bring it back, later each time it had to leave
//! again, so that a network that lets some UDP through does not make flows go back and forth. This is what RFC 8305
//! does for addresses, with a way back.
//!
//! A link that comes about may do so because its answer was quicker to give: a server, or this process, that has hardly
//! any processor time answers one before the other. So datagrams get as long again as the link took, before the route
//! goes over to it.
//!
//! A network may also let datagrams through and police them: `fallback/comparing.rs`.

mod comparing;

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use marline_time::{Duration, Instant};

use super::pace::Paces;
use crate::carrier::{FIRST_QUIET, FlowEnds};
pub use comparing::CarrierRates;
use comparing::{COMPARE, COMPARE_AFTER_NOTHING, Comparison, TRIAL};

/// Silence that is borne of a server that has not answered a datagram here yet, ...
const FIRST_PATIENCE: Duration = Duration::from_millis(500);
/// ... and of one that has.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// A link is opened for what was sent lately, not for what nobody waits for any more.
const INTEREST: Duration = Duration::from_secs(30);
/// First and longest pause after a link that did not come about.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Attempts without an answer after which a client that sends no datagrams tries less often: about five minutes.
const ALONE_IN_VAIN: u32 = 37;

/// Why a link did not come about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No answer came.
    Unanswered,
    /// The server's machine or this one refused it.
    Answered,
}

/// First and longest pause between tries of datagrams while a link is in use.
const PROBE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Answers in a row that bring a route back to datagrams.
const ANSWERS: u8 = 3;
/// A route stays on its link at least so long, doubled each time it came back in vain, up to the second.
const STAY: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(300));
/// Datagrams that worked so long after a return were no mistake.
const SETTLED: Duration = Duration::from_secs(120);
/// How long datagrams are given beside a link that has come about: as long again as it took, within these bounds.
const CONFIRM: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Routes remembered; the one used longest ago goes first.
const MOST_ROUTES: usize = 64;

/// When a client of the UDP carrier uses datagrams, and when links.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum UdpUse {
    /// Datagrams only.
    #[default]
    Always,
    /// Datagrams, and links where they get no answer.
    Preferred,
    /// Links only.
    Never,
}

/// What is to be done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Open a link.
    Open(FlowEnds),
    /// The flows between these addresses go by this link from now on.
    Use(FlowEnds, u16),
    /// The same for a few seconds, to compare it with datagrams.
    Compare(FlowEnds, u16),
    /// The link that was compared is faster: its flows stay.
    Keep(FlowEnds, CarrierRates),
    /// They go by datagrams again.
    Leave(FlowEnds, Leaving),
    /// This link is not needed (any more).
    Close(u16),
    /// Try a datagram, with an id that nobody has.
    Probe(FlowEnds),
}

/// Why flows leave a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Datagrams are answered.
    DatagramsWork,
    /// It has ended.
    LinkEnded,
    /// It was compared, and is not clearly faster.
    NotFaster,
    /// It is faster, and datagrams have their next chance.
    NextComparison,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Way {
    Datagrams,
    /// A link is being opened.
    Opening,
    /// This link has come about, and datagrams have until then to be answered.
    Confirming(u16, Instant),
    Link(u16),
}

#[derive(Clone, Debug)]
struct Route {
    way: Way,
    /// The oldest datagram that wants an answer, and the newest.
    asked: Option<(Instant, Instant)>,
    /// When a datagram was last answered here, if one ever was.
    heard_at: Option<Instant>,
    /// Datagrams got no answer here, and none since.
    suspect: bool,
    /// The network's refusal was not passed on.
    refused: bool,
    /// Links that did not come about, in a row.
    failures: u32,
    retry_at: Instant,
    /// When the route took its present way.
    since: Instant,
    /// Returns that turned out to be mistakes, in a row.
    mistakes: u32,
    probe: Probe,
    /// When the link that is being opened was asked for.
    asked_for_link_at: Instant,
    /// When the link stalled.
    stalled_at: Option<Instant>,
    comparison: Option<Comparison>,
    /// When the two may be compared next, and how often datagrams, or links, were found to be the better ones.
    compare_at: Instant,
    slower: u32,
    in_vain: u32,
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
            way: Way::Datagrams,
            asked: None,
            heard_at: None,
            suspect: false,
            refused: false,
            failures: 0,
            retry_at: now,
            since: now,
            mistakes: 0,
            probe: Probe::default(),
            asked_for_link_at: now,
            stalled_at: None,
            comparison: None,
            compare_at: now,
            slower: 0,
            in_vain: 0,
        }
    }

    /// When a link is to be opened, if nothing changes.
    fn open_at(&self, udp: UdpUse) -> Option<Instant> {
        let (since, latest) = self.asked.filter(|_| self.way == Way::Datagrams)?;
        let patience = match () {
            () if self.suspect || udp == UdpUse::Never => Duration::ZERO,
            () if self.heard_at.is_some() => PATIENCE,
            () => FIRST_PATIENCE,
        };
        let at = (since + patience).max(self.retry_at);
        (at <= latest + INTEREST).then_some(at)
    }

    fn take(&mut self, now: Instant, way: Way) {
        (self.way, self.since) = (way, now);
        self.asked = None;
    }
}

/// The pause after so many of something, from the first of a range to the second.
fn doubled((first, longest): (Duration, Duration), times: u32) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(longest)
}

/// The routes of a client.
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

    /// Whether datagrams may be sent at all.
    pub(crate) fn sends_datagrams(&self) -> bool {
        self.udp != UdpUse::Never
    }

    /// Whether there may be links at all.
    pub(crate) fn uses_links(&self) -> bool {
        self.udp != UdpUse::Always
    }

    /// A datagram that wants an answer is sent.
    pub(crate) fn sent(&mut self, now: Instant, ends: FlowEnds) {
        if !self.uses_links() {
            return;
        }
        self.make_room(&ends);
        let route = self.routes.entry(ends).or_insert_with(|| Route::new(now));
        let first = route.asked.map_or(now, |(first, _)| first);
        route.asked = Some((first, now));
    }

    /// Whether to ask the server for a sign of life as a flow is quiet: nothing came for any other for as long, which
    /// would say that datagrams get through, and nothing that wants an answer is on its way. Asked for each flow, a
    /// server with thousands of them would owe more answers than it gives in a second.
    pub(crate) fn is_quiet(&self, now: Instant, ends: &FlowEnds) -> bool {
        let Some(route) = self.routes.get(ends) else { return true };
        route.asked.is_none() && route.heard_at.is_none_or(|at| at + FIRST_QUIET <= now)
    }

    /// A datagram came.
    pub(crate) fn heard(&mut self, now: Instant, ends: FlowEnds) {
        let Some(route) = self.routes.get_mut(&ends) else { return };
        route.heard_at = Some(now);
        match route.way {
            Way::Link(_) => return,
            Way::Confirming(link, _) => {
                route.way = Way::Datagrams;
                self.orders.push_back(Order::Close(link));
            }
            Way::Datagrams | Way::Opening => {}
        }
        (route.asked, route.suspect) = (None, false);
    }

    /// The network, or this machine, says that it lets no datagram through. `true`: a link is tried in their place,
    /// so nobody needs to give up yet.
    pub(crate) fn refused(&mut self, now: Instant, ends: FlowEnds) -> bool {
        let Some(route) = self.routes.get_mut(&ends) else { return false };
        match route.way {
            Way::Link(_) => true,
            Way::Opening | Way::Confirming(..) => {
                route.refused = true;
                true
            }
            Way::Datagrams if route.failures > 0 => false,
            Way::Datagrams => {
                (route.suspect, route.refused) = (true, true);
                route.asked.get_or_insert((now, now));
                true
            }
        }
    }

    /// A link has come about.
    pub(crate) fn opened(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let wanted = |route: &&mut Route| route.way == Way::Opening;
        let Some(route) = self.routes.get_mut(&ends).filter(wanted) else {
            self.orders.push_back(Order::Close(link));
            return;
        };
        (route.failures, route.refused) = (0, false);
        if let Some(Comparison::Running { datagrams, .. }) = route.comparison {
            route.take(now, Way::Link(link));
            let measured_at = Some(now + TRIAL);
            route.comparison = Some(Comparison::Running { datagrams, measured_at });
            self.paces.begin_trial(now, ends);
            route.probe = Probe::default();
            self.orders.push_back(Order::Compare(ends, link));
            return;
        }
        if route.asked.is_none() {
            // A datagram was answered meanwhile.
            route.way = Way::Datagrams;
            self.orders.push_back(Order::Close(link));
            return;
        }
        if self.udp == UdpUse::Preferred && !route.suspect {
            let took = now.since(route.asked_for_link_at);
            route.way = Way::Confirming(link, now + took.clamp(CONFIRM.0, CONFIRM.1));
            self.orders.push_back(Order::Probe(ends));
            return;
        }
        self.go_over(now, ends, link);
    }

    /// The route's flows go by this link from now on, as datagrams get no answer.
    fn go_over(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let Some(route) = self.routes.get_mut(&ends) else { return };
        let mistake = route.mistakes > 0 && now < route.since + SETTLED;
        route.mistakes = if mistake { route.mistakes } else { 0 };
        route.take(now, Way::Link(link));
        route.suspect = true;
        let at = (self.udp == UdpUse::Preferred).then_some(now + PROBE.0);
        route.probe = Probe { at, pause: PROBE.0, ..Probe::default() };
        self.orders.push_back(Order::Use(ends, link));
    }

    /// A link has not come about. `true`: it was the first try, so that it is news.
    pub(crate) fn not_opened(&mut self, now: Instant, ends: FlowEnds, failure: Failure) -> bool {
        let sends_datagrams = self.sends_datagrams();
        let Some(route) = self.routes.get_mut(&ends) else { return false };
        if route.way == Way::Opening {
            route.way = Way::Datagrams;
        }
        if route.comparison.take().is_some() {
            route.compare_at = now + doubled(COMPARE, route.in_vain);
            route.in_vain = route.in_vain.saturating_add(1);
            return false;
        }
        // Nothing else notices that the path is back: datagrams are not sent, or were not answered when it was there.
        let is_alone = !sends_datagrams || route.suspect;
        route.retry_at = match failure {
            // The kernel's SYNs leave at this pace, too.
            Failure::Unanswered if is_alone && route.failures < ALONE_IN_VAIN => {
                now.max(route.asked_for_link_at + RETRY.0)
            }
            Failure::Unanswered | Failure::Answered => now + doubled(RETRY, route.failures),
        };
        route.failures = route.failures.saturating_add(1);
        route.failures == 1
    }

    /// Whether a refusal was not passed on since this was last asked.
    pub(crate) fn take_refusal(&mut self, ends: &FlowEnds) -> bool {
        self.routes.get_mut(ends).is_some_and(|route| core::mem::take(&mut route.refused))
    }

    /// The link that is in use has stalled, and ends.
    pub(crate) fn stalled(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let used = |route: &&mut Route| route.way == Way::Link(link);
        if let Some(route) = self.routes.get_mut(&ends).filter(used) {
            route.stalled_at = Some(now);
        }
    }

    /// Whether the link before the one that is opened stalled, a moment ago.
    pub(crate) fn take_stall(&mut self, now: Instant, ends: &FlowEnds) -> bool {
        let stalled_at = self.routes.get_mut(ends).and_then(|route| route.stalled_at.take());
        stalled_at.is_some_and(|at| now.since(at) < RETRY.0)
    }

    /// A link has ended. Where it was in use, flows go by datagrams until there is another one.
    pub(crate) fn closed(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        let Some(route) = self.routes.get_mut(&ends) else { return };
        match route.way {
            Way::Link(used) if used == link => {
                if route.comparison.take().is_some() {
                    route.compare_at = now + COMPARE_AFTER_NOTHING;
                }
                route.take(now, Way::Datagrams);
                self.orders.push_back(Order::Leave(ends, Leaving::LinkEnded));
            }
            Way::Confirming(known, _) if known == link => route.way = Way::Datagrams,
            _ => {}
        }
    }

    /// The probe that carried this id was answered.
    pub(crate) fn answered(&mut self, now: Instant, ends: FlowEnds, id: u64) {
        let udp = self.udp;
        let Some(route) = self.routes.get_mut(&ends) else { return };
        let Way::Link(link) = route.way else { return };
        if route.probe.id.take_if(|asked| *asked == id).is_none() || udp != UdpUse::Preferred {
            return;
        }
        route.probe.answers = route.probe.answers.saturating_add(1);
        route.probe.pause = PROBE.0;
        route.probe.at = Some(now + PROBE.0);
        if route.probe.answers < ANSWERS || now < route.since + doubled(STAY, route.mistakes) {
            return;
        }
        route.take(now, Way::Datagrams);
        (route.suspect, route.heard_at) = (false, Some(now));
        route.mistakes = route.mistakes.saturating_add(1);
        self.orders.push_back(Order::Leave(ends, Leaving::DatagramsWork));
        self.orders.push_back(Order::Close(link));
    }

    /// This id goes out in the probe that was ordered.
    pub(crate) fn probes(&mut self, ends: FlowEnds, id: u64) {
        if let Some(route) = self.routes.get_mut(&ends) {
            route.probe.id = Some(id);
        }
    }

    /// Whether there is such a route.
    pub(crate) fn knows(&self, ends: &FlowEnds) -> bool {
        self.routes.contains_key(ends)
    }

    /// Whether flows between these addresses use a link.
    pub(crate) fn is_by_link(&self, ends: &FlowEnds) -> bool {
        self.routes.get(ends).is_some_and(|route| matches!(route.way, Way::Link(_)))
    }

    /// Those that use a link, and not only to compare it.
    pub(crate) fn by_link(&self) -> Vec<FlowEnds> {
        let compared = |route: &Route| matches!(route.comparison, Some(Comparison::Running { .. }));
        let linked = |route: &Route| matches!(route.way, Way::Link(_)) && !compared(route);
        let linked = self.routes.iter().filter(|(_, route)| linked(route));
        linked.map(|(ends, _)| *ends).collect()
    }

    /// The local address is gone.
    pub(crate) fn forget(&mut self, local: IpAddr) {
        for (_, route) in self.routes.extract_if(.., |ends, _| ends.0 == local) {
            if let Way::Link(link) | Way::Confirming(link, _) = route.way {
                self.orders.push_back(Order::Close(link));
            }
        }
    }

    /// When [`on_timeout`](Self::on_timeout) is to be called.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.routes.values().filter_map(|route| self.due(route)).min()
    }

    fn due(&self, route: &Route) -> Option<Instant> {
        match route.way {
            Way::Datagrams => route.open_at(self.udp),
            Way::Opening => None,
            Way::Confirming(_, until) => Some(until),
            Way::Link(_) => match route.comparison {
                Some(Comparison::Running { measured_at, .. }) => measured_at,
                Some(Comparison::Faster { until, .. }) => Some(until),
                None => route.probe.at,
            },
        }
    }

    /// Early or late calls are harmless.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        let due =
            self.routes.iter().filter(|(_, route)| self.due(route).is_some_and(|at| at <= now));
        let due: Vec<(FlowEnds, Way)> = due.map(|(ends, route)| (*ends, route.way)).collect();
        for (ends, way) in due {
            match way {
                Way::Confirming(link, _) => self.go_over(now, ends, link),
                Way::Link(_) => self.on_comparison_due(now, ends),
                Way::Datagrams | Way::Opening => {}
            }
        }
        for (ends, route) in &mut self.routes {
            match route.way {
                Way::Datagrams if route.open_at(self.udp).is_some_and(|at| at <= now) => {
                    (route.way, route.asked_for_link_at) = (Way::Opening, now);
                    self.orders.push_back(Order::Open(*ends));
                    if self.udp == UdpUse::Preferred {
                        self.orders.push_back(Order::Probe(*ends));
                    }
                }
                Way::Link(_)
                    if route.comparison.is_none() && route.probe.at.is_some_and(|at| at <= now) =>
                {
                    let probe = &mut route.probe;
                    if probe.id.is_some() {
                        probe.answers = 0;
                        probe.pause = probe.pause.saturating_mul(2).min(PROBE.1);
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
        if self.routes.len() < MOST_ROUTES || self.routes.contains_key(ends) {
            return;
        }
        let used = |route: &Route| route.asked.map_or(route.since, |(_, latest)| latest);
        let idle = self.routes.iter().filter(|(_, route)| route.way == Way::Datagrams);
        if let Some(oldest) = idle.min_by_key(|(_, route)| used(route)).map(|(ends, _)| *ends) {
            self.routes.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
