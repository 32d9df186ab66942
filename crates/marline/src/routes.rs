//! Cache of routes that the kernel has shown a moment ago.
//!
//! Each attempt to connect asks first whether the path leads to the server at all. A client that opens a
//! thousand connections a second asks once: an answer is remembered for a second, or until interfaces or
//! routes change. Where it has become wrong meanwhile, the attempt is one of those that nobody answers, and
//! the race goes on to the next path as always. A refusal is not remembered.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_io::LocalEnd;

/// How long an answer is good for. Changes of policy rules are not told of.
const FRESH: Duration = Duration::from_secs(1);
/// Answers that are kept.
const MOST: usize = 256;

/// From where, through the interface of which index, to where.
type Key = (IpAddr, u32, IpAddr);

/// What was asked for and exists.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    known: Mutex<BTreeMap<Key, Instant>>,
}

impl Routes {
    /// Whether the routing tables lead from `end` to `remote`, as of a second ago at most.
    ///
    /// # Errors
    /// What the kernel says, or that the families differ.
    pub(crate) fn check(&self, end: &LocalEnd, remote: IpAddr) -> io::Result<()> {
        self.check_at(Instant::now(), end, remote, |end, remote| end.check_route(remote))
    }

    fn check_at(
        &self,
        now: Instant,
        end: &LocalEnd,
        remote: IpAddr,
        ask: impl FnOnce(&LocalEnd, IpAddr) -> io::Result<()>,
    ) -> io::Result<()> {
        let key = (end.address, end.interface.1, remote);
        let fresh = |at: &Instant| now.saturating_duration_since(*at) < FRESH;
        if self.lock().get(&key).is_some_and(fresh) {
            return Ok(());
        }
        ask(end, remote)?;
        let mut known = self.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, now);
        Ok(())
    }

    /// Something changed: everything is asked anew.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Instant>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_good_for_a_second_or_until_something_changes() {
        let (routes, now) = (Routes::default(), Instant::now());
        let end = LocalEnd::behind("wlan0", IpAddr::from([192, 0, 2, 1]));
        let (near, far) = (IpAddr::from([192, 0, 2, 9]), IpAddr::from([203, 0, 113, 9]));
        let asked = core::cell::Cell::new(0);
        let check = |after_ms: u64, remote: IpAddr| {
            let at = now + Duration::from_millis(after_ms);
            let answer = routes.check_at(at, &end, remote, |_, remote| {
                asked.set(asked.get() + 1);
                if remote == near { Ok(()) } else { Err(io::ErrorKind::NetworkUnreachable.into()) }
            });
            (answer.is_ok(), asked.get())
        };
        assert_eq!(check(0, near), (true, 1));
        assert_eq!(check(999, near), (true, 1));
        assert_eq!(check(1_000, near), (true, 2));
        routes.forget();
        assert_eq!(check(1_001, near), (true, 3));
        assert_eq!(check(1_002, far), (false, 4));
        assert_eq!(check(1_003, far), (false, 5), "a refusal may be over at any time");
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let (routes, now) = (Routes::default(), Instant::now());
        let end = LocalEnd::behind("wlan0", IpAddr::from([192, 0, 2, 1]));
        for host in 0..1_000_u32 {
            let remote = IpAddr::from(host.to_be_bytes());
            routes.check_at(now, &end, remote, |_, _| Ok(())).unwrap();
        }
        assert!(routes.lock().len() <= MOST);
    }
}
