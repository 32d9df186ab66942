//! PAPD scheduler: measures whether using several paths is worthwhile; if not, uses only the best one.
//!
//! *Problem.* With a buffer B and paths of unequal RTT, a connection that spreads its data gets at most B / RTT_max,
//! because data on the slow path blocks everything else. If B is smaller than RTT_max times the best path's rate, the
//! best path alone is faster. Opportunistic retransmission and penalization react only after blocking, and then
//! continue spreading.
//!
//! *How.* There are two modes. In the *redundant* mode, all paths carry the same data, so each path's rate is measured
//! while the connection runs at the best path's rate. In the *multipath* mode, a scheduler spreads the data. A
//! connection starts redundant, because nothing is known about the paths, until each has found its rate. After that,
//! the mode that delivered more in its last windows is used, and the other one is measured for a share of the time
//! (`papd/modes.rs`). Within the redundant mode, the best path, once found, can carry the data alone. The others get
//! copies again in the first window of each period, and whenever the best one delivers less than expected.
//!
//! `measure=in-turn` finds the best path with the other method that the slides name: one path after another carries all
//! data alone for a window, and the amount that it delivers is its rate. This requires neither copies nor rate
//! estimates. But each window on a poor path runs at that path's rate, which is the slides' objection. The start is
//! unchanged.
//!
//! *Source.* Zuo et al., "A Proactive Approach to Avoid Performance Degradation of MPTCP", IETF 100 (2017), slides to
//! draft-zuo-mptcp-degradation-00. They name the rule, the two stages, and BBR on each subflow, which makes rates
//! measurable despite losses.
//!
//! *The rule* saves measurements (`rule`). While the buffer divided by the longest RTT is less than the rate of the
//! redundant mode, spreading cannot win and is not tried. Spreading ends as soon as it delivers less in a window than
//! the best path alone would.
//!
//! *Left open in the slides, chosen here.* Window, period and hysteresis (`PapdConfig`; the 10 % of the time for the
//! losing mode follow from the published throughputs). The start ends when each path's congestion control has left slow
//! start, or after a number of RTTs. A path is rated by its delivery rate, but at most by the buffer divided by its
//! RTT, because otherwise a long path of equal rate would be chosen to carry more data alone than it can.
//!
//! *In addition*, windows in which the application had little to send do not count, so interactive connections stay
//! redundant, which is best for their latency.

mod modes;

use marline_algos::schedulers::{MinRtt, Redundant, classes};
use marline_policy::{
    Decision, Dsn, Reinjection, Scheduler, SchedulerAction, SchedulerContext, SchedulerEvent,
    SubflowId, SubflowView,
};
use marline_time::{Duration, Instant, Rate};

use modes::{Mode, ModeInput, Modes};

/// Method of measuring paths in the redundant mode.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MeasurementMethod {
    /// All paths carry all data at the same time.
    AtOnce,
    /// One path after another carries all data alone.
    InTurn,
}

/// Parameters of PAPD.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PapdConfig {
    /// Length of a measurement window, in multiples of the longest RTT in use.
    pub window_rtts: f64,
    /// Minimum length of a window.
    pub min_window: Duration,
    /// Maximum length of a window.
    pub max_window: Duration,
    /// Share of the time that is given to the losing mode: more than 0, at most 1/2.
    pub share: f64,
    /// Initial part of a window that does not count, in multiples of the longest RTT.
    pub discard_rtts: f64,
    /// Share by which the other mode must be better to win.
    pub hysteresis: f64,
    /// Maximum length of the start, in multiples of the longest RTT.
    pub start_rtts: u32,
    /// True if, in the redundant mode, the best path carries the data alone outside of measurements.
    pub best_path_only: bool,
    /// Method of finding the best path.
    pub measure: MeasurementMethod,
    /// True if predictable outcomes are not measured: the multipath mode is not tried while the buffer divided by the
    /// longest RTT is less than the rate of the redundant mode, and ends as soon as it delivers less in a window than
    /// the best path alone would.
    pub by_rule: bool,
}

impl Default for PapdConfig {
    fn default() -> Self {
        PapdConfig {
            window_rtts: 4.0,
            min_window: Duration::from_millis(200),
            max_window: Duration::from_secs(2),
            share: 0.1,
            discard_rtts: 1.0,
            hysteresis: 0.05,
            start_rtts: 20,
            best_path_only: true,
            measure: MeasurementMethod::AtOnce,
            by_rule: true,
        }
    }
}

impl PapdConfig {
    fn window(&self, longest_rtt: Duration) -> Duration {
        longest_rtt.mul_f64(self.window_rtts).clamp(self.min_window, self.max_window)
    }
}

/// Share of its expected rate below which the best path causes the others to be measured again.
const MIN_RATE_SHARE: f64 = 0.75;

/// Paths that carry the data in the redundant mode.
#[derive(Copy, Clone, Debug)]
enum Carriers {
    /// All paths.
    All,
    /// One path, whose rate is being measured.
    Turn { path: SubflowId },
    /// The best path, expected to deliver `rate` bytes per second.
    Best { path: SubflowId, rate: f64 },
}

/// Window in the redundant mode, after which the carriers are chosen.
#[derive(Copy, Clone, Debug)]
struct MeasurementWindow {
    since: Instant,
    delivered: Dsn,
    /// True if not yet started: earlier data may have been sent on another path and does not count.
    pending: bool,
    /// True if the application had too little to send at some time in the window.
    is_void: bool,
}

/// Scheduler that sends redundantly or spreads data, depending on which delivers more.
#[derive(Debug)]
pub struct Papd {
    config: PapdConfig,
    modes: Modes,
    carriers: Carriers,
    measurement: Option<MeasurementWindow>,
    /// Rate that each path reached during its turn, in bytes per second.
    turns: Vec<(SubflowId, f64)>,
    redundant: Redundant,
    multipath: Box<dyn Scheduler>,
    /// Views for one decision, excluding paths that carry no data now.
    views: Vec<SubflowView>,
}

impl Papd {
    /// Creates a scheduler with `min-rtt` as the multipath mode.
    #[must_use]
    pub fn new(config: PapdConfig) -> Self {
        Self::wrap(Box::<MinRtt>::default(), config)
    }

    /// Creates a scheduler that uses `multipath` as its multipath mode.
    #[must_use]
    pub fn wrap(multipath: Box<dyn Scheduler>, config: PapdConfig) -> Self {
        Papd {
            config,
            modes: Modes::new(config),
            carriers: Carriers::All,
            measurement: None,
            turns: Vec::new(),
            redundant: Redundant::default(),
            multipath,
            views: Vec::new(),
        }
    }

    fn read(&mut self, cx: &SchedulerContext<'_>) {
        let Some(class) = classes::best_class(cx.subflows) else { return };
        let members = || classes::members(cx.subflows, class);
        let longest_rtt = members().filter_map(|view| view.srtt).max().unwrap_or_default();
        let (spread_limit, alone) = match self.config.by_rule {
            true => (
                Rate::over(buffer(cx), longest_rtt).bytes_per_s() as f64,
                best_path(cx).map_or(0.0, |(_, rate)| rate),
            ),
            false => (f64::INFINITY, 0.0),
        };
        let reading = ModeInput {
            now: cx.now,
            data_una: cx.data_una,
            longest_rtt,
            spread_limit,
            single_path_rate: alone,
            rates_are_known: members().all(|view| view.ssthresh != u64::MAX),
            is_void: members().nth(1).is_none() || is_application_slow(cx),
        };
        // With a single path, there is nothing to compare.
        if members().nth(1).is_none() && !self.modes.has_started() {
            return;
        }
        let changed = self.modes.on_reading(&reading);
        if self.modes.mode() == Mode::Redundant {
            self.choose_carriers(changed, &reading, cx);
        }
    }

    /// Measures all paths, then uses only the best path while it delivers the expected rate.
    fn choose_carriers(&mut self, restart: bool, reading: &ModeInput, cx: &SchedulerContext<'_>) {
        if !self.config.best_path_only || !self.modes.has_started() {
            return;
        }
        let in_turn = self.config.measure == MeasurementMethod::InTurn;
        let from_here = |pending| MeasurementWindow {
            since: cx.now,
            delivered: cx.data_una,
            pending,
            is_void: false,
        };
        if restart {
            (self.carriers, self.measurement) = (self.restart_measurement(cx), None);
        }
        let turn = matches!(self.carriers, Carriers::Turn { .. });
        let look = self.measurement.get_or_insert(from_here(turn));
        look.is_void |= reading.is_void;
        let length = cx.now.since(look.since);
        if look.pending && length >= reading.longest_rtt {
            *look = from_here(false);
            return;
        }
        if look.pending || length < self.config.window(reading.longest_rtt) {
            return;
        }
        let brought = cx.data_una.since(look.delivered) as f64 * 1e9 / length.as_nanos() as f64;
        self.carriers = match self.carriers {
            // Applications that write little get copies.
            _ if look.is_void => Carriers::All,
            Carriers::All if in_turn => self.restart_measurement(cx),
            Carriers::All => {
                best_path(cx).map_or(Carriers::All, |(path, rate)| Carriers::Best { path, rate })
            }
            Carriers::Turn { path } => self.on_turn_end(path, brought, cx),
            Carriers::Best { rate, .. } if brought < rate * MIN_RATE_SHARE => {
                self.restart_measurement(cx)
            }
            best @ Carriers::Best { .. } => best,
        };
        self.measurement = Some(from_here(matches!(self.carriers, Carriers::Turn { .. })));
    }

    /// Returns the first carriers of a new measurement.
    fn restart_measurement(&mut self, cx: &SchedulerContext<'_>) -> Carriers {
        self.turns.clear();
        let first = (self.config.measure == MeasurementMethod::InTurn)
            .then(|| self.next_turn(cx))
            .flatten();
        first.map_or(Carriers::All, |path| Carriers::Turn { path })
    }

    /// Returns the path with the shortest RTT among the paths that have not had a turn.
    fn next_turn(&self, cx: &SchedulerContext<'_>) -> Option<SubflowId> {
        let open = |view: &&SubflowView| self.turns.iter().all(|(had, _)| *had != view.id);
        let members = classes::members(cx.subflows, classes::best_class(cx.subflows)?);
        members.filter(open).min_by_key(|view| classes::rank(view)).map(|view| view.id)
    }

    /// Records a path's rate at the end of its turn, and chooses the next path or, after the last turn, the best of
    /// all.
    fn on_turn_end(
        &mut self,
        path: SubflowId,
        brought: f64,
        cx: &SchedulerContext<'_>,
    ) -> Carriers {
        self.turns.push((path, brought));
        if let Some(path) = self.next_turn(cx) {
            return Carriers::Turn { path };
        }
        let best = self.turns.iter().copied();
        let best = best.reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.map_or(Carriers::All, |(path, rate)| Carriers::Best { path, rate })
    }

    /// Returns the scheduler of the current mode.
    fn running(&mut self) -> &mut dyn Scheduler {
        match self.modes.mode() {
            Mode::Multipath => &mut *self.multipath,
            Mode::Redundant => &mut self.redundant,
        }
    }

    /// Returns the path that carries the data alone, while it belongs to the best class.
    fn single_path(&self, cx: &SchedulerContext<'_>) -> Option<SubflowId> {
        let (Carriers::Best { path, .. } | Carriers::Turn { path }) = self.carriers else {
            return None;
        };
        let class = classes::best_class(cx.subflows)?;
        classes::members(cx.subflows, class).any(|view| view.id == path).then_some(path)
    }
}

/// Returns the maximum number of bytes in flight.
fn buffer(cx: &SchedulerContext<'_>) -> u64 {
    cx.send_limit.min(cx.window_end.since(cx.data_una))
}

/// Returns true if the application leaves the buffer half empty. (Applications may write an eighth at a time.)
fn is_application_slow(cx: &SchedulerContext<'_>) -> bool {
    cx.unsent.start >= cx.written && cx.written.since(cx.data_una) < buffer(cx) / 2
}

/// Returns the path that would deliver the most data alone, and its rate in bytes per second.
fn best_path(cx: &SchedulerContext<'_>) -> Option<(SubflowId, f64)> {
    let class = classes::best_class(cx.subflows)?;
    let bound = buffer(cx);
    let worth = |view: &SubflowView| {
        let rate = view.delivery_rate?;
        let by_buffer = Rate::over(bound, view.srtt?);
        Some((view.id, rate.min(by_buffer).bytes_per_s() as f64))
    };
    // Among equal paths, the one with the shorter RTT wins.
    let mut members: Vec<&SubflowView> = classes::members(cx.subflows, class).collect();
    members.sort_by_key(|view| classes::rank(view));
    let worths = members.into_iter().filter_map(worth);
    worths.reduce(|best, next| if next.1 > best.1 * 1.05 { next } else { best })
}

impl Scheduler for Papd {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        self.read(cx);
        let decision = match (self.modes.mode(), self.single_path(cx)) {
            (Mode::Multipath, _) => self.multipath.next_send(cx),
            (Mode::Redundant, None) => self.redundant.next_send(cx),
            (Mode::Redundant, Some(path)) => {
                let mut views = core::mem::take(&mut self.views);
                views.clear();
                views.extend(cx.subflow(path));
                let one = SchedulerContext { subflows: &views, ..*cx };
                let decision = self.redundant.next_send(&one);
                self.views = views;
                decision
            }
        };
        // A mode must not wait beyond its end. (An end in the past is harmless: with one path left, nothing is
        // compared, and no mode ends.)
        let change = self.modes.next_change().filter(|change| *change > cx.now);
        match (decision, change) {
            (Decision::WaitUntil(at), Some(change)) => Decision::WaitUntil(at.min(change)),
            (Decision::Wait, Some(change)) if cx.written > cx.data_una => {
                Decision::WaitUntil(change)
            }
            (decision, _) => decision,
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        self.running().next_reinjection(item, cx)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        match event {
            SchedulerEvent::SubflowUp(_) | SchedulerEvent::SubflowDown(_) => {
                self.modes.restart();
                (self.carriers, self.measurement) = (Carriers::All, None);
                self.redundant.on_event(event, cx, out);
                self.multipath.on_event(event, cx, out);
            }
            _ => self.running().on_event(event, cx, out),
        }
    }

    fn probe_patience(&self) -> Option<Duration> {
        match self.modes.mode() {
            Mode::Multipath => self.multipath.probe_patience(),
            Mode::Redundant => self.redundant.probe_patience(),
        }
    }

    fn watches_acks(&self) -> bool {
        match self.modes.mode() {
            Mode::Multipath => self.multipath.watches_acks(),
            Mode::Redundant => self.redundant.watches_acks(),
        }
    }

    fn watches_delivery(&self) -> bool {
        match self.modes.mode() {
            Mode::Multipath => self.multipath.watches_delivery(),
            Mode::Redundant => self.redundant.watches_delivery(),
        }
    }

    fn watches_losses(&self) -> bool {
        match self.modes.mode() {
            Mode::Multipath => self.multipath.watches_losses(),
            Mode::Redundant => self.redundant.watches_losses(),
        }
    }
}

#[cfg(test)]
mod tests;
