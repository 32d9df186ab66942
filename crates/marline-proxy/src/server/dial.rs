//! Outgoing connections of the server: from a request to a connected TCP socket.
//!
//! A name is resolved once, and all its addresses are checked by the rules. The allowed ones are tried in turn with
//! alternating families. The next attempt starts when the last one has failed or has not been answered for 250 ms (RFC
//! 8305, simplified: resolution is not raced).

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use marline::memory::MemoryAccount;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::own_resolver;
use crate::message::{ErrorCode, Failure};
use crate::outgoing::{self, resolve};
use crate::rules::Rules;
use crate::target::Target;

/// Time after which a target that has not answered counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to a client's target, if the rules allow it. The memory of the connection is charged to `memory`.
///
/// # Errors
/// A refusal or failure, with a code and an explanation for the client.
pub async fn dial(
    rules: &Arc<Rules>,
    target: &Target,
    memory: &MemoryAccount,
) -> Result<TcpStream, Failure> {
    let allowed = if target.is_server_resolver() {
        own_resolver::addresses(rules)?
    } else {
        allowed(rules, target).await?
    };
    let attempt = timeout(CONNECT_TIMEOUT, race_addresses(&allowed, memory));
    match attempt.await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(failure_of(target, &error)),
        Err(_) => Err(failure_of(target, &io::ErrorKind::TimedOut.into())),
    }
}

/// Returns the addresses of a client's target that the rules allow, best first.
///
/// # Errors
/// The target has no allowed address.
pub(super) async fn allowed(rules: &Rules, target: &Target) -> Result<Vec<SocketAddr>, Failure> {
    let addresses = resolve(target).await?;
    apply_rules(rules, target, &addresses)
}

fn apply_rules(
    rules: &Rules,
    target: &Target,
    addresses: &[SocketAddr],
) -> Result<Vec<SocketAddr>, Failure> {
    let mut refusal = None;
    let mut allowed = Vec::with_capacity(addresses.len());
    for address in addresses {
        match rules.check(address.ip()) {
            Ok(()) => allowed.push(SocketAddr::new(address.ip().to_canonical(), address.port())),
            Err(refused) => refusal = refusal.or(Some(refused)),
        }
    }
    if !allowed.is_empty() {
        return Ok(allowed);
    }
    Err(match refusal {
        Some(refused) => Failure::new(refused.code(), refused.to_string()),
        None => Failure::new(
            ErrorCode::DestinationUnreachable,
            format!("{} has no address", target.host),
        ),
    })
}

/// Concurrent connection attempts, polled by the task that waits for them. Most requests need only one, which may
/// complete at its first poll.
#[derive(Default)]
struct Attempts<'a>(Vec<Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send + 'a>>>);

impl Attempts<'_> {
    /// Returns the result of the next attempt that ends, or `None` if there is none.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<TcpStream>>> {
        for at in 0..self.0.len() {
            if let Poll::Ready(ended) = self.0[at].as_mut().poll(cx) {
                drop(self.0.swap_remove(at));
                return Poll::Ready(Some(ended));
            }
        }
        if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

async fn race_addresses(addresses: &[SocketAddr], memory: &MemoryAccount) -> io::Result<TcpStream> {
    let mut attempts = Attempts::default();
    let mut waiting = addresses.iter().copied();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let next = waiting.next();
        if let Some(address) = next {
            attempts.0.push(Box::pin(outgoing::to_address(address, memory)));
        }
        let patience = if next.is_some() { STAGGER } else { CONNECT_TIMEOUT };
        match timeout(patience, poll_fn(|cx| attempts.poll_next(cx))).await {
            Ok(Some(Ok(stream))) => return Ok(stream),
            Ok(Some(Err(error))) => last = error,
            Ok(None) => return Err(last),
            Err(_) => {}
        }
    }
}

fn failure_of(target: &Target, error: &io::Error) -> Failure {
    use io::ErrorKind as Kind;
    // EMFILE and ENFILE have no error kind.
    let out_of_files = matches!(error.raw_os_error(), Some(23 | 24));
    let (code, why) = match error.kind() {
        _ if out_of_files => (ErrorCode::ResourceExceeded, "the server has no free sockets"),
        Kind::ConnectionRefused => (ErrorCode::ConnectionReset, "connection refused"),
        Kind::ConnectionReset => (ErrorCode::ConnectionReset, "connection reset"),
        Kind::TimedOut => (ErrorCode::DestinationUnreachable, "no answer"),
        Kind::HostUnreachable => (ErrorCode::DestinationUnreachable, "host unreachable"),
        Kind::NetworkUnreachable => (ErrorCode::NetworkFailure, "the server has no route to it"),
        _ => (ErrorCode::NetworkFailure, "the server cannot connect"),
    };
    Failure::new(code, format!("{target}: {why}"))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::testing::Silent;

    fn memory() -> MemoryAccount {
        MemoryAccount::default()
    }

    fn rules(allow: &str) -> Arc<Rules> {
        Arc::new(Rules { allow: vec![allow.parse().unwrap()], deny: Vec::new() })
    }

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn names_and_addresses_reach_an_allowed_loopback() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
            let stream =
                dial(&rules("127.0.0.0/8"), &target(&format!("{host}:{port}")), &memory()).await;
            assert_eq!(
                stream.unwrap().peer_addr().unwrap().ip().to_canonical().to_string(),
                "127.0.0.1"
            );
            listener.accept().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_loopback_is_refused_without_a_packet() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]"] {
            let error = dial(&Arc::default(), &target(&format!("{host}:{port}")), &memory())
                .await
                .unwrap_err();
            assert_eq!(error.code, ErrorCode::NotAuthorized);
            assert!(error.text.contains("--allow"), "{}", error.text);
        }
        let nobody = timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(nobody.is_err(), "a connection was accepted");
    }

    #[tokio::test]
    async fn failures_have_their_codes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        let error = dial(&rules("127.0.0.0/8"), &closed.into(), &memory()).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ConnectionReset);
        let error =
            dial(&Arc::default(), &target("no-such-name.invalid:80"), &memory()).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::DestinationUnreachable);
    }

    #[tokio::test]
    async fn the_race_continues_after_a_refusal() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = gone.local_addr().unwrap();
        drop(gone);
        let stream = race_addresses(&[closed, open], &memory()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
        assert_eq!(
            race_addresses(&[closed], &memory()).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }
    #[tokio::test]
    async fn the_next_address_is_tried_after_the_stagger() {
        let (silent, listener) = (Silent::start(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let open = listener.local_addr().unwrap();
        let begun = std::time::Instant::now();
        let stream = race_addresses(&[silent.address, open], &memory()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open);
        let took = begun.elapsed();
        assert!(took >= STAGGER && took < CONNECT_TIMEOUT / 3, "{took:?}");
    }
}
