//! Connections that a router leads here although they are to somebody else, by TPROXY or by REDIRECT.
//!
//! The kernel's TCP takes them, so they are established before anybody knows whether their target can be reached; where
//! it cannot, they are reset. TPROXY leaves the target as the socket's own address, REDIRECT writes it anew and
//! remembers it. Who connects to the port itself means neither, and would be led in a circle.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context;
use marline_io::is_local_address;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::listening::{cannot_listen, listening};
use crate::target::Target;

/// Linux' EAFNOSUPPORT.
const NO_SUCH_FAMILY: i32 = 97;

/// Binds a port of all addresses, of both families if the system has them; it is served once there is a runtime.
/// Without CAP_NET_ADMIN it takes what is redirected, and nothing by TPROXY.
///
/// # Errors
/// It is taken or not allowed.
pub fn bind(port: u16) -> anyhow::Result<Vec<std::net::TcpListener>> {
    let what = || format!("cannot listen on TCP port {port}");
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let v4 = bind_one(any).map_err(|error| cannot_listen("TCP", any, error))?;
    // Port 0 was chosen by the system.
    let port = v4.local_addr().with_context(what)?.port();
    let v6 = match bind_one((Ipv6Addr::UNSPECIFIED, port).into()) {
        Ok(v6) => Some(v6),
        Err(error) if error.raw_os_error() == Some(NO_SUCH_FAMILY) => None,
        Err(error) => return Err(error).with_context(what),
    };
    Ok(std::iter::once(v4).chain(v6).collect())
}

fn bind_one(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    listening(address, |socket| {
        let transparent = if address.is_ipv6() {
            socket.set_only_v6(true)?;
            socket.set_ip_transparent_v6(true)
        } else {
            socket.set_ip_transparent_v4(true)
        };
        if let Err(error) = transparent {
            tracing::debug!("no TPROXY ({error}): only redirected connections are accepted");
        }
        Ok(())
    })
}

/// Where a connection was to go.
///
/// # Errors
/// Here, or it is gone.
pub(super) fn target(socket: &TcpStream) -> io::Result<Target> {
    let local = canonical(socket.local_addr()?);
    let socket = SockRef::from(socket);
    let before = if local.is_ipv6() { socket.original_dst_v6() } else { socket.original_dst_v4() };
    // Without connection tracking there is none.
    let meant = before.ok().and_then(|address| address.as_socket()).map_or(local, canonical);
    if meant == local && is_here(local.ip()) {
        let text = format!(
            "connection to {local} itself refused: only redirected connections are accepted"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Target::new(meant.ip().into(), meant.port()).map_err(io::Error::other)
}

/// Whether an address is this machine's, or may be: what leads to itself must not be led in a circle.
fn is_here(address: IpAddr) -> bool {
    is_local_address(address).unwrap_or(true)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
