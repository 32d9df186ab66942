//! Rules and routes that direct a machine's traffic to the interface, computed from the settings without I/O.
//!
//! All routes are in our own tables, and rules before the machine's rules determine the traffic that uses them, so
//! that nothing in the machine's own routing is changed. There are two sets of rules, each with its range of
//! priorities:
//!
//! - The *lead* sends traffic to the interface while `marline up` runs. It is added and removed as needed.
//! - The *switch* follows the lead and blocks everything except traffic that may leave directly. It is added before the
//!   lead, and only a request of the user removes it. It consists only of rules, so it does not depend on routes
//!   that disappear with an interface. So nothing else leaves, even if the lead is incomplete or the interface is not
//!   served.
//!
//! Both have the same order: Marline's own packets (by their mark); replies of services that are reached from
//! outside; explicit exceptions; DNS queries, which no later rule may send out; networks to which the machine has a
//! route other than the default one, which are the local network; and everything else.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use marline_proxy::rules::Cidr;

use super::direct_hosts::DirectHosts;

/// Mark of Marline's own packets ("marl").
pub const MARK: u32 = 0x6d61_726c;

/// Table for general traffic. No distribution uses this number or the following ones.
pub(super) const TABLE: u32 = 0x6d61;
/// Table for DNS queries, without exceptions.
const NAMES_TABLE: u32 = 0x6d63;
/// Table for queries from sockets bound to another interface.
const BOUND_QUERY_TABLE: u32 = 0x6d64;
/// Table with a single route to the loopback interface, where packets that are not local are dropped.
const DISCARD_TABLE: u32 = 0x6d65;
/// All of our tables.
pub(super) const TABLES: [u32; 4] = [TABLE, NAMES_TABLE, BOUND_QUERY_TABLE, DISCARD_TABLE];
/// Tables used only by the lead.
pub(super) const TUNNEL_TABLES: [u32; 2] = [TABLE, NAMES_TABLE];
/// Origin of our rules and routes, as stored by the system (`proto` of `ip rule`).
pub(super) const PROTOCOL: u8 = 0x6d;
/// The system's main table.
const MAIN: u32 = 254;
/// Priorities of the lead: after the local table, before the machine's own rules.
pub(super) const TUNNEL_PRIORITIES: std::ops::Range<u32> = 5_300..5_400;
/// Priorities of the switch.
pub(super) const KILL_SWITCH_PRIORITIES: std::ops::Range<u32> = 5_400..JUMP_TARGET_PRIORITY;
/// Priority of a rule without effect, to which rules for direct traffic jump. The machine's own rules follow it.
pub(super) const JUMP_TARGET_PRIORITY: u32 = 5_499;

/// Priority of rules for replies on connections, relative to the start of a set.
const REPLY_PRIORITY: u32 = 3;
/// Priority of the switch's rules for hosts that are direct because of their names.
const DIRECT_HOST_PRIORITY: u32 = KILL_SWITCH_PRIORITIES.start + 20;

/// Link-specific networks, which the machine's own routing handles.
const LINK_SPECIFIC_NETWORKS: [(IpAddr, u8); 5] = [
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

/// Transport protocol of a rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

const TRANSPORTS: [Transport; 2] = [Transport::Udp, Transport::Tcp];

/// Service of this machine whose replies leave directly: `PORT`, `PORT/tcp` or `PORT/udp`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Port.
    pub port: u16,
    /// Transport protocol. `None` means both.
    pub transport: Option<Transport>,
}

/// Text that is not a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a service: expected PORT, PORT/tcp or PORT/udp (1 to 65535)")]
pub struct BadService(String);

impl FromStr for Service {
    type Err = BadService;

    fn from_str(text: &str) -> Result<Service, BadService> {
        let wrong = || BadService(text.to_owned());
        let (port, transport) = match text.split_once('/') {
            None => (text, None),
            Some((port, "tcp")) => (port, Some(Transport::Tcp)),
            Some((port, "udp")) => (port, Some(Transport::Udp)),
            Some(_) => return Err(wrong()),
        };
        match port.parse() {
            Ok(port @ 1..) => Ok(Service { port, transport }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            None => "",
            Some(Transport::Tcp) => "/tcp",
            Some(Transport::Udp) => "/udp",
        };
        write!(f, "{}{transport}", self.port)
    }
}

/// TCP connection that another machine has opened to this one, as visible in its replies.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InboundConnection {
    pub(super) port: u16,
    pub(super) peer: IpAddr,
}

/// Condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    All,
    Mark(u32),
    SourcePort(Transport, u16),
    RepliesTo(InboundConnection),
    Names(Transport),
    NamesTo(Transport, Cidr),
    /// Queries from sockets bound to this interface.
    NamesBoundTo(Transport, String),
    Source(IpAddr),
    To(Cidr),
}

/// Action of a rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Lookup(u32),
    /// Routes of this table except default routes.
    LookupButDefault(u32),
    Unreachable,
    /// Like `Unreachable`, for traffic from this machine by users other than root.
    UnreachableForUsers,
    /// Lookup in this table for traffic sent by this machine itself.
    LookupForOwn(u32),
    /// The machine's own rules decide.
    OwnRules,
    /// The next rule decides.
    Nothing,
}

/// Rule of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) priority: u32,
    pub(super) selector: Selector,
    pub(super) verdict: Verdict,
}

/// Action of a route.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum RouteAction {
    /// Send to the interface.
    ToInterface,
    /// Leave the table. The next rule decides.
    LeaveTable,
    /// Unreachable, unless another route of the table matches.
    Unreachable,
    /// Send to this machine itself, for sockets bound to this interface.
    ToSelf(u32),
    /// Send to the loopback interface with this index, which drops packets that are not local.
    ToLoopback(u32),
}

/// Route of one of our tables.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) table: u32,
    pub(super) to: Cidr,
    pub(super) leads: RouteAction,
}

impl Route {
    /// Returns true for a route of the table for general traffic.
    pub(super) fn is_general(&self) -> bool {
        self.table == TABLE
    }
}

/// Settings of the routing.
#[derive(Clone, Debug, Default)]
pub struct RoutingSettings {
    /// Networks that are reached directly.
    pub direct: Vec<Cidr>,
    /// If not empty, only these networks are reached through the interface, and name resolution is unchanged.
    pub only: Vec<Cidr>,
    /// True if names have exceptions. Then all queries use the interface, including those to resolvers that are
    /// reached directly.
    pub has_domain_exceptions: bool,
    /// Services of this machine that are reached from beyond the local network.
    pub reachable: Vec<Service>,
    /// True if traffic that cannot use the interface is blocked, even after this process is killed.
    pub kill_switch: bool,
    /// True if the kill switch also applies before the first contact with the server and after the service is stopped.
    pub lockdown: bool,
}

/// State of the machine, in addition to the settings.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineState {
    /// Connections whose replies leave directly.
    pub(super) inbound: Vec<InboundConnection>,
    /// Hosts that are direct because of their names.
    pub(super) direct_hosts: DirectHosts,
    /// Interfaces except loopback and our own, with their indexes.
    pub(super) interfaces: Vec<(String, u32)>,
    /// Index of our own interface, if it exists.
    pub(super) gateway: Option<u32>,
    /// Index of the loopback interface.
    pub(super) loopback: Option<u32>,
    /// True if queries from sockets bound to an interface are held back even without a kill switch.
    pub(super) holds_bound_names: bool,
}

impl RoutingSettings {
    /// Returns true if DNS queries use the interface.
    #[must_use]
    pub const fn handles_dns_queries(&self) -> bool {
        self.only.is_empty()
    }

    /// Returns the rule that both sets jump to.
    pub(super) const fn jump_target() -> Rule {
        Rule { priority: JUMP_TARGET_PRIORITY, selector: Selector::All, verdict: Verdict::Nothing }
    }

    /// Returns the rules of the lead for one family, in the order in which they are added. `own` is the interface's
    /// address.
    pub(super) fn tunnel_rules(&self, own: IpAddr, facts: &MachineState) -> Vec<Rule> {
        let ipv6 = own.is_ipv6();
        let mut planned = PlannedRules::from(TUNNEL_PRIORITIES.start);
        self.add_direct_rules(&mut planned, facts, ipv6);
        if self.handles_dns_queries() {
            for to in self.named_direct(ipv6).filter(|_| !self.has_domain_exceptions) {
                for transport in TRANSPORTS {
                    planned.add(Selector::NamesTo(transport, to), Verdict::OwnRules);
                }
            }
            planned.next();
            if self.kill_switch || self.has_domain_exceptions || facts.holds_bound_names {
                add_bound_query_rules(
                    &mut planned,
                    facts,
                    ipv6,
                    Verdict::Lookup(BOUND_QUERY_TABLE),
                );
            }
            planned.next();
            // Programs that open the login page of a network use its resolver.
            if !self.has_domain_exceptions {
                add_bound_query_rules(&mut planned, facts, ipv6, Verdict::OwnRules);
            }
            planned.next();
            for transport in TRANSPORTS {
                planned.add(Selector::Names(transport), Verdict::Lookup(NAMES_TABLE));
            }
            planned.next();
            // Queries to a link-local resolver have no route in that table and would leave over the link.
            for transport in TRANSPORTS {
                planned.add(Selector::Names(transport), Verdict::Unreachable);
            }
            planned.next();
        }
        // Nothing from this source goes to the local network, because ICMP errors about replies that arrived through
        // the interface quote those replies. While another program holds the interface down, its table is empty, and
        // a target would reset connections whose packets reach it from another address.
        planned.add_rule(Selector::Source(own), Verdict::Lookup(TABLE));
        planned.add_rule(Selector::Source(own), Verdict::Unreachable);
        planned.add_rule(Selector::All, Verdict::LookupButDefault(MAIN));
        planned.add_rule(Selector::All, Verdict::Lookup(TABLE));
        planned.rules
    }

    /// Returns the rules of the switch for one family, in the order in which they are added. The last one makes it
    /// effective.
    pub(super) fn switch(&self, own: IpAddr, facts: &MachineState) -> Vec<Rule> {
        let ipv6 = own.is_ipv6();
        let mut planned = PlannedRules::from(KILL_SWITCH_PRIORITIES.start);
        self.add_direct_rules(&mut planned, facts, ipv6);
        if self.has_domain_exceptions {
            self.add_dns_block_rules(&mut planned, facts, ipv6);
        }
        for to in self.named_direct(ipv6) {
            planned.add(Selector::To(to), Verdict::OwnRules);
        }
        planned.next();
        if self.handles_dns_queries() && !self.has_domain_exceptions {
            self.add_dns_block_rules(&mut planned, facts, ipv6);
        }
        planned.add_rule(Selector::Source(own), Verdict::Unreachable);
        for (address, bits) in
            LINK_SPECIFIC_NETWORKS.iter().filter(|(address, _)| address.is_ipv6() == ipv6)
        {
            planned.add(Selector::To(Cidr::containing(*address, *bits)), Verdict::OwnRules);
        }
        planned.next();
        let hosts = facts.direct_hosts.iter().filter(|host| host.is_ipv6() == ipv6);
        planned.rules.extend(hosts.map(|host| direct_host_rule(*host)));
        planned.priority = DIRECT_HOST_PRIORITY + 1;
        planned.add_rule(Selector::All, Verdict::LookupButDefault(MAIN));
        let all = [Selector::All];
        let through: Vec<Selector> = self
            .only
            .iter()
            .filter(|to| to.address().is_ipv6() == ipv6)
            .map(|to| Selector::To(*to))
            .collect();
        planned.block(if self.only.is_empty() { &all } else { &through }, ipv6);
        planned.rules
    }

    /// Keeps DNS queries from leaving.
    fn add_dns_block_rules(&self, planned: &mut PlannedRules, facts: &MachineState, ipv6: bool) {
        add_bound_query_rules(planned, facts, ipv6, Verdict::Lookup(BOUND_QUERY_TABLE));
        planned.next();
        planned.block(&TRANSPORTS.map(Selector::Names), ipv6);
    }

    /// Adds rules for traffic that always leaves directly.
    fn add_direct_rules(&self, planned: &mut PlannedRules, facts: &MachineState, ipv6: bool) {
        planned.add_rule(Selector::Mark(MARK), Verdict::Lookup(MAIN));
        planned.add_rule(Selector::Mark(MARK), Verdict::Unreachable);
        for service in &self.reachable {
            for transport in TRANSPORTS {
                if service.transport.is_none_or(|only| only == transport) {
                    let port = Selector::SourcePort(transport, service.port);
                    planned.add(port, Verdict::Lookup(MAIN));
                }
            }
        }
        planned.next();
        for inbound in facts.inbound.iter().filter(|inbound| inbound.peer.is_ipv6() == ipv6) {
            planned.add(Selector::RepliesTo(*inbound), Verdict::Lookup(MAIN));
        }
        planned.next();
    }

    fn named_direct(&self, ipv6: bool) -> impl Iterator<Item = Cidr> {
        self.direct.iter().copied().filter(move |to| to.address().is_ipv6() == ipv6)
    }

    /// Returns the routes of one family for the switch, which is effective even without them: they make the reverse
    /// path filter accept the server's replies, and prevent sockets bound to an interface from querying that network's
    /// resolver.
    pub(super) fn kill_switch_routes(&self, ipv6: bool, facts: &MachineState) -> Vec<Route> {
        if ipv6 {
            return Vec::new();
        }
        let nowhere = facts.loopback.map(|index| (DISCARD_TABLE, RouteAction::ToLoopback(index)));
        let held = facts
            .interfaces
            .iter()
            .map(|(_, index)| (BOUND_QUERY_TABLE, RouteAction::ToSelf(*index)));
        let held = held.filter(|_| self.handles_dns_queries());
        let to = any_address(ipv6);
        nowhere.into_iter().chain(held).map(|(table, leads)| Route { table, to, leads }).collect()
    }

    /// Returns the routes of one family for the lead. `served` is true if the interface has an address of the family.
    pub(super) fn routes(&self, ipv6: bool, served: bool) -> Vec<Route> {
        let of_family = |network: &Cidr| network.address().is_ipv6() == ipv6;
        let own =
            LINK_SPECIFIC_NETWORKS.iter().map(|(address, bits)| Cidr::containing(*address, *bits));
        let mut direct: Vec<Cidr> = own.chain(self.direct.iter().copied()).collect();
        let all = [any_address(ipv6)];
        let mut through = if self.only.is_empty() { all.to_vec() } else { self.only.clone() };
        for networks in [&mut direct, &mut through] {
            networks.retain(of_family);
            networks.sort_by_key(|network| (network.address(), network.prefix_len()));
            networks.dedup();
        }
        through.retain(|network| !direct.contains(network));
        let elsewhere = |to| Route { table: TABLE, to, leads: RouteAction::LeaveTable };
        let mut routes: Vec<Route> = direct.into_iter().map(elsewhere).collect();
        // Traffic that the interface cannot carry would otherwise bypass it.
        let leads = if served { RouteAction::ToInterface } else { RouteAction::Unreachable };
        routes.extend(through.into_iter().map(|to| Route { table: TABLE, to, leads }));
        if self.handles_dns_queries() && served {
            routes.push(Route { table: NAMES_TABLE, to: any_address(ipv6), leads });
        }
        routes
    }
}

/// Returns the rules of both sets that let the replies of a connection leave directly.
pub(super) fn direct_reply_rules(inbound: InboundConnection) -> [Rule; 2] {
    [TUNNEL_PRIORITIES.start, KILL_SWITCH_PRIORITIES.start].map(|start| Rule {
        priority: start + REPLY_PRIORITY,
        selector: Selector::RepliesTo(inbound),
        verdict: Verdict::Lookup(MAIN),
    })
}

/// Returns the rule of the switch that lets traffic pass to a host that is direct because of its name.
pub(super) fn direct_host_rule(address: IpAddr) -> Rule {
    let selector = Selector::To(Cidr::containing(address, u8::MAX));
    Rule { priority: DIRECT_HOST_PRIORITY, selector, verdict: Verdict::OwnRules }
}

/// Returns the route that makes a host direct, in the table for general traffic.
pub(super) fn direct_host(address: IpAddr) -> Route {
    Route { table: TABLE, to: Cidr::containing(address, u8::MAX), leads: RouteAction::LeaveTable }
}

/// Adds rules for queries from sockets bound to an interface. IPv4 only: in IPv6 a query to a link-local resolver
/// also counts as bound, and without a route none could be sent.
fn add_bound_query_rules(
    planned: &mut PlannedRules,
    facts: &MachineState,
    ipv6: bool,
    verdict: Verdict,
) {
    for (name, _) in facts.interfaces.iter().filter(|_| !ipv6) {
        for transport in TRANSPORTS {
            planned.add(Selector::NamesBoundTo(transport, name.clone()), verdict);
        }
    }
}

/// Rules with their priorities. Rules of equal priority are alternatives.
struct PlannedRules {
    priority: u32,
    rules: Vec<Rule>,
}

impl PlannedRules {
    const fn from(priority: u32) -> PlannedRules {
        PlannedRules { priority, rules: Vec::new() }
    }

    fn add(&mut self, selector: Selector, verdict: Verdict) {
        self.rules.push(Rule { priority: self.priority, selector, verdict });
    }

    const fn next(&mut self) {
        self.priority += 1;
    }

    fn add_rule(&mut self, selector: Selector, verdict: Verdict) {
        self.add(selector, verdict);
        self.next();
    }

    /// Blocks the selected traffic.
    ///
    /// The IPv4 reverse path filter accepts a reply of Marline's server only if the route back, which is looked up
    /// without a mark, leads to some interface. So traffic that is not refused immediately is routed to loopback, which
    /// drops it. The filter's lookup counts as one by root on this machine.
    fn block(&mut self, selectors: &[Selector], ipv6: bool) {
        let own = [Verdict::UnreachableForUsers, Verdict::LookupForOwn(DISCARD_TABLE)];
        for verdict in own.into_iter().chain([Verdict::Unreachable]) {
            if !ipv6 || verdict == Verdict::Unreachable {
                for selector in selectors {
                    self.add(selector.clone(), verdict);
                }
            }
            // Both families use the same priorities.
            self.next();
        }
    }
}

fn any_address(ipv6: bool) -> Cidr {
    let any: IpAddr =
        if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    Cidr::containing(any, 0)
}

#[cfg(test)]
mod tests;
