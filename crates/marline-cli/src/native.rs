//! Native TCP without more privileges than it takes: sockets first, then the capabilities go, then
//! threads and bytes of strangers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use marline::{Carrier, RawSockets, ServerConfig};
use serde::{Deserialize, Serialize};

/// How segments travel, as users choose it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CarrierChoice {
    /// In UDP datagrams: no privileges, Marline on both ends.
    Udp,
    /// As native TCP on raw sockets: CAP_NET_RAW, any Multipath TCP or TCP on the other end.
    Raw,
}

impl CarrierChoice {
    /// What firewalls call it.
    #[must_use]
    pub const fn transport(self) -> &'static str {
        match self {
            CarrierChoice::Udp => "UDP",
            CarrierChoice::Raw => "TCP",
        }
    }
}

/// Opens what a client needs, and lets go of every capability.
/// To be called before there are threads: they keep what they were born with.
///
/// # Errors
/// A privilege is missing (the error says which, and how to give it).
pub fn open(choice: CarrierChoice) -> anyhow::Result<Carrier> {
    if choice == CarrierChoice::Udp {
        return Ok(Carrier::Udp);
    }
    let sockets = RawSockets::open().map_err(|error| explained(error, "a raw socket"))?;
    unprivileged(sockets)
}

/// Opens what a listener needs, reserves its ports, and lets go of every capability.
/// To be called before there are threads, too.
///
/// # Errors
/// A privilege is missing (the error says which, and how to give it), or a port is taken.
pub fn listen(choice: CarrierChoice, config: &mut ServerConfig) -> anyhow::Result<()> {
    if choice == CarrierChoice::Udp {
        return Ok(());
    }
    let sockets = RawSockets::open().map_err(|error| explained(error, "a raw socket"))?;
    for address in &mut config.listen {
        // The port that the system chose, if it was to.
        let reserved = sockets.reserve(*address);
        *address = reserved.map_err(|error| unreserved(error, *address))?;
    }
    let port = config.listen.first().map_or(0, SocketAddr::port);
    for further in &mut config.addresses {
        if further.address.port() == 0 {
            further.address.set_port(port);
        }
        let address = further.address;
        if !config.listen.iter().any(|listen| covers(*listen, address)) {
            sockets.reserve(address).map_err(|error| unreserved(error, address))?;
        }
    }
    config.carrier = unprivileged(sockets)?;
    Ok(())
}

/// Whether who listens there is reached at `address`.
fn covers(listen: SocketAddr, address: SocketAddr) -> bool {
    let everywhere = listen.ip().is_unspecified() && listen.is_ipv4() == address.is_ipv4();
    listen.port() == address.port() && (everywhere || listen.ip() == address.ip())
}

fn unprivileged(sockets: RawSockets) -> anyhow::Result<Carrier> {
    marline::drop_capabilities().context("cannot let go of capabilities")?;
    raise_file_limit();
    Ok(Carrier::Opened(Arc::new(sockets)))
}

fn explained(error: io::Error, what: &str) -> anyhow::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return anyhow::Error::new(error).context(format!("cannot open {what}"));
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "marline".into());
    anyhow::anyhow!(
        "{what} needs the capability CAP_NET_RAW, which this process does not have: give it to the \
         program (sudo setcap cap_net_raw+ep {}), to the systemd unit (AmbientCapabilities=\
         CAP_NET_RAW, see docs/deploy.md), or to the container (--cap-add NET_RAW)",
        program.display()
    )
}

fn unreserved(error: io::Error, address: SocketAddr) -> anyhow::Error {
    let port = address.port();
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "port {port} is below 1024 and needs CAP_NET_BIND_SERVICE as well (sudo setcap \
             cap_net_raw,cap_net_bind_service+ep FILE, or AmbientCapabilities=CAP_NET_RAW \
             CAP_NET_BIND_SERVICE)"
        ),
        io::ErrorKind::AddrInUse => format!(
            "another program listens on port {port}, perhaps the service itself: let that one \
             listen on another port, or on another address of loopback alone"
        ),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        _ => return anyhow::Error::new(error).context(format!("cannot reserve TCP {address}")),
    };
    anyhow::anyhow!("cannot reserve TCP {address}: {why}")
}

/// Guards, and connections to the service behind, are files: as many as we may have.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What there is may be enough.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_is_named_with_its_remedies() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let text = explained(denied(), "a raw socket").to_string();
        for part in ["CAP_NET_RAW", "setcap cap_net_raw+ep", "AmbientCapabilities"] {
            assert!(text.contains(part), "{part} not in {text}");
        }
        let text = unreserved(denied(), "0.0.0.0:80".parse().unwrap()).to_string();
        assert!(text.contains("CAP_NET_BIND_SERVICE") && text.contains("0.0.0.0:80"), "{text}");
        let taken = io::Error::from(io::ErrorKind::AddrInUse);
        assert!(unreserved(taken, "0.0.0.0:80".parse().unwrap()).to_string().contains("service"));
    }
}
