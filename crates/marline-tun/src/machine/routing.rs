//! Rules and routes that lead a machine's traffic to the interface: a function of the settings, without I/O.
//!
//! All lies in a table of its own, and rules before the machine's say who looks there. So nothing of the machine's own
//! routing is changed, and what is left when the interface has gone leads nowhere: the table is empty then, and the
//! machine's own rules decide. The rules, in their order:
//!
//! 1. Marline's own packets, by their mark, go as without Marline, or not at all.
//! 2. So do answers of services that are reached from outside.
//! 3. Queries for names go to the interface, also those to a resolver of the local network.
//! 4. So does what comes from the interface's own address. That is nothing to the local network but what the system
//!    itself says of answers that came by the interface, as that nobody waits for them (ICMP): it quotes them.
//! 5. Networks that the machine has a route to (other than the default one) go as ever: the local network.
//! 6. All else goes to the interface; with a kill switch, nowhere once that has gone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use marline_proxy::rules::Cidr;
use marline_proxy::udp::DNS_PORT;

/// Mark of Marline's own packets ("marl").
pub const MARK: u32 = 0x6d61_726c;

/// The table's number; none that any distribution names.
pub(super) const TABLE: u32 = 0x6d61;
/// Who made a rule or route, as the system keeps it with each (`proto` of `ip rule`).
pub(super) const PROTOCOL: u8 = 0x6d;
/// The system's main table.
const MAIN: u32 = 254;
/// The first rule's priority: after the local table, before those of the machine.
const PRIORITY: u32 = 5_300;

/// Networks that mean something on one link only: the machine's own routing knows what.
const LINKS_OWN: [(IpAddr, u8); 5] = [
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

/// Transport protocol of a rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

/// What a rule looks at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    All,
    Mark(u32),
    SourcePort(Transport, u16),
    DestinationPort(Transport, u16),
    Source(IpAddr),
}

/// What a rule does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Lookup(u32),
    /// Routes of more than 0 bits in this table.
    LookupButDefault(u32),
    Unreachable,
}

/// A rule of one family.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) priority: u32,
    pub(super) selector: Selector,
    pub(super) verdict: Verdict,
}

/// What a route does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// To the interface.
    ToInterface,
    /// Out of the table: the next rule decides.
    Elsewhere,
    /// Nowhere, unless another route of the table leads there.
    Nowhere,
}

/// A route of the table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to: Cidr,
    pub(super) leads: Leads,
}

/// What is to be led where.
#[derive(Clone, Debug, Default)]
pub struct RoutingSettings {
    /// Networks that are reached directly.
    pub direct: Vec<Cidr>,
    /// If there are any, only these are reached through the interface, and names as before.
    pub only: Vec<Cidr>,
    /// Ports of services of this machine that are reached from beyond the local network.
    pub reachable: Vec<u16>,
    /// Whether what cannot go through the interface goes nowhere.
    pub kill_switch: bool,
}

impl RoutingSettings {
    /// Whether queries for names are led to the interface.
    #[must_use]
    pub const fn takes_names(&self) -> bool {
        self.only.is_empty()
    }

    /// Rules of one family; `own` is the interface's address.
    pub(super) fn rules(&self, own: IpAddr) -> Vec<Rule> {
        let mut planned = vec![
            (Selector::Mark(MARK), Verdict::Lookup(MAIN)),
            (Selector::Mark(MARK), Verdict::Unreachable),
        ];
        for port in &self.reachable {
            for transport in [Transport::Tcp, Transport::Udp] {
                planned.push((Selector::SourcePort(transport, *port), Verdict::Lookup(MAIN)));
            }
        }
        if self.takes_names() {
            for transport in [Transport::Udp, Transport::Tcp] {
                let names = Selector::DestinationPort(transport, DNS_PORT);
                planned.push((names, Verdict::Lookup(TABLE)));
            }
        }
        planned.push((Selector::Source(own), Verdict::Lookup(TABLE)));
        planned.push((Selector::All, Verdict::LookupButDefault(MAIN)));
        planned.push((Selector::All, Verdict::Lookup(TABLE)));
        let numbered = planned.into_iter().zip(PRIORITY..);
        numbered
            .map(|((selector, verdict), priority)| Rule { priority, selector, verdict })
            .collect()
    }

    /// Routes of one family; `served`: the interface has an address of it.
    pub(super) fn routes(&self, ipv6: bool, served: bool) -> Vec<Route> {
        let of_family = |network: &Cidr| network.address().is_ipv6() == ipv6;
        let own = LINKS_OWN.iter().map(|(address, bits)| Cidr::around(*address, *bits));
        let mut direct: Vec<Cidr> = own.chain(self.direct.iter().copied()).collect();
        let all = [everything(ipv6)];
        let mut through = if self.only.is_empty() { all.to_vec() } else { self.only.clone() };
        for networks in [&mut direct, &mut through] {
            networks.retain(of_family);
            networks.sort_by_key(|network| (network.address(), network.prefix_len()));
            networks.dedup();
        }
        through.retain(|network| !direct.contains(network));
        let mut routes: Vec<Route> =
            direct.into_iter().map(|to| Route { to, leads: Leads::Elsewhere }).collect();
        for to in through {
            if served {
                routes.push(Route { to, leads: Leads::ToInterface });
            }
            // What the interface cannot take would leak around it.
            if self.kill_switch || !served {
                routes.push(Route { to, leads: Leads::Nowhere });
            }
        }
        routes
    }
}

fn everything(ipv6: bool) -> Cidr {
    let any: IpAddr =
        if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    Cidr::around(any, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));

    fn networks(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn shown(routes: &[Route]) -> Vec<String> {
        routes.iter().map(|route| format!("{} {:?}", route.to, route.leads)).collect()
    }

    #[test]
    fn own_packets_come_first_and_the_local_network_before_everything() {
        let settings = RoutingSettings { reachable: vec![22], ..RoutingSettings::default() };
        let rules = settings.rules(OWN);
        let priorities: Vec<u32> = rules.iter().map(|rule| rule.priority).collect();
        assert_eq!(priorities, (5_300..5_309).collect::<Vec<_>>());
        let place = |verdict| rules.iter().position(|rule| rule.verdict == verdict).unwrap();
        assert_eq!(place(Verdict::Lookup(MAIN)), 0);
        assert_eq!(
            rules[1],
            Rule { priority: 5_301, selector: Selector::Mark(MARK), verdict: Verdict::Unreachable }
        );
        assert!(place(Verdict::Lookup(TABLE)) < place(Verdict::LookupButDefault(MAIN)), "names");
        let own = rules.iter().position(|rule| rule.selector == Selector::Source(OWN)).unwrap();
        assert_eq!(rules[own].verdict, Verdict::Lookup(TABLE));
        assert!(own < place(Verdict::LookupButDefault(MAIN)), "nothing of it to the local network");
        assert_eq!(rules.last().unwrap().verdict, Verdict::Lookup(TABLE));
    }

    #[test]
    fn names_stay_as_they_were_when_only_some_networks_are_reached_through_it() {
        let settings =
            RoutingSettings { only: networks(&["10.0.0.0/8"]), ..RoutingSettings::default() };
        let names = |rule: &Rule| matches!(rule.selector, Selector::DestinationPort(..));
        assert!(!settings.rules(OWN).iter().any(names));
        assert_eq!(
            shown(&settings.routes(false, true)),
            [
                "169.254.0.0/16 Elsewhere",
                "224.0.0.0/4 Elsewhere",
                "255.255.255.255/32 Elsewhere",
                "10.0.0.0/8 ToInterface"
            ]
        );
        let ipv6 = settings.routes(true, true);
        assert!(ipv6.iter().all(|route| route.leads == Leads::Elsewhere), "{ipv6:?}");
    }

    #[test]
    fn a_family_that_the_interface_lacks_leads_nowhere() {
        let settings = RoutingSettings::default();
        assert_eq!(
            shown(&settings.routes(true, false)),
            ["fe80::/10 Elsewhere", "ff00::/8 Elsewhere", "::/0 Nowhere"]
        );
        assert!(shown(&settings.routes(true, true)).contains(&"::/0 ToInterface".to_owned()));
    }

    #[test]
    fn with_a_kill_switch_each_way_ends_nowhere_but_for_what_is_direct() {
        let settings = RoutingSettings {
            direct: networks(&["192.0.2.0/24", "192.0.2.0/24", "0.0.0.0/0"]),
            kill_switch: true,
            ..RoutingSettings::default()
        };
        let ipv4 = shown(&settings.routes(false, true));
        assert_eq!(ipv4.iter().filter(|route| route.starts_with("192.0.2.0")).count(), 1);
        assert!(
            !ipv4.iter().any(|route| route.contains("Nowhere")),
            "all of it is direct: {ipv4:?}"
        );
        let ipv6 = shown(&settings.routes(true, true));
        assert_eq!(ipv6[2..], ["::/0 ToInterface", "::/0 Nowhere"]);
    }
}
