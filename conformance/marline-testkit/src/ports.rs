//! Ports on loopback for programs that must be told where to listen.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// First port of [`free_port`], and the number of ports: below the range from which Linux assigns ports.
const OUR_PORTS: (u16, u16) = (21_000, 10_000);

/// Returns a port on loopback that is free for UDP and TCP, and that the system does not assign meanwhile: a port that
/// it assigned, and that was closed again, can be another program's before it is opened a second time.
///
/// # Panics
///
/// If all ports are in use.
pub fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (first, count) = OUR_PORTS;
    let is_free = |port: &u16| {
        let at = (Ipv4Addr::LOCALHOST, *port);
        UdpSocket::bind(at).is_ok() && TcpListener::bind(at).is_ok()
    };
    let port = |_| {
        let asked = ASKED.fetch_add(1, Ordering::Relaxed);
        // Concurrent programs start at different ports.
        let at = (std::process::id().wrapping_mul(97)).wrapping_add(asked) % u32::from(count);
        first + at as u16
    };
    (0..count).map(port).find(is_free).expect("a free port")
}

/// Returns an address on loopback with a [free port](free_port).
pub fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}
