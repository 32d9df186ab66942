//! Item of a flow: the payload of one datagram of the lane.
//!
//! ```text
//!  0 Data      payload
//!  1 Open      socket, peer, payload          key of this flow, and a datagram of it
//!  2 Announce  socket, peer                   key of this flow; its datagrams follow
//!  3 Known     nothing, or an address         the key was received; a named peer has this address
//!  4 Unknown                                  a datagram of an unknown flow arrived
//!  5 Refused   code u8                        refusal; codes of RFC 8803 section 6.2.8
//!  6 Closed    socket                         the application's socket is closed
//!  7 Echo      socket, hops u8, sequence u16, address, payload     an ICMP echo request for this address
//!  8 Replied   socket, sequence u16, address, payload              an answer from this host
//!  9 Failed    socket, sequence u16, address, type u8, code u8, MTU u16, nothing or an address
//!                                             ICMP error for the first address, sent by the second
//!
//! socket      number of variable length (RFC 9000 section 16), below 2^30
//! address     kind u8, and IPv4 (kind 1, 4 bytes), IPv6 (4, 16 bytes)
//! peer        port u16, and an address, or kind 3, a length u8 and a name
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::message::ErrorCode;
use crate::target::{Host, Target};

/// Exclusive upper bound of socket numbers.
pub(crate) const SOCKET_NUMBERS: u32 = 1 << 30;

/// Contents of a datagram of the lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A datagram of a flow that the receiver knows.
    Data(&'a [u8]),
    /// The key of the flow, and a datagram of it.
    Open {
        /// The application's socket.
        socket: u32,
        /// The peer.
        peer: Target,
        /// Payload of the datagram.
        payload: &'a [u8],
    },
    /// The key of the flow. The datagram follows in another item, because they do not fit together.
    Announce {
        /// The application's socket.
        socket: u32,
        /// The peer.
        peer: Target,
    },
    /// The flow is known. Contains the address of the peer if the peer was given by name.
    Known(Option<SocketAddr>),
    /// The flow is unknown.
    Unknown,
    /// The flow is not allowed or not possible.
    Refused(ErrorCode),
    /// The application's socket is closed.
    Closed {
        /// Number of the socket.
        socket: u32,
    },
    /// An ICMP echo request to send.
    Echo {
        /// Number that represents the application's identifier.
        socket: u32,
        /// Time to live.
        hops: u8,
        /// Sequence number.
        sequence: u16,
        /// Destination.
        to: IpAddr,
        /// Data of the request.
        payload: &'a [u8],
    },
    /// The answer to an echo request.
    Replied {
        /// Number from the request.
        socket: u32,
        /// Sequence number from the request.
        sequence: u16,
        /// Address of the host that answered.
        from: IpAddr,
        /// Data of the answer.
        payload: &'a [u8],
    },
    /// An echo request that was not delivered.
    Failed {
        /// Number from the request.
        socket: u32,
        /// Sequence number from the request.
        sequence: u16,
        /// Destination of the request.
        to: IpAddr,
        /// The error and its sender.
        error: EchoError,
    },
}

/// Reason why an echo request was not delivered, in the ICMP values of the destination's family (RFC 792, RFC
/// 4443).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EchoError {
    /// ICMP type and code.
    pub icmp: (u8, u8),
    /// Largest packet that passes, in bytes, if the request was too large. Otherwise 0.
    pub mtu: u16,
    /// Sender of the error; `None` for the server.
    pub by: Option<IpAddr>,
}

/// Largest size of an echo item without its payload, in bytes.
pub(crate) const ECHO_OVERHEAD: usize = 1 + 4 + 1 + 2 + 17;

/// A datagram of the lane that does not contain a valid item.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid item in a lane")]
pub struct BadItem;

impl<'a> Item<'a> {
    fn kind(&self) -> u8 {
        match self {
            Item::Data(_) => 0,
            Item::Open { .. } => 1,
            Item::Announce { .. } => 2,
            Item::Known(_) => 3,
            Item::Unknown => 4,
            Item::Refused(_) => 5,
            Item::Closed { .. } => 6,
            Item::Echo { .. } => 7,
            Item::Replied { .. } => 8,
            Item::Failed { .. } => 9,
        }
    }

    /// Appends the item's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        match self {
            Item::Data(payload) => out.extend_from_slice(payload),
            Item::Open { socket, peer, payload } => {
                encode_socket(*socket, out);
                encode_peer(peer, out);
                out.extend_from_slice(payload);
            }
            Item::Announce { socket, peer } => {
                encode_socket(*socket, out);
                encode_peer(peer, out);
            }
            Item::Known(Some(address)) => {
                encode_peer(&Target { host: address.ip().into(), port: address.port() }, out);
            }
            Item::Known(None) | Item::Unknown => {}
            Item::Refused(code) => out.push(code.to_u8()),
            Item::Closed { socket } => encode_socket(*socket, out),
            Item::Echo { socket, hops, sequence, to, payload } => {
                encode_socket(*socket, out);
                out.push(*hops);
                encode_end(*sequence, *to, out);
                out.extend_from_slice(payload);
            }
            Item::Replied { socket, sequence, from, payload } => {
                encode_socket(*socket, out);
                encode_end(*sequence, *from, out);
                out.extend_from_slice(payload);
            }
            Item::Failed { socket, sequence, to, error } => {
                encode_socket(*socket, out);
                encode_end(*sequence, *to, out);
                out.extend_from_slice(&[error.icmp.0, error.icmp.1]);
                out.extend_from_slice(&error.mtu.to_be_bytes());
                if let Some(by) = error.by {
                    Host::from(by).encode(out);
                }
            }
        }
    }

    /// Returns the item with these bytes.
    ///
    /// # Errors
    /// The bytes are not a valid item.
    pub fn decode(bytes: &'a [u8]) -> Result<Item<'a>, BadItem> {
        let (kind, rest) = bytes.split_first().ok_or(BadItem)?;
        let mut reader = Reader { rest };
        let item = match kind {
            0 => Item::Data(reader.take_rest()),
            1 => {
                let (socket, peer) = (reader.socket()?, reader.peer()?);
                Item::Open { socket, peer, payload: reader.take_rest() }
            }
            2 => Item::Announce { socket: reader.socket()?, peer: reader.peer()? },
            3 if rest.is_empty() => Item::Known(None),
            3 => Item::Known(Some(reader.address()?)),
            4 => Item::Unknown,
            5 => Item::Refused(ErrorCode::from_u8(reader.byte()?)),
            6 => Item::Closed { socket: reader.socket()? },
            7 => {
                let (socket, hops) = (reader.socket()?, reader.byte()?);
                let (sequence, to) = (reader.number()?, reader.ip()?);
                Item::Echo { socket, hops, sequence, to, payload: reader.take_rest() }
            }
            8 => {
                let (socket, sequence, from) = (reader.socket()?, reader.number()?, reader.ip()?);
                Item::Replied { socket, sequence, from, payload: reader.take_rest() }
            }
            9 => {
                let (socket, sequence, to) = (reader.socket()?, reader.number()?, reader.ip()?);
                Item::Failed { socket, sequence, to, error: reader.echo_error()? }
            }
            _ => return Err(BadItem),
        };
        if reader.rest.is_empty() { Ok(item) } else { Err(BadItem) }
    }
}

fn encode_socket(socket: u32, out: &mut Vec<u8>) {
    match socket {
        0..=0x3f => out.push(socket as u8),
        0x40..=0x3fff => out.extend_from_slice(&(socket as u16 | 0x4000).to_be_bytes()),
        _ => out.extend_from_slice(&(socket & (SOCKET_NUMBERS - 1) | 0x8000_0000).to_be_bytes()),
    }
}

fn encode_peer(peer: &Target, out: &mut Vec<u8>) {
    out.extend_from_slice(&peer.port.to_be_bytes());
    peer.host.encode(out);
}

fn encode_end(sequence: u16, host: IpAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(&sequence.to_be_bytes());
    Host::from(host).encode(out);
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadItem> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(BadItem)?;
        self.rest = rest;
        Ok(taken)
    }

    fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadItem> {
        self.take(N)?.try_into().map_err(|_| BadItem)
    }

    fn byte(&mut self) -> Result<u8, BadItem> {
        Ok(self.take(1)?[0])
    }

    fn socket(&mut self) -> Result<u32, BadItem> {
        let first = self.byte()?;
        let more = match first >> 6 {
            0 => 0,
            1 => 1,
            2 => 3,
            _ => return Err(BadItem),
        };
        let start = u32::from(first & 0x3f);
        Ok(self.take(more)?.iter().fold(start, |value, byte| value << 8 | u32::from(*byte)))
    }

    fn number(&mut self) -> Result<u16, BadItem> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn host(&mut self) -> Result<Host, BadItem> {
        Ok(match self.byte()? {
            1 => Host::V4(Ipv4Addr::from(self.array::<4>()?)),
            3 => {
                let len = usize::from(self.byte()?);
                let name = std::str::from_utf8(self.take(len)?).map_err(|_| BadItem)?;
                Host::name(name).map_err(|_| BadItem)?
            }
            4 => Host::V6(Ipv6Addr::from(self.array::<16>()?)),
            _ => return Err(BadItem),
        })
    }

    fn ip(&mut self) -> Result<IpAddr, BadItem> {
        self.host()?.as_name().err().ok_or(BadItem)
    }

    fn echo_error(&mut self) -> Result<EchoError, BadItem> {
        let (icmp, mtu) = ((self.byte()?, self.byte()?), self.number()?);
        let by = if self.rest.is_empty() { None } else { Some(self.ip()?) };
        Ok(EchoError { icmp, mtu, by })
    }

    fn peer(&mut self) -> Result<Target, BadItem> {
        let port = self.number()?;
        Target::new(self.host()?, port).map_err(|_| BadItem)
    }

    fn address(&mut self) -> Result<SocketAddr, BadItem> {
        let Target { host, port } = self.peer()?;
        match host.as_name() {
            Ok(_) => Err(BadItem),
            Err(address) => Ok((address, port).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peers() -> impl Strategy<Value = Target> {
        let hosts = prop_oneof![
            any::<[u8; 4]>().prop_map(|octets| Host::V4(octets.into())),
            any::<[u8; 16]>().prop_map(|octets| Host::V6(octets.into())),
            "[a-zA-Z0-9._-]{1,255}".prop_map(Host::Name),
        ];
        (hosts, 1u16..).prop_map(|(host, port)| Target { host, port })
    }

    fn sockets() -> impl Strategy<Value = u32> {
        (0u32..30, any::<u32>()).prop_map(|(bits, value)| value & ((1 << (bits + 1)) - 1))
    }

    fn read_back(item: &Item<'_>) {
        let mut bytes = Vec::new();
        item.encode(&mut bytes);
        assert_eq!(Item::decode(&bytes).as_ref(), Ok(item));
        let open_ended = matches!(
            item,
            Item::Data(_) | Item::Open { .. } | Item::Echo { .. } | Item::Replied { .. }
        );
        if !open_ended {
            bytes.push(0);
            assert_eq!(Item::decode(&bytes), Err(BadItem), "trailing bytes after {item:?}");
        }
    }

    proptest! {
        #[test]
        fn items_are_read_back(
            socket in sockets(),
            peer in peers(),
            payload in prop::collection::vec(any::<u8>(), 0..60),
            code in any::<u8>(),
            address in any::<([u8; 16], u16)>(),
        ) {
            read_back(&Item::Data(&payload));
            read_back(&Item::Open { socket, peer: peer.clone(), payload: &payload });
            read_back(&Item::Announce { socket, peer });
            let port = address.1.max(1);
            for ip in [Ipv6Addr::from(address.0).into(), Ipv4Addr::new(192, 0, 2, 1).into()] {
                read_back(&Item::Known(Some(SocketAddr::new(ip, port))));
            }
            read_back(&Item::Known(None));
            read_back(&Item::Unknown);
            read_back(&Item::Refused(ErrorCode::from_u8(code)));
            read_back(&Item::Closed { socket });
        }

        #[test]
        fn echoes_are_read_back(
            socket in sockets(),
            (hops, sequence, mtu, icmp) in any::<(u8, u16, u16, (u8, u8))>(),
            (v4, v6) in any::<([u8; 4], [u8; 16])>(),
            payload in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let (v4, v6) = (IpAddr::from(v4), IpAddr::from(v6));
            for (one, other) in [(v4, v6), (v6, v4)] {
                let echo = Item::Echo { socket, hops, sequence, to: one, payload: &payload };
                read_back(&echo);
                let mut bytes = Vec::new();
                echo.encode(&mut bytes);
                prop_assert!(bytes.len() <= payload.len() + ECHO_OVERHEAD);
                read_back(&Item::Replied { socket, sequence, from: one, payload: &payload });
                let error = EchoError { icmp, mtu, by: Some(other) };
                read_back(&Item::Failed { socket, sequence, to: one, error });
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Item::decode(&bytes);
        }
    }

    #[test]
    fn encoded_items_are_short() {
        let mut bytes = Vec::new();
        let peer = "192.0.2.7:53".parse().unwrap();
        Item::Open { socket: 5, peer, payload: b"x" }.encode(&mut bytes);
        assert_eq!(bytes, [1, 5, 0, 53, 1, 192, 0, 2, 7, b'x']);
        bytes.clear();
        Item::Data(b"x").encode(&mut bytes);
        assert_eq!(bytes, [0, b'x']);
    }

    #[test]
    fn items_with_invalid_peers_or_names_are_refused() {
        for bytes in [
            &[1, 5, 0, 0, 1, 192, 0, 2, 7][..],
            &[1, 5, 0, 53, 2, 192, 0, 2, 7],
            &[1, 5, 0, 53, 3, 0],
            &[1, 5, 0, 53, 3, 2, b'a'],
            &[1, 5, 0, 53, 3, 1, b'\n'],
            &[3, 0, 53, 3, 1, b'a'],
            &[6, 0xc0],
            &[7],
            &[7, 1, 64, 0, 1, 3, 1, b'a'],
            &[8, 1, 0, 1, 4, 0],
            &[9, 1, 0, 1, 1, 192, 0, 2, 7, 3, 1, 0],
            &[10],
            &[],
        ] {
            assert_eq!(Item::decode(bytes), Err(BadItem), "{bytes:?}");
        }
    }
}
