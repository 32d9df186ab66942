//! Echo requests (ICMP) from a client: one ICMP socket of the system per identifier (RFC 5508) and address family.
//!
//! The socket needs no privilege and gets an identifier of its own from the system. Sequence numbers are passed on
//! unchanged, so that no state is kept per request. The rules for targets apply to the host that is pinged and to
//! every host that answers.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use marline_io::{EchoAnswer, EchoSocket};
use tokio::time::Instant;

use super::echo_mapping::{EchoReader, Echoes, Request};
use super::{Nat, State};
use crate::server::admission::Permit;
use crate::udp::{EchoError, Item, count};

impl Nat {
    /// Sends an echo request, or reports to the client why it cannot.
    pub(super) fn on_echo(&self, state: &mut State, now: Instant, request: &Request<'_>) {
        let Request { socket, sequence, to, .. } = *request;
        let checked = self.rules.borrow().check(to);
        let asked = match checked {
            Ok(()) => self.send_request(state, now, request),
            Err(refused) => {
                count(&self.shared.counters.refused);
                tracing::warn!(client = %self.client.name, "ping to {to} refused: {refused}");
                Err(prohibited(to))
            }
        };
        match asked {
            Ok(()) => count(&self.shared.counters.to_local),
            Err(error) => state.outbox.push(0, &Item::Failed { socket, sequence, to, error }),
        }
    }

    fn send_request(
        &self,
        state: &mut State,
        now: Instant,
        request: &Request<'_>,
    ) -> Result<(), EchoError> {
        let Request { socket, hops, sequence, to, payload } = *request;
        let unable = |error: &io::Error| self.system_error(to, error);
        if !state.echoes.has(socket) {
            let place = self.take_place(&mut state.echoes).ok_or_else(|| prohibited(to))?;
            state.echoes.insert(socket, now, place);
        }
        let Some(half) = state.echoes.socket_for(socket, now, to.is_ipv6()) else { return Ok(()) };
        let half = match half {
            Some(half) => half,
            None => {
                let opened = Arc::new(EchoSocket::open(to.is_ipv6()).map_err(|e| unable(&e))?);
                let read = read(Weak::clone(&self.weak_self), Arc::clone(&opened), socket);
                half.insert(EchoReader::new(opened, tokio::spawn(read).abort_handle()))
            }
        };
        half.socket().send(to, hops, sequence, payload).map_err(|error| unable(&error))
    }

    /// Takes a place within the limit of the client's credential. At the limit, the client's oldest identifier is
    /// removed.
    fn take_place(&self, echoes: &mut Echoes) -> Option<Permit<Arc<str>>> {
        if echoes.is_full() {
            echoes.forget_oldest();
        }
        loop {
            match self.shared.places.take_permit(Arc::clone(&self.client.name)) {
                Ok(place) => return Some(place),
                Err(_) if echoes.forget_oldest() => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns the error that the client receives when the system cannot send.
    fn system_error(&self, to: IpAddr, error: &io::Error) -> EchoError {
        if error.kind() == io::ErrorKind::PermissionDenied {
            if !self.shared.is_echo_refusal_logged.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "clients cannot ping: the server may not open ICMP sockets (sysctl \
                     net.ipv4.ping_group_range)"
                );
            }
            return prohibited(to);
        }
        tracing::debug!(client = %self.client.name, %to, "echo request not sent: {error}");
        // Usually there is no route.
        let icmp = if to.is_ipv4() { (3, 0) } else { (1, 0) };
        EchoError { icmp, mtu: 0, by: None }
    }

    /// Handles an answer to an echo request.
    fn on_host_answer(&self, socket: u32, answer: &EchoAnswer<'_>) {
        let item = match *answer {
            EchoAnswer::Reply { from, sequence, data } => {
                let from = from.to_canonical();
                if self.rules.borrow().check(from).is_err() {
                    return count(&self.shared.counters.refused);
                }
                Item::Replied { socket, sequence, from, payload: data }
            }
            EchoAnswer::Failed { to, sequence, icmp, mtu, by } => {
                let mtu = mtu.map_or(0, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
                Item::Failed { socket, sequence, to, error: EchoError { icmp, mtu, by } }
            }
        };
        count(&self.shared.counters.from_local);
        let mut state = self.lock();
        state.outbox.push(0, &item);
        state.outbox.flush(&self.lane, &self.shared.counters);
    }
}

/// Returns the ICMP error "communication administratively prohibited" of the family.
const fn prohibited(to: IpAddr) -> EchoError {
    let icmp = if to.is_ipv4() { (3, 13) } else { (1, 1) };
    EchoError { icmp, mtu: 0, by: None }
}

/// Reads a socket until the client is gone.
async fn read(nat: Weak<Nat>, socket: Arc<EchoSocket>, number: u32) {
    loop {
        let mut gone = false;
        let heard = socket.answers(|answer| match nat.upgrade() {
            Some(nat) => nat.on_host_answer(number, answer),
            None => gone = true,
        });
        if heard.await.is_err() || gone {
            return;
        }
        tokio::task::yield_now().await;
    }
}
