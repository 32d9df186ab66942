//! Repairs of bursts in the default scheduler: sums over a burst's segments, if the peer supports them.
//!
//! *Problem.* Copies start at the end of a burst and go backward, because a lost end is detected last. The middle of a
//! burst larger than the budget is not copied, so the burst waits a round trip if one of those segments is lost. A sum
//! of all segments can replace any missing one (`docs/decisions/coding.md`).
//!
//! *How.* Once a burst of [`MIN_SEGMENTS`] to [`MAX_BURST_SEGMENTS`] segments is in flight, repairs of the whole burst
//! become due: [`SHARE_PERCENT`] of its segments, rounded up, on the path with room that carried the least of it.
//! Copies follow as usual, with the rest of the budget. A copy saves time if one particular segment is late, a repair
//! if any one of its n segments is. So a repair gains n times as much for an equal number of bytes, up to the largest
//! possible gain. Smaller bursts have no repairs, because the budget pays for copies of everything, which also help
//! when a path fails. Larger bursts have none, because their completion time depends on the windows. With an unlimited
//! budget, there are none either.
//!
//! *Source.* Like `coded`, which sends 30 % repairs and no copies. The share and the burst sizes were chosen in the
//! scenarios of that scheduler (docs/research/auto.md): together with copies, half as many repairs are equally
//! effective.

use marline_policy::{
    BudgetState, DataRange, Dsn, Quantile, RepairsDue, SchedulerContext, SubflowId, SubflowView,
};

use super::MAX_EXAMINED_MAPPINGS;
use super::copy_gain::{MAX_GAIN, OutstandingAnswer};
use super::costs::Costs;
use crate::schedulers::classes::{Class, best_class, members};
use crate::schedulers::copies::queue_is_empty;
use crate::schedulers::delivery::arrival_by;

/// Length of the smallest burst with repairs, in segments.
const MIN_SEGMENTS: u64 = 4;
/// Length of the largest burst with repairs, in segments.
const MAX_BURST_SEGMENTS: u64 = 40;
/// Number of repairs per hundred segments.
const SHARE_PERCENT: u64 = 15;

/// Repairs for the bursts of a connection.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Repairs {
    /// Start of the data that has not yet been considered.
    covered: Dsn,
}

impl Repairs {
    /// Schedules repairs once a burst is in flight, and drops those for data that has arrived.
    pub(super) fn plan_repairs(&mut self, cx: &SchedulerContext<'_>, due: &mut Option<RepairsDue>) {
        if !cx.repairs || cx.subflows.len() < 2 {
            *due = None;
            return;
        }
        if let Some(before) = due
            && (before.count == 0 || before.range.end <= cx.data_una)
        {
            *due = None;
        }
        let sent = cx.unsent.start;
        if sent <= self.covered || !queue_is_empty(cx) {
            return;
        }
        let new = DataRange::new(self.covered.max(cx.data_una), sent);
        self.covered = sent;
        let Some(segment) = longest_segment(cx) else { return };
        let segments = new.len().div_ceil(segment);
        *due = (MIN_SEGMENTS..=MAX_BURST_SEGMENTS).contains(&segments).then(|| {
            let count = (segments * SHARE_PERCENT).div_ceil(100) as u32;
            RepairsDue { range: new, count }
        });
    }
}

fn longest_segment(cx: &SchedulerContext<'_>) -> Option<u64> {
    let class = best_class(cx.subflows)?;
    members(cx.subflows, class).map(|view| u64::from(view.mss.max(1))).max()
}

/// Returns a due repair whose gain justifies its bytes: its path, its data, the other path involved, and its gain.
pub(super) fn next(
    spending: &BudgetState,
    class: Class,
    cx: &SchedulerContext<'_>,
) -> Option<(SubflowId, DataRange, SubflowId, f32)> {
    let due = spending.repairs_due.filter(|due| due.count > 0 && cx.repairs)?;
    // With an unlimited budget, everything is copied.
    if spending.unlimited || spending.spent >= 1.0 {
        return None;
    }
    let range = DataRange::new(due.range.start.max(cx.data_una), due.range.end);
    let whole = range.len();
    let ready = members(cx.subflows, class).filter(|view| view.is_ready());
    let (_, view) = ready
        .map(|view| (carried_bytes(view, range, cx), view))
        .filter(|(bytes, _)| *bytes < whole)
        .min_by_key(|(bytes, view)| (*bytes, view.srtt, view.id))?;
    let costs = Costs(spending);
    let price = costs
        .required_gain_on(view, class)
        .filter(|_| costs.allows_speculative_copies(view, class, 1.0))?;
    let segments = whole.div_ceil(u64::from(view.mss.max(1))) as f32;
    let behind = cx.written.since(range.end);
    let others = members(cx.subflows, class).filter(|other| other.id != view.id);
    let gains = others.filter(|other| carried_bytes(other, range, cx) > 0).map(|other| {
        let gain = OutstandingAnswer::for_data_before(other, behind, cx.now).gain(view);
        (other.id, (gain * segments).min(MAX_GAIN))
    });
    let (other, gain) = gains.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let takes = arrival_by(view, view.mss.into(), Quantile::P50)?;
    (gain > price.total(takes)).then_some((view.id, range, other, gain))
}

/// Returns the number of bytes of a range that a subflow carried.
fn carried_bytes(view: &SubflowView, range: DataRange, cx: &SchedulerContext<'_>) -> u64 {
    let (mut at, mut bytes) = (range.start, 0);
    for _ in 0..MAX_EXAMINED_MAPPINGS {
        let Some(part) = cx.mappings.mapping_at(at).filter(|_| at < range.end) else { break };
        if part.carried_by.contains(view.id) {
            bytes += part.range.intersection(&range).len();
        }
        at = part.range.end;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use marline_policy::{Decision, Scheduler};
    use marline_testkit::views::{MSS, Stream, ms, range, view};
    use marline_time::Instant;

    use super::*;
    use crate::schedulers::auto::{Auto, AutoConfig, BudgetConfig};

    /// Sends a whole stream on the first path and returns all data that is sent in addition.
    fn extra_sends(auto: &mut Auto, stream: &mut Stream) -> Vec<(bool, u8)> {
        let last_sent_at = Instant::from_millis(995);
        let forecast =
            |p50, p99| marline_policy::Forecast::with_quantiles([p50, p50, p99].map(ms), 1.0, None);
        let wifi = SubflowView {
            last_sent_at,
            forecast: forecast(40, 60),
            ..marline_testkit::views::full(view(0, 40))
        };
        let lte = SubflowView { last_sent_at, forecast: forecast(50, 60), ..view(1, 50) };
        while stream.sent() < stream.written {
            let unsent = stream.unsent();
            stream.apply(SubflowId(0), unsent);
        }
        let mut sent = Vec::new();
        for _ in 0..100 {
            match auto.next_send(&stream.context(&[wifi, lte])) {
                Decision::Repair { subflow, range } => {
                    assert_eq!(range.end.0, stream.written);
                    sent.push((true, subflow.0));
                }
                decision => match decision.data() {
                    Some((id, range)) => {
                        stream.apply(id, range);
                        sent.push((false, id.0));
                    }
                    None => break,
                },
            }
        }
        sent
    }

    fn burst(segments: u64, repairs: bool) -> Stream {
        Stream { repairs, ..Stream::new(segments * u64::from(MSS)) }
    }

    #[test]
    fn a_burst_has_a_share_of_its_segments_as_repairs_and_then_copies() {
        let sent = extra_sends(&mut Auto::default(), &mut burst(20, true));
        assert_eq!(sent[..4], [(true, 1), (true, 1), (true, 1), (false, 1)]);
        // Repairs are sent only once. There are none for small or large bursts or without the peer's support.
        assert_eq!(sent.iter().filter(|(repair, _)| *repair).count(), 3);
        for (segments, repairs) in [(3, true), (41, true), (20, false)] {
            let sent = extra_sends(&mut Auto::default(), &mut burst(segments, repairs));
            assert!(!sent.is_empty() && sent.iter().all(|(repair, _)| !repair), "{sent:?}");
        }
    }

    #[test]
    fn repairs_are_paid_from_the_budget() {
        let rate = marline_time::Rate::from_bytes_per_s(250);
        let budget = BudgetConfig { share: 0.0, rate };
        let mut auto = Auto::new(AutoConfig { budget, ..AutoConfig::default() });
        // The budget pays for three of six repairs of 1,000 bytes, as with copies.
        let sent = extra_sends(&mut auto, &mut burst(40, true));
        assert_eq!(sent, [(true, 1); 3]);
        let unlimited = AutoConfig { budget: BudgetConfig::UNLIMITED, ..AutoConfig::default() };
        let sent = extra_sends(&mut Auto::new(unlimited), &mut burst(20, true));
        assert_eq!(sent.iter().filter(|(repair, _)| *repair).count(), 0);
    }

    #[test]
    fn delivered_data_gets_no_repairs() {
        let (mut repairs, mut due) = (Repairs::default(), None);
        let mut stream = burst(20, true);
        while stream.sent() < stream.written {
            let unsent = stream.unsent();
            stream.apply(SubflowId(0), unsent);
        }
        let paths = [view(0, 40), view(1, 50)];
        repairs.plan_repairs(&stream.context(&paths), &mut due);
        assert_eq!(due, Some(RepairsDue { range: range(0, 20_000), count: 3 }));
        stream.ack(20_000);
        repairs.plan_repairs(&stream.context(&paths), &mut due);
        assert_eq!(due, None);
    }
}
