//! Model of a path: its states, their transition probabilities, and what they mean for a message sent now.
//!
//! A path is good, degrading or bad, depending on its RTT and losses. The state is recorded once per round trip, or
//! immediately if it becomes worse, and the transitions are counted. For each state, the model also counts how many
//! messages sent in it were late, and by how much. The counts begin with a guess and decay, so that they adapt when a
//! user walks into another room.

use marline_policy::{Phase, SubflowView};
use marline_time::{Duration, Instant};

use super::super::primary::Silence;

/// SRTT, in multiples of the smallest RTT, above which a path is degrading. With twice this increase, it is bad.
const DEGRADING_SRTT_RATIO: f64 = 1.5;
/// RTT increases below this are not evidence.
const MIN_RTT_RISE: Duration = Duration::from_millis(5);
/// Number of RTT variations beyond the SRTT after which an answer is late.
const VARIATIONS: f64 = 4.0;
/// Minimum of that allowance, as a fraction of the SRTT (divisor).
const MIN_SLACK_DIVISOR: u32 = 4;
/// Sum of a state's transition counts above which they are halved.
const MAX_TRANSITIONS: f64 = 64.0;
/// Weight of the past when a new message is added.
const DECAY: f64 = 0.99;
/// Weight of a new delay in the mean.
const DELAY_GAIN: f64 = 1.0 / 8.0;
/// Assumed lateness, in SRTTs, until a message has been late (a probe timeout and a retransmission).
const ASSUMED_DELAY_RTTS: f64 = 2.0;

/// State of a path.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    #[default]
    Good,
    Degrading,
    Bad,
}

/// Outcomes of messages sent in one state.
#[derive(Copy, Clone, Debug)]
struct Record {
    ended: f64,
    late: f64,
    /// Mean delay of late messages after their due time, in seconds.
    delay_s: Option<f64>,
}

/// Model of a path.
#[derive(Clone, Debug)]
pub(super) struct Model {
    state: State,
    recorded_at: Option<Instant>,
    silence: Silence,
    bytes_since_loss: u64,
    lost: bool,
    /// Transition counts, indexed by the old and the new state.
    changes: [[f64; 3]; 3],
    records: [Record; 3],
}

impl Default for Model {
    fn default() -> Self {
        let guess = |ended, late| Record { ended, late, delay_s: None };
        Model {
            state: State::Good,
            recorded_at: None,
            silence: Silence::default(),
            bytes_since_loss: 0,
            lost: false,
            changes: [[48.0, 1.5, 0.5], [2.0, 6.0, 2.0], [0.5, 2.0, 7.5]],
            records: [guess(20.0, 0.1), guess(5.0, 1.0), guess(5.0, 3.0)],
        }
    }
}

impl Model {
    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Records the current state of the path.
    pub(super) fn record_state(&mut self, view: &SubflowView, now: Instant) {
        self.silence.update(view, now);
        self.lost |= view.bytes_since_loss < self.bytes_since_loss;
        self.bytes_since_loss = view.bytes_since_loss;
        let state = self.classify(view, now);
        let round = view.srtt.unwrap_or(MIN_RTT_RISE);
        let is_due = self.recorded_at.is_none_or(|at| now.since(at) >= round);
        if state <= self.state && !is_due {
            return;
        }
        let row = &mut self.changes[self.state as usize];
        row[state as usize] += 1.0;
        if row.iter().sum::<f64>() > MAX_TRANSITIONS {
            row.iter_mut().for_each(|count| *count /= 2.0);
        }
        (self.state, self.recorded_at, self.lost) = (state, Some(now), false);
    }

    fn classify(&self, view: &SubflowView, now: Instant) -> State {
        let silent = self.silence.overdue_at(view, VARIATIONS).is_some_and(|at| at <= now);
        let risen = |share: f64| {
            view.srtt.zip(view.min_rtt).is_some_and(|(srtt, least)| {
                srtt > least.saturating_add(least.mul_f64(share).max(MIN_RTT_RISE))
            })
        };
        if silent
            || !view.health.is_usable()
            || view.phase == Phase::Loss
            || risen(2.0 * (DEGRADING_SRTT_RATIO - 1.0))
        {
            State::Bad
        } else if self.lost
            || view.phase == Phase::Recovery
            || view.bytes_queued > 0
            || risen(DEGRADING_SRTT_RATIO - 1.0)
        {
            State::Degrading
        } else {
            State::Good
        }
    }

    /// Returns the time at which the current silence becomes evidence.
    pub(super) fn overdue_at(&self, view: &SubflowView) -> Option<Instant> {
        self.silence.overdue_at(view, VARIATIONS)
    }

    /// Records that a message sent in this state was answered in time.
    pub(super) fn record_in_time(&mut self, state: State) {
        let record = &mut self.records[state as usize];
        record.ended = record.ended * DECAY + 1.0;
        record.late *= DECAY;
    }

    /// Records that a message sent in this state was not answered in time.
    pub(super) fn record_late(&mut self, state: State) {
        self.record_in_time(state);
        self.records[state as usize].late += 1.0;
    }

    /// Records how late a message sent in this state was answered.
    pub(super) fn record_delay(&mut self, state: State, by: Duration) {
        let (by_s, record) = (by.as_secs_f64(), &mut self.records[state as usize]);
        let mean_s = record.delay_s.unwrap_or(by_s);
        record.delay_s = Some(mean_s + (by_s - mean_s) * DELAY_GAIN);
    }

    /// Iterates over the records, each with the probability of its state when a message sent now arrives.
    fn weighted_records(&self) -> impl Iterator<Item = (f64, &Record)> {
        let row = self.changes[self.state as usize];
        let sum: f64 = row.iter().sum();
        self.records.iter().zip(row).map(move |(record, count)| (count / sum, record))
    }

    /// Returns the probability that a message sent now is late.
    pub(super) fn lateness_probability(&self) -> f64 {
        self.weighted_records().map(|(chance, record)| chance * record.late / record.ended).sum()
    }

    /// Returns the mean lateness in seconds, where a delay of up to `spared_s` counts as in time. An `overdue` message
    /// is certainly late.
    pub(super) fn expected_delay_s(&self, srtt: Duration, spared_s: f64, overdue: bool) -> f64 {
        let beyond = |record: &Record| {
            let guess_s = srtt.as_secs_f64() * ASSUMED_DELAY_RTTS;
            (record.delay_s.unwrap_or(guess_s) - spared_s).max(0.0)
        };
        let late = |record: &Record| if overdue { 1.0 } else { record.late / record.ended };
        self.weighted_records().map(|(chance, record)| chance * late(record) * beyond(record)).sum()
    }
}

/// Returns the time after which an answer to data sent now is late; `None` without an RTT.
pub(super) fn due_at(view: &SubflowView, now: Instant) -> Option<Instant> {
    let srtt = view.srtt?;
    Some(now + srtt + view.rttvar.mul_f64(VARIATIONS).max(srtt / MIN_SLACK_DIVISOR))
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{ms, unreachable, view};

    use super::*;

    fn at(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    #[test]
    fn the_state_follows_rtt_loss_and_silence() {
        let steady = SubflowView { bytes_since_loss: 9_000, ..view(0, 20) };
        let state = |view: SubflowView| {
            let mut model = Model { bytes_since_loss: 9_000, ..Model::default() };
            model.record_state(&view, at(100));
            model.state()
        };
        assert_eq!(state(steady), State::Good);
        for degrading in [
            SubflowView { srtt: Some(ms(31)), ..steady },
            SubflowView { phase: Phase::Recovery, ..steady },
            SubflowView { bytes_queued: 1, ..steady },
            SubflowView { bytes_since_loss: 10, ..steady },
        ] {
            assert_eq!(state(degrading), State::Degrading, "{degrading:?}");
        }
        for bad in [
            SubflowView { srtt: Some(ms(41)), ..steady },
            SubflowView { phase: Phase::Loss, ..steady },
            unreachable(steady, 3),
        ] {
            assert_eq!(state(bad), State::Bad, "{bad:?}");
        }
        let mut model = Model::default();
        let asked = SubflowView { bytes_in_flight: 1_000, ..steady };
        model.record_state(&asked, at(100));
        assert_eq!((model.state(), model.overdue_at(&asked)), (State::Good, Some(at(124))));
        model.record_state(&asked, at(124));
        assert_eq!(model.state(), State::Bad, "silent");
        let odd = SubflowView { srtt: None, min_rtt: None, ..view(0, 0) };
        assert_eq!(state(SubflowView { bytes_since_loss: 9_000, ..odd }), State::Good);
    }

    #[test]
    fn worse_states_are_recorded_immediately_and_better_ones_once_per_round_trip() {
        let mut model = Model::default();
        let bad = SubflowView { srtt: Some(ms(50)), min_rtt: Some(ms(20)), ..view(0, 20) };
        model.record_state(&view(0, 20), at(100));
        model.record_state(&bad, at(101));
        assert_eq!(model.state(), State::Bad);
        model.record_state(&view(0, 20), at(120));
        assert_eq!(model.state(), State::Bad);
        model.record_state(&view(0, 20), at(121));
        assert_eq!(model.state(), State::Good);
    }

    #[test]
    fn a_path_that_often_turns_bad_predicts_late_messages_while_good() {
        let good = view(0, 20);
        let bad = SubflowView { srtt: Some(ms(90)), min_rtt: Some(ms(20)), ..view(0, 20) };
        let probability_after = |turns: bool| {
            let mut model = Model::default();
            for round in 0..200 {
                let view = if turns && round % 4 == 3 { bad } else { good };
                model.record_state(&view, at(100 + round * 100));
            }
            model.record_state(&good, at(90_000));
            assert_eq!(model.state(), State::Good);
            model.lateness_probability()
        };
        let (steady, turning) = (probability_after(false), probability_after(true));
        assert!(steady < 0.02 && turning > 0.15, "{steady} {turning}");
    }

    #[test]
    fn lateness_is_learned_by_state_and_forgotten() {
        let mut model = Model::default();
        let guess_s = model.expected_delay_s(ms(20), 0.0, false);
        for _ in 0..50 {
            model.record_late(State::Good);
            model.record_delay(State::Good, ms(100));
        }
        let learned_s = model.expected_delay_s(ms(20), 0.0, false);
        assert!(learned_s > 20.0 * guess_s && learned_s < 0.1, "{guess_s} {learned_s}");
        // The saving of a copy is reduced by its own additional time.
        let spared_s = model.expected_delay_s(ms(20), 0.09, false);
        assert!(spared_s < learned_s / 5.0, "{spared_s}");
        assert!(model.expected_delay_s(ms(20), 0.0, true) > learned_s);
        for _ in 0..1_000 {
            model.record_in_time(State::Good);
        }
        assert!(model.lateness_probability() < 0.03);
    }
}
