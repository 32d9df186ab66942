//! Remote forwards: addresses where the server listens on behalf of a client.
//!
//! A client requests an address on a connection that then serves only for control. On it, the server announces each
//! visitor by id. The client opens a connection for each visitor, as it does for any target, and names the visitor
//! on it. Visitors thus have multipath connections of their own and do not wait for each other. The listener lives
//! as long as the control connection, which ends when the client's keepalives stop: the port of a client that is
//! gone must not stay open for an hour.
//!
//! A client that lost its connection returns before the server has noticed the loss. Therefore a credential may request
//! its address again, and the old connection is then closed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_time::PAUSE;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::admission::{Permit, Quota};
use super::{Client, Server};
use crate::channel::Channel;
use crate::message::{ErrorCode, Failure, Message, VisitorId};
use crate::remote_rules::{RemoteRule, is_allowed};
use crate::secret::Digest;
use crate::transport::Transport;

/// Limits on addresses, per credential and in total.
const MAX_PER_CLIENT: usize = 16;
const MAX_TOTAL: usize = 256;
/// Maximum number of visitors of one address that wait to be accepted. Further ones wait in the kernel's queue.
const MAX_WAITING_VISITORS: usize = 64;
/// Maximum time that a visitor waits to be accepted.
const VISITOR_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without a keepalive after which the client is considered gone.
const MAX_SILENCE: Duration = Duration::from_secs(120);
/// Time limit for the end of an address's old listener.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Like [`timeout`], but counts only time during which this process was running. If the timer fires late, data may have
/// arrived that was not read yet, and the wait starts again.
async fn running_timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    loop {
        let began = Instant::now();
        match timeout(limit, &mut future).await {
            Err(_) if began.elapsed() > limit + PAUSE => {}
            done => return done,
        }
    }
}

/// A visitor that waits to be accepted.
#[derive(Debug)]
struct WaitingVisitor {
    socket: TcpStream,
    from: SocketAddr,
    of: Digest,
    _place: OwnedSemaphorePermit,
}

/// Owner of an address.
#[derive(Debug)]
struct Owner {
    number: u64,
    client: Digest,
    /// Dropped when another connection takes the address.
    _displaced: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    owners: BTreeMap<SocketAddr, Owner>,
    waiting: BTreeMap<VisitorId, WaitingVisitor>,
}

/// All remote forwards of a server.
#[derive(Debug)]
pub(super) struct Remotes {
    state: Arc<Mutex<State>>,
    rules: watch::Sender<Arc<[RemoteRule]>>,
    places: Quota<Arc<str>>,
}

/// An address at which a client listens. Dropping it releases the address.
#[derive(Debug)]
struct HeldAddress {
    wanted: SocketAddr,
    number: u64,
    state: Arc<Mutex<State>>,
    displaced: oneshot::Receiver<()>,
    _place: Permit<Arc<str>>,
}

impl HeldAddress {
    /// Resolves when another connection has taken the address.
    async fn wait_for_replacement(&mut self) -> Failure {
        let _ = (&mut self.displaced).await;
        let text =
            format!("another connection with this credential now listens on {}", self.wanted);
        Failure::new(ErrorCode::ConnectionReset, text)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for HeldAddress {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if state.owners.get(&self.wanted).is_some_and(|owner| owner.number == self.number) {
            state.owners.remove(&self.wanted);
        }
    }
}

impl Default for Remotes {
    fn default() -> Self {
        let rules = watch::Sender::new(Arc::from([]));
        Remotes { state: Arc::default(), rules, places: Quota::new(MAX_PER_CLIENT, MAX_TOTAL) }
    }
}

impl Remotes {
    /// Applies these rules. Listeners that they forbid are closed.
    pub(super) fn change(&self, rules: Vec<RemoteRule>) {
        self.rules.send_replace(rules.into());
    }

    fn check(&self, client: &Client, wanted: SocketAddr) -> Result<(), Failure> {
        if is_allowed(&self.rules.borrow(), &client.name, wanted) {
            return Ok(());
        }
        let text = format!(
            "listening on {wanted} is not allowed (the server's flag --allow-remote {wanted} permits it)"
        );
        Err(Failure::new(ErrorCode::NotAuthorized, text))
    }

    /// Resolves when the rules forbid the address.
    async fn forbidden_failure(&self, client: &Client, wanted: SocketAddr) -> Failure {
        let mut rules = self.rules.subscribe();
        loop {
            if let Err(failure) = self.check(client, wanted) {
                return failure;
            }
            if rules.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes the visitor with this id if it waits for this client.
    fn take_visitor(&self, id: VisitorId, client: &Client) -> Option<WaitingVisitor> {
        let mut state = lock(&self.state);
        let is_theirs = state.waiting.get(&id)?.of.matches(&client.digest);
        is_theirs.then(|| state.waiting.remove(&id)).flatten()
    }

    /// Listens for a client at the wanted address, if the rules allow it.
    async fn listen_for(
        &self,
        client: &Client,
        wanted: SocketAddr,
    ) -> Result<(HeldAddress, TcpListener), Failure> {
        self.check(client, wanted)?;
        let displaced = self.displace(client, wanted);
        let until = Instant::now() + HANDOVER_TIMEOUT;
        loop {
            match self.try_hold(client, wanted).await {
                Err(_) if displaced && Instant::now() < until => {
                    sleep(Duration::from_millis(20)).await;
                }
                result => return result,
            }
        }
    }

    /// Makes the credential's other connection release the address.
    fn displace(&self, client: &Client, wanted: SocketAddr) -> bool {
        let mut state = lock(&self.state);
        let owner = state.owners.get(&wanted);
        let is_ours = owner.is_some_and(|owner| owner.client.matches(&client.digest));
        is_ours && state.owners.remove(&wanted).is_some()
    }

    async fn try_hold(
        &self,
        client: &Client,
        wanted: SocketAddr,
    ) -> Result<(HeldAddress, TcpListener), Failure> {
        let _place = self.places.take_permit(Arc::clone(&client.name)).map_err(|_| {
            let text = format!(
                "too many remote forwards: at most {MAX_PER_CLIENT} per client and {MAX_TOTAL} in total"
            );
            Failure::new(ErrorCode::ResourceExceeded, text)
        })?;
        let listener = TcpListener::bind(wanted).await.map_err(|error| {
            let text = format!("the server cannot listen on {wanted}: {error}");
            Failure::new(ErrorCode::NetworkFailure, text)
        })?;
        // With port 0 each listener gets a different port, which no later request names.
        let owned = match listener.local_addr() {
            Ok(bound) if wanted.port() == 0 => bound,
            _ => wanted,
        };
        let (_displaced, displaced) = oneshot::channel();
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.owners.insert(owned, Owner { number, client: client.digest, _displaced });
        drop(state);
        let (wanted, state) = (owned, Arc::clone(&self.state));
        Ok((HeldAddress { wanted, number, state, displaced, _place }, listener))
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

impl From<Failure> for ControlEnd {
    fn from(failure: Failure) -> ControlEnd {
        ControlEnd::Refused(failure)
    }
}

/// Visitors of one listener, the oldest first. Those still waiting when it ends are disconnected.
struct Visitors {
    state: Arc<Mutex<State>>,
    queue: VecDeque<(Instant, VisitorId)>,
    places: Arc<Semaphore>,
}

impl Visitors {
    /// Waits for a free slot, then accepts the next visitor.
    async fn next(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return std::future::pending().await;
            };
            match listener.accept().await {
                Ok((socket, from)) => return (socket, from, place),
                Err(error) => {
                    // The process is out of descriptors, or the visitor left while queued.
                    tracing::warn!("cannot accept a visitor's connection; retrying: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Adds a waiting visitor. Returns the message that announces it to the client.
    fn admit(&mut self, visitor: WaitingVisitor) -> anyhow::Result<Message> {
        let id = VisitorId::random()?;
        let from = visitor.from;
        let mut state = lock(&self.state);
        while self.queue.front().is_some_and(|(_, id)| !state.waiting.contains_key(id)) {
            self.queue.pop_front();
        }
        self.queue.push_back((Instant::now() + VISITOR_TIMEOUT, id));
        state.waiting.insert(id, visitor);
        Ok(Message::Visitor { id, from })
    }

    /// Resolves when the first visitor has waited too long.
    async fn wait_for_overdue_visitor(first: Option<(Instant, VisitorId)>) {
        match first {
            Some((at, _)) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Disconnects the first visitor.
    fn expire(&mut self) {
        if let Some((_, id)) = self.queue.pop_front() {
            dismiss_visitor(&self.state, id);
        }
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        for (_, id) in self.queue.drain(..) {
            dismiss_visitor(&self.state, id);
        }
    }
}

fn dismiss_visitor(state: &Mutex<State>, id: VisitorId) {
    if let Some(visitor) = lock(state).waiting.remove(&id) {
        tracing::debug!(from = %visitor.from, "client did not accept the connection");
        visitor.socket.abort();
    }
}

impl Server {
    /// Listens for a client until the control connection ends.
    pub(super) async fn listen<T: Transport>(
        &self,
        mut stream: Channel<T>,
        mut unsaid: super::PendingMessages,
        client: &Client,
        wanted: SocketAddr,
    ) {
        let name = &client.name;
        let (mut held, listener) = match self.remotes.listen_for(client, wanted).await {
            Ok(held) => held,
            Err(failure) => {
                self.log_refusal(client, &failure, "an address to listen on");
                return unsaid.refuse(stream, failure).await;
            }
        };
        unsaid.add(&Message::Listening(listener.local_addr().unwrap_or(wanted)));
        if unsaid.send(&mut stream).await.is_err() {
            return stream.abort();
        }
        let address = held.wanted;
        tracing::info!(client = %name, %address, "remote forward opened");
        let end = {
            let (reader, writer) = split(&mut stream);
            // One pending answer serves for all keepalives.
            let (ask, asked) = mpsc::channel(1);
            tokio::select! {
                end = self.read_messages(reader, ask, client) => end,
                end = self.write_messages(writer, asked, &listener, client) => end,
                failure = held.wait_for_replacement() => failure.into(),
                failure = self.remotes.forbidden_failure(client, wanted) => failure.into(),
                () = self.stop.handed_over() => ControlEnd::Orderly,
                ended = self.wait_until_revoked(client) => ended.map_or(ControlEnd::Broken, ControlEnd::Refused),
            }
        };
        drop((listener, held));
        tracing::info!(client = %name, %address, "remote forward closed");
        match end {
            ControlEnd::Orderly => drop(timeout(HANDOVER_TIMEOUT, stream.shutdown()).await),
            ControlEnd::Refused(failure) => super::refuse(stream, failure).await,
            ControlEnd::Broken => stream.abort(),
        }
    }

    /// Reads the client's messages.
    async fn read_messages<S: Transport>(
        &self,
        mut reader: ReadHalf<&mut S>,
        ask: mpsc::Sender<()>,
        client: &Client,
    ) -> ControlEnd {
        loop {
            match running_timeout(MAX_SILENCE, Message::read(&mut reader)).await {
                Ok(Ok(Message::Alive)) => drop(ask.try_send(())),
                Ok(Ok(Message::Decline(id))) => {
                    if let Some(visitor) = self.remotes.take_visitor(id, client) {
                        visitor.socket.abort();
                    }
                }
                Ok(Ok(other)) => {
                    let text = format!("expected Alive or Decline, not {other}");
                    return Failure::new(ErrorCode::UnsupportedMessage, text).into();
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    return Failure::new(ErrorCode::Malformed, error.to_string()).into();
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return ControlEnd::Orderly;
                }
                Ok(Err(_)) => return ControlEnd::Broken,
                Err(_) => {
                    tracing::info!(client = %client.name, "keepalive timed out");
                    return ControlEnd::Broken;
                }
            }
        }
    }

    /// Announces visitors to the client and answers its keepalives.
    async fn write_messages<S: Transport>(
        &self,
        mut writer: WriteHalf<&mut S>,
        mut asked: mpsc::Receiver<()>,
        listener: &TcpListener,
        client: &Client,
    ) -> ControlEnd {
        let places = Arc::new(Semaphore::new(MAX_WAITING_VISITORS));
        let state = Arc::clone(&self.remotes.state);
        let mut visitors = Visitors { state, queue: VecDeque::new(), places };
        loop {
            let message = tokio::select! {
                (socket, from, _place) = visitors.next(listener) => {
                    let _ = socket.set_nodelay(true);
                    let of = client.digest;
                    match visitors.admit(WaitingVisitor { socket, from, of, _place }) {
                        Ok(message) => message,
                        Err(_) => return ControlEnd::Broken,
                    }
                }
                Some(()) = asked.recv() => Message::Alive,
                () = Visitors::wait_for_overdue_visitor(visitors.queue.front().copied()) => {
                    visitors.expire();
                    continue;
                }
            };
            let bytes = message.to_bytes();
            let write = async {
                writer.write_all(&bytes).await?;
                writer.flush().await
            };
            if !matches!(timeout(VISITOR_TIMEOUT, write).await, Ok(Ok(()))) {
                return ControlEnd::Broken;
            }
        }
    }

    /// Relays between a connection and its visitor. Returns the connection if it can be reused.
    pub(super) async fn accept<T: Transport>(
        &self,
        stream: Channel<T>,
        mut unsaid: super::PendingMessages,
        client: &Client,
        id: VisitorId,
    ) -> Option<Channel<T>> {
        unsaid.add(&Message::Working);
        let Some(visitor) = self.remotes.take_visitor(id, client) else {
            let text = "no connection is waiting with this id";
            let failure = Failure::new(ErrorCode::DestinationUnreachable, text);
            unsaid.refuse(stream, failure).await;
            return None;
        };
        let WaitingVisitor { socket, from, _place, .. } = visitor;
        drop(_place);
        self.confirm_and_relay(stream, unsaid, client, socket, &from.into()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_late_timer_does_not_time_out_the_peer() {
        const LIMIT: Duration = Duration::from_secs(120);
        assert!(running_timeout(LIMIT, std::future::pending::<()>()).await.is_err());
        let (tell, told) = oneshot::channel();
        let waiting = tokio::spawn(running_timeout(LIMIT, told));
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(3_600)).await;
        tokio::task::yield_now().await;
        tell.send("alive").unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), Ok("alive"));
    }
}
