//! Keeper of a client's datagram lane: opens the lane when it is needed, and again after a loss.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use marline::datagrams::{Arrivals, Datagrams, LaneConfig, LaneError, LaneIds, PathNumbers};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep, timeout_at};

use super::answers::lane;
use super::current::Current;
use super::open::OpenError;
use super::socks_listener::SocksListener;
use super::tunnel::{Connect, Tunnel, send};
use super::udp_tunnel::UdpTunnel;
use crate::channel::Channel;
use crate::message::{ErrorCode, Message};
use crate::session::Session;
use crate::session::datagram_keys::{Generation, LaneEnd, Side};
use crate::transport::Transport;

/// Interval between keepalives. The server keeps the client's sockets while it receives them.
const KEEPALIVE_PERIOD: Duration = Duration::from_secs(20);
/// Minimum interval between keepalives. One is sent immediately when a path becomes silent, unless the last one is
/// more recent.
const MIN_KEEPALIVE_PERIOD: Duration = Duration::from_secs(1);
/// Time after which a lane without sockets is closed.
const UNUSED_LANE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Maximum number of messages waiting to be sent.
const MAX_UNSENT_MESSAGES: usize = 64;

/// Pauses after refusals that last until the server changes. The first ones are short, because the refusal may have
/// come from a server that was just being replaced, or concern a connection without a session.
struct RefusalPauses {
    next: Duration,
}

impl RefusalPauses {
    const FIRST_IDLE: Duration = Duration::from_secs(2);
    const MAX_IDLE: Duration = Duration::from_secs(60);
    const NEW: RefusalPauses = RefusalPauses { next: Self::FIRST_IDLE };

    /// Returns the pause after one more refusal.
    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(Self::MAX_IDLE);
        pause
    }
}

/// Result of an attempt.
enum AttemptOutcome {
    /// The lane existed and has ended.
    Ended,
    /// The lane is no longer needed.
    Unused,
    /// No lane was opened.
    Failed(OpenError),
}

impl<C: Connect> SocksListener<Current<Tunnel<C>>> {
    /// Keeps a lane for the UDP of applications until the drain.
    pub async fn keep_udp(
        self: Arc<Self>,
        udp: Arc<UdpTunnel>,
        config: watch::Receiver<LaneConfig>,
    ) {
        tokio::select! {
            never = keep_lane(&self.way, &udp, config) => match never {},
            () = self.stop.draining() => {}
        }
        udp.detach();
    }
}

/// Keeps a lane for UDP through the tunnel `way` while there are sockets, until dropped.
pub async fn keep_lane<C: Connect>(
    way: &Current<Tunnel<C>>,
    udp: &Arc<UdpTunnel>,
    config: watch::Receiver<LaneConfig>,
) -> Infallible {
    let keeper = LaneMaintainer { udp: Arc::clone(udp), config, generation: Generation::default() };
    keeper.maintain_lane(way).await
}

/// The connection that controls datagrams, with the negotiated ends of the lane.
pub(super) struct Control<T> {
    stream: Channel<T>,
    session: Arc<Session>,
    client: LaneEnd,
    server: LaneEnd,
}

struct LaneMaintainer {
    udp: Arc<UdpTunnel>,
    config: watch::Receiver<LaneConfig>,
    generation: Generation,
}

impl LaneMaintainer {
    async fn maintain_lane<C: Connect>(&self, way: &Current<Tunnel<C>>) -> Infallible {
        let (mut pause, mut told) = (FIRST_PAUSE, String::new());
        let mut refused_pauses = RefusalPauses::NEW;
        loop {
            self.udp.wait_for_socket().await;
            let (tunnel, began) = (way.now(), Instant::now());
            let next = tokio::select! {
                next = self.run_lane(&tunnel) => next,
                () = way.wait_until_replaced(&tunnel) => AttemptOutcome::Ended,
            };
            self.udp.detach();
            drop(tunnel);
            match next {
                AttemptOutcome::Unused => {
                    tracing::debug!("lane closed, as no application sends datagrams");
                    continue;
                }
                AttemptOutcome::Ended => {
                    told.clear();
                    refused_pauses = RefusalPauses::NEW;
                    if began.elapsed() > MAX_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                }
                AttemptOutcome::Failed(error) => {
                    // Logged once at a visible level. Repetitions are for debugging.
                    let text = error.to_string();
                    match text == told {
                        true => tracing::debug!("cannot open a lane yet: {text}"),
                        false => {
                            tracing::error!("cannot open a lane for datagrams; retrying: {text}")
                        }
                    }
                    told = text;
                    if needs_owner_action(&error) {
                        let pause = refused_pauses.next();
                        self.udp.pause_after_refusal(pause);
                        sleep(pause).await;
                        continue;
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Runs a lane once, until its control connection ends.
    async fn run_lane<C: Connect>(&self, tunnel: &Tunnel<C>) -> AttemptOutcome {
        let end = |stream: &Channel<C::Stream>| {
            let no = || {
                anyhow::anyhow!("this carrier cannot carry datagrams (use `auto`, `udp` or `tcp`)")
            };
            let lane = stream.multipath().and_then(marline::Stream::draw_lane_id).ok_or_else(no)?;
            Ok(LaneEnd { generation: self.generation.get()?, lane })
        };
        let control = match tunnel.datagrams(end).await {
            Ok(control) => control,
            Err(error) => return AttemptOutcome::Failed(error),
        };
        let lane = match self.open_lane(&control) {
            Ok(lane) => Arc::new(lane),
            Err(error) => return AttemptOutcome::Failed(OpenError::Server(error)),
        };
        self.udp.attach(Arc::clone(&lane));
        tracing::debug!("lane for datagrams opened");
        let (reader, writer) = split(control.stream);
        let (say, said) = mpsc::channel(MAX_UNSENT_MESSAGES);
        let ended = tokio::select! {
            ended = read_messages(reader) => ended,
            error = write_messages(writer, said) => Err(error),
            () = self.receive(&lane, say) => Ok(()),
            () = self.wait_until_unused() => return AttemptOutcome::Unused,
        };
        if let Err(error) = ended {
            tracing::debug!("control connection of the lane lost: {error}");
        }
        AttemptOutcome::Ended
    }

    fn open_lane<T: Transport>(&self, control: &Control<T>) -> anyhow::Result<Datagrams> {
        let Control { stream, session, client, server } = control;
        let none = || anyhow::anyhow!("the connection has no secret to derive keys from");
        let binding = stream.binding().ok_or_else(none)?;
        let keys = session.datagram_keys(&binding, Side::Client, client, server);
        let ids = LaneIds { local: client.lane, peers: server.lane };
        let below = stream.multipath().ok_or(LaneError::Native)?;
        Ok(below.open_lane(self.config.borrow().clone(), ids, keys, PathNumbers::Local)?)
    }

    /// Handles arrivals until the lane ends or its key limit is reached.
    async fn receive(&self, lane: &Datagrams, say: mpsc::Sender<Message>) {
        let mut arrivals = Arrivals::default();
        while lane.recv(&mut arrivals).await.is_ok() {
            self.udp.on_arrivals(&arrivals);
            for named in arrivals.paths() {
                let message = Message::Path { number: named.path.0, flow: named.peer_flow };
                if say.send(message).await.is_err() {
                    return;
                }
            }
            if arrivals.is_silent() {
                // This also reveals whether the server still knows the connection.
                let _ = say.try_send(Message::Alive);
            }
            if arrivals.needs_replacement() {
                tracing::info!("datagrams: key usage limit reached; opening new lane");
                return;
            }
        }
    }

    /// Resolves when there has been no socket for a while.
    async fn wait_until_unused(&self) {
        let mut look = interval(UNUSED_LANE_TIMEOUT / 4);
        loop {
            look.tick().await;
            if self.udp.idle_time() >= UNUSED_LANE_TIMEOUT {
                return;
            }
        }
    }
}

impl<C: Connect> Tunnel<C> {
    /// Opens a lane, controlled by a new connection. Returns the connection with the session and both ends of the lane.
    /// `end` creates the client's end.
    ///
    /// # Errors
    /// The server does not carry datagrams, or cannot be reached.
    pub(super) async fn datagrams(
        &self,
        end: impl FnOnce(&Channel<C::Stream>) -> anyhow::Result<LaneEnd>,
    ) -> Result<Control<C::Stream>, OpenError> {
        self.renew_in_time();
        let (mut stream, _, session) = self.open_connection(None).await?;
        let client = end(&stream).map_err(OpenError::Server)?;
        send(&mut stream, &Message::Datagrams(client).to_bytes()).await?;
        let server = self.expect_message(&mut stream, self.patience.handshake, lane).await?;
        Ok(Control { stream, session, client, server })
    }
}

/// Returns true if only the server's owner can resolve the error.
fn needs_owner_action(error: &OpenError) -> bool {
    let lasting =
        [ErrorCode::NotAuthorized, ErrorCode::UnsupportedVersion, ErrorCode::UnsupportedMessage];
    matches!(error, OpenError::Pin)
        || matches!(error, OpenError::Refused(failure) if lasting.contains(&failure.code))
}

/// Reads the server's messages until the server states why it ends the lane, or reading fails. Returns an error.
async fn read_messages(mut reader: impl AsyncRead + Unpin) -> io::Result<()> {
    loop {
        match Message::read(&mut reader).await? {
            Message::Alive => {}
            Message::Failed(failure) => return Err(io::Error::other(failure)),
            other => {
                let text = format!("unexpected {other} from the server");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }
}

/// Sends messages to the server, and keepalives.
async fn write_messages(
    mut writer: impl AsyncWrite + Unpin,
    mut said: mpsc::Receiver<Message>,
) -> io::Error {
    let mut alive_at = Instant::now();
    loop {
        let message = match timeout_at(alive_at + KEEPALIVE_PERIOD, said.recv()).await {
            Ok(Some(Message::Alive)) if alive_at.elapsed() < MIN_KEEPALIVE_PERIOD => continue,
            Ok(Some(message)) => message,
            Ok(None) => return io::ErrorKind::BrokenPipe.into(),
            Err(_) => Message::Alive,
        };
        if message == Message::Alive {
            alive_at = Instant::now();
        }
        let write = async {
            writer.write_all(&message.to_bytes()).await?;
            writer.flush().await
        };
        if let Err(error) = write.await {
            return error;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_lane_request_is_retried_with_backoff() {
        let mut pauses = RefusalPauses::NEW;
        let asked: Vec<u64> = (0..8).map(|_| pauses.next().as_secs()).collect();
        assert_eq!(asked, [2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
