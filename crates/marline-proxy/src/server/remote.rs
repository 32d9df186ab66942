//! Remote forwards: addresses where the server listens on behalf of a client.
//!
//! A client asks for an address on a connection that then only controls: the server tells it by
//! name who has come, and the client opens a connection for each visitor, as it does for anything
//! else, and names the visitor on it. So visitors are multipath connections of their own and wait
//! for nobody. The listener lives as long as the control connection, and that as long as the client
//! gives signs of life: the port of a client that is gone must not stay open for an hour.
//!
//! A client that lost its connection comes back before the server knows that the old one is dead.
//! So the same credential may ask for its address again, and the old connection is told to go.

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

/// Addresses of one credential, and of all.
const PER_CLIENT: usize = 16;
const TOTAL: usize = 256;
/// Visitors of one address that wait to be accepted. More wait in the kernel's queue.
const WAITING: usize = 64;
/// How long each waits.
const PATIENCE: Duration = Duration::from_secs(30);
/// A client that gives no sign of life for this long is gone.
const SILENCE: Duration = Duration::from_secs(120);
/// The old listener of an address ends within this time.
const HANDOVER: Duration = Duration::from_secs(2);

/// As [`timeout`], of a limit within which this process ran: where the timer goes off late, what has arrived meanwhile
/// may not have been read yet, and the wait begins again.
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

/// One who waits.
#[derive(Debug)]
struct Waiting {
    socket: TcpStream,
    from: SocketAddr,
    of: Digest,
    _place: OwnedSemaphorePermit,
}

/// Whose an address is.
#[derive(Debug)]
struct Owner {
    number: u64,
    client: Digest,
    /// Dropped when it becomes another connection's.
    _displaced: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    owners: BTreeMap<SocketAddr, Owner>,
    waiting: BTreeMap<VisitorId, Waiting>,
}

/// All remote forwards of a server.
#[derive(Debug)]
pub(super) struct Remotes {
    state: Arc<Mutex<State>>,
    rules: watch::Sender<Arc<[RemoteRule]>>,
    places: Quota<Arc<str>>,
}

/// An address that a client listens at; dropping it gives it up.
#[derive(Debug)]
struct Held {
    wanted: SocketAddr,
    number: u64,
    state: Arc<Mutex<State>>,
    displaced: oneshot::Receiver<()>,
    _place: Permit<Arc<str>>,
}

impl Held {
    /// Resolves when another connection has the address.
    async fn displaced(&mut self) -> Failure {
        let _ = (&mut self.displaced).await;
        let text =
            format!("another connection with this credential now listens on {}", self.wanted);
        Failure::new(ErrorCode::ConnectionReset, text)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Held {
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
        Remotes { state: Arc::default(), rules, places: Quota::new(PER_CLIENT, TOTAL) }
    }
}

impl Remotes {
    /// Applies these rules. Who listens where they forbid it has to stop.
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

    /// Resolves when the rules forbid it.
    async fn forbidden(&self, client: &Client, wanted: SocketAddr) -> Failure {
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

    /// Takes the visitor who has this name and waits for this client.
    fn take(&self, id: VisitorId, client: &Client) -> Option<Waiting> {
        let mut state = lock(&self.state);
        let is_theirs = state.waiting.get(&id)?.of.matches(&client.digest);
        is_theirs.then(|| state.waiting.remove(&id)).flatten()
    }

    /// Listens for a client where it wants, if it may.
    async fn hold(
        &self,
        client: &Client,
        wanted: SocketAddr,
    ) -> Result<(Held, TcpListener), Failure> {
        self.check(client, wanted)?;
        let displaced = self.displace(client, wanted);
        let until = Instant::now() + HANDOVER;
        loop {
            match self.try_hold(client, wanted).await {
                Err(_) if displaced && Instant::now() < until => {
                    sleep(Duration::from_millis(20)).await;
                }
                result => return result,
            }
        }
    }

    /// Has the credential's other connection let go of the address.
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
    ) -> Result<(Held, TcpListener), Failure> {
        let _place = self.places.enter(Arc::clone(&client.name)).map_err(|_| {
            let text =
                format!("too many remote forwards: {PER_CLIENT} of a client, {TOTAL} in all");
            Failure::new(ErrorCode::ResourceExceeded, text)
        })?;
        let listener = TcpListener::bind(wanted).await.map_err(|error| {
            let text = format!("the server cannot listen on {wanted}: {error}");
            Failure::new(ErrorCode::NetworkFailure, text)
        })?;
        // With port 0 each gets a port of its own, and nobody comes back for it.
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
        Ok((Held { wanted, number, state, displaced, _place }, listener))
    }
}

/// Why a control connection ends.
enum End {
    /// Nothing is wrong.
    Orderly,
    /// The client is told.
    Told(Failure),
    /// It does not answer, or must not be answered.
    Broken,
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        End::Told(failure)
    }
}

/// Visitors of one listener, the oldest first. Those who still wait when it ends are sent away.
struct Visitors {
    state: Arc<Mutex<State>>,
    queue: VecDeque<(Instant, VisitorId)>,
    places: Arc<Semaphore>,
}

impl Visitors {
    /// The next one who comes, if there is a place.
    async fn next(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            // Nobody closes it.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return std::future::pending().await;
            };
            match listener.accept().await {
                Ok((socket, from)) => return (socket, from, place),
                Err(error) => {
                    // Out of descriptors, or gone while queued.
                    tracing::warn!("accept: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Has one wait; what the client is told of it.
    fn admit(&mut self, visitor: Waiting) -> anyhow::Result<Message> {
        let id = VisitorId::random()?;
        let from = visitor.from;
        let mut state = lock(&self.state);
        while self.queue.front().is_some_and(|(_, id)| !state.waiting.contains_key(id)) {
            self.queue.pop_front();
        }
        self.queue.push_back((Instant::now() + PATIENCE, id));
        state.waiting.insert(id, visitor);
        Ok(Message::Visitor { id, from })
    }

    /// When the first one's time is up.
    async fn late(first: Option<(Instant, VisitorId)>) {
        match first {
            Some((at, _)) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Sends the first one away.
    fn expire(&mut self) {
        if let Some((_, id)) = self.queue.pop_front() {
            send_away(&self.state, id);
        }
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        for (_, id) in self.queue.drain(..) {
            send_away(&self.state, id);
        }
    }
}

fn send_away(state: &Mutex<State>, id: VisitorId) {
    if let Some(visitor) = lock(state).waiting.remove(&id) {
        tracing::debug!(from = %visitor.from, "visitor not accepted");
        visitor.socket.abort();
    }
}

impl Server {
    /// Listens for a client until the connection that asked for it ends.
    pub(super) async fn listen<T: Transport>(
        &self,
        mut stream: Channel<T>,
        mut unsaid: super::Unsaid,
        client: &Client,
        wanted: SocketAddr,
    ) {
        let name = &client.name;
        let (mut held, listener) = match self.remotes.hold(client, wanted).await {
            Ok(held) => held,
            Err(failure) => {
                self.refuse_request(client, &failure, "an address to listen at");
                return unsaid.refuse(stream, failure).await;
            }
        };
        unsaid.add(&Message::Listening(listener.local_addr().unwrap_or(wanted)));
        if unsaid.say(&mut stream).await.is_err() {
            return stream.abort();
        }
        let address = held.wanted;
        tracing::info!(client = %name, %address, "remote forward opened");
        let end = {
            let (reader, writer) = split(&mut stream);
            // One answer that waits answers all.
            let (ask, asked) = mpsc::channel(1);
            tokio::select! {
                end = self.hear(reader, ask, client) => end,
                end = self.tell(writer, asked, &listener, client) => end,
                failure = held.displaced() => failure.into(),
                failure = self.remotes.forbidden(client, wanted) => failure.into(),
                () = self.stop.handed_over() => End::Orderly,
                ended = self.unwelcome(client) => ended.map_or(End::Broken, End::Told),
            }
        };
        drop((listener, held));
        tracing::info!(client = %name, %address, "remote forward closed");
        match end {
            End::Orderly => drop(timeout(HANDOVER, stream.shutdown()).await),
            End::Told(failure) => super::refuse(stream, failure).await,
            End::Broken => stream.abort(),
        }
    }

    /// Reads what the client says.
    async fn hear<S: Transport>(
        &self,
        mut reader: ReadHalf<&mut S>,
        ask: mpsc::Sender<()>,
        client: &Client,
    ) -> End {
        loop {
            match running_timeout(SILENCE, Message::read(&mut reader)).await {
                Ok(Ok(Message::Alive)) => drop(ask.try_send(())),
                Ok(Ok(Message::Decline(id))) => {
                    if let Some(visitor) = self.remotes.take(id, client) {
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
                    return End::Orderly;
                }
                Ok(Err(_)) => return End::Broken,
                Err(_) => {
                    tracing::info!(client = %client.name, "keepalive timed out");
                    return End::Broken;
                }
            }
        }
    }

    /// Tells the client who has come, and that it was heard.
    async fn tell<S: Transport>(
        &self,
        mut writer: WriteHalf<&mut S>,
        mut asked: mpsc::Receiver<()>,
        listener: &TcpListener,
        client: &Client,
    ) -> End {
        let places = Arc::new(Semaphore::new(WAITING));
        let state = Arc::clone(&self.remotes.state);
        let mut visitors = Visitors { state, queue: VecDeque::new(), places };
        loop {
            let message = tokio::select! {
                (socket, from, _place) = visitors.next(listener) => {
                    let _ = socket.set_nodelay(true);
                    let of = client.digest;
                    match visitors.admit(Waiting { socket, from, of, _place }) {
                        Ok(message) => message,
                        Err(_) => return End::Broken,
                    }
                }
                Some(()) = asked.recv() => Message::Alive,
                () = Visitors::late(visitors.queue.front().copied()) => {
                    visitors.expire();
                    continue;
                }
            };
            let bytes = message.to_bytes();
            let write = async {
                writer.write_all(&bytes).await?;
                writer.flush().await
            };
            if !matches!(timeout(PATIENCE, write).await, Ok(Ok(()))) {
                return End::Broken;
            }
        }
    }

    /// Joins a connection and the visitor that it is for. Gives it back if it can be asked for more.
    pub(super) async fn accept<T: Transport>(
        &self,
        stream: Channel<T>,
        mut unsaid: super::Unsaid,
        client: &Client,
        id: VisitorId,
    ) -> Option<Channel<T>> {
        unsaid.add(&Message::Working);
        let Some(visitor) = self.remotes.take(id, client) else {
            let text = "no visitor waits under this name";
            let failure = Failure::new(ErrorCode::DestinationUnreachable, text);
            unsaid.refuse(stream, failure).await;
            return None;
        };
        let Waiting { socket, from, _place, .. } = visitor;
        drop(_place);
        self.join(stream, unsaid, client, (socket, &from.into())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_goes_off_late_is_no_verdict_on_the_peer() {
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
