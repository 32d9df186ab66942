//! Subflow classes that every scheduler must respect: usable or not, fine or not, regular or
//! backup. They are public so that schedulers outside this workspace can use them.
//!
//! *Backup* (RFC 8684 section 3.3.8): a subflow with the backup flag carries data only if no
//! regular one is usable. A full window does not make a subflow unusable: data waits for it rather
//! than spill over to a metered path.
//!
//! *Silent* ("potentially failed" in the Linux schedulers since 2013): a subflow whose probe or
//! retransmission timed out gets no data until something is received on it again, so a backup takes
//! over at once. If *every* usable subflow is silent (always so with a single one), data is still
//! sent: the path may be alive, and plain TCP would send, too. Then the subflow heard from
//! last is the best choice, even if it is a backup.
//!
//! *Unknown RTT*: a subflow without a sample comes after all others of its class. (The old Linux
//! scheduler treated it as zero, so that every new subflow attracted a burst.)

use marline_policy::{
    DataRange, Decision, Eligibility, Health, Reinjection, ReinjectionCause, SchedulerContext,
    SubflowSet, SubflowView,
};
use marline_time::Duration;

/// Preference class of a usable subflow: only the first class with members is used.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Regular and healthy.
    Regular,
    /// Backup and healthy.
    Backup,
    /// Answering, though its address pair is bad; regular or backup: if every path is in trouble,
    /// one that answers is better than a silent one, whatever it costs.
    Doubtful,
    /// Nothing was heard since a timeout; regular or backup.
    Silent,
}

impl Class {
    /// The class of a subflow; `None` if it cannot carry data at all.
    #[must_use]
    pub const fn of(view: &SubflowView) -> Option<Class> {
        if !view.is_usable() {
            return None;
        }
        Some(match (view.health, view.backup) {
            (Health::Fine, false) => Class::Regular,
            (Health::Fine, true) => Class::Backup,
            (Health::Doubtful { .. }, _) => Class::Doubtful,
            (Health::Silent { .. }, _) => Class::Silent,
        })
    }

    /// Whether nothing speaks against its members.
    #[must_use]
    pub const fn is_fine(self) -> bool {
        matches!(self, Class::Regular | Class::Backup)
    }
}

/// The class that new data may use now: the best one that has a member.
#[must_use]
pub fn best_class(subflows: &[SubflowView]) -> Option<Class> {
    subflows.iter().filter_map(Class::of).min()
}

/// The subflows of a class, in slot order.
pub fn members(subflows: &[SubflowView], class: Class) -> impl Iterator<Item = &SubflowView> {
    subflows.iter().filter(move |view| Class::of(view) == Some(class))
}

/// Order of preference within a class: lower is better. Ties go to the lower slot.
#[must_use]
pub fn rank(view: &SubflowView) -> (bool, Duration) {
    (view.srtt.is_none(), view.srtt.unwrap_or(Duration::MAX))
}

/// The subflow of a class that takes data now: the fastest, or in a class of doubtful or silent ones the
/// one heard of last. `None` if all are full.
#[must_use]
pub fn pick<'a>(
    candidates: impl Iterator<Item = &'a SubflowView>,
    class: Class,
) -> Option<&'a SubflowView> {
    let ready = candidates.filter(|view| view.is_ready());
    if class.is_fine() {
        return ready.min_by_key(|view| rank(view));
    }
    ready.min_by_key(|view| (core::cmp::Reverse(view.last_heard_at), rank(view)))
}

/// The answer when none of these takes data now: until the first pacer opens, or until something
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

/// New data where no member of the best class is fine: on the one heard of last that has room, be it slower than
/// another: to wait for one that has nothing to do would be to wait for ever.
#[must_use]
pub fn among_doubted(class: Class, cx: &SchedulerContext<'_>) -> Decision {
    let candidates = || members(cx.subflows, class);
    pick(candidates(), class).map_or_else(
        || wait(candidates()),
        |view| Decision::SendRun { subflow: view.id, range: cx.unsent },
    )
}

/// New data on a subflow that `takes` a segment of it: a run of all that it has room for if it would take the
/// last of those, too, the others being under way by then; else one segment. For schedulers whose choice of
/// subflow does not change by sending, and whose conditions hold for each segment before one for which they hold.
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

/// Where data that must be repeated goes; the same for every scheduler here. Of several paths, one that is not metered
/// and whose radio is awake. In order:
/// 1. the fastest healthy regular subflow that did not carry it (if all are full: wait for one);
/// 2. nowhere, if a healthy regular subflow carries it already: its copy is on the way (a data-level
///    timeout says it is not, so then it is sent there again);
/// 3. 4. the same with healthy backups;
/// 5. a doubtful or silent one that did not carry it, the one heard of last;
/// 6. after a data-level timeout, any subflow at all.
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
    for class in [Class::Doubtful, Class::Silent] {
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

/// What using a path costs beside time: money, or a sleeping radio.
fn dearness(view: &SubflowView) -> (bool, bool) {
    (view.metered, view.wake_share >= 1.0)
}

fn send(all: &[SubflowView], class: Class, avoid: SubflowSet, item: &Reinjection) -> Decision {
    let fresh = || members(all, class).filter(|view| !avoid.contains(view.id));
    // What costs more than time is left alone while another path can have it.
    let least = if class.is_fine() { fresh().map(dearness).min() } else { None };
    let candidates = || fresh().filter(|view| least.is_none_or(|least| dearness(view) == least));
    pick(candidates(), class).map_or_else(
        || wait(candidates()),
        |view| Decision::Send { subflow: view.id, range: item.range },
    )
}

#[cfg(test)]
mod tests;
