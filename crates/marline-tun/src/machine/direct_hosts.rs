//! Hosts reached directly because of their names, with those names and expiry times.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of hosts. At the limit, a new host replaces the one that expires first, which then uses the tunnel
/// again.
const MAX_HOSTS: usize = 4_096;
/// Maximum number of hosts per name, which may have other addresses in each answer.
const MAX_HOSTS_PER_NAME: usize = 64;
/// Extended lifetime of an expired host that is in use, after which it is checked again.
const LIFETIME_EXTENSION: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct Host {
    name: String,
    expires_at: Instant,
}

/// Result of adding a host.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct AddOutcome {
    /// True if the host is new.
    pub(super) is_new: bool,
    /// Host evicted to make room.
    pub(super) evicted: Option<IpAddr>,
}

/// Direct hosts of a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectHosts {
    hosts: BTreeMap<IpAddr, Host>,
}

impl DirectHosts {
    /// Adds a host for a name, or extends its lifetime.
    pub(super) fn open(&mut self, name: &str, address: IpAddr, expires_at: Instant) -> AddOutcome {
        if let Some(host) = self.hosts.get_mut(&address) {
            host.expires_at = host.expires_at.max(expires_at);
            return AddOutcome { is_new: false, evicted: None };
        }
        let of_name = |host: &Host| host.name == name;
        let evicted =
            if self.hosts.values().filter(|host| of_name(host)).count() >= MAX_HOSTS_PER_NAME {
                self.next_expiry(of_name)
            } else if self.hosts.len() >= MAX_HOSTS {
                self.next_expiry(|_| true)
            } else {
                None
            };
        if let Some(evicted) = evicted {
            self.remove(evicted);
        }
        self.hosts.insert(address, Host { name: name.to_owned(), expires_at });
        AddOutcome { is_new: true, evicted }
    }

    fn next_expiry(&self, among: impl Fn(&Host) -> bool) -> Option<IpAddr> {
        let among = self.hosts.iter().filter(|(_, host)| among(host));
        among.min_by_key(|(_, host)| host.expires_at).map(|(address, _)| *address)
    }

    pub(super) fn remove(&mut self, address: IpAddr) {
        self.hosts.remove(&address);
    }

    /// Returns the addresses of the hosts.
    pub(super) fn iter(&self) -> impl Iterator<Item = &IpAddr> {
        self.hosts.keys()
    }

    /// Returns true if a host has expired.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.hosts.values().any(|host| host.expires_at <= now)
    }

    /// Removes expired hosts. Those in use are extended.
    pub(super) fn expire(&mut self, now: Instant, in_use: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let mut expired = Vec::new();
        self.hosts.retain(|address, host| {
            if host.expires_at > now {
                return true;
            }
            if in_use.contains(address) {
                host.expires_at = now + LIFETIME_EXTENSION;
                return true;
            }
            expired.push(*address);
            false
        });
        expired
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0909_0000 + number).into()
    }

    #[test]
    fn expired_hosts_are_removed_unless_in_use() {
        let (mut hosts, start) = (DirectHosts::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(hosts.open("a.example", address(1), after(300)).is_new);
        assert!(hosts.open("b.example", address(2), after(400)).is_new);
        // Resolving the name again extends the lifetime, and never shortens it.
        assert!(!hosts.open("a.example", address(1), after(500)).is_new);
        hosts.open("a.example", address(1), after(350));
        assert!(!hosts.is_due(after(399)) && hosts.is_due(after(400)));
        assert!(hosts.expire(after(399), &BTreeSet::new()).is_empty());
        assert_eq!(hosts.expire(after(400), &BTreeSet::new()), [address(2)]);
        let in_use = BTreeSet::from([address(1)]);
        assert!(hosts.expire(after(500), &in_use).is_empty());
        assert!(!hosts.is_due(after(559)));
        assert_eq!(hosts.expire(after(560), &BTreeSet::new()), [address(1)]);
        assert_eq!(hosts.iter().count(), 0);
    }

    #[test]
    fn direct_hosts_are_limited_per_name_and_in_total() {
        let (mut hosts, start) = (DirectHosts::default(), Instant::now());
        let expires_at = |number: u32| start + Duration::from_secs(300 + u64::from(number));
        for number in 0..MAX_HOSTS_PER_NAME as u32 {
            assert_eq!(
                hosts.open("many.example", address(number), expires_at(number)).evicted,
                None
            );
        }
        let further = hosts.open("many.example", address(5_000), expires_at(5_000));
        assert_eq!(further, AddOutcome { is_new: true, evicted: Some(address(0)) });
        for number in MAX_HOSTS_PER_NAME as u32..MAX_HOSTS as u32 {
            let name = format!("{number}.example");
            assert_eq!(hosts.open(&name, address(number), expires_at(number)).evicted, None);
        }
        assert_eq!(hosts.hosts.len(), MAX_HOSTS);
        let further = hosts.open("one.example", address(6_000), expires_at(6_000));
        assert_eq!(further.evicted, Some(address(1)));
        assert_eq!(hosts.hosts.len(), MAX_HOSTS);
    }
}
