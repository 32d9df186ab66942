//! Carrier of the programs' datagrams through a server, with one socket of the UDP tunnel for each of their ports.
//!
//! A program's port is a normal [source](marline_proxy::client::udp_sources). Datagrams that arrive at its socket on
//! the server are passed to the program. [Echo requests](marline_proxy::client::echo_sources) are carried in the same
//! way.

mod echoes;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use marline_proxy::client::echo_sources::EchoSources;
use marline_proxy::client::udp_sources::UdpSources;
use marline_proxy::client::udp_tunnel::{InboundDatagram, UdpInbox, UdpTunnel};
use marline_proxy::target::Target;

use crate::addresses::Addresses;
use crate::datagram::{Datagram, DatagramOutcome, DatagramWriter, Datagrams, Echo};

/// Senders whose datagrams are carried.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Senders {
    /// The interface's own addresses.
    Own,
    /// All senders that are routed to the interface, such as programs that bind to another address of the machine.
    All,
}

/// Carrier of datagrams. Dropping it closes all sockets.
#[derive(Debug)]
pub struct TunnelDatagrams {
    addresses: Addresses,
    senders: Senders,
    sources: Arc<UdpSources>,
    echoes: Arc<EchoSources>,
}

impl TunnelDatagrams {
    /// Starts on the current tokio runtime. The caller must maintain a
    /// [lane](marline_proxy::client::udp_keeper::keep_lane) for `udp`. `addresses` are the interface's, and
    /// `senders` are permitted.
    #[must_use]
    pub fn start(udp: Arc<UdpTunnel>, addresses: Addresses, senders: Senders) -> TunnelDatagrams {
        let echoes = Arc::new(EchoSources::new(Arc::clone(&udp)));
        tokio::spawn(echoes::sweep(Arc::downgrade(&echoes)));
        TunnelDatagrams { addresses, senders, sources: UdpSources::start(udp), echoes }
    }

    /// Returns true if packets from this host are carried.
    fn carries_from(&self, from: IpAddr) -> bool {
        let theirs = self.senders == Senders::All || self.addresses.is_program(from);
        theirs && !self.sources.tunnel().is_refused()
    }
}

impl Datagrams for TunnelDatagrams {
    fn on_datagram(
        &mut self,
        datagram: &Datagram<'_>,
        answers: &DatagramWriter,
    ) -> DatagramOutcome {
        let Datagram { source: from, destination, payload } = *datagram;
        if !self.carries_from(from.ip()) || !may_pass(&self.addresses, from, destination) {
            return DatagramOutcome::Refused;
        }
        let serve = |inbox| {
            let sources = Arc::downgrade(&self.sources);
            tokio::spawn(
                AnswerWriter { writer: answers.clone(), to: from, sources }.deliver(inbox),
            );
        };
        if !self.sources.admit(from, destination.port(), serve) {
            return DatagramOutcome::Refused;
        }
        match self.sources.send(from, &Target::from(destination), payload) {
            Ok(()) => DatagramOutcome::Carried,
            Err(too_big) => DatagramOutcome::TooBig(too_big.most),
        }
    }

    fn on_echo(&mut self, echo: &Echo<'_>, answers: &DatagramWriter) -> DatagramOutcome {
        if !self.carries_from(echo.source) || !hosts(&self.addresses, echo.source, echo.destination)
        {
            return DatagramOutcome::Refused;
        }
        echoes::send(&self.echoes, self.addresses, echo, answers)
    }
}

/// Returns true for a datagram from a host behind the interface to one elsewhere.
fn may_pass(addresses: &Addresses, from: SocketAddr, to: SocketAddr) -> bool {
    from.port() != 0 && to.port() != 0 && hosts(addresses, from.ip(), to.ip())
}

/// Returns true if `from` is not the gateway, and `to` is a single host elsewhere.
fn hosts(addresses: &Addresses, from: IpAddr, to: IpAddr) -> bool {
    let elsewhere = match to {
        IpAddr::V4(v4) => !v4.is_broadcast(),
        // IPv4-mapped IPv6 addresses are not used on the network.
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_none(),
    };
    let host = !to.is_multicast() && !to.is_unspecified() && !to.is_loopback();
    !addresses.is_gateway(from) && elsewhere && host && !addresses.is_on_link(to)
}

/// Passes on the datagrams for a program's port until its socket is closed.
struct AnswerWriter {
    writer: DatagramWriter,
    to: SocketAddr,
    sources: Weak<UdpSources>,
}

impl AnswerWriter {
    async fn deliver(self, mut inbox: UdpInbox) {
        while let Some(inbound) = inbox.recv().await {
            // Unsolicited datagrams do not keep a port open (RFC 4787 section 4.3).
            if inbound.asked
                && let Some(sources) = self.sources.upgrade()
            {
                sources.record_peer_answer(self.to);
            }
            if let Some(from) = address(&inbound)
                && let Err(error) = self.writer.send(from, self.to, &inbound.payload)
            {
                // The datagram is lost for lack of buffer space, as on any link.
                tracing::debug!(%from, "datagram dropped: {error}");
            }
        }
    }
}

/// Returns the address of a datagram's sender. Programs send only to addresses, so the sender is not a name.
fn address(inbound: &InboundDatagram) -> Option<SocketAddr> {
    let ip = inbound.from.host.as_name().err()?;
    Some(SocketAddr::new(ip.to_canonical(), inbound.from.port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_datagrams_to_other_hosts_pass() {
        let addresses = Addresses::default();
        let (v4, v6) = ("198.18.0.2:9", "[fd6d:6172:6c69:6e65::2]:9");
        let passes =
            |from: &str, to: &str| may_pass(&addresses, from.parse().unwrap(), to.parse().unwrap());
        assert!(passes(v4, "203.0.113.7:443") && passes(v6, "[2001:db8::1]:443"));
        for to in [
            "127.0.0.1:9",
            "224.0.0.251:5353",
            "255.255.255.255:67",
            "0.0.0.0:9",
            "198.18.0.1:9",
            "198.18.0.3:9",
            "203.0.113.7:0",
        ] {
            assert!(!passes(v4, to), "{to}");
        }
        for to in ["[::1]:9", "[ff02::fb]:5353", "[::]:9", "[::ffff:127.0.0.1]:9"] {
            assert!(!passes(v6, to), "{to}");
        }
        for from in ["198.18.0.1:9", "198.18.0.2:0"] {
            assert!(!passes(from, "203.0.113.7:443"), "{from}");
        }
        assert!(passes("192.0.2.1:9", "203.0.113.7:443"), "another address of the machine");
    }
}
