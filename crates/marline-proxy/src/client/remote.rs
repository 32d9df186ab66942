//! Remote forwards: the server listens, and whoever connects there reaches a target of ours.
//!
//! A connection to the server controls each one. It says who has come; then the target is connected
//! to, and a multipath connection of its own is opened for that visitor, as for any application.
//! The control connection is kept as long as its paths may come back. When it ends, because the
//! server was started again for instance, another one asks for the same address.

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

/// Signs of life are so far apart. They tell the server that the client is there, and are answered: by
/// what is sent it is found out that the server knows the connection no more.
const ALIVE_EVERY: Duration = Duration::from_secs(20);
/// A target that does not answer within this time does not; the visitor waits for longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between attempts: after a failure, doubling, and after a refusal that only a change of the
/// server's configuration ends.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Refusals that wait to be told.
const DECLINED: usize = 64;

/// A remote forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteForward {
    /// The server's address where it listens.
    pub listen: SocketAddr,
    /// Where visitors are taken, as this machine sees it.
    pub target: Target,
}

/// What is to be done after an attempt.
enum Next {
    /// It listened, and the connection ended.
    Again,
    /// It did not.
    Failed(OpenError),
    /// Another client with this credential listens there.
    Displaced(Failure),
}

impl<C: Connect> SocksListener<Current<Tunnel<C>>> {
    /// Keeps a remote forward until the drain, and its visitors until they end. `announce` is told each
    /// time that the server listens.
    pub async fn remote(self: Arc<Self>, forward: RemoteForward, announce: impl Fn(SocketAddr)) {
        let mut visitors = JoinSet::new();
        tokio::select! {
            () = self.keep(&forward, &announce, &mut visitors) => {}
            () = self.stop.draining() => {}
        }
        while visitors.join_next().await.is_some() {}
    }

    async fn keep(
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
                // Dropped: the server sees the end, and gives the address up.
                () = self.way.replaced(&tunnel) => Next::Again,
            };
            drop(tunnel);
            match next {
                Next::Again => {
                    tracing::info!(address = %forward.listen, "remote forward ended; retrying");
                    told.clear();
                    if began.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                }
                Next::Failed(error) => {
                    // Once for people; repeats are for those who look closer.
                    let text = error.to_string();
                    match text == told {
                        true => tracing::debug!(address = %forward.listen, "still: {text}"),
                        false => tracing::error!(address = %forward.listen, "-R: {text}"),
                    }
                    told = text;
                    if is_lasting(&error) {
                        sleep(REFUSED_PAUSE).await;
                        continue;
                    }
                }
                Next::Displaced(failure) => {
                    tracing::error!(address = %forward.listen, "-R: {}; this forward stops", failure.text);
                    return std::future::pending().await;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Has the server listen once, until the connection that controls it ends.
    async fn listen(
        self: &Arc<Self>,
        tunnel: &Arc<Tunnel<C>>,
        forward: &RemoteForward,
        announce: &impl Fn(SocketAddr),
        visitors: &mut JoinSet<()>,
    ) -> Next {
        let (stream, address) = match tunnel.listen(forward.listen).await {
            Ok(listening) => listening,
            Err(error) => return Next::Failed(error),
        };
        announce(address);
        let (reader, writer) = split(stream);
        let (decline, declined) = mpsc::channel(DECLINED);
        let visit = |id, from| {
            // Reaps those that ended.
            while visitors.try_join_next().is_some() {}
            let (front, tunnel) = (Arc::clone(self), Arc::clone(tunnel));
            let visit = Visit { id, from, target: forward.target.clone() };
            let decline = decline.clone();
            visitors.spawn(async move {
                if front.visit(&tunnel, visit).await.is_err() {
                    // Who is not told of it is let go when its time is up.
                    let _ = decline.try_send(id);
                }
            });
        };
        let ended = tokio::select! {
            ended = hear(reader, visit) => ended,
            error = tell(writer, declined) => Err(error),
        };
        match ended {
            Ok(failure) if failure.code == ErrorCode::ConnectionReset => Next::Displaced(failure),
            Ok(failure) => Next::Failed(OpenError::Refused(failure)),
            Err(error) => {
                tracing::debug!("the control connection of a remote forward: {error}");
                Next::Again
            }
        }
    }

    /// Takes a visitor to the target. An error: it did not come to that.
    async fn visit(&self, tunnel: &Tunnel<C>, visit: Visit) -> io::Result<()> {
        let Visit { id, from, target } = visit;
        let Ok(_place) = self.places.try_take() else {
            tracing::debug!(%target, "visitor {from} refused: limit reached");
            return Err(io::ErrorKind::ResourceBusy.into());
        };
        let connecting =
            timeout(CONNECT_TIMEOUT, outgoing::to_target(&target, self.traffic.memory()));
        let connected = connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let socket = connected.inspect_err(|error| {
            tracing::warn!(%target, "visitor {from} refused: {error}");
        })?;
        // Boxed, for handshakes take several times the room that a relay takes for hours.
        let opened = tokio::select! {
            opened = Box::pin(tunnel.accept(id)) => opened,
            () = self.stop.over() => {
                socket.abort();
                return Ok(());
            }
        };
        match opened {
            Ok(stream) => self.pass(socket, stream, &target).await,
            Err(error) => {
                tracing::warn!(%target, "visitor {from} has left: {error}");
                socket.abort();
            }
        }
        Ok(())
    }
}

/// Somebody who has come.
struct Visit {
    id: VisitorId,
    from: SocketAddr,
    target: Target,
}

/// Whether only the server's owner can change it.
fn is_lasting(error: &OpenError) -> bool {
    let lasting = [ErrorCode::NotAuthorized, ErrorCode::UnsupportedVersion];
    matches!(error, OpenError::Pin)
        || matches!(error, OpenError::Refused(failure) if lasting.contains(&failure.code))
}

/// Reads what the server says, until it says why it ends.
async fn hear(
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

/// Tells the server who is not wanted, and that we are here.
async fn tell(
    mut writer: impl AsyncWrite + Unpin,
    mut declined: mpsc::Receiver<VisitorId>,
) -> io::Error {
    loop {
        let message = tokio::select! {
            Some(id) = declined.recv() => Message::Decline(id),
            () = sleep(ALIVE_EVERY) => Message::Alive,
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
