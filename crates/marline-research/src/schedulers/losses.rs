//! Losses on paths, as far as schedulers can observe them: the number of segments given to a path between the losses
//! that its view shows, and the resulting delay.
//!
//! A view counts the bytes acknowledged after the last loss, starting with the recovery episode. A decrease in this
//! count means a loss, and a burst of losses counts as one.

use marline_policy::{Phase, SubflowId, SubflowView};
use marline_time::Duration;

/// Weight of the newest interval between losses in the average.
const INTERVAL_GAIN: f64 = 0.25;
/// Default probability of loss on a path in recovery.
pub(super) const BURST: f64 = 0.3;
/// Upper limit on a path's loss probability, so that it can still be tried.
const MAX_LOSS: f64 = 0.9;

/// Losses on one path so far.
#[derive(Copy, Clone, Debug)]
struct PathLosses {
    of: SubflowId,
    bytes_since_loss: u64,
    /// Number of segments given to the path since its last loss.
    segments_since_loss: f64,
    /// Smoothed number of segments between losses; `None` before the first loss.
    mean_interval: Option<f64>,
}

impl PathLosses {
    fn update(&mut self, view: &SubflowView) {
        if view.bytes_since_loss < self.bytes_since_loss {
            let last = core::mem::take(&mut self.segments_since_loss);
            self.mean_interval =
                Some(self.mean_interval.map_or(last, |b| b + (last - b) * INTERVAL_GAIN));
        }
        self.bytes_since_loss = view.bytes_since_loss;
    }
}

/// Losses on all paths so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses(Vec<PathLosses>);

impl Losses {
    /// Detects new paths, and losses since the last call.
    pub(super) fn update(&mut self, views: &[SubflowView]) {
        for view in views {
            if let Some(known) = self.0.iter_mut().find(|known| known.of == view.id) {
                known.update(view);
                continue;
            }
            let (of, bytes_since_loss) = (view.id, view.bytes_since_loss);
            self.0.push(PathLosses {
                of,
                bytes_since_loss,
                segments_since_loss: 0.0,
                mean_interval: None,
            });
        }
    }

    /// Records that a segment is given to this path.
    pub(super) fn record_sent_segment(&mut self, id: SubflowId) {
        if let Some(known) = self.0.iter_mut().find(|known| known.of == id) {
            known.segments_since_loss += 1.0;
        }
    }

    /// Removes a path that is gone or whose slot is reused.
    pub(super) fn remove_path(&mut self, id: SubflowId) {
        self.0.retain(|known| known.of != id);
    }

    /// Returns the probability that the next segment on a path is lost: one divided by the number of segments between
    /// two losses, either the average or the number since the last loss, whichever is larger. At least `burst` during
    /// recovery; 0 before the first loss.
    pub(super) fn chance(&self, view: &SubflowView, burst: f64) -> f64 {
        let known = self.0.iter().find(|known| known.of == view.id);
        let of = |known: &PathLosses| {
            Some(1.0 / known.mean_interval?.max(known.segments_since_loss).max(1.0))
        };
        let usual = known.and_then(of).unwrap_or_default();
        let now = if view.phase == Phase::Open { usual } else { usual.max(burst) };
        now.min(MAX_LOSS)
    }

    /// Sets the number of segments between losses.
    #[cfg(test)]
    pub(super) fn set_between(&mut self, view: &SubflowView, between: f64) {
        self.update(&[*view]);
        for known in self.0.iter_mut().filter(|known| known.of == view.id) {
            known.mean_interval = Some(between);
        }
    }
}

/// Returns the expected time until a segment with this loss probability is answered: a round trip, plus for each loss
/// another round trip and 4 RTTVAR until the loss is detected. `None` if the RTT is unknown.
pub(super) fn expected_delay(view: &SubflowView, loss: f64) -> Option<Duration> {
    let srtt = view.srtt?;
    let repair = (srtt + view.rttvar * 4).mul_f64(loss / (1.0 - loss));
    Some(srtt + repair)
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::view;

    use super::*;

    #[test]
    fn losses_are_counted_in_segments_and_loss_free_time_counts() {
        let mut losses = Losses::default();
        let mut send = |acked: u64, segments: u32| {
            let path = SubflowView { bytes_since_loss: acked, ..view(0, 20) };
            losses.update(&[path]);
            (0..segments).for_each(|_| losses.record_sent_segment(path.id));
            losses.chance(&path, 0.3)
        };
        assert_eq!(send(9_000, 10), 0.0, "no losses yet");
        assert_eq!(send(0, 1), 0.1, "one of ten lost");
        assert!((send(29_000, 30) - 1.0 / 31.0).abs() < 1e-9, "no more losses for a while");
        // This is the average of 10 and 31, with a weight of a quarter for the newer value.
        assert!((send(500, 1) - 1.0 / 15.25).abs() < 1e-9);
        losses.remove_path(SubflowId(0));
        assert_eq!(losses.chance(&view(0, 20), 0.3), 0.0);
    }

    #[test]
    fn a_path_that_repairs_counts_as_within_its_burst() {
        let repairing = SubflowView { phase: Phase::Recovery, ..view(0, 20) };
        let losses = Losses::default();
        assert_eq!(losses.chance(&repairing, 0.3), 0.3);
        // 20 + 0.25 / 0.75 * (20 + 4).
        assert_eq!(expected_delay(&repairing, 0.25), Some(Duration::from_millis(28)));
        assert_eq!(expected_delay(&SubflowView { srtt: None, ..repairing }, 0.25), None);
    }
}
