//! Rules and routes of the system, added, listed and removed through rtnetlink.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;

use anyhow::{Context, anyhow};
use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::Nla;
use rtnetlink::packet_route::link::{LinkAttribute, LinkLayerType};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{
    RuleAction, RuleAttribute, RuleMessage, RulePortRange, RuleUidRange,
};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};
use rtnetlink::{Error, Handle, IpVersion, MulticastGroup, RouteMessageBuilder, packet_core};
use tokio::sync::watch;

use marline_io::GATEWAY_INTERFACE;
use marline_proxy::rules::Cidr;
use marline_proxy::udp::DNS_PORT;

use super::routing::{
    JUMP_TARGET_PRIORITY, KILL_SWITCH_PRIORITIES, MachineState, PROTOCOL, Route, RouteAction, Rule,
    Selector, TABLES, TUNNEL_PRIORITIES, Transport, Verdict,
};

/// Priority of unreachable routes, after all others.
const LAST_PRIORITY: u32 = u32::MAX;
/// Maximum number of interfaces examined.
const MAX_INTERFACES: usize = 256;
/// User ids of all users except root.
const USERS: RuleUidRange = RuleUidRange { start: 1, end: u32::MAX - 1 };
/// Interface name for traffic sent by this machine itself.
const LOCAL_TRAFFIC: &str = "lo";

/// Selector of a rule, for comparison.
type Key = (u32, u8, u8, Vec<(u16, Vec<u8>)>);

/// Set of our rules.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleSet {
    /// Rules that route traffic to the interface.
    Routing,
    /// Rules that block traffic around the interface.
    KillSwitch,
}

impl RuleSet {
    const fn priorities(self) -> std::ops::Range<u32> {
        match self {
            RuleSet::Routing => TUNNEL_PRIORITIES,
            RuleSet::KillSwitch => KILL_SWITCH_PRIORITIES,
        }
    }

    const fn other(self) -> RuleSet {
        match self {
            RuleSet::Routing => RuleSet::KillSwitch,
            RuleSet::KillSwitch => RuleSet::Routing,
        }
    }
}

/// Returns a receiver that notices changes of any interface and its addresses. Needs a tokio runtime.
pub(super) fn watch_interfaces() -> io::Result<watch::Receiver<()>> {
    let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
    let (connection, _, mut changes) = rtnetlink::new_multicast_connection(&groups)?;
    let (sender, receiver) = watch::channel(());
    tokio::spawn(connection);
    // Ends with the first change after the receiver.
    tokio::spawn(async move { while changes.next().await.is_some() && sender.send(()).is_ok() {} });
    Ok(receiver)
}

/// Our part of the system's routing.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    handle: Handle,
}

impl Routing {
    /// Starts on the current tokio runtime.
    pub(super) fn open() -> io::Result<Routing> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        // The task ends with the last handle.
        tokio::spawn(connection);
        Ok(Routing { handle })
    }

    /// Adds those of these rules of one family that are missing, in order. Returns their number.
    pub(super) async fn complete(&self, rules: &[Rule], ipv6: bool) -> anyhow::Result<usize> {
        let there: HashSet<Key> = self.our_rules(ipv6).await?.iter().map(key).collect();
        let mut made = 0;
        for rule in rules {
            let message = rule_message(rule, ipv6);
            if !there.contains(&key(&message)) {
                self.add_rule(rule, ipv6).await?;
                made += 1;
            }
        }
        Ok(made)
    }

    /// Adds a rule for a family. An existing rule is kept.
    pub(super) async fn add_rule(&self, rule: &Rule, ipv6: bool) -> anyhow::Result<()> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = rule_message(rule, ipv6);
        match request.execute().await.map_err(system_error) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            added => added.with_context(|| {
                let family = if ipv6 { "IPv6" } else { "IPv4" };
                format!("cannot create the {family} routing rule {}", rule.priority)
            }),
        }
    }

    /// Removes a rule if it exists.
    pub(super) async fn remove_rule(&self, rule: &Rule, ipv6: bool) -> anyhow::Result<()> {
        was_removed(self.handle.rule().del(rule_message(rule, ipv6)).execute().await)?;
        Ok(())
    }

    /// Removes the switch's rules of one family that are not among these.
    pub(super) async fn remove_others(&self, rules: &[Rule], ipv6: bool) -> anyhow::Result<()> {
        let wanted: HashSet<Key> =
            rules.iter().map(|rule| key(&rule_message(rule, ipv6))).collect();
        for rule in self.our_rules(ipv6).await? {
            if KILL_SWITCH_PRIORITIES.contains(&priority(&rule)) && !wanted.contains(&key(&rule)) {
                was_removed(self.handle.rule().del(rule).execute().await)?;
            }
        }
        Ok(())
    }

    /// Adds a route to one of our tables. An existing route is kept. Returns true if it was missing.
    pub(super) async fn add_route(&self, route: Route, interface: u32) -> anyhow::Result<bool> {
        match self
            .handle
            .route()
            .add(message(route, interface)?)
            .execute()
            .await
            .map_err(system_error)
        {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            other => other
                .map(|()| true)
                .with_context(|| format!("cannot create the route to {}", route.to)),
        }
    }

    /// Removes a route from one of our tables if it exists.
    pub(super) async fn remove_route(&self, route: Route) -> anyhow::Result<()> {
        let removed = self.handle.route().del(message(route, 0)?).execute().await;
        removed
            .map_err(system_error)
            .with_context(|| format!("cannot remove the route to {}", route.to))
    }

    /// Returns true if another program has routes in one of our tables.
    pub(super) async fn is_taken(&self) -> anyhow::Result<bool> {
        Ok(self.our_tables().await?.iter().any(|route| !is_ours(route)))
    }

    /// Returns true if rules of this part exist, perhaps not all.
    pub(super) async fn has(&self, part: RuleSet) -> anyhow::Result<bool> {
        for ipv6 in [false, true] {
            let rules = self.our_rules(ipv6).await?;
            if rules.iter().any(|rule| part.priorities().contains(&priority(rule))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the rules and routes of this part, even those of other processes. Returns their number.
    ///
    /// The lead's last rule is removed first, so that the remaining ones send nothing out that was not sent before.
    /// The switch's last rules are removed last, one at a time: if this process is killed earlier, traffic is still
    /// blocked. Routes used by both parts are removed with the last part.
    pub(super) async fn clear(&self, part: RuleSet) -> anyhow::Result<usize> {
        let mut rules = self.our_rules(false).await?;
        rules.extend(self.our_rules(true).await?);
        rules.retain(|rule| part.priorities().contains(&priority(rule)));
        rules.sort_by_key(priority);
        if part == RuleSet::Routing {
            rules.reverse();
        }
        let mut removed = self.remove(rules).await?;
        let is_last = !self.has(part.other()).await?;
        for route in self.our_tables().await?.into_iter().filter(is_ours) {
            if is_last || part == RuleSet::Routing && is_tunnel_route(&route) {
                removed +=
                    usize::from(was_removed(self.handle.route().del(route).execute().await)?);
            }
        }
        for ipv6 in [false, true] {
            if is_last {
                let mut rules = self.our_rules(ipv6).await?;
                rules.retain(|rule| priority(rule) == JUMP_TARGET_PRIORITY);
                removed += self.remove(rules).await?;
            }
        }
        Ok(removed)
    }

    async fn remove(&self, rules: Vec<RuleMessage>) -> anyhow::Result<usize> {
        let mut removed = 0;
        for rule in rules {
            removed += usize::from(was_removed(self.handle.rule().del(rule).execute().await)?);
        }
        Ok(removed)
    }

    /// Updates the list of current interfaces.
    pub(super) async fn interfaces(&self, facts: &mut MachineState) -> anyhow::Result<()> {
        let links = self.handle.link().get().execute().try_collect::<Vec<_>>();
        let links = links.await.map_err(system_error)?;
        facts.interfaces.clear();
        facts.gateway = None;
        for link in links {
            let name = link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            });
            if link.header.link_layer_type == LinkLayerType::Loopback {
                facts.loopback = Some(link.header.index);
            } else if name.as_deref() == Some(GATEWAY_INTERFACE) {
                facts.gateway = Some(link.header.index);
            } else if let Some(name) = name
                && facts.interfaces.len() < MAX_INTERFACES
            {
                facts.interfaces.push((name, link.header.index));
            }
        }
        Ok(())
    }

    async fn our_rules(&self, ipv6: bool) -> anyhow::Result<Vec<RuleMessage>> {
        let ours = RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
        let version = if ipv6 { IpVersion::V6 } else { IpVersion::V4 };
        let rules = self.handle.rule().get(version).execute().try_collect::<Vec<_>>().await;
        match rules.map_err(system_error) {
            // The kernel does not support this family.
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(Vec::new()),
            rules => {
                let mut rules = rules?;
                rules.retain(|rule| rule.attributes.contains(&ours));
                Ok(rules)
            }
        }
    }

    /// Returns the routes of our tables.
    async fn our_tables(&self) -> anyhow::Result<Vec<RouteMessage>> {
        let mut found = Vec::new();
        for ipv6 in [false, true] {
            let any = if ipv6 {
                RouteMessageBuilder::<std::net::Ipv6Addr>::new().build()
            } else {
                RouteMessageBuilder::<std::net::Ipv4Addr>::new().build()
            };
            let routes: Vec<RouteMessage> =
                self.handle.route().get(any).execute().try_collect().await.map_err(system_error)?;
            found.extend(
                routes
                    .into_iter()
                    .filter(|route| table(route).is_some_and(|table| TABLES.contains(&table))),
            );
        }
        Ok(found)
    }
}

fn table(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    })
}

fn is_tunnel_route(route: &RouteMessage) -> bool {
    table(route).is_some_and(|table| super::routing::TUNNEL_TABLES.contains(&table))
}

fn is_ours(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::Other(PROTOCOL)
}

fn priority(rule: &RuleMessage) -> u32 {
    let of = |attribute: &RuleAttribute| match attribute {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    };
    rule.attributes.iter().find_map(of).unwrap_or_default()
}

/// Returns the attributes of a rule that the system also reports.
fn key(rule: &RuleMessage) -> Key {
    let tells = |attribute: &&RuleAttribute| {
        matches!(
            attribute,
            RuleAttribute::Destination(_)
                | RuleAttribute::Source(_)
                | RuleAttribute::Iifname(_)
                | RuleAttribute::Oifname(_)
                | RuleAttribute::FwMark(_)
                | RuleAttribute::UidRange(_)
                | RuleAttribute::IpProtocol(_)
                | RuleAttribute::SourcePortRange(_)
                | RuleAttribute::DestinationPortRange(_)
        )
    };
    let bytes = |attribute: &RuleAttribute| {
        let mut value = vec![0; attribute.value_len()];
        attribute.emit_value(&mut value);
        (attribute.kind(), value)
    };
    let mut attributes: Vec<_> = rule.attributes.iter().filter(tells).map(bytes).collect();
    attributes.sort();
    (priority(rule), rule.header.dst_len, rule.header.src_len, attributes)
}

fn rule_message(rule: &Rule, ipv6: bool) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    message.header.action = match rule.verdict {
        Verdict::Lookup(_) | Verdict::LookupButDefault(_) | Verdict::LookupForOwn(_) => {
            RuleAction::ToTable
        }
        Verdict::Unreachable | Verdict::UnreachableForUsers => RuleAction::Unreachable,
        Verdict::OwnRules => RuleAction::Goto,
        Verdict::Nothing => RuleAction::Nop,
    };
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)));
    attributes.push(RuleAttribute::Priority(rule.priority));
    match rule.verdict {
        Verdict::Lookup(table) => attributes.push(RuleAttribute::Table(table)),
        Verdict::LookupButDefault(table) => {
            attributes.extend([RuleAttribute::Table(table), RuleAttribute::SuppressPrefixLen(0)]);
        }
        Verdict::LookupForOwn(table) => {
            attributes.extend([
                RuleAttribute::Table(table),
                RuleAttribute::Iifname(LOCAL_TRAFFIC.to_owned()),
            ]);
        }
        Verdict::UnreachableForUsers => {
            attributes.extend([
                RuleAttribute::Iifname(LOCAL_TRAFFIC.to_owned()),
                RuleAttribute::UidRange(USERS),
            ]);
        }
        Verdict::OwnRules => attributes.push(RuleAttribute::Goto(JUMP_TARGET_PRIORITY)),
        Verdict::Unreachable | Verdict::Nothing => {}
    }
    match &rule.selector {
        Selector::All => {}
        Selector::Mark(mark) => attributes.push(RuleAttribute::FwMark(*mark)),
        Selector::SourcePort(transport, port) => {
            attributes
                .extend([protocol(*transport), RuleAttribute::SourcePortRange(single_port(*port))]);
        }
        Selector::RepliesTo(inbound) => attributes.extend([
            protocol(Transport::Tcp),
            RuleAttribute::SourcePortRange(single_port(inbound.port)),
            RuleAttribute::Destination(inbound.peer),
        ]),
        Selector::Names(transport) => attributes.extend(names(*transport)),
        Selector::NamesTo(transport, to) => {
            attributes.extend(names(*transport));
            attributes.extend(destination(*to));
        }
        Selector::NamesBoundTo(transport, interface) => {
            attributes.extend(names(*transport));
            attributes.push(RuleAttribute::Oifname(interface.clone()));
        }
        Selector::Source(address) => attributes.push(RuleAttribute::Source(*address)),
        Selector::To(to) => attributes.extend(destination(*to)),
    }
    let host = if ipv6 { 128 } else { 32 };
    match &rule.selector {
        Selector::Source(_) => message.header.src_len = host,
        Selector::RepliesTo(_) => message.header.dst_len = host,
        Selector::To(to) | Selector::NamesTo(_, to) => message.header.dst_len = to.prefix_len(),
        _ => {}
    }
    message
}

fn message(route: Route, interface: u32) -> anyhow::Result<RouteMessage> {
    let Route { table, to, leads } = route;
    let kind = match leads {
        RouteAction::ToInterface | RouteAction::ToLoopback(_) => RouteType::Unicast,
        RouteAction::LeaveTable => RouteType::Throw,
        RouteAction::Unreachable => RouteType::Unreachable,
        RouteAction::ToSelf(_) => RouteType::Local,
    };
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(to.address(), to.prefix_len())
        .map_err(|error| anyhow!("{to} is not a valid route destination: {error}"))?
        .table_id(table)
        .protocol(RouteProtocol::Other(PROTOCOL))
        .kind(kind);
    match leads {
        RouteAction::ToInterface => builder = builder.output_interface(interface),
        RouteAction::ToLoopback(index) => builder = builder.output_interface(index),
        // One route for each interface, with different priorities.
        RouteAction::ToSelf(index) => {
            builder = builder.output_interface(index).scope(RouteScope::Host).priority(index);
        }
        RouteAction::Unreachable => builder = builder.priority(LAST_PRIORITY),
        RouteAction::LeaveTable => {}
    }
    Ok(builder.build())
}

/// Returns the destination attribute, which does not exist for an empty prefix.
fn destination(to: Cidr) -> Option<RuleAttribute> {
    (to.prefix_len() > 0).then(|| RuleAttribute::Destination(to.address()))
}

fn names(transport: Transport) -> [RuleAttribute; 2] {
    [protocol(transport), RuleAttribute::DestinationPortRange(single_port(DNS_PORT))]
}

fn protocol(transport: Transport) -> RuleAttribute {
    RuleAttribute::IpProtocol(match transport {
        Transport::Tcp => IpProtocol::Tcp,
        Transport::Udp => IpProtocol::Udp,
    })
}

const fn single_port(port: u16) -> RulePortRange {
    RulePortRange { start: port, end: port }
}

/// Returns true if the rule was removed now, false if it did not exist.
fn was_removed(result: Result<(), Error>) -> io::Result<bool> {
    match result.map_err(system_error) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Converts to the underlying system error if there is one.
fn system_error(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(packet_core::ErrorMessage { code: Some(code), .. }) => {
            io::Error::from_raw_os_error(code.get().abs())
        }
        other => io::Error::other(other.to_string()),
    }
}
