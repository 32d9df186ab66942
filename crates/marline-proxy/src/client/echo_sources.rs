//! Sources of echo requests (ICMP): the addresses and identifiers that applications send from, with a sender of the
//! tunnel for each.
//!
//! An identifier is to an echo request what a port is to a datagram (RFC 5508): another one has another identifier at
//! the server as well.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::udp_tunnel::echo::{EchoInbox, EchoRequest};
use super::udp_tunnel::echoes::EchoSender;
use super::udp_tunnel::{TooBig, UdpTunnel};
use crate::udp::{ECHO_IDLE, MOST_ECHOES};

/// Who sends requests: an address, and its identifier.
pub type EchoSource = (IpAddr, u16);

/// The sources of a way in; dropping them ends all.
#[derive(Debug)]
pub struct EchoSources {
    udp: Arc<UdpTunnel>,
    /// With when each sent last. Locked before the tunnel, never while it is.
    table: Mutex<BTreeMap<EchoSource, (EchoSender, Instant)>>,
}

impl EchoSources {
    /// None yet.
    #[must_use]
    pub fn new(udp: Arc<UdpTunnel>) -> EchoSources {
        EchoSources { udp, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EchoSource, (EchoSender, Instant)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request. What comes for a new source is given to `serve`; the one that was silent for longest goes for
    /// it if there are too many.
    ///
    /// # Errors
    /// It is known not to fit.
    pub fn send(
        &self,
        from: EchoSource,
        request: EchoRequest,
        payload: &[u8],
        serve: impl FnOnce(EchoInbox),
    ) -> Result<(), TooBig> {
        let now = Instant::now();
        let mut table = self.lock();
        if !table.contains_key(&from) {
            make_room(&mut table);
            // Where the tunnel has no room the request is lost, as on any link.
            let Some((sender, inbox)) = self.udp.echo() else { return Ok(()) };
            serve(inbox);
            table.insert(from, (sender, now));
        }
        let Some((sender, used_at)) = table.get_mut(&from) else { return Ok(()) };
        *used_at = now;
        sender.send(request, payload)
    }

    /// Ends those that have been silent for long.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.lock().retain(|_, (_, used_at)| now.duration_since(*used_at) < ECHO_IDLE);
    }
}

fn make_room<T>(table: &mut BTreeMap<EchoSource, (T, Instant)>) {
    if table.len() >= MOST_ECHOES
        && let Some((oldest, _)) = table.iter().min_by_key(|(_, (_, used_at))| *used_at)
    {
        let oldest = *oldest;
        table.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn request(sequence: u16) -> EchoRequest {
        EchoRequest { to: Ipv4Addr::new(192, 0, 2, 7).into(), hops: 63, sequence }
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_identifiers_have_bounded_room_and_silent_ones_end() {
        let udp = Arc::new(UdpTunnel::default());
        let sources = EchoSources::new(Arc::clone(&udp));
        let mut inboxes = Vec::new();
        for identifier in 0..10_000 {
            let from = (Ipv4Addr::LOCALHOST.into(), identifier);
            for sequence in 0..2 {
                let sent = sources.send(from, request(sequence), b"x", |inbox| inboxes.push(inbox));
                assert_eq!(sent, Ok(()));
            }
        }
        let open =
            |inboxes: &[EchoInbox]| inboxes.iter().filter(|inbox| !inbox.is_closed()).count();
        assert_eq!((inboxes.len(), open(&inboxes)), (10_000, MOST_ECHOES));
        assert!(!inboxes[9_999].is_closed(), "the newest stay");
        tokio::time::advance(ECHO_IDLE).await;
        sources.sweep();
        assert_eq!(open(&inboxes), 0);
        assert!(udp.unused_for() < ECHO_IDLE, "it had senders until now");
    }
}
