//! Carriers with minimal privileges: sockets that need a privilege are opened first, then the capabilities are dropped,
//! and only then are threads started and untrusted bytes read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use marline::advanced::{KeptCapabilities, RawSockets};
use marline::config::TunPath;
use marline::{BindError, Carrier, ServerBuilder};
use marline_io::Interfaces;
use serde::{Deserialize, Serialize};

/// Carrier of segments, as configured.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CarrierChoice {
    /// UDP datagrams, and TCP connections to the same port where UDP gets no answer: needs no privileges, Marline on
    /// both ends.
    Auto,
    /// UDP datagrams only.
    Udp,
    /// TCP connections only (a server listens on both).
    Tcp,
    /// Native TCP on raw sockets: needs CAP_NET_RAW; the other end may be any Multipath TCP or TCP.
    Raw,
    /// Native TCP through TUN interfaces (--tun), with Marline as a host of its own behind them.
    Tun,
}

impl CarrierChoice {
    /// Returns true if the carrier uses the frames of the UDP carrier, which only Marline answers. Sessions may then
    /// have lanes for datagrams.
    #[must_use]
    pub const fn is_framed(self) -> bool {
        matches!(self, CarrierChoice::Auto | CarrierChoice::Udp | CarrierChoice::Tcp)
    }
}

/// A carrier that has not been opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarrierPlan {
    /// UDP datagrams, and TCP connections where UDP gets no answer.
    Auto,
    /// UDP datagrams.
    Udp,
    /// TCP connections.
    Tcp,
    /// Raw sockets.
    Raw,
    /// Existing TUN interfaces.
    Tun(Vec<TunPath>),
}

impl CarrierPlan {
    /// Returns true if segments are sent as TCP instead of in frames.
    #[must_use]
    pub const fn is_native(&self) -> bool {
        matches!(self, CarrierPlan::Raw | CarrierPlan::Tun(_))
    }

    /// Returns the protocol that firewalls see.
    #[must_use]
    pub const fn transport(&self) -> &'static str {
        match self {
            CarrierPlan::Auto => "UDP or TCP",
            CarrierPlan::Udp => "UDP",
            CarrierPlan::Tcp | CarrierPlan::Raw | CarrierPlan::Tun(_) => "TCP",
        }
    }

    /// Opens the sockets that a client needs, and drops all capabilities except `kept`. Must be called before
    /// threads are started, since threads keep the capabilities they started with.
    ///
    /// # Errors
    /// A privilege is missing (the error names it and the remedy).
    pub fn open(self, kept: KeptCapabilities) -> anyhow::Result<Carrier> {
        let carrier = self.open_with(None, 1, |_| Ok(()))?;
        drop_privileges(kept)?;
        Ok(carrier)
    }

    /// Opens the sockets that a listener needs, reserves its ports, and drops all capabilities except `kept`.
    /// If `no_offload` is true, each segment is sent separately (raw sockets). Must also be called before threads are
    /// started.
    ///
    /// # Errors
    /// A privilege is missing (the error names it and the remedy), or a port is taken.
    pub fn listen(
        self,
        server: &mut ServerBuilder,
        no_offload: bool,
        kept: KeptCapabilities,
    ) -> anyhow::Result<()> {
        let inherited = server.inherited_raw_sockets()?;
        if server.is_successor() && inherited.is_some() != (self == CarrierPlan::Raw) {
            anyhow::bail!("changing the carrier needs a restart");
        }
        let shards = server.get_shards();
        let carrier = self.open_with(inherited, shards, |sockets| {
            match server.reserve(Arc::clone(sockets)) {
                Ok(_) => {
                    if no_offload {
                        sockets.without_offload();
                    }
                    Ok(())
                }
                Err(BindError::Bind { address, source }) => {
                    Err(explain_reserve_error(source, address))
                }
                Err(error) => Err(error.into()),
            }
        })?;
        server.carrier(carrier);
        drop_privileges(kept)
    }

    /// Opens the carrier. `reserve` is called with raw sockets, inherited or new, while the process may still reserve
    /// ports.
    fn open_with(
        self,
        inherited: Option<Arc<RawSockets>>,
        shards: usize,
        reserve: impl FnOnce(&Arc<RawSockets>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Carrier> {
        match self {
            CarrierPlan::Auto => Ok(Carrier::Auto),
            CarrierPlan::Udp => Ok(Carrier::Udp),
            CarrierPlan::Tcp => Ok(Carrier::Tcp),
            CarrierPlan::Raw => {
                let open = || RawSockets::open_for(shards).map(Arc::new);
                let opened = inherited.map_or_else(open, Ok);
                let sockets = opened.map_err(|error| explain_open_error(error, "a raw socket"))?;
                reserve(&sockets)?;
                Ok(Carrier::Opened(sockets))
            }
            CarrierPlan::Tun(paths) => {
                let interfaces = Interfaces::now().context("cannot list interfaces")?;
                for path in &paths {
                    check_interface(path, &interfaces, shards)?;
                }
                // Existing interfaces need no privilege.
                Ok(Carrier::Tun(paths))
            }
        }
    }
}

/// Checks that an interface exists. Creating a missing one would not help, because it would have no routes.
fn check_interface(path: &TunPath, interfaces: &Interfaces, shards: usize) -> anyhow::Result<()> {
    let name = &path.interface;
    if interfaces.find_by_name(name).is_some() {
        return Ok(());
    }
    let queues = if shards > 1 { " multi_queue" } else { "" };
    anyhow::bail!(
        "no interface {name}: create it first (ip tuntap add mode tun name {name} user USER{queues}; \
         ip link set {name} up; ip route add {} dev {name}) and enable forwarding",
        path.address
    )
}

/// Permanently drops all capabilities except `kept`. Must be called before threads are started.
///
/// # Errors
/// The capabilities cannot be dropped.
pub fn drop_privileges(kept: KeptCapabilities) -> anyhow::Result<()> {
    raise_file_limit();
    marline::advanced::keep_capabilities(kept).context("cannot drop capabilities")
}

/// Returns the capabilities to keep for a command that may bind these ports while it runs.
#[must_use]
pub fn capabilities_for_ports(ports: impl IntoIterator<Item = u16>) -> KeptCapabilities {
    /// First port that most systems do not reserve for root (`net.ipv4.ip_unprivileged_port_start`).
    const FIRST_UNPRIVILEGED: u16 = 1_024;
    match ports.into_iter().any(|port| (1..FIRST_UNPRIVILEGED).contains(&port)) {
        true => KeptCapabilities::LowPorts,
        false => KeptCapabilities::Nothing,
    }
}

pub(crate) fn explain_open_error(error: io::Error, what: &str) -> anyhow::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return anyhow::Error::new(error).context(format!("cannot open {what}"));
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "marline".into());
    anyhow::anyhow!(
        "{what} needs the capability CAP_NET_RAW, which this process does not have: give it to the \
         program (sudo setcap cap_net_raw+ep {}), to the systemd unit (AmbientCapabilities=\
         CAP_NET_RAW, see docs/operate/deploy.md), or to the container (--cap-add NET_RAW)",
        program.display()
    )
}

fn explain_reserve_error(error: io::Error, address: SocketAddr) -> anyhow::Error {
    let port = address.port();
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "port {port} is below 1024 and needs CAP_NET_BIND_SERVICE as well (sudo setcap \
             cap_net_raw,cap_net_bind_service+ep FILE, or AmbientCapabilities=CAP_NET_RAW \
             CAP_NET_BIND_SERVICE)"
        ),
        io::ErrorKind::AddrInUse => format!(
            "another program is listening on port {port}, perhaps the service itself: move that program \
             to another port, or to another loopback address"
        ),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        _ => return anyhow::Error::new(error).context(format!("cannot reserve TCP {address}")),
    };
    anyhow::anyhow!("cannot reserve TCP {address}: {why}")
}

/// Raises the limit on open files to its maximum, since guards and the connections of applications and targets are
/// files.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // The current limit may be sufficient.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_is_named_with_its_remedies() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let text = explain_open_error(denied(), "a raw socket").to_string();
        for part in ["CAP_NET_RAW", "setcap cap_net_raw+ep", "AmbientCapabilities"] {
            assert!(text.contains(part), "{part} not in {text}");
        }
        let text = explain_reserve_error(denied(), "0.0.0.0:80".parse().unwrap()).to_string();
        assert!(text.contains("CAP_NET_BIND_SERVICE") && text.contains("0.0.0.0:80"), "{text}");
        let taken = io::Error::from(io::ErrorKind::AddrInUse);
        assert!(
            explain_reserve_error(taken, "0.0.0.0:80".parse().unwrap())
                .to_string()
                .contains("service")
        );
    }
}
