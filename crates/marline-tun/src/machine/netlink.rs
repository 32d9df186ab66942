//! Rules and routes as the system has them: made, looked for and removed by rtnetlink.

use std::io;
use std::net::IpAddr;

use anyhow::{Context, anyhow};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::{Error, Handle, IpVersion, RouteMessageBuilder, packet_core};

use super::routing::{Leads, PROTOCOL, Route, Rule, Selector, TABLE, Transport, Verdict};

/// Priority of routes that lead nowhere: after every other.
const LAST: u32 = u32::MAX;

/// The system's routing, as far as it is ours.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    handle: Handle,
}

impl Routing {
    /// Starts on the current tokio runtime.
    pub(super) fn open() -> io::Result<Routing> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        // Ends with the last handle.
        tokio::spawn(connection);
        Ok(Routing { handle })
    }

    /// Adds a rule for a family.
    pub(super) async fn add_rule(&self, rule: Rule, ipv6: bool) -> anyhow::Result<()> {
        let mut request = self.handle.rule().add().priority(rule.priority);
        let (action, table) = match rule.verdict {
            Verdict::Lookup(table) | Verdict::LookupButDefault(table) => {
                (RuleAction::ToTable, table)
            }
            Verdict::Unreachable => (RuleAction::Unreachable, 0),
        };
        request = request.action(action).table_id(table);
        let attributes = &mut request.message_mut().attributes;
        attributes.push(RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)));
        if matches!(rule.verdict, Verdict::LookupButDefault(_)) {
            attributes.push(RuleAttribute::SuppressPrefixLen(0));
        }
        match rule.selector {
            Selector::All => {}
            Selector::Mark(mark) => attributes.push(RuleAttribute::FwMark(mark)),
            Selector::SourcePort(transport, port) => {
                attributes.push(protocol(transport));
                attributes.push(RuleAttribute::SourcePortRange(just(port)));
            }
            Selector::DestinationPort(transport, port) => {
                attributes.push(protocol(transport));
                attributes.push(RuleAttribute::DestinationPortRange(just(port)));
            }
            Selector::Source(address) => {
                attributes.push(RuleAttribute::Source(address));
                request.message_mut().header.src_len = if address.is_ipv4() { 32 } else { 128 };
            }
        }
        let added = if ipv6 { request.v6().execute().await } else { request.v4().execute().await };
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        added
            .map_err(system_error)
            .with_context(|| format!("the {family} routing rule {} was not made", rule.priority))
    }

    /// Adds a route to our table; one that is there stays.
    pub(super) async fn add_route(&self, route: Route, interface: u32) -> anyhow::Result<()> {
        match self
            .handle
            .route()
            .add(message(route, interface)?)
            .execute()
            .await
            .map_err(system_error)
        {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.with_context(|| format!("the route to {} was not made", route.to)),
        }
    }

    /// Removes a route of our table, if it is there.
    pub(super) async fn remove_route(&self, route: Route) -> anyhow::Result<()> {
        let removed = self.handle.route().del(message(route, 0)?).execute().await;
        removed.map_err(system_error).with_context(|| format!("the route to {} stays", route.to))
    }

    /// Whether somebody else has routes in our table.
    pub(super) async fn is_taken(&self) -> anyhow::Result<bool> {
        Ok(self.table().await?.iter().any(|route| !is_ours(route)))
    }

    /// Removes all rules and routes that are ours, whoever made them. Returns how many there were.
    pub(super) async fn clear(&self) -> anyhow::Result<usize> {
        let mut removed = 0;
        for rule in self.our_rules().await? {
            removed += usize::from(gone(self.handle.rule().del(rule).execute().await)?);
        }
        for route in self.table().await?.into_iter().filter(is_ours) {
            removed += usize::from(gone(self.handle.route().del(route).execute().await)?);
        }
        Ok(removed)
    }

    async fn our_rules(&self) -> anyhow::Result<Vec<RuleMessage>> {
        let ours = RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
        let mut found = Vec::new();
        for version in [IpVersion::V4, IpVersion::V6] {
            let rules: Vec<RuleMessage> = self
                .handle
                .rule()
                .get(version)
                .execute()
                .try_collect()
                .await
                .map_err(system_error)?;
            found.extend(rules.into_iter().filter(|rule| rule.attributes.contains(&ours)));
        }
        Ok(found)
    }

    /// The routes of our table.
    async fn table(&self) -> anyhow::Result<Vec<RouteMessage>> {
        let mut found = Vec::new();
        for ipv6 in [false, true] {
            let any = if ipv6 {
                RouteMessageBuilder::<std::net::Ipv6Addr>::new().build()
            } else {
                RouteMessageBuilder::<std::net::Ipv4Addr>::new().build()
            };
            let routes: Vec<RouteMessage> =
                self.handle.route().get(any).execute().try_collect().await.map_err(system_error)?;
            let here = RouteAttribute::Table(TABLE);
            found.extend(routes.into_iter().filter(|route| route.attributes.contains(&here)));
        }
        Ok(found)
    }
}

fn is_ours(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::Other(PROTOCOL)
}

fn message(route: Route, interface: u32) -> anyhow::Result<RouteMessage> {
    let Route { to, leads } = route;
    let kind = match leads {
        Leads::ToInterface => RouteType::Unicast,
        Leads::Elsewhere => RouteType::Throw,
        Leads::Nowhere => RouteType::Unreachable,
    };
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(to.address(), to.prefix_len())
        .map_err(|error| anyhow!("{to} is no destination of a route: {error}"))?
        .table_id(TABLE)
        .protocol(RouteProtocol::Other(PROTOCOL))
        .kind(kind);
    if leads == Leads::ToInterface {
        builder = builder.output_interface(interface);
    }
    if leads == Leads::Nowhere {
        builder = builder.priority(LAST);
    }
    Ok(builder.build())
}

fn protocol(transport: Transport) -> RuleAttribute {
    RuleAttribute::IpProtocol(match transport {
        Transport::Tcp => IpProtocol::Tcp,
        Transport::Udp => IpProtocol::Udp,
    })
}

const fn just(port: u16) -> RulePortRange {
    RulePortRange { start: port, end: port }
}

/// Whether it was removed now, rather than gone before.
fn gone(result: Result<(), Error>) -> io::Result<bool> {
    match result.map_err(system_error) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The system's error, where it is one.
fn system_error(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(packet_core::ErrorMessage { code: Some(code), .. }) => {
            io::Error::from_raw_os_error(code.get().abs())
        }
        other => io::Error::other(other.to_string()),
    }
}
