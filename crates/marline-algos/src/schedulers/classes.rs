//! Subflow classes that every scheduler must respect: active or not, usable or not, regular or
//! backup. They are public so that schedulers outside this workspace can use them.
//!
//! *Backup* (RFC 8684 section 3.3.8): a subflow with the backup flag carries data only if no regular one is usable. A
//! full window changes nothing: data waits instead of moving to a metered path.
//!
//! *Unreachable* ("potentially failed" in the Linux schedulers since 2013): a subflow whose probe or retransmission
//! timed out gets no data until a segment is received on it, so a backup takes over immediately. If *every* active
//! subflow is unreachable, including a single one, data is still sent, because the path may work, and plain TCP would
//! also send. Then the subflow that most recently received a segment is the best choice, even if it is a backup.
//!
//! *Unknown RTT*: a subflow without an RTT sample comes after all others of its class. (The old Linux scheduler treated
//! the RTT as zero, so that every new subflow attracted a burst.)

use marline_policy::{
    DataRange, Decision, Eligibility, Health, Reinjection, ReinjectionCause, SchedulerContext,
    SubflowSet, SubflowView,
};
use marline_time::Duration;

/// Preference class of an active subflow. Only the first class that has members is used.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Regular and healthy.
    Regular,
    /// Backup and healthy.
    Backup,
    /// Regular or backup: answers, but its address pair has a fault. If every path is in trouble, a path that answers
    /// is better than an unreachable one, regardless of cost.
    Degraded,
    /// Regular or backup: nothing was received since a timeout.
    Unreachable,
}

impl Class {
    /// Returns the class of a subflow; `None` if it cannot carry data.
    #[must_use]
    pub const fn from_view(view: &SubflowView) -> Option<Class> {
        if !view.is_active() {
            return None;
        }
        Some(match (view.health, view.backup) {
            (Health::Usable, false) => Class::Regular,
            (Health::Usable, true) => Class::Backup,
            (Health::Degraded { .. }, _) => Class::Degraded,
            (Health::Unreachable { .. }, _) => Class::Unreachable,
        })
    }

    /// Returns true if the members are healthy.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Class::Regular | Class::Backup)
    }
}

/// Returns the class that new data may use now: the best one that has a member.
#[must_use]
pub fn best_class(subflows: &[SubflowView]) -> Option<Class> {
    subflows.iter().filter_map(Class::from_view).min()
}

/// The subflows of a class, in slot order.
pub fn members(subflows: &[SubflowView], class: Class) -> impl Iterator<Item = &SubflowView> {
    subflows.iter().filter(move |view| Class::from_view(view) == Some(class))
}

/// Sort key within a class: lower is better. Ties go to the lower slot.
#[must_use]
pub fn rank(view: &SubflowView) -> (bool, Duration) {
    (view.srtt.is_none(), view.srtt.unwrap_or(Duration::MAX))
}

/// Returns the subflow of a class that can take data now: the fastest, or, among degraded or unreachable ones, the one
/// that most recently received a segment. `None` if all are full.
#[must_use]
pub fn pick<'a>(
    candidates: impl Iterator<Item = &'a SubflowView>,
    class: Class,
) -> Option<&'a SubflowView> {
    let ready = candidates.filter(|view| view.is_ready());
    if class.is_usable() {
        return ready.min_by_key(|view| rank(view));
    }
    ready.min_by_key(|view| (core::cmp::Reverse(view.last_rx_at), rank(view)))
}

/// Returns the decision when no candidate can take data: wait until the first pacer allows it, or until something
/// changes.
pub fn wait<'a>(candidates: impl Iterator<Item = &'a SubflowView>) -> Decision {
    let opens = candidates
        .filter_map(|view| match view.eligibility {
            Eligibility::PacingLimited(at) => Some(at),
            _ => None,
        })
        .min();
    opens.map_or(Decision::Wait, Decision::WaitUntil)
}

/// Places new data when no subflow is healthy: on the one with room that most recently received a segment, even if it
/// is slower. Waiting for an idle subflow would never end.
#[must_use]
pub fn choose_last_receiver(class: Class, cx: &SchedulerContext<'_>) -> Decision {
    let candidates = || members(cx.subflows, class);
    pick(candidates(), class).map_or_else(
        || wait(candidates()),
        |view| Decision::SendRun { subflow: view.id, range: cx.unsent },
    )
}

/// Sends new data on a subflow for which `takes` holds. Sends all segments that fit as a run if `takes` also holds for
/// the last one with the others in flight, otherwise one segment. Only for schedulers whose choice does not change as
/// data is sent, and whose condition, if it holds for a segment, also holds for all earlier ones.
#[inline]
pub fn run_while(
    view: &SubflowView,
    cx: &SchedulerContext<'_>,
    takes: impl Fn(&SubflowView, &SchedulerContext<'_>) -> bool,
) -> Decision {
    let (subflow, range) = (view.id, cx.unsent);
    let Eligibility::Ready { room } = view.eligibility else {
        return Decision::Send { subflow, range };
    };
    let before = room.min(range.len()).saturating_sub(u64::from(view.mss));
    let last = SubflowView { bytes_in_flight: view.bytes_in_flight + before, ..*view };
    let unsent = DataRange::new(range.start.plus(before), range.end);
    if takes(&last, &SchedulerContext { unsent, ..*cx }) {
        Decision::SendRun { subflow, range }
    } else {
        Decision::Send { subflow, range }
    }
}

/// Chooses the path for data that must be sent again, for every scheduler here. Among several paths, prefers those that
/// are not metered and whose radio is awake. In order:
/// 1. the fastest healthy regular subflow that did not carry it (if all are full, wait for one);
/// 2. none, if a healthy regular subflow already carries it, because its copy is in flight (a data-level timeout means
///    that it is not, so the data is sent there again);
/// 3. and 4. the corresponding steps with healthy backups;
/// 5. the degraded or unreachable subflow that did not carry it and most recently received a segment;
/// 6. after a data-level timeout, any subflow.
#[must_use]
pub fn reinject(item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
    let all = cx.subflows;
    let again = item.cause == ReinjectionCause::DataRto;
    for class in [Class::Regular, Class::Backup] {
        if has_fresh(all, class, item.carried_by) {
            return send(all, class, item.carried_by, item);
        }
        if members(all, class).next().is_some() {
            return if again { send(all, class, SubflowSet::EMPTY, item) } else { Decision::Wait };
        }
    }
    for class in [Class::Degraded, Class::Unreachable] {
        if has_fresh(all, class, item.carried_by) {
            return send(all, class, item.carried_by, item);
        }
        if again && members(all, class).next().is_some() {
            return send(all, class, SubflowSet::EMPTY, item);
        }
    }
    Decision::Wait
}

fn has_fresh(all: &[SubflowView], class: Class, carried_by: SubflowSet) -> bool {
    members(all, class).any(|view| !carried_by.contains(view.id))
}

/// Cost of a path other than time: money, or waking a radio.
fn cost_rank(view: &SubflowView) -> (bool, bool) {
    (view.metered, view.wake_share >= 1.0)
}

fn send(all: &[SubflowView], class: Class, avoid: SubflowSet, item: &Reinjection) -> Decision {
    let fresh = || members(all, class).filter(|view| !avoid.contains(view.id));
    // Avoid paths that cost more than time while another one can carry the data.
    let least = if class.is_usable() { fresh().map(cost_rank).min() } else { None };
    let candidates = || fresh().filter(|view| least.is_none_or(|least| cost_rank(view) == least));
    pick(candidates(), class).map_or_else(
        || wait(candidates()),
        |view| Decision::Send { subflow: view.id, range: item.range },
    )
}

#[cfg(test)]
mod tests;
