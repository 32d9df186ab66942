//! Paths that are silent although something is due: the receive timer and the keepalives of a lone
//! idle subflow, wired to the connection.
//!
//! Both work for the client alone, and only while it has an address up that no subflow starts at: a
//! verdict is a request to open that one. Which path is opened, and whether at all, is the path
//! manager's to say ([`PathEvent::Silent`]). The core does what needs no judgement: the silent subflow
//! counts as potentially failed until something is heard on it, so that requests, too, leave by the new
//! one.

use marline_policy::{Dsn, PathEvent, SilenceCause, SubflowId, SubflowSet};
use marline_time::{Duration, Instant};
use marline_wire::TcpSegment;

use super::receive_timer::{Conditions, Due, ReceiveClock};
use super::{Connection, Leg, UNKNOWN_RTT};
use crate::tables::Context;
use crate::{MonitorKind, Probing};

/// Less window than this, and a sender that keeps to full segments sends nothing.
const SHUT_WINDOW: u64 = 2 * 1_460;

/// What the connection remembers of silence.
#[derive(Debug, Default)]
pub(super) struct Silence {
    clock: ReceiveClock,
    /// End of the newest data that the peer mapped, here or not.
    announced: Dsn,
    /// From here on the peer marks what is the last: what it sent before it agreed to has no mark.
    marked_from: Option<Dsn>,
    /// The subflow that brought data last.
    brought_by: Option<SubflowId>,
    keepalive: Option<Keepalive>,
}

/// Keepalives on the lone subflow since it was heard.
#[derive(Copy, Clone, Debug)]
struct Keepalive {
    /// When the last one went out, or the last verdict was given.
    at: Instant,
    /// When the next thing is due.
    due_at: Instant,
    unanswered: u32,
}

impl Silence {
    /// The subflow is gone.
    pub(super) fn forget_subflow(&mut self, id: SubflowId) {
        self.brought_by = self.brought_by.filter(|by| *by != id);
    }
}

impl Connection {
    /// A segment was taken in; `before` is what was missing until then.
    pub(super) fn watch_download(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        before: Dsn,
        segment: &TcpSegment<'_>,
    ) {
        let now = cx.now;
        if self.config.receive_timer.is_none() || !self.session.is_client() {
            return;
        }
        let next = self.receiver.next();
        self.note_agreement(id, segment);
        let mapped = self.mapped_end(segment);
        if mapped.is_none() && next == before {
            return;
        }
        let marked = mapped.filter(|_| self.is_marked(cx, segment));
        self.silence.announced = self.silence.announced.max(next).max(mapped.unwrap_or(next));
        let conditions = self.silence_conditions();
        let silence = &mut self.silence;
        if let Some(end) = marked {
            silence.clock.on_idle(end);
        }
        let Some(conditions) = conditions else {
            silence.clock.stop();
            return;
        };
        silence.brought_by = Some(id);
        if next > before {
            silence.clock.on_data(now, next, silence.announced, &conditions);
        } else {
            silence.clock.on_rest(now, next, silence.announced, &conditions);
        }
        if silence.clock.is_running() {
            self.ask_for_rto(cx, id);
        }
    }

    /// The segment that brought the peer's agreement tells how much was sent before it: that may be on
    /// its way still, and has no mark.
    fn note_agreement(&mut self, id: SubflowId, segment: &TcpSegment<'_>) {
        if self.silence.marked_from.is_some() || !self.session.peer_marks_idle() {
            return;
        }
        let Some(leg) = self.leg(id) else { return };
        let missing = segment.header.seq.offset_from(leg.tcp.peer_to_wire(leg.tcp.rcv_nxt()));
        let missing = if missing < 1 << 31 { u64::from(missing) } else { 0 };
        let known = self.silence.announced.max(self.receiver.next());
        self.silence.marked_from = Some(known.max(self.receiver.next().plus(missing)));
    }

    /// Whether silence tells anything by itself: the newest data was sent by a peer that marks its last.
    fn silence_speaks(&self) -> bool {
        self.session.peer_marks_idle()
            && self.silence.marked_from.is_some_and(|from| self.silence.announced > from)
    }

    /// The end of the data that a segment maps. What lies beyond the window is not taken, and promises
    /// nothing.
    fn mapped_end(&self, segment: &TcpSegment<'_>) -> Option<Dsn> {
        let dss = segment.options.dss?;
        let mapping = dss.mapping.filter(|mapping| mapping.length > u16::from(dss.data_fin))?;
        let length = u64::from(mapping.length) - u64::from(dss.data_fin);
        let end = self.session.unwrap_dsn(mapping.dsn, self.receiver.next())?.plus(length);
        (end <= self.receiver.edge()).then_some(end)
    }

    /// A DATA_ACK moved.
    pub(super) fn watch_data_ack(&mut self, now: Instant) {
        self.vigil.on_data(now, self.config.receive_probes);
        if self.silence.clock.is_running()
            && let Some(conditions) = self.silence_conditions()
        {
            self.silence.clock.on_data_ack(now, &conditions);
        }
    }

    /// When silence is to be looked at.
    pub(super) fn silence_timeout(&self) -> Option<Instant> {
        let keepalive = self.lone_keepalive().map(|(_, at, _)| at);
        self.silence.clock.next_timeout().into_iter().chain(keepalive).min()
    }

    pub(super) fn on_silence_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.silence.clock.next_timeout().is_some_and(|at| at <= now) {
            self.on_receive_timer(cx);
        }
        self.on_lone_keepalive(cx);
    }

    fn on_receive_timer(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let Some(conditions) = self.silence_conditions() else {
            self.silence.clock.stop();
            return;
        };
        if self.receiver.window() < SHUT_WINDOW {
            self.silence.clock.excuse(now, &conditions);
            return;
        }
        let since = self.silence.clock.since().unwrap_or(now);
        let cause = match self.silence.clock.on_timeout(now, &conditions) {
            Due::Nothing => return,
            Due::Probe => {
                cx.out.counters.receive_timer_probes += 1;
                self.ask_for_life(self.silence.brought_by);
                return;
            }
            Due::Stalled => SilenceCause::ReceiveTimer,
            Due::Unanswered => SilenceCause::UnansweredProbes,
        };
        cx.out.counters.receive_timer_expired += 1;
        for id in self.silent_since(since).iter() {
            self.on_silent(cx, id, cause);
        }
    }

    /// The subflow that brought the data that stopped coming, and those not heard since.
    fn silent_since(&self, since: Instant) -> SubflowSet {
        let mut set = SubflowSet::EMPTY;
        for id in self.leg_ids() {
            let silent = |leg: &Leg| {
                leg.is_usable()
                    && (Some(id) == self.silence.brought_by || leg.tcp.last_heard_at() <= since)
            };
            if self.leg(id).is_some_and(silent) {
                set.insert(id);
            }
        }
        set
    }

    /// An empty segment on this subflow, or on the best one if it is gone, that the peer answers.
    pub(super) fn ask_for_life(&mut self, id: Option<SubflowId>) {
        let there = id.filter(|id| self.leg(*id).is_some_and(Leg::is_usable));
        let on = there.or_else(|| self.best_leg());
        if let Some(leg) = on.and_then(|id| self.leg_mut(id)) {
            leg.tcp.request_probe();
        }
    }

    fn on_silent(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: SilenceCause) {
        let now = cx.now;
        cx.out.monitor(now, self.id, MonitorKind::SubflowSilent { id, cause });
        self.suspect_silent(cx, id);
        self.path_event(cx, PathEvent::Silent { id, cause });
    }

    /// Something may come still, a path could be opened if this one were dead, and we are the one to
    /// open it.
    fn could_open_another(&self) -> bool {
        let unopened = |local: &marline_policy::LocalAddress| {
            let starts_here = |leg: &Leg| leg.local_id == local.id && !leg.shut;
            local.up && local.subflow && !self.legs.iter().flatten().any(|l| starts_here(l))
        };
        self.session.is_client()
            && self.session.is_confirmed()
            && self.closing.closed.is_none()
            && !self.receiver.fin_reached()
            && self.addresses.local().iter().any(unopened)
    }

    /// What the receive timer is to go by now. `None`: it has nothing to do.
    fn silence_conditions(&self) -> Option<Conditions> {
        let config = self.config.receive_timer.filter(|_| self.could_open_another())?;
        let usable = || self.legs.iter().flatten().filter(|leg| leg.is_usable());
        let heard_at = usable().map(|leg| leg.tcp.last_heard_at()).max()?;
        let told = self.peer_rto().unwrap_or(config.unknown_rto);
        let wait = told.max(config.floor).min(config.ceiling.max(config.floor));
        let stall = self.silence_speaks().then_some(wait);
        let round_trip = usable().map(|leg| slow_round_trip(leg)).max()?;
        let probing = config.probing.map(|probing| {
            let shortest = if stall.is_some() { probing.after } else { wait };
            Probing {
                after: shortest.max(round_trip),
                wait: probing.wait.max(round_trip),
                count: probing.count,
            }
        });
        Some(Conditions { stall, probing, heard_at })
    }

    /// The subflow to be kept alive, when the next keepalive on it or the verdict is due, and how many
    /// of them are unanswered.
    fn lone_keepalive(&self) -> Option<(SubflowId, Instant, u32)> {
        let config = self.config.lone_keepalive?;
        if self.silence.clock.is_running() || !self.could_open_another() {
            return None;
        }
        let mut usable = self.leg_ids().filter(|id| self.leg(*id).is_some_and(Leg::is_usable));
        let (id, None) = (usable.next()?, usable.next()) else { return None };
        if self.leg(id).is_some_and(|leg| self.is_reserve(leg)) {
            return None;
        }
        // While something is unacknowledged there, its own timers look after it.
        let leg = self.leg(id).filter(|leg| leg.tcp.unacked().next().is_none())?;
        let heard_at = leg.tcp.last_heard_at();
        Some(match self.silence.keepalive.filter(|last| last.at >= heard_at) {
            Some(last) => (id, last.due_at, last.unanswered),
            None => (id, heard_at.max(leg.tcp.last_sent_at()) + config.idle, 0),
        })
    }

    /// It starts at an address that is there for when others fail: a cellular radio that keepalives would
    /// not let sleep, and whatever there was before it has failed.
    pub(super) fn is_reserve(&self, leg: &Leg) -> bool {
        let starts_here = |local: &&marline_policy::LocalAddress| local.id == leg.local_id;
        self.addresses.local().iter().find(starts_here).is_some_and(|local| local.backup)
    }

    fn on_lone_keepalive(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let due = self.lone_keepalive().filter(|(_, at, _)| *at <= now);
        let (Some((id, _, unanswered)), Some(config)) = (due, self.config.lone_keepalive) else {
            return;
        };
        if unanswered < config.count.max(1) {
            let (due_at, unanswered) = (now + config.interval, unanswered + 1);
            self.silence.keepalive = Some(Keepalive { at: now, due_at, unanswered });
            cx.out.counters.lone_keepalives += 1;
            self.ask_for_life(Some(id));
            return;
        }
        // If nobody opens anything, keepalives start anew after another wait.
        let due_at = now + config.idle.max(config.interval);
        self.silence.keepalive = Some(Keepalive { at: now, due_at, unanswered: 0 });
        cx.out.counters.lone_keepalive_expired += 1;
        self.on_silent(cx, id, SilenceCause::UnansweredKeepalives);
    }
}

/// As long as a round trip is likely to take.
fn slow_round_trip(leg: &Leg) -> Duration {
    leg.tcp.srtt().map_or(UNKNOWN_RTT, |srtt| srtt + leg.tcp.rttvar() * 4)
}
