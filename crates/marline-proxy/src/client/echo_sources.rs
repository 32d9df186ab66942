//! Sources of ICMP echo requests: addresses and identifiers of applications, each with a sender of the tunnel.
//!
//! An identifier has the role of a port (RFC 5508): each identifier of an application gets an identifier of its own
//! at the server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::udp_tunnel::echo::{EchoInbox, EchoRequest};
use super::udp_tunnel::echoes::EchoSender;
use super::udp_tunnel::{TooBig, UdpTunnel};
use crate::udp::{ECHO_IDLE, MAX_ECHOES};

/// Source of echo requests.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EchoSource {
    /// Address of the application.
    pub address: IpAddr,
    /// Identifier in its requests.
    pub identifier: u16,
}

/// Sources of one entry point. Dropping them closes all.
#[derive(Debug)]
pub struct EchoSources {
    udp: Arc<UdpTunnel>,
    /// Senders with the time of their last request. Locked before the tunnel, never while the tunnel is locked.
    table: Mutex<BTreeMap<EchoSource, (EchoSender, Instant)>>,
}

impl EchoSources {
    /// Creates an empty set of sources.
    #[must_use]
    pub fn new(udp: Arc<UdpTunnel>) -> EchoSources {
        EchoSources { udp, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EchoSource, (EchoSender, Instant)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request. The inbox of a new source is passed to `serve`. If there are too many, the source that was
    /// silent longest is removed.
    ///
    /// # Errors
    /// The request is known to be too large for the paths.
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
            // If the tunnel has no room, the request is lost, as on any link.
            let Some((sender, inbox)) = self.udp.echo() else { return Ok(()) };
            serve(inbox);
            table.insert(from, (sender, now));
        }
        let Some((sender, used_at)) = table.get_mut(&from) else { return Ok(()) };
        *used_at = now;
        sender.send(request, payload)
    }

    /// Removes sources that have been silent for a long time.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.lock().retain(|_, (_, used_at)| now.duration_since(*used_at) < ECHO_IDLE);
    }
}

fn make_room<T>(table: &mut BTreeMap<EchoSource, (T, Instant)>) {
    if table.len() >= MAX_ECHOES
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
    async fn ten_thousand_identifiers_use_bounded_memory_and_silent_ones_are_removed() {
        let udp = Arc::new(UdpTunnel::default());
        let sources = EchoSources::new(Arc::clone(&udp));
        let mut inboxes = Vec::new();
        for identifier in 0..10_000 {
            let from = EchoSource { address: Ipv4Addr::LOCALHOST.into(), identifier };
            for sequence in 0..2 {
                let sent = sources.send(from, request(sequence), b"x", |inbox| inboxes.push(inbox));
                assert_eq!(sent, Ok(()));
            }
        }
        let open =
            |inboxes: &[EchoInbox]| inboxes.iter().filter(|inbox| !inbox.is_closed()).count();
        assert_eq!((inboxes.len(), open(&inboxes)), (10_000, MAX_ECHOES));
        assert!(!inboxes[9_999].is_closed(), "the newest are kept");
        tokio::time::advance(ECHO_IDLE).await;
        sources.sweep();
        assert_eq!(open(&inboxes), 0);
        assert!(udp.idle_time() < ECHO_IDLE, "its sender was active until now");
    }
}
