//! Describes each [`Reason`] in a sentence: why a path was chosen, why a copy was sent, or why nothing was.

use super::{Question, Reason, Rule};
use crate::{Decision, ReinjectionCause, SubflowId};

impl Reason {
    /// Describes the decision and its reason in one sentence without a final period. `name` maps a subflow to the name
    /// of its path.
    #[must_use]
    pub fn text(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let path = self.path(name);
        let size = bytes(self.bytes());
        match self.grounds.rule {
            Rule::First => {
                format!("{size} of new data on {path}, {}", self.describe_comparison(name))
            }
            Rule::Spared => self.format_avoided(name),
            Rule::LastReceived => self.last_received_text(name),
            Rule::NoRoom => "new data waits: no path has room".to_owned(),
            Rule::FullPathFaster => {
                let (full, all) = (self.other_path(name), time_text(self.grounds.other_us));
                let here = time_text(self.grounds.arrives_us);
                format!(
                    "new data waits for {full}, which is full now but delivers all of it within {all}; \
                     on {path} a segment would take {here}"
                )
            }
            Rule::WouldBlock => {
                let here = time_text(self.grounds.arrives_us);
                format!(
                    "new data waits: {path} would deliver it within {here}, but faster paths would have to \
                     wait for it, because the window or buffer would be full"
                )
            }
            Rule::Late => format!("copy of {size} on {path}: {}", self.cost_reason_text(name)),
            Rule::End => {
                format!("copy of the last {size} on {path}: {}", self.cost_reason_text(name))
            }
            Rule::Repair => {
                let budget = self.budget(name);
                format!(
                    "repair of {size} on {path}: it replaces any one of these segments that {} loses; {budget}",
                    self.other_path(name)
                )
            }
            Rule::Explore => self.exploration_text(name),
            Rule::RepeatNewest => {
                format!(
                    "the newest data is repeated on {path}, which lost packets in the last minute"
                )
            }
            Rule::Recheck => self.format_recheck(),
            Rule::Nothing => "there is no data to send, and none worth a copy".to_owned(),
            Rule::NoPath => "nothing is sent: no path can send".to_owned(),
            Rule::Rescue => format!("reinjection of {size} on {path}: {}", self.cause(name)),
            Rule::RescueWaits => self.waiting_rescue_text(name),
            Rule::Unblock => {
                let full = match self.question {
                    Question::BufferBlocked => "the send buffer is full",
                    _ => "the peer's window is full",
                };
                let slow = self.other_path(name);
                format!(
                    "reinjection of {size} on {path}: {full}, and {slow} holds the oldest missing data"
                )
            }
        }
    }

    fn last_received_text(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let (path, size) = (self.path(name), bytes(self.bytes()));
        let state = match self.grounds.path.and_then(|id| self.inputs.path(id)) {
            Some(path) if path.health.is_degraded() => "is degraded",
            _ => "received data most recently",
        };
        format!("{size} of new data on {path}: every path is in trouble, and this one {state}")
    }

    fn exploration_text(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let (path, size) = (self.path(name), bytes(self.bytes()));
        let unused = self.grounds.path.and_then(|id| self.inputs.path(id)).map(|path| {
            let unused = self.inputs.now.since(path.last_sent_at);
            u64::try_from(unused.as_micros()).unwrap_or(u64::MAX)
        });
        let unused = time_text(unused);
        format!(
            "copy of {size} on {path} to measure that path, which has carried nothing for {unused}"
        )
    }

    fn format_recheck(&self) -> String {
        let after = match self.decision {
            Decision::WaitUntil(at) => {
                Some(at.since(self.inputs.now).as_micros()).map(|us| us as u64)
            }
            _ => None,
        };
        format!("no copy is worth its cost yet; next check in {}", time_text(after))
    }

    /// Number of bytes that the decision covers.
    fn bytes(&self) -> u64 {
        let also: u64 = self.more_ranges.iter().map(|range| range.len()).sum();
        let first = match self.decision {
            Decision::Repair { range, .. } => range.len(),
            decision => decision.data().map_or(0, |(_, range)| range.len()),
        };
        first + also
    }

    fn path(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        self.grounds.path.map_or_else(|| "a path".to_owned(), name)
    }

    fn other_path(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        self.grounds.other.map_or_else(|| "another path".to_owned(), name)
    }

    /// Explains why new data is sent on the chosen path.
    fn describe_comparison(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let grounds = &self.grounds;
        let here = match grounds.arrives_us {
            Some(us) if us < UNKNOWN_US => {
                format!("where it arrives within {}", time_text(Some(us)))
            }
            _ => "which has no forecast yet".to_owned(),
        };
        match (grounds.other, grounds.other_us) {
            (Some(other), Some(us)) if us < UNKNOWN_US => {
                format!("{here}; on {} it would be {}", name(other), time_text(Some(us)))
            }
            (Some(other), _) => format!("{here}; {} has no forecast yet", name(other)),
            (None, _) if self.inputs.paths.len() > 1 => format!("{here}; no other path has room"),
            (None, _) => format!("{here}; there is no other path"),
        }
    }

    /// Explains why a copy is justified.
    fn cost_reason_text(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let grounds = &self.grounds;
        let (other, takes) = (self.other_path(name), time_text(grounds.arrives_us));
        let owed = match (grounds.other_us, grounds.other_late_us) {
            (None, _) if self.is_known(grounds.other) => format!("{other} is not late"),
            (None, _) => format!("{other} has no forecast yet"),
            (Some(0), Some(0)) => format!("{other}'s answer is late"),
            (Some(0), late) => format!("{other}'s answer is due (p90 in {})", time_text(late)),
            (due, late) => {
                format!("{other}'s answer is due in {} (p90 {})", time_text(due), time_text(late))
            }
        };
        let gain = match (grounds.gain_us, grounds.price_us) {
            (gain, None) => format!("is expected to save {}", time_text(gain)),
            (gain, Some(price)) => {
                format!(
                    "is expected to save {}, at a cost of {}",
                    time_text(gain),
                    time_text(Some(price))
                )
            }
        };
        format!("{owed}; a copy arrives in {takes} and {gain}; {}", self.budget(name))
    }

    /// Explains why a faster path is not used.
    fn format_avoided(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let path = self.grounds.path.map_or_else(|| "a path".to_owned(), name);
        let other = self.grounds.other.and_then(|id| self.inputs.path(id));
        let why = match other {
            Some(other) if other.metered && other.wake_share > 0.0 => "is metered and has a radio",
            Some(other) if other.metered => "is metered",
            Some(other) if other.wake_share >= 1.0 => "has a radio that sleeps",
            _ => "has a radio that should go to sleep",
        };
        let (here, other) = (time_text(self.grounds.arrives_us), self.other_path(name));
        let spared = match self.grounds.other_us {
            Some(us) if us < UNKNOWN_US => {
                format!("{other} would take {} for a segment, but {why}", time_text(Some(us)))
            }
            _ => format!("{other}, which has no forecast yet, {why}"),
        };
        match self.decision.data() {
            Some(_) => {
                let size = bytes(self.bytes());
                format!("{size} of new data on {path}, where it arrives within {here}; {spared}")
            }
            None => {
                format!(
                    "new data waits for {path}, which delivers all of it within {here}; {spared}"
                )
            }
        }
    }

    /// Returns true if the path has any measurements.
    fn is_known(&self, id: Option<SubflowId>) -> bool {
        let path = id.and_then(|id| self.inputs.path(id));
        path.is_some_and(|path| path.forecast.is_known())
    }

    fn budget(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let spending = &self.inputs.spending;
        let all = if spending.unlimited {
            "the budget has no limit".to_owned()
        } else if spending.spent.is_finite() {
            format!("{:.0}% of the budget spent", spending.spent * 100.0)
        } else {
            "there is no budget".to_owned()
        };
        match self.grounds.path.and_then(|id| Some((name(id), spending.path_budget(id)?))) {
            Some((path, spent)) if spent.is_finite() => {
                format!("{all}, and {:.0}% of what may be copied to {path}", spent * 100.0)
            }
            _ => all,
        }
    }

    /// Explains why data is sent again.
    fn cause(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let Question::Again(item) = self.question else { return "it was requested".to_owned() };
        let carriers: Vec<String> = item.carried_by.iter().map(name).collect();
        let carriers =
            if carriers.is_empty() { "a path".to_owned() } else { carriers.join(" and ") };
        match item.cause {
            ReinjectionCause::UnansweredProbe => format!("a probe on {carriers} was not answered"),
            ReinjectionCause::SubflowRto => {
                format!("the retransmission timer of {carriers} expired")
            }
            ReinjectionCause::SubflowClosed => "the path that carried it is gone".to_owned(),
            ReinjectionCause::DataRto => {
                "the connection-level retransmission timer expired".to_owned()
            }
            ReinjectionCause::Policy => "the scheduler requested it".to_owned(),
            ReinjectionCause::Loss => format!("{carriers} lost it"),
        }
    }

    fn waiting_rescue_text(&self, name: &dyn Fn(SubflowId) -> String) -> String {
        let size = match self.question {
            Question::Again(item) => bytes(item.range.len()),
            _ => "data".to_owned(),
        };
        let cause = self.cause(name);
        match self.grounds.path {
            Some(on) => {
                format!("reinjection of {size} ({cause}) waits: {} already carries it", name(on))
            }
            None => {
                format!("reinjection of {size} ({cause}) waits: no allowed path has room")
            }
        }
    }
}

/// Times from here on (one day) mean unknown.
const UNKNOWN_US: u64 = 86_400_000_000;

/// A time for people to read, with at least two digits.
fn time_text(us: Option<u64>) -> String {
    match us {
        Some(us) if us < 1_000 => format!("{us} µs"),
        Some(us) if us < 10_000 => format!("{:.1} ms", us as f64 / 1e3),
        Some(us) if us < 1_000_000 => format!("{} ms", us / 1_000),
        Some(us) if us < UNKNOWN_US => format!("{:.1} s", us as f64 / 1e6),
        _ => "an unknown amount of time".to_owned(),
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} bytes"),
        1_000..10_000 => format!("{:.1} kB", count as f64 / 1e3),
        10_000..1_000_000 => format!("{} kB", count / 1_000),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}
