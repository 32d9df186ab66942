//! Connections that a router redirects to this port, by TPROXY or by REDIRECT.
//!
//! The kernel accepts them, so they are established before the program knows whether their target can be reached.
//! If it cannot, they are reset. TPROXY keeps the target as the socket's own address. REDIRECT rewrites the address
//! and remembers the original one. A connection to the port itself has no target and would lead back to the port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context;
use marline_io::is_local_address;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::listening::{listen_error, listen_with};
use crate::sys;
use crate::target::Target;

/// Binds a port on all addresses, of both families if the system supports them. Needs no async runtime; the caller
/// serves the returned listeners later. Without CAP_NET_ADMIN they accept connections by REDIRECT but not by TPROXY.
///
/// # Errors
/// The port is in use, or permission is denied.
pub fn bind(port: u16) -> anyhow::Result<Vec<std::net::TcpListener>> {
    let what = || format!("cannot listen on TCP port {port}");
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let v4 = bind_one(any).map_err(|error| listen_error("TCP", any, error))?;
    // The system may have chosen the port.
    let port = v4.local_addr().with_context(what)?.port();
    let v6 = match bind_one((Ipv6Addr::UNSPECIFIED, port).into()) {
        Ok(v6) => Some(v6),
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => None,
        Err(error) => return Err(error).with_context(what),
    };
    Ok(std::iter::once(v4).chain(v6).collect())
}

fn bind_one(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    listen_with(address, |socket| {
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if let Err(error) = sys::set_transparent(socket, address.is_ipv6()) {
            tracing::debug!(
                "TPROXY is not available ({error}); accepting only redirected connections"
            );
        }
        Ok(())
    })
}

/// Returns the original destination of a connection.
///
/// # Errors
/// The connection is to this port itself, or has been closed.
pub(super) fn target(socket: &TcpStream) -> io::Result<Target> {
    let local = canonical(socket.local_addr()?);
    let before = sys::original_destination(&SockRef::from(socket), local.is_ipv6());
    // Without connection tracking there is no original destination.
    let meant = before.ok().and_then(|address| address.as_socket()).map_or(local, canonical);
    if meant == local && is_local_machine(local.ip()) {
        let text = format!(
            "refused direct connection to {local}: only redirected connections are accepted"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Target::new(meant.ip().into(), meant.port()).map_err(io::Error::other)
}

/// Returns true if an address is, or may be, this machine's. A connection to the port itself must not be relayed to
/// itself.
fn is_local_machine(address: IpAddr) -> bool {
    is_local_address(address).unwrap_or(true)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
