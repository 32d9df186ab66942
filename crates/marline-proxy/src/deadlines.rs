//! Latency requirements of applications, by the port of their target.
//!
//! An application behind a proxy cannot state its latency requirement ([`marline::Stream::set_deadline`]), but the
//! port of its target identifies the kind of application. Each end applies its own rules to the data that it sends.
//! A connection that carries several requests in turn has the requirement of the current one.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::transport::Transport;

/// Smallest and largest time in a rule.
pub const RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));

/// Data to and from targets on these ports should reach the other end of the connection within this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineRule {
    /// First port of the range.
    pub first: u16,
    /// Last port of the range.
    pub last: u16,
    /// Time limit, from the moment at which a path accepts the data.
    pub within: Duration,
}

impl DeadlineRule {
    /// Returns the first two rules whose ports overlap.
    #[must_use]
    pub fn conflict(rules: &[DeadlineRule]) -> Option<(&DeadlineRule, &DeadlineRule)> {
        let meets = |a: &DeadlineRule, b: &DeadlineRule| a.first <= b.last && b.first <= a.last;
        rules.iter().enumerate().find_map(|(at, rule)| {
            rules[at + 1..].iter().find(|other| meets(rule, other)).map(|other| (rule, other))
        })
    }
}

/// The current rules, which may change. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Deadlines(Arc<RwLock<Vec<DeadlineRule>>>);

impl Deadlines {
    /// Applies these rules, starting with the next request.
    pub fn change(&self, rules: Vec<DeadlineRule>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// Returns the time limit for targets on this port.
    #[must_use]
    pub fn for_port(&self, port: u16) -> Option<Duration> {
        let rules = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let rule = rules.iter().find(|rule| (rule.first..=rule.last).contains(&port));
        rule.map(|rule| rule.within)
    }

    /// Applies the rule for this port to `stream`, if there is one. Returns the previous scheduler.
    pub(crate) fn apply_to(&self, stream: &impl Transport, port: u16) -> Option<PreviousScheduler> {
        let (within, stream) = (self.for_port(port)?, stream.multipath()?);
        let usual = stream.info()?.scheduler;
        match stream.set_deadline(Some(within)) {
            Ok(()) => Some(PreviousScheduler(usual.into())),
            Err(error) => {
                tracing::warn!(
                    "cannot set the deadline for port {port}; sending without it: {error}"
                );
                None
            }
        }
    }
}

/// The scheduler of a connection before it had a deadline.
pub(crate) struct PreviousScheduler(Box<str>);

impl fmt::Debug for PreviousScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Usual").field(&self.0).finish()
    }
}

impl PreviousScheduler {
    /// Restores the scheduler of `stream`. Returns true on success.
    pub(crate) fn restore(&self, stream: &impl Transport) -> bool {
        stream.multipath().is_some_and(|stream| stream.set_scheduler(&self.0).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(first: u16, last: u16, within_ms: u64) -> DeadlineRule {
        DeadlineRule { first, last, within: Duration::from_millis(within_ms) }
    }

    #[test]
    fn the_current_rule_of_a_port_determines_its_deadline() {
        let deadlines = Deadlines::default();
        let shared = deadlines.clone();
        assert_eq!(deadlines.for_port(22), None);
        shared.change(vec![rule(22, 22, 80), rule(5900, 5910, 50)]);
        let times = [21, 22, 23, 5899, 5900, 5910, 5911].map(|port| deadlines.for_port(port));
        let [ssh, screen] = [80, 50].map(|ms| Some(Duration::from_millis(ms)));
        assert_eq!(times, [None, ssh, None, None, screen, screen, None]);
        shared.change(Vec::new());
        assert_eq!(deadlines.for_port(22), None);
    }

    #[test]
    fn overlapping_rules_are_found() {
        let (one, other) = (rule(20, 22, 80), rule(22, 22, 50));
        let rules = [rule(1, 19, 10), one.clone(), rule(23, 65_535, 10), other.clone()];
        assert_eq!(DeadlineRule::conflict(&rules), Some((&one, &other)));
        assert_eq!(DeadlineRule::conflict(&rules[..3]), None);
    }
}
