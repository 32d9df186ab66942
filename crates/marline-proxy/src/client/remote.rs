//! Remote forwards: the server listens, and its visitors reach a target of the client.
//!
//! Each forward is controlled by a connection to the server, on which the server announces each visitor. The client
//! then connects to the target and opens a multipath connection of its own for that visitor, as for any application.
//! The control connection is kept as long as its paths may come back. When it ends, for example because the server was
//! restarted, a new one requests the same address.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::current::Current;
use super::open::OpenError;
use super::socks_listener::SocksListener;
use super::tunnel::{Connect, Tunnel};
use crate::message::{ErrorCode, Failure, Message, VisitorId};
use crate::outgoing;
use crate::target::Target;
use crate::transport::Transport;

/// Interval between keepalives. They show the server that the client is alive, and are answered. Sending also reveals
/// whether the server still knows the connection.
const KEEPALIVE_PERIOD: Duration = Duration::from_secs(20);
/// Time limit for connecting to a target. The visitor waits longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between attempts: doubling from the first to the maximum after failures, and a long one after a refusal that
/// lasts until the server's configuration changes.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of refused visitors waiting to be reported.
const MAX_DECLINED: usize = 64;

/// A remote forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteForward {
    /// Listening address on the server.
    pub listen: SocketAddr,
    /// Target of visitors, as seen from this machine.
    pub target: Target,
}

/// Result of an attempt.
enum AttemptOutcome {
    /// The server listened, and the connection ended.
    Ended,
    /// The server did not listen.
    Failed(OpenError),
    /// Another client with this credential listens at the address.
    Displaced(Failure),
}

impl<C: Connect> SocksListener<Current<Tunnel<C>>> {
    /// Maintains a remote forward until the drain, and its visitors until they end. `announce` is called each time the
    /// server starts to listen.
    pub async fn remote(self: Arc<Self>, forward: RemoteForward, announce: impl Fn(SocketAddr)) {
        let mut visitors = JoinSet::new();
        tokio::select! {
            () = self.maintain_forward(&forward, &announce, &mut visitors) => {}
            () = self.stop.draining() => {}
        }
        while visitors.join_next().await.is_some() {}
    }

    async fn maintain_forward(
        self: &Arc<Self>,
        forward: &RemoteForward,
        announce: &impl Fn(SocketAddr),
        visitors: &mut JoinSet<()>,
    ) {
        let mut pause = FIRST_PAUSE;
        let mut told = String::new();
        loop {
            let (tunnel, began) = (self.way.now(), Instant::now());
            let next = tokio::select! {
                next = self.listen(&tunnel, forward, announce, visitors) => next,
                // When dropped, the server sees the end and releases the address.
                () = self.way.wait_until_replaced(&tunnel) => AttemptOutcome::Ended,
            };
            drop(tunnel);
            match next {
                AttemptOutcome::Ended => {
                    tracing::info!(address = %forward.listen, "remote forward ended; retrying");
                    told.clear();
                    if began.elapsed() > MAX_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                }
                AttemptOutcome::Failed(error) => {
                    // Logged once at a visible level. Repetitions are for debugging.
                    let text = error.to_string();
                    match text == told {
                        true => {
                            tracing::debug!(address = %forward.listen, "remote forward still fails: {text}")
                        }
                        false => {
                            tracing::error!(address = %forward.listen, "remote forward (-R) failed; \
                            retrying: {text}")
                        }
                    }
                    told = text;
                    if needs_owner_action(&error) {
                        sleep(REFUSED_PAUSE).await;
                        continue;
                    }
                }
                AttemptOutcome::Displaced(failure) => {
                    tracing::error!(address = %forward.listen, "remote forward (-R) stopped: {}", failure.text);
                    return std::future::pending().await;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Makes the server listen once, until the control connection ends.
    async fn listen(
        self: &Arc<Self>,
        tunnel: &Arc<Tunnel<C>>,
        forward: &RemoteForward,
        announce: &impl Fn(SocketAddr),
        visitors: &mut JoinSet<()>,
    ) -> AttemptOutcome {
        let (stream, address) = match tunnel.listen(forward.listen).await {
            Ok(listening) => listening,
            Err(error) => return AttemptOutcome::Failed(error),
        };
        announce(address);
        let (reader, writer) = split(stream);
        let (decline, declined) = mpsc::channel(MAX_DECLINED);
        let visit = |id, from| {
            // Removes ended tasks.
            while visitors.try_join_next().is_some() {}
            let (front, tunnel) = (Arc::clone(self), Arc::clone(tunnel));
            let visit = AnnouncedVisitor { id, from, target: forward.target.clone() };
            let decline = decline.clone();
            visitors.spawn(async move {
                if front.serve_visitor(&tunnel, visit).await.is_err() {
                    // If the server does not get this message, it disconnects the visitor after a timeout.
                    let _ = decline.try_send(id);
                }
            });
        };
        let ended = tokio::select! {
            ended = read_messages(reader, visit) => ended,
            error = write_messages(writer, declined) => Err(error),
        };
        match ended {
            Ok(failure) if failure.code == ErrorCode::ConnectionReset => {
                AttemptOutcome::Displaced(failure)
            }
            Ok(failure) => AttemptOutcome::Failed(OpenError::Refused(failure)),
            Err(error) => {
                tracing::debug!("control connection of a remote forward lost: {error}");
                AttemptOutcome::Ended
            }
        }
    }

    /// Connects a visitor to the target. An error means that no connection was made.
    async fn serve_visitor(&self, tunnel: &Tunnel<C>, visit: AnnouncedVisitor) -> io::Result<()> {
        let AnnouncedVisitor { id, from, target } = visit;
        let Ok(_place) = self.places.try_take() else {
            tracing::debug!(%target, "connection from {from} refused: limit reached");
            return Err(io::ErrorKind::ResourceBusy.into());
        };
        let connecting =
            timeout(CONNECT_TIMEOUT, outgoing::to_target(&target, self.traffic.memory()));
        let connected = connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let socket = connected.inspect_err(|error| {
            tracing::warn!(%target, "connection from {from} refused: {error}");
        })?;
        // Boxed, because handshakes take several times the memory of a relay that runs for hours.
        let opened = tokio::select! {
            opened = Box::pin(tunnel.accept(id)) => opened,
            () = self.stop.wait_for_end() => {
                socket.abort();
                return Ok(());
            }
        };
        match opened {
            Ok(stream) => self.relay_bytes(socket, stream, &target).await,
            Err(error) => {
                tracing::warn!(%target, "connection from {from} lost: {error}");
                socket.abort();
            }
        }
        Ok(())
    }
}

/// A visitor that was announced.
struct AnnouncedVisitor {
    id: VisitorId,
    from: SocketAddr,
    target: Target,
}

/// Returns true if only the server's owner can resolve the error.
fn needs_owner_action(error: &OpenError) -> bool {
    let lasting = [ErrorCode::NotAuthorized, ErrorCode::UnsupportedVersion];
    matches!(error, OpenError::Pin)
        || matches!(error, OpenError::Refused(failure) if lasting.contains(&failure.code))
}

/// Reads the server's messages until the server states why it ends the forward. Returns that reason.
async fn read_messages(
    mut reader: impl AsyncRead + Unpin,
    mut visit: impl FnMut(VisitorId, SocketAddr),
) -> io::Result<Failure> {
    loop {
        match Message::read(&mut reader).await? {
            Message::Visitor { id, from } => visit(id, from),
            Message::Alive => {}
            Message::Failed(failure) => return Ok(failure),
            other => {
                let text = format!("unexpected {other} from the server");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }
}

/// Reports refused visitors to the server, and sends keepalives.
async fn write_messages(
    mut writer: impl AsyncWrite + Unpin,
    mut declined: mpsc::Receiver<VisitorId>,
) -> io::Error {
    loop {
        let message = tokio::select! {
            Some(id) = declined.recv() => Message::Decline(id),
            () = sleep(KEEPALIVE_PERIOD) => Message::Alive,
        };
        let write = async {
            writer.write_all(&message.to_bytes()).await?;
            writer.flush().await
        };
        if let Err(error) = write.await {
            return error;
        }
    }
}
