//! TCP connections that this program opens, and the addresses of their targets.
//!
//! If the other end is on this machine, or in a virtual one on it, the handshake has finished before `connect` returns,
//! although a nonblocking socket still reports that it is in progress. Waiting for that would set timers and use the
//! system's readiness notification, both of which cost more than one direct check.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use marline::memory::MemoryAccount;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::message::{ErrorCode, Failure};
use crate::relay::socket_buffers;
use crate::sys;
use crate::target::{Host, Target};

/// Time after which a name that has not resolved counts as having no address.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of addresses tried for one name.
const MAX_ADDRESSES: usize = 8;

/// Returns the addresses of a target in the order in which they are tried (RFC 8305): with alternating families,
/// starting with the resolver's first address.
///
/// # Errors
/// The target has no address, or the resolver failed.
pub(crate) async fn resolve(target: &Target) -> Result<Vec<SocketAddr>, Failure> {
    let name = match &target.host {
        Host::V4(address) => return Ok(vec![(*address, target.port).into()]),
        Host::V6(address) => return Ok(vec![(*address, target.port).into()]),
        Host::Name(name) => name,
    };
    let unreachable = |why: String| {
        Failure::new(ErrorCode::DestinationUnreachable, format!("{name} does not resolve: {why}"))
    };
    match timeout(RESOLVE_TIMEOUT, lookup_host((name.as_str(), target.port))).await {
        Err(_) => Err(unreachable("no answer".into())),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Ok(Ok(addresses)) => Ok(alternate_families(addresses)),
    }
}

/// Orders addresses by alternating families, starting with the family of the first address.
fn alternate_families(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let addresses: Vec<SocketAddr> = addresses.collect();
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.into_iter().partition(|a| a.is_ipv6() == first_is_v6);
    first.reverse();
    second.reverse();
    let mut out = Vec::new();
    while out.len() < MAX_ADDRESSES && !(first.is_empty() && second.is_empty()) {
        out.extend(first.pop());
        out.extend(second.pop());
    }
    out
}

/// Connects to an address. Ready immediately if the handshake has already finished. Sets TCP_NODELAY, so that small
/// writes of interactive sessions do not wait for acknowledgments. The memory of the connection is charged to `memory`.
///
/// # Errors
/// The connection fails.
pub(crate) async fn to_address(
    address: SocketAddr,
    memory: &MemoryAccount,
) -> io::Result<TcpStream> {
    let socket = sys::tcp_socket(address)?;
    let _ = socket.set_tcp_nodelay(true);
    socket_buffers::prepare(&socket, memory);
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let answered = socket.peer_addr().is_ok();
    let stream = TcpStream::from_std(socket.into())?;
    if !answered {
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
    Ok(stream)
}

/// Connects to a target. The addresses of a name, resolved by this machine, are tried in turn.
///
/// # Errors
/// No address can be connected to. The error is that of the last address.
pub(crate) async fn to_target(target: &Target, memory: &MemoryAccount) -> io::Result<TcpStream> {
    let name = match target.host.as_name() {
        Ok(name) => name,
        Err(address) => return to_address((address, target.port).into(), memory).await,
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((name, target.port)).await? {
        match to_address(address, memory).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::testing::Silent;

    fn memory() -> MemoryAccount {
        MemoryAccount::default()
    }

    /// Polls a future once.
    fn once<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_target_on_this_machine_is_connected_to_without_waiting() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at).await else { continue };
            let address = listener.local_addr().unwrap();
            let Poll::Ready(stream) = once(to_address(address, &memory())) else {
                panic!("{at}: the connection is not immediate")
            };
            let (mut stream, (mut accepted, _)) =
                (stream.unwrap(), listener.accept().await.unwrap());
            assert!(stream.nodelay().unwrap());
            stream.write_all(b"there").await.unwrap();
            let mut read = [0; 5];
            accepted.read_exact(&mut read).await.unwrap();
            accepted.write_all(b"back.").await.unwrap();
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"back.");
        }
    }

    #[tokio::test]
    async fn targets_are_reached_by_name_and_address_and_refusals_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        for host in ["127.0.0.1", "localhost"] {
            let target: Target = format!("{host}:{}", open.port()).parse().unwrap();
            assert_eq!(to_target(&target, &memory()).await.unwrap().peer_addr().unwrap(), open);
        }
        drop(listener);
        let refused = to_target(&open.into(), &memory()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(to_target(&"no-such-name.invalid:80".parse().unwrap(), &memory()).await.is_err());
    }

    /// A handshake that takes time is awaited.
    #[tokio::test]
    async fn a_slow_target_is_awaited() {
        let silent = Silent::start();
        let account = memory();
        let waiting = tokio::time::timeout(PAUSE, to_address(silent.address, &account));
        assert!(waiting.await.is_err());
        let address = silent.address;
        let connecting = tokio::spawn(async move { to_address(address, &memory()).await });
        tokio::task::yield_now().await;
        // The queue has room again, and the SYN is repeated after a second.
        silent.accept_all();
        assert_eq!(connecting.await.unwrap().unwrap().peer_addr().unwrap(), silent.address);
    }

    const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

    #[test]
    fn families_alternate() {
        let addresses = ["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1"].map(|a| a.parse().unwrap());
        let order: Vec<String> =
            alternate_families(addresses.into_iter()).iter().map(ToString::to_string).collect();
        assert_eq!(order, ["[::1]:1", "1.0.0.1:1", "[::2]:1", "[::3]:1"]);
    }
}
