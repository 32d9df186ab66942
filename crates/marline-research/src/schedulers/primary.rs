//! Primary path and helper path, for schedulers that use one path for all data and a costly one only occasionally
//! (`paaf.rs`, `augur.rs`).
//!
//! The primary is the first path of the connection. While it is not in the best class (gone or silent), the fastest
//! path of that class replaces it. When it is healthy again, it carries data again. If it is closed, the fastest path
//! becomes the primary permanently.
//!
//! The helper is the fastest other healthy path of this class. Backups are used only if requested, because marking a
//! path as a backup means that it may cost money (RFC 8684 section 3.3.8).

use marline_algos::schedulers::classes::{self, Class};
use marline_policy::{Decision, SchedulerContext, SchedulerEvent, SubflowId, SubflowView};
use marline_time::Instant;

/// Selects the primary subflow.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Primary(Option<SubflowId>);

impl Primary {
    /// Returns the subflow for new data: the primary or its replacement. `None` in a class of suspected subflows, in
    /// which the subflow that most recently received a segment is used.
    pub(super) fn choose<'a>(&mut self, cx: &SchedulerContext<'a>) -> Option<&'a SubflowView> {
        let class = classes::best_class(cx.subflows).filter(|class| class.is_usable())?;
        let members = || classes::members(cx.subflows, class);
        let fastest = members().min_by_key(|view| classes::rank(view))?;
        let primary = *self.0.get_or_insert(fastest.id);
        Some(members().find(|view| view.id == primary).unwrap_or(fastest))
    }

    pub(super) fn on_event(&mut self, event: SchedulerEvent) {
        if let SchedulerEvent::SubflowDown(id) = event {
            self.0 = self.0.filter(|primary| *primary != id);
        }
    }
}

/// Returns the best path for copies other than `primary`.
pub(super) fn helper<'a>(
    primary: &SubflowView,
    with_backups: bool,
    cx: &SchedulerContext<'a>,
) -> Option<&'a SubflowView> {
    let helps = |view: &&SubflowView| match Class::from_view(view) {
        Some(Class::Regular) => true,
        Some(Class::Backup) => with_backups,
        _ => false,
    };
    let others = cx.subflows.iter().filter(|view| view.id != primary.id).filter(helps);
    others.min_by_key(|view| (view.backup, classes::rank(view)))
}

/// Sends new data on this path only. Data waits if the path has no room.
pub(super) fn decide_for_primary(primary: &SubflowView, cx: &SchedulerContext<'_>) -> Decision {
    if cx.unsent.is_empty() {
        return Decision::Wait;
    }
    if !primary.is_ready() {
        return classes::wait(core::iter::once(primary));
    }
    Decision::SendRun { subflow: primary.id, range: cx.unsent }
}

/// Places new data when no path is healthy: on the one that most recently received a segment.
pub(super) fn use_last_receiver(cx: &SchedulerContext<'_>) -> Decision {
    let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
    if cx.unsent.is_empty() {
        return Decision::Wait;
    }
    classes::choose_last_receiver(class, cx).limited_to_segment()
}

/// Start of a subflow's silence: data is in flight on it, and nothing has been received since then.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Silence(Option<Instant>);

impl Silence {
    pub(super) fn update(&mut self, view: &SubflowView, now: Instant) {
        let waiting = view.bytes_in_flight > 0;
        let since = self.0.filter(|since| waiting && view.last_rx_at < *since);
        self.0 = since.or(waiting.then_some(now));
    }

    /// Returns the time at which the answer is overdue: an RTT plus `deviations` RTT variations after that.
    pub(super) fn overdue_at(self, view: &SubflowView, deviations: f64) -> Option<Instant> {
        let since = self.0?;
        Some(since + view.srtt? + view.rttvar.mul_f64(deviations))
    }
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{Stream, backup, gone, ms, unreachable, view};

    use super::*;

    fn chosen(primary: &mut Primary, views: &[SubflowView]) -> Option<u8> {
        primary.choose(&Stream::new(1).context(views)).map(|view| view.id.0)
    }

    #[test]
    fn the_first_stays_and_comes_back() {
        let mut primary = Primary::default();
        assert_eq!(chosen(&mut primary, &[]), None);
        assert_eq!(chosen(&mut primary, &[view(0, 50)]), Some(0));
        let [first, second, third] = [view(0, 50), view(1, 10), view(2, 5)];
        assert_eq!(
            chosen(&mut primary, &[first, second, third]),
            Some(0),
            "the primary stays, although it is not the fastest"
        );
        assert_eq!(chosen(&mut primary, &[unreachable(first, 3), second, third]), Some(2));
        assert_eq!(chosen(&mut primary, &[first, second, third]), Some(0), "usable again");
        primary.on_event(SchedulerEvent::SubflowDown(SubflowId(0)));
        assert_eq!(chosen(&mut primary, &[gone(first), second]), Some(1));
        assert_eq!(
            chosen(&mut primary, &[first, second, third]),
            Some(1),
            "the change is permanent"
        );
        assert_eq!(chosen(&mut primary, &[unreachable(second, 3)]), None);
    }

    #[test]
    fn backups_help_only_if_asked_to() {
        let views = [view(0, 50), view(1, 30), view(2, 20), backup(view(3, 5))];
        let helping = |views: &[SubflowView], with_backups| {
            let stream = Stream::new(1);
            helper(&views[0], with_backups, &stream.context(views)).map(|view| view.id.0)
        };
        assert_eq!(helping(&views, false), Some(2));
        assert_eq!(helping(&views, true), Some(2), "regular subflows first");
        let last = [views[0], unreachable(views[1], 3), gone(views[2]), views[3]];
        assert_eq!((helping(&last, false), helping(&last, true)), (None, Some(3)));
        let only = [backup(views[0]), backup(views[1])];
        assert_eq!((helping(&only, false), helping(&only, true)), (None, Some(1)));
    }

    #[test]
    fn silence_counts_from_the_first_check_of_unanswered_data() {
        let at = Instant::from_millis;
        let mut path = SubflowView { rttvar: ms(5), ..view(0, 20) };
        let mut silence = Silence::default();
        silence.update(&path, at(100));
        assert_eq!(silence.overdue_at(&path, 4.0), None, "no data in flight");
        path.bytes_in_flight = 1_000;
        silence.update(&path, at(200));
        silence.update(&path, at(210));
        assert_eq!(silence.overdue_at(&path, 4.0), Some(at(240)));
        path.last_rx_at = at(220);
        silence.update(&path, at(225));
        assert_eq!(silence.overdue_at(&path, 4.0), Some(at(265)), "received data in the meantime");
        path.srtt = None;
        assert_eq!(silence.overdue_at(&path, 4.0), None);
    }
}
