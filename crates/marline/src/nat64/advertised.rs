//! NAT64 prefixes that routers have advertised (RFC 8781), by interface, during their lifetime.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use marline_io::{LocalEnd, Pref64, Prefix64};

/// Maximum numbers of interfaces and of prefixes per interface: any host on the network can advertise any number.
const INTERFACES: usize = 64;
const PREFIXES: usize = 4;
/// Maximum time by which an advertisement precedes the address that belongs to it. The address needs duplicate address
/// detection, and its notification takes time. An advertisement no older than this belongs to the current network.
const MAX_LEAD: Duration = Duration::from_secs(5);

#[derive(Copy, Clone, Debug)]
struct Advertisement {
    prefix: Prefix64,
    at: Instant,
    until: Instant,
}

/// Advertisements on an interface.
#[derive(Debug, Default)]
struct Link {
    /// Current network, identified by our address in it.
    end: Option<LocalEnd>,
    /// Valid prefixes, oldest first.
    valid_prefixes: Vec<Advertisement>,
}

/// Advertisements by interface.
#[derive(Debug, Default)]
pub(super) struct AdvertisedPrefixes(BTreeMap<u32, Link>);

impl AdvertisedPrefixes {
    /// Records an advertisement on an interface. A lifetime of 0 revokes a prefix.
    pub(super) fn record(&mut self, interface: u32, said: Pref64, now: Instant) {
        self.expire(now);
        if !self.0.contains_key(&interface) && self.0.len() >= INTERFACES {
            return;
        }
        let heard = &mut self.0.entry(interface).or_default().valid_prefixes;
        let until = now + Duration::from_secs(u64::from(said.lifetime_s));
        let room = heard.len() < PREFIXES;
        match heard.iter_mut().find(|heard| heard.prefix == said.prefix) {
            Some(known) => (known.at, known.until) = (now, until),
            None if room => heard.push(Advertisement { prefix: said.prefix, at: now, until }),
            None => {}
        }
        self.expire(now);
    }

    /// Returns the prefix to use on an interface, and the end of its lifetime.
    pub(super) fn prefix_for(&self, interface: u32, now: Instant) -> Option<(Prefix64, Instant)> {
        let heard = &self.0.get(&interface)?.valid_prefixes;
        let heard = heard.iter().find(|heard| heard.until > now)?;
        Some((heard.prefix, heard.until))
    }

    /// Sets the current address of an interface. After a change, earlier advertisements belong to another network.
    pub(super) fn set_address(&mut self, end: &LocalEnd, now: Instant) {
        if let Some(link) = self.0.get_mut(&end.interface.1)
            && link.end.as_ref() != Some(end)
        {
            link.valid_prefixes.retain(|heard| now.duration_since(heard.at) < MAX_LEAD);
            link.end = Some(end.clone());
        }
        self.expire(now);
    }

    fn expire(&mut self, now: Instant) {
        self.0.retain(|_, link| {
            link.valid_prefixes.retain(|heard| heard.until > now);
            !link.valid_prefixes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(number: u32) -> Prefix64 {
        format!("2001:db8:{number:x}::/96").parse().expect("a prefix")
    }

    fn said(number: u32, lifetime_s: u16) -> Pref64 {
        Pref64 { prefix: prefix(number), lifetime_s }
    }

    #[test]
    fn a_prefix_lasts_for_its_lifetime_and_can_be_renewed_or_ended() {
        let (mut all, begun) = (AdvertisedPrefixes::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        all.record(7, said(1, 80), begun);
        assert_eq!(all.prefix_for(7, at(79)), Some((prefix(1), at(80))));
        assert_eq!(all.prefix_for(7, at(80)), None);
        assert_eq!(all.prefix_for(8, begun), None, "another interface");
        all.record(7, said(1, 80), at(40));
        assert_eq!(all.prefix_for(7, at(100)), Some((prefix(1), at(120))));
        // A second prefix waits for the end of the first.
        all.record(7, said(2, 800), at(50));
        assert_eq!(all.prefix_for(7, at(100)).map(|(prefix, _)| prefix), Some(prefix(1)));
        all.record(7, said(1, 0), at(60));
        assert_eq!(all.prefix_for(7, at(60)), Some((prefix(2), at(850))));
        all.record(7, said(3, 0), at(60));
        assert_eq!(all.prefix_for(7, at(60)).map(|(prefix, _)| prefix), Some(prefix(2)));
    }

    #[test]
    fn another_network_on_the_interface_has_its_own_prefix() {
        let (mut all, begun) = (AdvertisedPrefixes::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let end = |address: &str| LocalEnd {
            interface: ("wwan0".to_owned(), 7),
            ..LocalEnd::from_tun("", address.parse().expect("an address"))
        };
        all.record(7, said(1, 8_000), begun);
        all.record(8, said(1, 8_000), begun);
        all.set_address(&end("2001:db8::2"), at(1));
        // The network has disappeared and returned.
        all.set_address(&end("2001:db8::2"), at(30));
        assert_eq!(all.prefix_for(7, at(30)).map(|(prefix, _)| prefix), Some(prefix(1)));
        all.record(7, said(2, 8_000), at(60));
        all.set_address(&end("2001:db8:1::2"), at(61));
        assert_eq!(all.prefix_for(7, at(61)).map(|(prefix, _)| prefix), Some(prefix(2)));
        assert_eq!(all.prefix_for(8, at(61)).map(|(prefix, _)| prefix), Some(prefix(1)));
    }

    #[test]
    fn stored_advertisements_are_bounded() {
        let (mut all, begun) = (AdvertisedPrefixes::default(), Instant::now());
        for number in 0..10_000 {
            all.record(number % 1_000, said(number, 65_528), begun);
        }
        assert_eq!(all.0.len(), INTERFACES);
        assert!(all.0.values().all(|link| link.valid_prefixes.len() <= PREFIXES));
        let late = begun + Duration::from_secs(70_000);
        all.record(1, said(1, 0), late);
        assert!(all.0.is_empty(), "expired prefixes are removed");
    }
}
