//! Gateway behind a TUN interface: a shard that accepts TCP connections to any address, subject to the application's
//! approval.
//!
//! The hosts behind the interface treat the gateway as the whole network. A SYN to any address and port becomes a
//! [`Request`]; the SYN is not answered until the request is admitted or refused. All other packets are handed to a
//! [`PacketSink`], which answers by writing packets to the interface itself.

use std::io;
use std::sync::Arc;

use marline_core::FourTuple;
use marline_wire::SeqNum;
use tokio::sync::mpsc;

use super::shard::ShardHandle;
use super::socket::Sock;
use super::stream::Stream;
use super::streams::PacketSink;
use crate::sys::tun::Tun;

/// Requests of the hosts behind a gateway, in order of arrival.
///
/// The endpoint limits their number ([`Limits::syn_queue`](marline_core::Limits)). Each request is reported once.
#[derive(Debug)]
pub struct Requests {
    shard: Arc<ShardHandle>,
    waiting: mpsc::UnboundedReceiver<FourTuple>,
}

/// Connection request of a host behind the gateway. Dropping it without an answer refuses it.
#[derive(Debug)]
pub struct Request {
    shard: Arc<ShardHandle>,
    path: FourTuple,
    answered: bool,
}

impl ShardHandle {
    /// Becomes the gateway of the hosts behind this interface; all packets other than TCP go to `sink`. The shard
    /// must have been started with [`CarrierKind::Gateway`](super::CarrierKind) and accept connections with
    /// [`withhold_syn_ack`](marline_core::ConnectionConfig::withhold_syn_ack).
    ///
    /// # Errors
    /// The interface cannot be watched.
    pub fn open_gateway(
        self: &Arc<Self>,
        tun: Tun,
        sink: Box<dyn PacketSink>,
    ) -> io::Result<Requests> {
        let (asked, waiting) = mpsc::unbounded_channel();
        let socket = Sock::gateway(tun)?;
        let mut state = self.lock();
        state.streams().set_gateway(asked, sink);
        drop(state);
        self.add_socket(socket)?;
        Ok(Requests { shard: Arc::clone(self), waiting })
    }
}

impl Requests {
    /// Waits for the next request. Returns `None` once the driver has stopped. Safe to cancel.
    pub async fn next(&mut self) -> Option<Request> {
        let path = self.waiting.recv().await?;
        Some(Request { shard: Arc::clone(&self.shard), path, answered: false })
    }
}

impl Request {
    /// Ends of the connection: `local` is the target, `remote` the requesting host.
    #[must_use]
    pub const fn path(&self) -> FourTuple {
        self.path
    }

    /// Answers with a SYN/ACK; [`Stream::connected`] reports if the handshake succeeds. Returns `None` if the
    /// request is no longer current or there is no room for another connection.
    #[must_use]
    pub fn admit(mut self) -> Option<Stream> {
        self.answered = true;
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        let id = state.endpoint().admit(now, &self.path);
        if let Some(id) = id {
            state.streams().add(id);
        }
        self.shard.serve(&mut state, now);
        drop(state);
        id.map(|id| Stream::admitted(Arc::clone(&self.shard), id, self.path.remote))
    }

    /// Refuses the request with an RST.
    pub fn refuse(self) {
        // `drop` refuses.
        drop(self);
    }

    /// Withdraws the request without notifying the requesting host. Returns the sequence number that an ICMP message
    /// has to quote, or `None` if the request is no longer current.
    #[must_use]
    pub fn forget(mut self) -> Option<SeqNum> {
        self.answered = true;
        self.shard.with_endpoint(|endpoint, _| endpoint.forget_request(&self.path))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            self.shard.with_endpoint(|endpoint, now| endpoint.refuse(now, &self.path));
        }
    }
}
