//! Which version of the carrier the servers speak that we know.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use marline_time::{Duration, Instant};

use super::frame::Version;

/// Servers remembered; the one that was heard of longest ago goes first.
const CAPACITY: usize = 256;
/// A server that speaks version 1 may be replaced by one that speaks more: it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(600);

/// What is known of servers.
#[derive(Debug, Default)]
pub(super) struct Servers {
    known: BTreeMap<SocketAddr, (Version, Instant)>,
}

impl Servers {
    /// What it spoke when it was last heard; `None` if that is not known, or too long ago.
    pub(super) fn version(&self, now: Instant, server: SocketAddr) -> Option<Version> {
        let (version, at) = *self.known.get(&server)?;
        (version == Version::Two || now < at + ASK_AGAIN).then_some(version)
    }

    /// It answered in this version.
    pub(super) fn heard(&mut self, now: Instant, server: SocketAddr, version: Version) {
        if self.known.len() >= CAPACITY && !self.known.contains_key(&server) {
            let oldest =
                self.known.iter().min_by_key(|(_, (_, at))| *at).map(|(server, _)| *server);
            if let Some(oldest) = oldest {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(server, (version, now));
    }
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
}
