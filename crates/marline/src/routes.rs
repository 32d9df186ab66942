//! Cache of recent route lookups.
//!
//! Each attempt to connect first checks whether the path has a route to the server. Answers are cached for a second, or
//! until interfaces or routes change, so a client that opens a thousand connections per second asks the kernel once per
//! second. If a cached answer has become wrong, the attempt gets no answer, and the race continues with the next path.
//! Negative answers are not cached.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_io::LocalEnd;

/// Lifetime of an answer. The kernel does not report changes of policy rules.
const LIFETIME: Duration = Duration::from_secs(1);
/// Maximum number of cached answers.
const MAX_CACHED_ANSWERS: usize = 256;

/// Key of a cached route: source, interface index, destination.
type Key = (IpAddr, u32, IpAddr);

/// Cache of existing routes.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    known: Mutex<BTreeMap<Key, Instant>>,
}

impl Routes {
    /// Checks that the routing tables contain a route from `end` to `remote`, with an answer at most a second old.
    ///
    /// # Errors
    /// Fails if there is no such route, or if the address families differ.
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
        let fresh = |at: &Instant| now.saturating_duration_since(*at) < LIFETIME;
        if self.lock().get(&key).is_some_and(fresh) {
            return Ok(());
        }
        ask(end, remote)?;
        let mut known = self.lock();
        if known.len() >= MAX_CACHED_ANSWERS {
            known.clear();
        }
        known.insert(key, now);
        Ok(())
    }

    /// Clears the cache after a change of interfaces or routes.
    pub(crate) fn clear(&self) {
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
    fn an_answer_is_cached_for_a_second_or_until_a_change() {
        let (routes, now) = (Routes::default(), Instant::now());
        let end = LocalEnd::from_tun("wlan0", IpAddr::from([192, 0, 2, 1]));
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
        routes.clear();
        assert_eq!(check(1_001, near), (true, 3));
        assert_eq!(check(1_002, far), (false, 4));
        assert_eq!(check(1_003, far), (false, 5), "a refused route may work again at any time");
    }

    #[test]
    fn remembered_entries_are_bounded() {
        let (routes, now) = (Routes::default(), Instant::now());
        let end = LocalEnd::from_tun("wlan0", IpAddr::from([192, 0, 2, 1]));
        for host in 0..1_000_u32 {
            let remote = IpAddr::from(host.to_be_bytes());
            routes.check_at(now, &end, remote, |_, _| Ok(())).unwrap();
        }
        assert!(routes.lock().len() <= MAX_CACHED_ANSWERS);
    }
}
