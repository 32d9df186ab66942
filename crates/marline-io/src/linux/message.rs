//! rtnetlink messages (netlink(7), rtnetlink(7)): encoding of requests and parsing of answers. All fields are in the
//! machine's byte order, except addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::io;

/// Length of a netlink message header.
const HEADER_LEN: usize = 16;
/// Length of `ifinfomsg`.
const LINK_LEN: usize = 16;
/// Length of `ifaddrmsg`.
const ADDRESS_LEN: usize = 8;
/// Length of `rtmsg`.
const ROUTE_LEN: usize = 12;
/// Length of `nduseroptmsg`: family, a padding byte, length of the options (u16), interface (u32), type and code of the
/// ICMPv6 message, and six padding bytes.
const OPTIONS_LEN: usize = 16;
/// Message with a neighbor discovery option that the kernel leaves to programs; missing from libc.
const RTM_NEWNDUSEROPT: u16 = 68;
/// Attribute with the driver of an interface, within IFLA_LINKINFO.
const IFLA_INFO_KIND: u16 = 1;
/// Type of a router advertisement (RFC 4861, 4.2).
const ROUTER_ADVERTISEMENT: u8 = 134;

/// Answer, or part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// End of a dump.
    Done,
    /// Error number; 0 is an acknowledgment.
    Error(i32),
    /// Interface.
    Link(Link),
    /// Address of an interface.
    Address { index: u32, address: IpAddr, scope: u8, flags: u32 },
    /// Route; `interfaces` are the outgoing ones.
    Route { dst_len: u8, table: u32, kind: u8, metric: u32, ipv6: bool, interfaces: Vec<u32> },
    /// Options of a router advertisement that arrived on this interface.
    RouterOptions { index: u32, options: Vec<u8> },
    /// Anything else.
    Other,
}

/// Interface, as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) flags: u32,
    pub(super) name: String,
    /// Driver (IFLA_INFO_KIND), such as `wireguard`; empty for a physical device.
    pub(super) kind: String,
    /// Lower interface (IFLA_LINK), for example of a VLAN, or the peer of a veth pair; 0 if there is none in this
    /// namespace.
    pub(super) lower: u32,
    /// Bridge, bond or VRF to which it belongs (IFLA_MASTER); 0 for none.
    pub(super) master: u32,
}

/// Builds a dump request for RTM_GETLINK, RTM_GETADDR or RTM_GETROUTE.
pub(super) fn dump_request(kind: u16, sequence: u32) -> Vec<u8> {
    let body = vec![0; if kind == libc::RTM_GETROUTE { ROUTE_LEN } else { LINK_LEN }];
    request(kind, libc::NLM_F_DUMP as u16, sequence, &body)
}

/// Packet whose route is requested.
#[derive(Copy, Clone, Debug)]
pub(super) struct RouteRequest {
    pub(super) dst: IpAddr,
    pub(super) src: Option<IpAddr>,
    /// Outgoing interface; 0 for any.
    pub(super) oif: u32,
    /// Mark of the packet; 0 for none.
    pub(super) mark: u32,
}

/// Builds a request for the route of a packet. The answer is an entry of the routing table.
pub(super) fn route_request(packet: &RouteRequest, sequence: u32) -> Vec<u8> {
    /// Answer with the entry of the table, and fail if there is none (Linux 4.15).
    const FIB_MATCH: u32 = 0x2000;
    let RouteRequest { dst, src, oif, mark } = *packet;
    let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    let mut body = vec![0; ROUTE_LEN];
    body[0] = if dst.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    body[1] = bits(dst);
    body[2] = src.map_or(0, bits);
    body[8..12].copy_from_slice(&FIB_MATCH.to_ne_bytes());
    push_ip(&mut body, libc::RTA_DST, dst);
    if let Some(src) = src {
        push_ip(&mut body, libc::RTA_SRC, src);
    }
    if oif != 0 {
        push_attribute(&mut body, libc::RTA_OIF, &oif.to_ne_bytes());
    }
    if mark != 0 {
        push_attribute(&mut body, libc::RTA_MARK, &mark.to_ne_bytes());
    }
    request(libc::RTM_GETROUTE, 0, sequence, &body)
}

/// Builds a request to set an interface up, with this MTU if given.
pub(super) fn link_up_request(index: u32, mtu: Option<u32>) -> Vec<u8> {
    let mut body = vec![0; LINK_LEN];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    body[8..12].copy_from_slice(&up);
    body[12..16].copy_from_slice(&up);
    if let Some(mtu) = mtu {
        push_attribute(&mut body, libc::IFLA_MTU, &mtu.to_ne_bytes());
    }
    request(libc::RTM_NEWLINK, libc::NLM_F_ACK as u16, CHANGE, &body)
}

/// Builds a request to add an address to an interface, without duplicate address detection.
pub(super) fn address_request(index: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let mut body = vec![0; ADDRESS_LEN];
    body[0] = family(address.is_ipv6());
    body[1] = prefix;
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    push_ip(&mut body, libc::IFA_LOCAL, address);
    push_ip(&mut body, libc::IFA_ADDRESS, address);
    push_attribute(&mut body, libc::IFA_FLAGS, &libc::IFA_F_NODAD.to_ne_bytes());
    request(libc::RTM_NEWADDR, NEW, CHANGE, &body)
}

/// Builds a request for a default route through an interface.
pub(super) fn default_route_request(index: u32, ipv6: bool) -> Vec<u8> {
    let mut body = vec![0; ROUTE_LEN];
    body[0] = family(ipv6);
    body[4] = libc::RT_TABLE_MAIN;
    body[5] = libc::RTPROT_STATIC;
    body[6] = if ipv6 { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    body[7] = libc::RTN_UNICAST;
    push_attribute(&mut body, libc::RTA_OIF, &index.to_ne_bytes());
    request(libc::RTM_NEWROUTE, NEW, CHANGE, &body)
}

/// Flags for creating an object; an existing one is an error.
const NEW: u16 = (libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// Sequence number of change requests: each is acknowledged before the next.
const CHANGE: u32 = 1;

const fn family(ipv6: bool) -> u8 {
    if ipv6 { libc::AF_INET6 as u8 } else { libc::AF_INET as u8 }
}

pub(super) fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
    bytes.extend(((HEADER_LEN + body.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(body);
    bytes
}

pub(super) fn push_ip(body: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(v4) => push_attribute(body, kind, &v4.octets()),
        IpAddr::V6(v6) => push_attribute(body, kind, &v6.octets()),
    }
}

pub(super) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Parses the messages of one datagram from the kernel, with their sequence numbers. Stops at the first message with an
/// invalid length.
pub(super) fn parse(mut bytes: &[u8]) -> Vec<(u32, Message)> {
    let mut messages = Vec::new();
    while let Some(len) = u32_at(bytes, 0).map(|len| len as usize)
        && let Some(whole) = bytes.get(..len)
        && len >= HEADER_LEN
    {
        let kind = u16_at(whole, 4).unwrap_or(0);
        let sequence = u32_at(whole, 8).unwrap_or(0);
        messages.push((sequence, parse_body(kind, &whole[HEADER_LEN..]).unwrap_or(Message::Other)));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}

/// Returns the body of a datagram's only message, if it has this type.
pub(super) fn message_body(bytes: &[u8], wanted: u16) -> io::Result<Vec<u8>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = u16_at(bytes, 4).ok_or_else(invalid)?;
    let len = (u32_at(bytes, 0).unwrap_or_default() as usize).min(bytes.len());
    let body = bytes.get(HEADER_LEN..len).ok_or_else(invalid)?;
    match parse_body(kind, body) {
        _ if kind == wanted => Ok(body.to_vec()),
        Some(Message::Error(errno)) if errno != 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(invalid()),
    }
}

fn parse_body(kind: u16, body: &[u8]) -> Option<Message> {
    match kind {
        kind if kind == libc::NLMSG_DONE as u16 => Some(Message::Done),
        kind if kind == libc::NLMSG_ERROR as u16 => {
            Some(Message::Error((u32_at(body, 0)? as i32).saturating_neg()))
        }
        libc::RTM_NEWLINK => parse_link(body),
        libc::RTM_NEWADDR => parse_address(body),
        libc::RTM_NEWROUTE => parse_route(body),
        RTM_NEWNDUSEROPT => parse_router_options(body),
        _ => None,
    }
}

fn parse_link(body: &[u8]) -> Option<Message> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let (mut name, mut driver) = (None, String::new());
    let (mut lower, mut master, mut is_elsewhere) = (0, 0, false);
    for (kind, value) in attributes(body.get(LINK_LEN..)?) {
        match kind {
            libc::IFLA_IFNAME => name = Some(text(value)),
            libc::IFLA_LINK => lower = u32_at(value, 0)?,
            libc::IFLA_LINK_NETNSID => is_elsewhere = true,
            libc::IFLA_MASTER => master = u32_at(value, 0)?,
            libc::IFLA_LINKINFO => {
                let info = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                driver = info.map_or_else(String::new, |(_, value)| text(value));
            }
            _ => {}
        }
    }
    let lower = if is_elsewhere || lower == index { 0 } else { lower };
    Some(Message::Link(Link { index, flags, name: name?, kind: driver, lower, master }))
}

/// Returns the text before the terminating zero.
fn text(value: &[u8]) -> String {
    let text = value.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn parse_address(body: &[u8]) -> Option<Message> {
    let (family, scope) = (i32::from(*body.first()?), *body.get(3)?);
    let mut flags = u32::from(*body.get(2)?);
    let index = u32_at(body, 4)?;
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(body.get(ADDRESS_LEN..)?) {
        match kind {
            // On point-to-point links, IFA_ADDRESS is the far end and IFA_LOCAL is ours.
            libc::IFA_LOCAL => local = ip(family, value),
            libc::IFA_ADDRESS => address = ip(family, value),
            libc::IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(Message::Address { index, address: local.or(address)?, scope, flags })
}

fn parse_route(body: &[u8]) -> Option<Message> {
    let ipv6 = i32::from(*body.first()?) == libc::AF_INET6;
    let (dst_len, kind) = (*body.get(1)?, *body.get(7)?);
    let mut table = u32::from(*body.get(4)?);
    let (mut metric, mut interfaces) = (0, Vec::new());
    for (kind, value) in attributes(body.get(ROUTE_LEN..)?) {
        match kind {
            libc::RTA_OIF => interfaces.push(u32_at(value, 0)?),
            libc::RTA_PRIORITY => metric = u32_at(value, 0)?,
            libc::RTA_TABLE => table = u32_at(value, 0)?,
            libc::RTA_MULTIPATH => interfaces.extend(next_hops(value)),
            _ => {}
        }
    }
    Some(Message::Route { dst_len, table, kind, metric, ipv6, interfaces })
}

/// Returns the type of a route (RTN_UNICAST, RTN_LOCAL ...) from the body of a route message.
pub(super) fn route_kind(body: &[u8]) -> Option<u8> {
    (body.len() >= ROUTE_LEN).then(|| body[7])
}

fn parse_router_options(body: &[u8]) -> Option<Message> {
    let (family, kind) = (i32::from(*body.first()?), *body.get(8)?);
    if family != libc::AF_INET6 || kind != ROUTER_ADVERTISEMENT {
        return None;
    }
    let (len, index) = (usize::from(u16_at(body, 2)?), u32_at(body, 4)?);
    // The router's address follows in attributes.
    let options = body.get(OPTIONS_LEN..)?.get(..len)?.to_vec();
    Some(Message::RouterOptions { index, options })
}

/// Returns the outgoing interfaces of a route with several next hops (`rtnexthop`: length, flags, weight, index).
fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut hops = Vec::new();
    while let (Some(len), Some(index)) = (u16_at(bytes, 0), u32_at(bytes, 4)) {
        let len = usize::from(len);
        hops.push(index);
        if len < 8 {
            break;
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

/// Returns the attributes of a message: type and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let (len, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        /// The two top bits describe the encoding of the value.
        const KIND_MASK: u16 = 0x3fff;
        Some((kind & KIND_MASK, value))
    })
}

pub(super) fn ip(family: i32, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use marline_time::PcgRng;

    use super::*;
    use crate::mutation::mutate;

    fn route(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; ROUTE_LEN];
        body[0] = libc::AF_INET as u8;
        body[4] = 254;
        body[7] = 1;
        for (kind, value) in attributes {
            push_attribute(&mut body, *kind, value);
        }
        request(libc::RTM_NEWROUTE, 0, 5, &body)
    }

    #[test]
    fn routes_with_one_and_several_next_hops_are_read() {
        let metric = 600u32.to_ne_bytes();
        let single = route(&[(libc::RTA_OIF, &3u32.to_ne_bytes()), (libc::RTA_PRIORITY, &metric)]);
        let expected = |metric, interfaces| Message::Route {
            dst_len: 0,
            table: 254,
            kind: 1,
            metric,
            ipv6: false,
            interfaces,
        };
        let mut hops = Vec::new();
        for index in [7u32, 9] {
            hops.extend(8u16.to_ne_bytes());
            hops.extend([0, 0]);
            hops.extend(index.to_ne_bytes());
        }
        let several = route(&[(libc::RTA_MULTIPATH, &hops)]);
        let mut both = single.clone();
        both.extend(&several);
        assert_eq!(parse(&both), vec![(5, expected(600, vec![3])), (5, expected(0, vec![7, 9]))]);
        for len in 0..both.len() {
            assert!(parse(&both[..len]).len() <= 1, "a truncated message is not parsed");
        }
    }

    /// Builds the kernel's message for options that arrived on an interface.
    fn router_options(index: u32, kind: u8, options: &[u8]) -> Vec<u8> {
        let mut body = vec![libc::AF_INET6 as u8, 0];
        body.extend((options.len() as u16).to_ne_bytes());
        body.extend(index.to_ne_bytes());
        body.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        body.extend(options);
        push_attribute(&mut body, 1, &[0xfe; 16]);
        request(RTM_NEWNDUSEROPT, 0, 0, &body)
    }

    #[test]
    fn only_options_of_router_advertisements_are_read() {
        let options = [38, 2, 0, 8, 0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
        let heard = Message::RouterOptions { index: 7, options: options.to_vec() };
        let whole = router_options(7, ROUTER_ADVERTISEMENT, &options);
        assert_eq!(parse(&whole), vec![(0, heard)]);
        assert_eq!(parse(&router_options(7, 137, &options)), vec![(0, Message::Other)]);
        let mut longer = whole.clone();
        longer[HEADER_LEN + 2..HEADER_LEN + 4].copy_from_slice(&60_u16.to_ne_bytes());
        assert_eq!(
            parse(&longer),
            vec![(0, Message::Other)],
            "the options are longer than the message"
        );
    }

    #[test]
    fn mutated_messages_do_not_panic_or_loop() {
        let mut whole =
            route(&[(libc::RTA_OIF, &3u32.to_ne_bytes()), (libc::RTA_MULTIPATH, &[8; 24])]);
        whole.extend(router_options(3, ROUTER_ADVERTISEMENT, &[38; 16]));
        let mut rng = PcgRng::new(3, 1);
        for _ in 0..20_000 {
            let bytes = mutate(&mut rng, &whole);
            assert!(parse(&bytes).len() <= bytes.len() / HEADER_LEN);
        }
    }
}
