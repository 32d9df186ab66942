//! Messages between two processes of one server, and their encoding. The processes run on one machine and are usually
//! two versions of one program. Each message begins with its kind; an unknown kind is an error.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::io;

use marline_core::{Ecn, FourTuple};

/// Maximum length of a name or a reason, in bytes.
const MAX_TEXT_BYTES: usize = 4_096;

/// Message between two processes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// First message to a successor: the protocol version, the generations of successor and sender, and the seed of
    /// reset tokens.
    Hello { protocol: u8, generation: u8, predecessor: u8, seed: [u8; 32] },
    /// UDP socket of a shard.
    Socket { shard: u8, local: SocketAddr },
    /// Listening TCP socket.
    Listener { local: SocketAddr },
    /// Channel to a process of this generation.
    OlderProcess { generation: u8 },
    /// Additional descriptor of the program.
    Additional { name: String },
    /// End of the state.
    End,
    /// The successor is ready to start.
    Ready { version: String },
    /// The successor cannot start.
    Failed { why: String },
    /// The successor must start.
    Start,
    /// To an older process: a relayed link with these ends that replaces this UDP port.
    Link { local: IpAddr, remote: SocketAddr, port: u16 },
    /// To an older process: frames, which follow the message.
    Frames(ForwardedOrigin),
    /// Part of a native carrier.
    Native { part: NativePart, local: SocketAddr },
    /// To an older process, which returns it if it does not own it: a segment of native TCP, which follows the message.
    Segment { path: FourTuple, ecn: Ecn },
}

/// Parts of native carriers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NativePart {
    /// Raw socket that receives for all addresses of a family.
    Receiver = 1,
    /// Guard that keeps the kernel's TCP away from a port.
    Guard = 2,
    /// TUN interface.
    Tun = 3,
}

impl core::fmt::Debug for Message {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // One of the messages contains a secret.
        write!(f, "Message({})", self.kind())
    }
}

/// Origin of forwarded frames.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForwardedOrigin {
    /// Address to which the socket is bound.
    pub(crate) bound: SocketAddr,
    /// Local address of the datagrams.
    pub(crate) local: IpAddr,
    /// Sender of the datagrams.
    pub(crate) remote: SocketAddr,
    /// ECN field of the datagrams.
    pub(crate) ecn: Ecn,
    /// Offset from one frame to the next, in bytes.
    pub(crate) stride: u16,
}

impl Message {
    const fn kind(&self) -> u8 {
        match self {
            Message::Hello { .. } => 1,
            Message::Socket { .. } => 2,
            Message::Listener { .. } => 3,
            Message::OlderProcess { .. } => 4,
            Message::Additional { .. } => 5,
            Message::End => 6,
            Message::Ready { .. } => 7,
            Message::Failed { .. } => 8,
            Message::Start => 9,
            Message::Link { .. } => 10,
            Message::Frames(_) => 11,
            Message::Native { .. } => 12,
            Message::Segment { .. } => 13,
        }
    }

    /// Encodes the message.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.kind()];
        match self {
            Message::Hello { protocol, generation, predecessor, seed } => {
                out.extend([*protocol, *generation, *predecessor]);
                out.extend(seed);
            }
            Message::Socket { shard, local } => {
                out.push(*shard);
                put_address(&mut out, *local);
            }
            Message::Listener { local } => put_address(&mut out, *local),
            Message::OlderProcess { generation } => out.push(*generation),
            Message::Additional { name: text }
            | Message::Ready { version: text }
            | Message::Failed { why: text } => {
                out.extend(text.bytes().take(MAX_TEXT_BYTES));
            }
            Message::End | Message::Start => {}
            Message::Link { local, remote, port } => {
                put_address(&mut out, SocketAddr::new(*local, *port));
                put_address(&mut out, *remote);
            }
            Message::Frames(passed) => {
                put_address(&mut out, passed.bound);
                put_address(&mut out, SocketAddr::new(passed.local, 0));
                put_address(&mut out, passed.remote);
                out.push(passed.ecn as u8);
                out.extend(passed.stride.to_be_bytes());
            }
            Message::Native { part, local } => {
                out.push(*part as u8);
                put_address(&mut out, *local);
            }
            Message::Segment { path, ecn } => {
                put_address(&mut out, path.local);
                put_address(&mut out, path.remote);
                out.push(*ecn as u8);
            }
        }
        out
    }

    /// Parses a message. Returns it with the bytes that follow it.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<(Message, &[u8])> {
        let mut reader = Reader(bytes);
        let message = reader.message().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "invalid message from the other process")
        })?;
        Ok((message, reader.0))
    }
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            out.push(4);
            out.extend(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            out.push(6);
            out.extend(v6.ip().octets());
            out.extend(v6.scope_id().to_be_bytes());
        }
    }
    out.extend(address.port().to_be_bytes());
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn address(&mut self) -> Option<SocketAddr> {
        match self.byte()? {
            4 => {
                let ip = Ipv4Addr::from(self.array::<4>()?);
                Some(SocketAddr::new(ip.into(), u16::from_be_bytes(self.array()?)))
            }
            6 => {
                let ip = Ipv6Addr::from(self.array::<16>()?);
                let scope = u32::from_be_bytes(self.array()?);
                let port = u16::from_be_bytes(self.array()?);
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(core::mem::take(&mut self.0)).into_owned();
        (text.len() <= MAX_TEXT_BYTES).then_some(text)
    }

    fn ecn(&mut self) -> Option<Ecn> {
        let known = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce];
        let byte = self.byte()?;
        known.into_iter().find(|ecn| *ecn as u8 == byte)
    }

    fn native_part(&mut self) -> Option<NativePart> {
        let known = [NativePart::Receiver, NativePart::Guard, NativePart::Tun];
        let byte = self.byte()?;
        known.into_iter().find(|part| *part as u8 == byte)
    }

    fn message(&mut self) -> Option<Message> {
        Some(match self.byte()? {
            1 => {
                let [protocol, generation, predecessor] = self.array()?;
                Message::Hello { protocol, generation, predecessor, seed: self.array()? }
            }
            2 => Message::Socket { shard: self.byte()?, local: self.address()? },
            3 => Message::Listener { local: self.address()? },
            4 => Message::OlderProcess { generation: self.byte()? },
            5 => Message::Additional { name: self.text()? },
            6 => Message::End,
            7 => Message::Ready { version: self.text()? },
            8 => Message::Failed { why: self.text()? },
            9 => Message::Start,
            10 => {
                let local = self.address()?;
                let (local, port) = (local.ip(), local.port());
                Message::Link { local, remote: self.address()?, port }
            }
            11 => Message::Frames(ForwardedOrigin {
                bound: self.address()?,
                local: self.address()?.ip(),
                remote: self.address()?,
                ecn: self.ecn()?,
                stride: u16::from_be_bytes(self.array()?),
            }),
            12 => Message::Native { part: self.native_part()?, local: self.address()? },
            13 => {
                let path = FourTuple { local: self.address()?, remote: self.address()? };
                Message::Segment { path, ecn: self.ecn()? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_parse_back_and_truncated_ones_are_refused() {
        let v4: SocketAddr = "192.0.2.1:443".parse().unwrap();
        let v6: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3).into();
        let passed =
            ForwardedOrigin { bound: v6, local: v4.ip(), remote: v6, ecn: Ecn::Ce, stride: 1_472 };
        let all = [
            Message::Hello { protocol: 1, generation: 2, predecessor: 1, seed: [7; 32] },
            Message::Socket { shard: 3, local: v4 },
            Message::Listener { local: v6 },
            Message::OlderProcess { generation: 9 },
            Message::Additional { name: "metrics".to_owned() },
            Message::End,
            Message::Ready { version: "0.1.0".to_owned() },
            Message::Failed { why: "no".to_owned() },
            Message::Start,
            Message::Link { local: v4.ip(), remote: v6, port: 443 },
            Message::Frames(passed),
            Message::Native { part: NativePart::Guard, local: v6 },
            Message::Segment { path: FourTuple { local: v4, remote: v4 }, ecn: Ecn::Ect1 },
        ];
        for message in all {
            let bytes = message.to_bytes();
            assert!(Message::parse(&bytes).unwrap() == (message.clone(), &[][..]), "{message:?}");
            let has_text = matches!(message.kind(), 5 | 7 | 8);
            for len in 0..bytes.len() {
                let cut = Message::parse(&bytes[..len]);
                assert!(has_text && len > 0 || cut.is_err(), "{message:?} of {len} bytes");
            }
        }
        assert!(Message::parse(&[99]).is_err());
        let hello = Message::Hello { protocol: 1, generation: 2, predecessor: 1, seed: [7; 32] };
        assert_eq!(format!("{hello:?}"), "Message(1)", "the seed is secret");
    }
}
