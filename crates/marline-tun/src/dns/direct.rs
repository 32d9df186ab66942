//! Names that are not the tunnel's: asked of this machine's own resolvers, around the tunnel, and the addresses they
//! have reached directly from then on.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::message;
use super::query::Query;
use crate::datagram::DatagramWriter;
use crate::resolver;

/// Queries under way at a time.
const MOST: usize = 64;
/// A resolver that has not answered within this time is asked again, and then the next one.
const PATIENCE: Duration = Duration::from_secs(2);
/// Times each resolver is asked.
const TIMES: usize = 2;
/// Bytes of a DNS message by UDP that anybody sends.
const LONGEST: usize = 4_096;

/// Addresses that are to be reached directly.
#[derive(Debug)]
pub struct DirectAddresses {
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// Told when they are.
    pub done: oneshot::Sender<()>,
}

/// Asker of this machine's resolvers.
#[derive(Debug)]
pub struct DirectNames {
    /// Mark of its packets, by which they go around the tunnel.
    mark: u32,
    /// The gateway, which is a resolver that must not be asked here.
    gateway: IpAddr,
    routes: mpsc::Sender<DirectAddresses>,
    places: Arc<Semaphore>,
}

impl DirectNames {
    /// Asks with packets of this mark any resolver but `gateway`, and has the addresses made direct by whoever
    /// receives from `routes`.
    #[must_use]
    pub fn new(mark: u32, gateway: IpAddr, routes: mpsc::Sender<DirectAddresses>) -> DirectNames {
        DirectNames { mark, gateway, routes, places: Arc::new(Semaphore::new(MOST)) }
    }

    /// Has a query answered, now or later. What there is no place for is lost: resolvers are asked again.
    pub(super) fn ask(self: &Arc<Self>, query: Query, writer: DatagramWriter) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        let this = Arc::clone(self);
        tokio::spawn(async move {
            match this.answer(&query.message).await {
                Some(answer) => query.answer(&writer, &answer),
                None => query.fail(&writer),
            }
            drop(place);
        });
    }

    /// The answer of the first resolver that gives one.
    pub(crate) async fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        // The network may have changed, and its resolvers with it.
        let resolvers = resolver::all_of_host(self.gateway);
        for resolver in resolvers.iter().cycle().take(TIMES * resolvers.len()) {
            match timeout(PATIENCE, self.exchange(*resolver, query)).await {
                Ok(Ok(answer)) => {
                    self.make_direct(message::addresses(&answer)).await;
                    return Some(answer);
                }
                Ok(Err(error)) => tracing::debug!(%resolver, "not asked directly: {error}"),
                Err(_) => tracing::debug!(%resolver, "no answer"),
            }
        }
        None
    }

    async fn exchange(&self, resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
        let socket = Socket::new(
            Domain::for_address(resolver),
            Type::DGRAM.nonblocking(),
            Some(Protocol::UDP),
        )?;
        socket.set_mark(self.mark)?;
        socket.connect(&resolver.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        socket.send(query).await?;
        let mut answer = vec![0; LONGEST];
        loop {
            let len = socket.recv(&mut answer).await?;
            // Connected, it hears the resolver alone; the number says that it is the answer to this.
            if message::is_answer(&answer[..len]) && answer[..2] == query[..2] {
                answer.truncate(len);
                return Ok(answer);
            }
        }
    }

    /// Returns when connections to the addresses go around the tunnel.
    async fn make_direct(&self, addresses: Vec<IpAddr>) {
        if addresses.is_empty() {
            return;
        }
        let (done, made) = oneshot::channel();
        if self.routes.send(DirectAddresses { addresses, done }).await.is_ok() {
            let _ = made.await;
        }
    }
}
