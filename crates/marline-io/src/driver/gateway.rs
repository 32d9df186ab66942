//! Gateway behind a TUN interface: a shard that takes TCP to whatever address, once the application says so.
//!
//! The hosts behind the interface take the gateway for the whole network. A SYN to any address and port becomes
//! a [`Request`]; until that is admitted or refused the SYN is not answered. What is not TCP is handed to a
//! [`PacketSink`], which answers by writing packets to the interface itself.

use std::io;
use std::sync::Arc;

use marline_core::FourTuple;
use marline_time::Instant;
use marline_wire::SeqNum;
use tokio::sync::mpsc;

use super::connections::Slot;
use super::packet_sink::PacketSink;
use super::shard::ShardHandle;
use super::socket::Sock;
use super::state::State;
use super::stream::Stream;
use crate::sys::tun::Tun;

/// Requests of the hosts behind a gateway, in their order.
///
/// Not more wait than the endpoint keeps ([`Limits::syn_queue`](marline_core::Limits)): each is told once.
#[derive(Debug)]
pub struct Requests {
    shard: Arc<ShardHandle>,
    waiting: mpsc::UnboundedReceiver<FourTuple>,
}

/// A connection that somebody behind the gateway asks for. Dropped without an answer, it is refused.
#[derive(Debug)]
pub struct Request {
    shard: Arc<ShardHandle>,
    path: FourTuple,
    answered: bool,
}

impl ShardHandle {
    /// Becomes the gateway of the hosts behind this interface; what is not TCP goes to `sink`. The shard
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
        (state.requests, state.sink) = (Some(asked), Some(sink));
        drop(state);
        self.add_socket(socket)?;
        Ok(Requests { shard: Arc::clone(self), waiting })
    }
}

impl Requests {
    /// The next one; `None` once the driver has stopped. Safe to cancel.
    pub async fn next(&mut self) -> Option<Request> {
        let path = self.waiting.recv().await?;
        Some(Request { shard: Arc::clone(&self.shard), path, answered: false })
    }
}

impl Request {
    /// Its ends: `local` is the target, `remote` who asks.
    #[must_use]
    pub const fn path(&self) -> FourTuple {
        self.path
    }

    /// Answers with a SYN/ACK; [`Stream::connected`] tells whether the handshake succeeds. `None`: nobody asks
    /// any more, or there is no room for another connection.
    #[must_use]
    pub fn admit(mut self) -> Option<Stream> {
        self.answered = true;
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        let id = state.endpoint.admit(now, &self.path);
        if let Some(id) = id {
            state.slots.insert(id, Slot::default());
        }
        self.shard.serve(&mut state, now);
        drop(state);
        id.map(|id| Stream::admitted(Arc::clone(&self.shard), id, self.path.remote))
    }

    /// Refuses with RST.
    pub fn refuse(self) {
        // Dropping it does.
        drop(self);
    }

    /// Takes it back without a word to who asks. Returns the sequence number that an ICMP message has to quote;
    /// `None`: nobody asks any more.
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

impl State {
    /// Somebody behind the gateway asks for a connection.
    pub(super) fn on_requested(&mut self, now: Instant, path: FourTuple) {
        let told = self.requests.as_ref().is_some_and(|requests| requests.send(path).is_ok());
        if !told {
            self.endpoint.refuse(now, &path);
        }
    }
}
