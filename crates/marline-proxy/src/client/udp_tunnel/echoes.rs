//! Echo requests (ICMP) from applications, in addition to their datagrams. Here a socket represents an identifier
//! instead of a port.
//!
//! No state is kept per request: its result is identified by the sequence number.

use std::sync::Arc;

use super::echo::{EchoAnswer, EchoInbox, EchoRequest};
use super::{SentKind, Socket, State, TooBig, UdpSender, UdpTunnel, inbox};
use crate::udp::{ECHO_OVERHEAD, Item, count};

/// Sender for an application's echo identifier. Dropping it ends the identifier, also at the server.
#[derive(Debug)]
pub struct EchoSender(UdpSender);

impl EchoSender {
    /// Sends a request. It is lost if it cannot be sent.
    ///
    /// # Errors
    /// The data is known to be too large. The error contains the largest size.
    pub fn send(&self, request: EchoRequest, payload: &[u8]) -> Result<(), TooBig> {
        let UdpSender { number, tunnel } = &self.0;
        let mut batch = tunnel.batch();
        // `max_datagram` has subtracted one byte for a datagram's item.
        let most = batch.max_datagram().map(|most| (most + 1).saturating_sub(ECHO_OVERHEAD));
        match most {
            Some(most) if payload.len() > most => {
                batch.too_big();
                return Err(TooBig { most });
            }
            Some(_) => {
                count(&tunnel.counters.from_local);
                request.queue(&mut batch.state, *number, payload);
            }
            None => {
                count(&tunnel.counters.from_local);
                batch.queue_until_lane(*number, SentKind::Echo(request), payload);
            }
        }
        Ok(())
    }
}

impl EchoRequest {
    /// Adds the request to the outbox.
    pub(super) fn queue(self, state: &mut State, socket: u32, payload: &[u8]) {
        let EchoRequest { to, hops, sequence } = self;
        state.outbox.push(0, &Item::Echo { socket, hops, sequence, to, payload });
    }
}

impl UdpTunnel {
    /// Returns a sender for an application's identifier, or `None` if there are too many.
    pub fn echo(self: &Arc<Self>) -> Option<(EchoSender, EchoInbox)> {
        let (delivery, inbox) = inbox(&self.memory);
        Some((EchoSender(self.open(Socket::Echoes(delivery))?), inbox))
    }

    /// Handles the server's result for a request.
    pub(super) fn on_echo(&self, state: &State, item: Item<'_>) {
        let (socket, bytes, answer) = match item {
            Item::Replied { socket, sequence, from, payload } => {
                let answer = EchoAnswer::Replied { from, sequence, payload: payload.to_vec() };
                (socket, payload.len(), answer)
            }
            Item::Failed { socket, sequence, to, error } => {
                (socket, 0, EchoAnswer::Failed { to, sequence, error })
            }
            _ => return,
        };
        let taken = match state.sockets.get(&socket) {
            Some(Socket::Echoes(inbox)) => inbox.push(answer, bytes),
            Some(Socket::Datagrams(_)) | None => false,
        };
        count(if taken { &self.counters.to_local } else { &self.counters.dropped });
    }
}
