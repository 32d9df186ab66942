//! Datagrams of clients: lanes, each controlled by a connection.
//!
//! The client requests a lane on a connection of its own, whose subflows are the lane's paths. On this connection, the
//! two ends exchange the ids by which they address each other, and the client announces the number of each path.
//! [`Nat`] handles the contents of the datagrams. Lane, sockets and flows end with the connection.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline::datagrams::{Arrivals, Datagrams, LaneConfig, LaneIds, PathId, PathNumbers};
use tokio::io::{AsyncRead, AsyncWriteExt, WriteHalf, split};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use super::admission::Quota;
use super::nat::filter::UdpFiltering;
use super::nat::{Nat, SWEEP_INTERVAL, SharedNatState};
use super::{Client, PendingMessages, RefusalReason, Server};
use crate::channel::Channel;
use crate::message::{ErrorCode, Failure, Message};
use crate::session::Session;
use crate::session::datagram_keys::{Generation, LaneEnd, Side};
use crate::transport::Transport;
use crate::udp::UdpCounts;

/// Limits on UDP sockets, per credential and in total.
const SOCKETS_PER_CLIENT: usize = 1_024;
const SOCKETS_TOTAL: usize = 16_384;
/// Limits on lanes, per credential (several programs may share one) and in total.
const LANES_PER_CLIENT: usize = 16;
const LANES_TOTAL: usize = 4_096;
/// Time without a keepalive after which the client is considered gone. Its mappings have ended by then.
const MAX_SILENCE: Duration = Duration::from_secs(300);
/// Time limit for an answer and for closing.
const TIMEOUT: Duration = Duration::from_secs(30);

/// State shared by all clients' datagrams.
#[derive(Debug)]
pub(super) struct DatagramService {
    config: Mutex<Option<(LaneConfig, UdpFiltering)>>,
    generation: Generation,
    lanes: Quota<Arc<str>>,
    shared: SharedNatState,
}

impl Default for DatagramService {
    fn default() -> Self {
        DatagramService {
            config: Mutex::default(),
            generation: Generation::default(),
            lanes: Quota::new(LANES_PER_CLIENT, LANES_TOTAL),
            shared: SharedNatState::new(Quota::new(SOCKETS_PER_CLIENT, SOCKETS_TOTAL)),
        }
    }
}

impl DatagramService {
    /// Applies these settings to new lanes.
    pub(super) fn set_config(&self, config: LaneConfig, filtering: UdpFiltering) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Some((config, filtering));
    }

    pub(super) fn counts(&self) -> UdpCounts {
        self.shared.counts()
    }

    fn config(&self) -> Option<(LaneConfig, UdpFiltering)> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a lane for a control connection, and returns it with the server's end.
    fn open_lane<T: Transport>(
        &self,
        stream: &Channel<T>,
        session: &Session,
        client: LaneEnd,
    ) -> Result<(Datagrams, LaneEnd, UdpFiltering), Failure> {
        let no = |text: &str| Failure::new(ErrorCode::UnsupportedMessage, text);
        let (config, filtering) =
            self.config().ok_or_else(|| no("this server does not support datagrams"))?;
        let below = stream.multipath().and_then(|below| Some((below, below.draw_lane_id()?)));
        let (below, lane) =
            below.ok_or_else(|| no("the server's carrier cannot carry datagrams"))?;
        let binding =
            stream.binding().ok_or_else(|| no("a plain TCP connection cannot carry datagrams"))?;
        let generation = self
            .generation
            .get()
            .map_err(|error| Failure::new(ErrorCode::ResourceExceeded, error.to_string()))?;
        let server = LaneEnd { generation, lane };
        let keys = session.datagram_keys(&binding, Side::Server, &client, &server);
        let ids = LaneIds { local: lane, peers: client.lane };
        let opened = below.open_lane(config, ids, keys, PathNumbers::Peers);
        let lane =
            opened.map_err(|error| Failure::new(ErrorCode::ResourceExceeded, error.to_string()))?;
        Ok((lane, server, filtering))
    }
}

/// Reason why a control connection ends.
enum ControlEnd {
    /// No error.
    Orderly,
    /// The client receives the failure.
    Refused(Failure),
    /// The client does not answer, or must not receive an answer.
    Broken,
}

impl Server {
    /// Carries a client's datagrams until the control connection ends.
    pub(super) async fn carry_datagrams<T: Transport>(
        &self,
        mut stream: Channel<T>,
        mut unsaid: PendingMessages,
        client: &Client,
        session: &Session,
        end: LaneEnd,
    ) {
        let service = &self.datagrams;
        let Ok(_place) = service.lanes.take_permit(Arc::clone(&client.name)) else {
            let text = format!("too many lanes: at most {LANES_PER_CLIENT} per client");
            self.refusals.record(RefusalReason::ClientLimit, &client.name, &text);
            return unsaid.refuse(stream, Failure::new(ErrorCode::ResourceExceeded, text)).await;
        };
        let (lane, ours, filtering) = match service.open_lane(&stream, session, end) {
            Ok(begun) => begun,
            Err(failure) => {
                self.log_refusal(client, &failure, "datagrams");
                return unsaid.refuse(stream, failure).await;
            }
        };
        unsaid.add(&Message::Lane(ours));
        if unsaid.send(&mut stream).await.is_err() {
            return stream.abort();
        }
        tracing::debug!(client = %client.name, "lane opened");
        let (rules, shared) = (self.rules.subscribe(), service.shared.clone());
        let nat = Nat::new(lane, client.clone(), rules, filtering, shared);
        let end = {
            let (reader, writer) = split(&mut stream);
            // One pending answer serves for all keepalives.
            let (ask, asked) = mpsc::channel(1);
            tokio::select! {
                end = read_messages(reader, ask, &nat) => end,
                () = answer_keepalives(writer, asked) => ControlEnd::Broken,
                end = serve_lane(&nat) => end,
                () = self.stop.draining() => ControlEnd::Orderly,
                () = self.wait_until_unused(&nat) => ControlEnd::Orderly,
                ended = self.wait_until_revoked(client) => ended.map_or(ControlEnd::Broken, ControlEnd::Refused),
            }
        };
        drop(nat);
        tracing::debug!(client = %client.name, "lane closed");
        match end {
            ControlEnd::Orderly => drop(timeout(TIMEOUT, stream.shutdown()).await),
            ControlEnd::Refused(failure) => super::refuse(stream, failure).await,
            ControlEnd::Broken => stream.abort(),
        }
    }
}

impl Server {
    /// Resolves when another process accepts new work and no socket is left here. The client's next lane then
    /// reaches that process.
    async fn wait_until_unused(&self, nat: &Nat) {
        self.stop.handed_over().await;
        let mut look = interval(SWEEP_INTERVAL);
        while nat.has_sockets() {
            look.tick().await;
        }
    }
}

/// Handles arrivals on the lane and removes idle sockets until the lane fails.
async fn serve_lane(nat: &Nat) -> ControlEnd {
    let mut arrivals = Arrivals::default();
    let mut sweep = interval(SWEEP_INTERVAL);
    loop {
        tokio::select! {
            received = nat.lane().recv(&mut arrivals) => match received {
                Ok(()) => nat.on_arrivals(&arrivals),
                Err(error) => {
                    tracing::debug!("lane failed: {error}");
                    return ControlEnd::Broken;
                }
            },
            _ = sweep.tick() => nat.sweep(),
        }
        if arrivals.needs_replacement() {
            tracing::info!("datagrams: key usage limit reached; client opens new lane");
            return ControlEnd::Orderly;
        }
    }
}

/// Reads the client's messages.
async fn read_messages(
    mut reader: impl AsyncRead + Unpin,
    ask: mpsc::Sender<()>,
    nat: &Nat,
) -> ControlEnd {
    loop {
        match timeout(MAX_SILENCE, Message::read(&mut reader)).await {
            Ok(Ok(Message::Alive)) => drop(ask.try_send(())),
            Ok(Ok(Message::Path { number, flow })) => nat.lane().add_path(PathId(number), flow),
            Ok(Ok(other)) => {
                let text = format!("expected Alive or Path, not {other}");
                return ControlEnd::Refused(Failure::new(ErrorCode::UnsupportedMessage, text));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return ControlEnd::Refused(Failure::new(ErrorCode::Malformed, error.to_string()));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return ControlEnd::Orderly;
            }
            Ok(Err(_)) | Err(_) => return ControlEnd::Broken,
        }
    }
}

/// Answers the client's keepalives until writing fails.
async fn answer_keepalives<S: Transport>(
    mut writer: WriteHalf<&mut S>,
    mut asked: mpsc::Receiver<()>,
) {
    while asked.recv().await.is_some() {
        let bytes = Message::Alive.to_bytes();
        let write = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        if !matches!(timeout(TIMEOUT, write).await, Ok(Ok(()))) {
            return;
        }
    }
}
