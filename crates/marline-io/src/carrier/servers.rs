//! Cache of servers: the carrier version each speaks, and the cookies it issued.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use marline_time::{Duration, Instant};

use super::flow::Outer;
use super::frame::{Cookie, Version};
use super::keys::COOKIE_SLOT_S;

/// Servers remembered; the one that was heard of longest ago goes first.
const CAPACITY: usize = 256;
/// A server that speaks version 1 may be replaced by one that speaks more: it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// A cookie is good in its slot and the next: for so long at least.
const COOKIE_LIFETIME: Duration = Duration::from_secs(COOKIE_SLOT_S);

/// What is known of servers.
#[derive(Debug, Default)]
pub(super) struct Servers {
    known: BTreeMap<SocketAddr, (Version, Instant)>,
    /// By our socket, whose address they are for, and the server.
    cookies: BTreeMap<(u16, SocketAddr), (Cookie, Instant)>,
}

impl Servers {
    /// What it spoke when it was last heard; `None` if that is not known, or too long ago.
    pub(super) fn version(&self, now: Instant, server: SocketAddr) -> Option<Version> {
        let (version, at) = *self.known.get(&server)?;
        (version == Version::Two || now < at + ASK_AGAIN).then_some(version)
    }

    /// It answered in this version.
    pub(super) fn heard(&mut self, now: Instant, server: SocketAddr, version: Version) {
        put(&mut self.known, server, (version, now));
    }

    /// It is pressed, and wants this from whoever opens a flow from here.
    pub(super) fn gave(&mut self, now: Instant, outer: &Outer, cookie: Cookie) {
        put(&mut self.cookies, (outer.socket, outer.remote), (cookie, now));
    }

    /// What it gave us lately: the next flow need not ask for one again.
    pub(super) fn cookie(&self, now: Instant, outer: &Outer) -> Option<Cookie> {
        let (cookie, at) = *self.cookies.get(&(outer.socket, outer.remote))?;
        (now < at + COOKIE_LIFETIME).then_some(cookie)
    }
}

/// Puts something into a table that is bounded: the oldest entry makes room.
fn put<K: Ord + Copy, V>(table: &mut BTreeMap<K, (V, Instant)>, key: K, entry: (V, Instant)) {
    if table.len() >= CAPACITY && !table.contains_key(&key) {
        let oldest = table.iter().min_by_key(|(_, (_, at))| *at).map(|(key, _)| *key);
        if let Some(oldest) = oldest {
            table.remove(&oldest);
        }
    }
    table.insert(key, entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_asked_again_and_the_table_is_bounded() {
        let mut servers = Servers::default();
        let now = Instant::from_secs(1);
        let server = |port| SocketAddr::new([192, 0, 2, 1].into(), port);
        servers.heard(now, server(1), Version::One);
        servers.heard(now, server(2), Version::Two);
        let later = now + ASK_AGAIN;
        assert_eq!(servers.version(now, server(1)), Some(Version::One));
        assert_eq!(servers.version(later, server(1)), None);
        assert_eq!(servers.version(later, server(2)), Some(Version::Two));
        for port in 10..1_000 {
            servers.heard(later, server(port), Version::Two);
        }
        assert_eq!(servers.known.len(), CAPACITY);
        assert_eq!(servers.version(later, server(999)), Some(Version::Two));
    }

    #[test]
    fn cookies_are_kept_for_a_slot_and_for_one_socket() {
        let mut servers = Servers::default();
        let now = Instant::from_secs(1);
        let outer = |socket, port| Outer {
            socket,
            local: [192, 0, 2, 9].into(),
            remote: SocketAddr::new([192, 0, 2, 1].into(), port),
        };
        servers.gave(now, &outer(0, 443), [1; 17]);
        servers.gave(now, &outer(0, 443), [2; 17]);
        assert_eq!(servers.cookie(now, &outer(0, 443)), Some([2; 17]), "the latest");
        assert_eq!(servers.cookie(now, &outer(1, 443)), None);
        assert_eq!(servers.cookie(now, &outer(0, 444)), None);
        assert_eq!(servers.cookie(now + COOKIE_LIFETIME, &outer(0, 443)), None);
        for port in 1_000..2_000 {
            servers.gave(now, &outer(0, port), [3; 17]);
        }
        assert_eq!(servers.cookies.len(), CAPACITY);
    }
}
