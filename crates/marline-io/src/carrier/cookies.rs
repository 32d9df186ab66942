//! Cookies from servers, which save the next flow a round trip.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use marline_time::{Duration, Instant};

use super::flow::Outer;
use super::frame::Cookie;
use super::keys::COOKIE_SLOT_S;

/// Maximum number of cookies; the oldest is dropped.
const CAPACITY: usize = 256;
/// Minimum lifetime of a cookie, which is valid in its time slot and the next.
const COOKIE_LIFETIME: Duration = Duration::from_secs(COOKIE_SLOT_S);

/// Cookies by server and by our socket for which they were issued.
#[derive(Debug, Default)]
pub(super) struct Cookies(BTreeMap<(u16, SocketAddr), (Cookie, Instant)>);

impl Cookies {
    /// Stores the cookie from a busy server, which requires it for each flow opened from this socket.
    pub(super) fn store(&mut self, now: Instant, outer: &Outer, cookie: Cookie) {
        let key = (outer.socket, outer.remote);
        if self.0.len() >= CAPACITY && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, (_, at))| *at).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(key, (cookie, now));
    }

    /// Returns a valid cookie for the server.
    pub(super) fn get(&self, now: Instant, outer: &Outer) -> Option<Cookie> {
        let (cookie, at) = *self.0.get(&(outer.socket, outer.remote))?;
        (now < at + COOKIE_LIFETIME).then_some(cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_kept_for_a_slot_and_for_one_socket_and_the_table_is_bounded() {
        let mut cookies = Cookies::default();
        let now = Instant::from_secs(1);
        let outer = |socket, port| Outer {
            socket,
            local: [192, 0, 2, 9].into(),
            remote: SocketAddr::new([192, 0, 2, 1].into(), port),
        };
        cookies.store(now, &outer(0, 443), [1; 17]);
        cookies.store(now, &outer(0, 443), [2; 17]);
        assert_eq!(cookies.get(now, &outer(0, 443)), Some([2; 17]), "the newest cookie is kept");
        assert_eq!(cookies.get(now, &outer(1, 443)), None);
        assert_eq!(cookies.get(now, &outer(0, 444)), None);
        assert_eq!(cookies.get(now + COOKIE_LIFETIME, &outer(0, 443)), None);
        for port in 1_000..2_000 {
            cookies.store(now, &outer(0, port), [3; 17]);
        }
        assert_eq!(cookies.0.len(), CAPACITY);
        assert_eq!(cookies.get(now, &outer(0, 1_999)), Some([3; 17]));
    }
}
