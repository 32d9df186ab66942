//! Carriers of segments: UDP datagrams, or native TCP on raw sockets or TUN interfaces.

use core::net::IpAddr;
use std::sync::Arc;

use marline_io::{CarrierKind, RawSockets, Shard, UdpUse};
use marline_time::Duration;

use crate::BindError;

/// Maximum time between two datagrams on a path with connections, which keeps NAT mappings open; many NATs drop a UDP
/// mapping after 30 s of silence.
pub const MAX_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// Encapsulation of segments.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Carrier {
    /// UDP datagrams: needs no privilege, but works only between Marline endpoints.
    #[default]
    Udp,
    /// UDP datagrams. On each path where they get no answer, TCP connections to the same address and port are used
    /// until datagrams are answered again. A server listens on both.
    Auto,
    /// TCP connections only. A server still listens on both, because the client chooses the transport.
    Tcp,
    /// Native TCP on raw sockets that are opened when needed, which requires CAP_NET_RAW at that time. Works with any
    /// stack that supports Multipath TCP or plain TCP.
    Raw,
    /// Native TCP on raw sockets that were opened earlier, while the process had CAP_NET_RAW, for as many shards as the
    /// server has.
    Opened(Arc<RawSockets>),
    /// Native TCP on TUN interfaces, one per path: behind each, Marline acts as a separate host.
    Tun(Vec<TunPath>),
}

/// TUN interface, and the address of the host behind it, which is Marline itself.
///
/// The kernel routes packets for the address to the interface and forwards packets from it, so the machine must be
/// configured as a router between this address and the network. Creating the interface needs CAP_NET_ADMIN. An existing
/// one that belongs to the user (`ip tuntap add`) needs no privilege. Several shards of a server need an interface with
/// as many queues (`ip tuntap add .. multi_queue`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TunPath {
    /// Name of the interface.
    pub interface: String,
    /// Address of the host behind the interface, which must not be an address of this machine.
    pub address: IpAddr,
}

impl TunPath {
    /// Creates the path for the host with this address behind this interface.
    #[must_use]
    pub const fn new(interface: String, address: IpAddr) -> Self {
        TunPath { interface, address }
    }
}

impl Carrier {
    pub(crate) const fn is_native(&self) -> bool {
        !matches!(self, Carrier::Udp | Carrier::Auto | Carrier::Tcp)
    }

    /// Returns the name of the transport that a firewall sees.
    pub(crate) const fn transport(&self) -> &'static str {
        match self {
            Carrier::Udp => "UDP",
            Carrier::Auto => "UDP or TCP",
            _ => "TCP",
        }
    }

    /// Returns true if a server also listens for TCP connections that carry frames.
    pub(crate) const fn has_links(&self) -> bool {
        matches!(self, Carrier::Auto | Carrier::Tcp)
    }
}

pub(crate) const fn kind(carrier: &Carrier, keepalive: Duration) -> CarrierKind {
    match carrier {
        Carrier::Udp => CarrierKind::Udp { keepalive, udp: UdpUse::Always },
        Carrier::Auto => CarrierKind::Udp { keepalive, udp: UdpUse::Preferred },
        Carrier::Tcp => CarrierKind::Udp { keepalive, udp: UdpUse::Never },
        Carrier::Raw | Carrier::Opened(_) => CarrierKind::Raw,
        Carrier::Tun(_) => CarrierKind::Tun,
    }
}

/// Opens the sockets of the shards.
pub(crate) fn open(carrier: &Carrier, shards: &[&Shard]) -> Result<(), BindError> {
    let in_use = |error| BindError::io("use the raw sockets", error);
    match carrier {
        Carrier::Udp | Carrier::Auto | Carrier::Tcp => Ok(()),
        Carrier::Raw => {
            let what = "open raw sockets (this needs CAP_NET_RAW)";
            let sockets = RawSockets::open_for(shards.len());
            let sockets = sockets.map_err(|error| BindError::io(what, error))?;
            Shard::share_raw(shards, &sockets).map_err(in_use)
        }
        Carrier::Opened(sockets) => Shard::share_raw(shards, sockets).map_err(in_use),
        Carrier::Tun(paths) => {
            let several = shards.len() > 1;
            for TunPath { interface, address } in paths {
                let what = match several {
                    true => format!(
                        "open a queue of TUN interface `{interface}` for each shard (multi_queue)"
                    ),
                    false => format!("open TUN interface `{interface}`"),
                };
                for shard in shards {
                    let opened = shard.open_tun(interface, *address, several);
                    opened.map_err(|error| BindError::io(&what, error))?;
                }
            }
            Ok(())
        }
    }
}
