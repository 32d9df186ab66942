//! Names resolved outside the tunnel by this machine's own resolvers, and the addresses that are then reached
//! directly.
//!
//! A resolver of such a name determines which addresses are direct, so there are limits: only public addresses, a
//! maximum number of them, and a limited lifetime. The local network is direct in any case.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use marline_proxy::rules::is_public;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::message;
use super::query::Query;
use crate::datagram::DatagramWriter;
use crate::exceptions::Exceptions;
use crate::resolver;

/// Maximum number of concurrent queries.
const MAX_CONCURRENT_QUERIES: usize = 64;
/// Time to wait for a resolver's answer before the next attempt.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of attempts per resolver.
const ATTEMPTS: usize = 2;
/// Maximum length of a DNS message over UDP.
const MAX_MESSAGE_LEN: usize = 4_096;
/// Maximum number of addresses per answer that are made direct.
const MAX_ADDRESSES: usize = 16;
/// Minimum lifetime. Programs continue to use an address after its TTL, for instance on open connections.
const MIN_LIFETIME: Duration = Duration::from_secs(300);
/// Maximum lifetime. After it the name must be resolved again.
const MAX_NAME_LIFETIME: Duration = Duration::from_secs(86_400);

/// Address with its lifetime.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TimedAddress {
    /// Address to reach directly.
    pub address: IpAddr,
    /// TTL, within limits.
    pub lifetime: Duration,
}

/// Addresses to be reached directly.
#[derive(Debug)]
pub struct DirectAddresses {
    /// Name of the addresses.
    pub name: String,
    /// Addresses.
    pub addresses: Vec<TimedAddress>,
    /// Notified when the addresses are direct.
    pub done: oneshot::Sender<()>,
}

/// Client of this machine's resolvers.
#[derive(Debug)]
pub struct DirectNames {
    /// Mark of its packets, with which they bypass the tunnel.
    mark: u32,
    /// The gateway, which is also a resolver but must not be queried here.
    gateway: IpAddr,
    routes: mpsc::Sender<DirectAddresses>,
    places: Arc<Semaphore>,
}

impl DirectNames {
    /// Sends queries with this mark, to all resolvers except `gateway`. The receiver of `routes` makes the addresses
    /// direct.
    #[must_use]
    pub fn new(mark: u32, gateway: IpAddr, routes: mpsc::Sender<DirectAddresses>) -> DirectNames {
        DirectNames {
            mark,
            gateway,
            routes,
            places: Arc::new(Semaphore::new(MAX_CONCURRENT_QUERIES)),
        }
    }

    /// Answers a query for this name, now or later. If there are too many, the query is dropped, and the program
    /// retries.
    pub(super) fn answer_query(
        self: &Arc<Self>,
        query: Query,
        name: String,
        exceptions: Arc<Exceptions>,
        writer: DatagramWriter,
    ) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        let this = Arc::clone(self);
        tokio::spawn(async move {
            match this.answer(&query.message).await {
                None => query.fail(&writer),
                Some(answer) => match message::refusal(&exceptions, &answer) {
                    Some(code) => query.refuse(&writer, code),
                    None => {
                        this.make_direct(name, excepted_addresses(&answer, &exceptions)).await;
                        query.answer(&writer, answer);
                    }
                },
            }
            drop(place);
        });
    }

    /// Returns the first complete answer from any resolver.
    pub(crate) async fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        // The network, and with it the resolvers, may have changed.
        let resolvers = resolver::host_resolvers(self.gateway);
        for resolver in resolvers.iter().cycle().take(ATTEMPTS * resolvers.len()) {
            match timeout(ANSWER_TIMEOUT, self.exchange(*resolver, query)).await {
                Ok(Ok(answer)) if message::is_truncated(&answer) => {
                    // A truncated answer is better than none.
                    let whole =
                        timeout(ANSWER_TIMEOUT, self.exchange_by_tcp(*resolver, query)).await;
                    return Some(whole.ok().and_then(Result::ok).unwrap_or(answer));
                }
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(error)) => tracing::debug!(%resolver, "direct DNS query failed: {error}"),
                Err(_) => tracing::debug!(%resolver, "no answer"),
            }
        }
        None
    }

    async fn exchange(&self, resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
        let socket = self.socket(resolver, Type::DGRAM, Protocol::UDP)?;
        socket.connect(&resolver.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        socket.send(query).await?;
        let mut answer = vec![0; MAX_MESSAGE_LEN];
        loop {
            let len = socket.recv(&mut answer).await?;
            // The socket is connected, so it receives only from the resolver. The number shows that this answers the
            // query.
            if is_answer_to(query, &answer[..len]) {
                answer.truncate(len);
                return Ok(answer);
            }
        }
    }

    async fn exchange_by_tcp(&self, resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
        let socket = self.socket(resolver, Type::STREAM, Protocol::TCP)?;
        match socket.connect(&resolver.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let mut stream = TcpStream::from_std(socket.into())?;
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        let length = u16::try_from(query.len()).map_err(io::Error::other)?.to_be_bytes();
        stream.write_all(&[&length[..], query].concat()).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        match is_answer_to(query, &answer) {
            true => Ok(answer),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn socket(&self, resolver: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let domain = Domain::for_address(resolver);
        let socket = Socket::new(domain, kind.nonblocking(), Some(protocol))?;
        socket.set_mark(self.mark)?;
        Ok(socket)
    }

    /// Adds routes for the addresses around the tunnel, and returns when they exist.
    async fn make_direct(&self, name: String, addresses: Vec<TimedAddress>) {
        if addresses.is_empty() {
            return;
        }
        let (done, made) = oneshot::channel();
        if self.routes.send(DirectAddresses { name, addresses, done }).await.is_ok() {
            let _ = made.await;
        }
    }
}

fn is_answer_to(query: &[u8], answer: &[u8]) -> bool {
    message::is_answer(answer) && answer.get(..2) == query.get(..2)
}

/// Returns the addresses of an answer that are made direct.
fn excepted_addresses(answer: &[u8], exceptions: &Exceptions) -> Vec<TimedAddress> {
    let open = |(address, _): &(IpAddr, u32)| is_public(*address) && !exceptions.blocks(*address);
    let timed = |(address, ttl_s): (IpAddr, u32)| {
        let ttl = Duration::from_secs(ttl_s.into());
        TimedAddress { address, lifetime: ttl.clamp(MIN_LIFETIME, MAX_NAME_LIFETIME) }
    };
    message::timed_addresses(answer).filter(open).take(MAX_ADDRESSES).map(timed).collect()
}

#[cfg(test)]
mod tests {
    use marline_wire::{DNS_A, DNS_AAAA};

    use super::*;

    /// Returns an answer with these addresses and TTLs.
    fn answer(addresses: &[(&str, u32)]) -> Vec<u8> {
        let mut bytes = marline_io::dns_query([1, 2], "a.example", DNS_A).unwrap();
        bytes[2] |= 0x80;
        bytes[7] = addresses.len() as u8;
        for (address, ttl_s) in addresses {
            let (kind, data) = match address.parse().unwrap() {
                IpAddr::V4(v4) => (DNS_A, v4.octets().to_vec()),
                IpAddr::V6(v6) => (DNS_AAAA, v6.octets().to_vec()),
            };
            bytes.extend([0xc0, 12]);
            bytes.extend([kind.to_be_bytes(), [0, 1]].concat());
            bytes.extend(ttl_s.to_be_bytes());
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    #[test]
    fn only_public_unblocked_addresses_become_direct() {
        let blocked = vec!["9.9.9.0/24".parse().unwrap()];
        let exceptions = Exceptions::new(Vec::new(), blocked);
        let all = answer(&[
            ("127.0.0.1", 600),
            ("10.0.0.1", 600),
            ("169.254.169.254", 600),
            ("198.18.0.1", 600),
            ("100.64.0.1", 600),
            ("9.9.9.9", 600),
            ("1.1.1.1", 600),
            ("::1", 600),
            ("fe80::1", 600),
            ("fd6d:6172:6c69:6e65::1", 600),
            ("::ffff:10.0.0.1", 600),
            ("64:ff9b::a00:1", 600),
            ("2606:4700::1111", 600),
        ]);
        let opened = excepted_addresses(&all, &exceptions);
        let shown: Vec<String> = opened.iter().map(|timed| timed.address.to_string()).collect();
        assert_eq!(shown, ["1.1.1.1", "2606:4700::1111"]);
    }

    #[test]
    fn lifetimes_and_number_of_addresses_are_bounded() {
        let timed = [("1.1.1.1", 0), ("1.1.1.2", 299), ("1.1.1.3", 3_600), ("1.1.1.4", u32::MAX)];
        let opened = excepted_addresses(&answer(&timed), &Exceptions::default());
        let seconds: Vec<u64> = opened.iter().map(|timed| timed.lifetime.as_secs()).collect();
        assert_eq!(seconds, [300, 300, 3_600, 86_400]);
        let many: Vec<String> = (1..=40).map(|number| format!("1.1.2.{number}")).collect();
        let many: Vec<(&str, u32)> = many.iter().map(|address| (address.as_str(), 60)).collect();
        assert_eq!(excepted_addresses(&answer(&many), &Exceptions::default()).len(), MAX_ADDRESSES);
    }
}
