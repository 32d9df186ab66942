//! Replay guard of Fast JOIN: accepted SYNs from the peer, and a limit on invalid ones.
//!
//! docs/decisions/opening.md explains each check. In short: the HMAC covers the whole SYN, a SYN is accepted once
//! (from any address), it must be recent, and no data is sent to a peer before its address is validated.

use marline_policy::Dsn;
use marline_time::{Duration, Instant};
use marline_wire::mptcp::FastJoinForm;

use crate::on_demand::UnusedState;

/// Number of invalid HMACs that a connection tolerates, and the time after which one of them is no longer counted.
const MAX_FAILURES: u32 = 8;
const FORGIVE_AFTER: Duration = Duration::from_secs(10);
/// Limit on accepted SYNs that a connection remembers while they are recent.
const MAX_REMEMBERED: usize = 32;

/// An accepted SYN.
#[derive(Copy, Clone, Debug)]
pub(super) struct SeenSyn {
    pub(super) form: FastJoinForm,
    pub(super) hmac: u64,
    /// Stream position to which the SYN refers.
    pub(super) at: Dsn,
}

/// State of the passive opener that prevents replays and limits guesses.
#[derive(Debug, Default)]
pub(super) struct ReplayGuard {
    /// HMACs of accepted SYNs, with the position in each.
    seen: Vec<SeenSyn>,
    /// Accepted numbers, for numbered SYNs.
    counted: AcceptedNumbers,
    /// Number of Fast JOINs that we opened.
    opened: u64,
    failures: u32,
    forgive_at: Option<Instant>,
}

/// Numbers of the peer's accepted Fast JOINs: the highest and a bitmap of those below it, as in IPsec (RFC 4303
/// section 3.4.3). Its size does not depend on the number of accepted SYNs.
#[derive(Copy, Clone, Debug, Default)]
struct AcceptedNumbers {
    highest: u64,
    /// Bit 0 is the highest number, bit 1 the one before it.
    seen: u128,
}

impl AcceptedNumbers {
    /// Of the numbers with this low byte, the one nearest to the next expected number.
    const fn unwrap(self, low: u8) -> u64 {
        const HALF: u64 = 128;
        let from = self.highest.saturating_sub(HALF - 1);
        from + (low.wrapping_sub(from as u8)) as u64
    }

    /// Records a number. `false` if it was accepted before, or is too old to be checked.
    const fn admit(&mut self, number: u64) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.seen = if ahead < 128 { self.seen << ahead | 1 } else { 1 };
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        if number == 0 || behind >= 128 || self.seen >> behind & 1 == 1 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

impl UnusedState for ReplayGuard {
    const UNUSED: &'static Self = &ReplayGuard {
        seen: Vec::new(),
        counted: AcceptedNumbers { highest: 0, seen: 0 },
        opened: 0,
        failures: 0,
        forgive_at: None,
    };
}

impl ReplayGuard {
    /// True if another HMAC may be checked.
    pub(super) fn may_check_hmac(&mut self, now: Instant) -> bool {
        while let Some(at) = self.forgive_at.filter(|at| *at <= now && self.failures > 0) {
            self.failures -= 1;
            self.forgive_at = Some(at + FORGIVE_AFTER);
        }
        self.failures < MAX_FAILURES
    }

    /// Counts an invalid HMAC.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.failures == 0 {
            self.forgive_at = Some(now + FORGIVE_AFTER);
        }
        self.failures += 1;
    }

    /// For numbered SYNs: of the numbers with this low byte, the one nearest to the next expected number.
    pub(super) const fn unwrap(&self, low: u8) -> u64 {
        self.counted.unwrap(low)
    }

    /// Records a number. `false` if it was accepted before, or is too old to be checked.
    pub(super) const fn admit_number(&mut self, number: u64) -> bool {
        self.counted.admit(number)
    }

    /// Number of the Fast JOIN that we open now.
    pub(super) const fn count_opened(&mut self) -> u64 {
        self.opened += 1;
        self.opened
    }

    /// Records an accepted SYN. `false` if it was accepted before, or if memory for recent SYNs is full, so that a
    /// replay of this one would not be detected.
    pub(super) fn admit(
        &mut self,
        syn: SeenSyn,
        is_stale: impl Fn(FastJoinForm, Dsn) -> bool,
    ) -> bool {
        self.seen.retain(|seen| !is_stale(seen.form, seen.at));
        let known = self.seen.iter().any(|seen| seen.form == syn.form && seen.hmac == syn.hmac);
        if known || self.seen.len() >= MAX_REMEMBERED {
            return false;
        }
        self.seen.push(syn);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_counts_once_in_any_order() {
        let mut counted = AcceptedNumbers::default();
        assert!(!counted.admit(0));
        for number in 1..1_000_u64 {
            let number = if number % 2 == 0 { number - 1 } else { number + 1 };
            assert_eq!(counted.unwrap(number as u8), number);
            assert!(counted.admit(number) && !counted.admit(number), "{number}");
        }
        // Up to 128 may be lost on the path, and a number before the window is not known to be new.
        assert_eq!((counted.highest, counted.unwrap(0x68)), (1_000, 1_128));
        assert!(counted.admit(1_128) && counted.admit(1_001) && !counted.admit(1_000));
    }
}
