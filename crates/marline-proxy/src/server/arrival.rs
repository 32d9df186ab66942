//! Authentication of an arriving connection.
//!
//! The first byte selects the kind of authentication. An opening of a session is checked in microseconds and is not
//! subject to the limits on unauthenticated clients. TLS waits in the handshake queue. If the session is unknown or
//! the opening does not authenticate, the answer makes the client continue with TLS on the same connection.
//!
//! *Queue.* A bounded number of TLS handshakes runs at a time, with a limit per source and in total. The others wait,
//! in order of arrival within their source, and can be evicted by newcomers like silent connections. A running
//! handshake is protected, because evicting it wastes the work of both sides, and many honest clients would evict each
//! other. It is evicted only if another source has fewer handshakes running, or if it has stalled.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline::memory::MemoryKind;
use marline_io::{PendingEntry, PendingId, PendingLimits, PendingPeers, PendingTable, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::admission::{AdmissionLimits, Permit};
use super::allowances::ConnectionPlace;
use super::refusals::RefusalReason;
use super::{Client, Server, refuse};
use crate::channel::Channel;
use crate::message::{ErrorCode, Failure, Message, Offer, VERSION};
use crate::prefixed_stream::PrefixedStream;
use crate::secret::Secret;
use crate::session::sealed::SealedStream;
use crate::session::{Answer, MAGIC, OPENING_LEN, ReceivedOpening, Session, SessionId};
use crate::transport::Transport;

/// Memory that a TLS handshake takes with its certificate and buffers, in bytes.
const HANDSHAKE_BYTES: u64 = 32 * 1_024;

/// Duration after which a handshake counts as stalled, so that any other can evict it.
const STALL_TIME: Duration = Duration::from_secs(3);
/// Interval between checks for stalled handshakes while others wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// An authenticated connection.
pub(super) struct AuthenticatedClient<T> {
    pub(super) stream: Channel<PrefixedStream<T>>,
    pub(super) client: Client,
    /// The session that authenticated the connection, or that its handshake began.
    pub(super) session: Arc<Session>,
    /// A session for further connections.
    pub(super) offer: Option<Offer>,
    /// Addresses of this server alone.
    pub(super) own: Vec<SocketAddr>,
    /// True if the request arrived with the opening. The greeting can then wait and leave with the answer.
    pub(super) has_early_request: bool,
    pub(super) _permit: Permit<Arc<str>>,
    pub(super) _place: Option<Box<ConnectionPlace>>,
}

/// Result of reading the first bytes.
enum FirstRead<T> {
    Known(Channel<PrefixedStream<T>>, Client, Arc<Session>, bool),
    NewClient(PrefixedStream<T>),
}

/// Greeting from an unauthenticated client.
struct Greeting<T> {
    stream: Channel<PrefixedStream<T>>,
    token: Result<Secret, Failure>,
    session: Arc<Session>,
}

impl Server {
    /// Authenticates a connection. Returns `None` if the connection has been refused and closed.
    pub(super) async fn authenticate_connection<T: Transport>(
        &self,
        stream: T,
        peer: IpAddr,
    ) -> Option<AuthenticatedClient<T>> {
        let place = self.silent.admit(peer);
        match self.read_first(stream, peer, place).await? {
            FirstRead::Known(stream, client, session, asks_at_once) => {
                tracing::debug!(%peer, client = %client.name, "authenticated by session");
                self.take_client_place(stream, client, session, asks_at_once).await
            }
            // Boxed, because a handshake takes several times the memory of a relay that runs for hours.
            FirstRead::NewClient(stream) => {
                Box::pin(self.authenticate_new_client(stream, peer)).await
            }
        }
    }

    async fn read_first<T: Transport>(
        &self,
        stream: T,
        peer: IpAddr,
        mut place: PendingEntry,
    ) -> Option<FirstRead<T>> {
        let looked_at = tokio::select! {
            looked_at = timeout(self.limits.authentication, self.read_opening(stream)) => looked_at,
            () = place.evicted() => {
                tracing::debug!(%peer, "idle handshake evicted");
                return None;
            }
        };
        match looked_at {
            Ok(Ok(first)) => Some(first),
            Ok(Err(why)) => {
                let why = format_args!("authentication failed: {why}");
                self.refusals.record(RefusalReason::NotAClient, &peer, &why);
                None
            }
            Err(_) => {
                self.refusals.record(RefusalReason::Timeout, &peer, &"no data before timeout");
                None
            }
        }
    }

    /// Reads the first bytes and the rest of an opening.
    async fn read_opening<T: Transport>(&self, mut stream: T) -> io::Result<FirstRead<T>> {
        let mut head = [0; OPENING_LEN];
        let mut filled = stream.read(&mut head).await?;
        if filled == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if head[0] != MAGIC {
            return Ok(FirstRead::NewClient(PrefixedStream::new(head[..filled].to_vec(), stream)));
        }
        while filled < OPENING_LEN {
            match stream.read(&mut head[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        let opening = ReceivedOpening::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        let flight = opening.flight();
        let known = self.sessions.find(opening.session());
        let keys = known.zip(stream.binding()).and_then(|((session, client), binding)| {
            session.accept(&binding, &opening).map(|keys| (keys, client, session))
        });
        if let Some((keys, client, session)) = keys {
            let stream = PrefixedStream::new(Vec::new(), stream);
            let sealed = SealedStream::new(stream, keys, Answer::Known.to_bytes().to_vec());
            return Ok(FirstRead::Known(Channel::session(sealed), client, session, flight > 0));
        }
        // The data that came with the opening can no longer be decrypted.
        let mut unread = (&mut stream).take(flight as u64);
        tokio::io::copy(&mut unread, &mut tokio::io::sink()).await?;
        stream.write_all(&Answer::Unknown.to_bytes()).await?;
        stream.flush().await?;
        let count = stream.read(&mut head).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(FirstRead::NewClient(PrefixedStream::new(head[..count].to_vec(), stream)))
    }

    /// Performs the TLS handshake and reads the client's Hello, when it is this connection's turn.
    async fn authenticate_new_client<T: Transport>(
        &self,
        stream: PrefixedStream<T>,
        peer: IpAddr,
    ) -> Option<AuthenticatedClient<T>> {
        let entering =
            timeout(self.limits.authentication, self.handshakes.wait_for_permission(peer));
        let mut ticket = match entering.await {
            Ok(Ok(ticket)) => ticket,
            Ok(Err(Evicted)) => {
                let why = "evicted before TLS: too many unauthenticated connections";
                self.refusals.record(RefusalReason::UnauthenticatedLimit, &peer, &why);
                stream.abort();
                return None;
            }
            Err(_) => {
                let why = "timed out waiting to authenticate";
                self.refusals.record(RefusalReason::UnauthenticatedLimit, &peer, &why);
                stream.abort();
                return None;
            }
        };
        let _charge = self.unauthenticated_memory.charge(MemoryKind::Handshake, HANDSHAKE_BYTES);
        let greeting = tokio::select! {
            greeting = timeout(self.limits.authentication, self.hello(stream)) => greeting,
            () = ticket.evicted() => {
                let why = "TLS handshake evicted: too many unauthenticated connections";
                self.refusals.record(RefusalReason::UnauthenticatedLimit, &peer, &why);
                return None;
            }
        };
        let greeting = match greeting {
            Ok(Ok(heard)) => heard,
            Ok(Err(why)) => {
                let why = format_args!("authentication failed: {why}");
                self.refusals.record(RefusalReason::NotAClient, &peer, &why);
                return None;
            }
            Err(_) => {
                self.refusals.record(RefusalReason::Timeout, &peer, &"authentication timed out");
                return None;
            }
        };
        let client = match self.authenticate(greeting.token) {
            Ok(client) => client,
            Err(failure) => {
                let reason = match failure.code {
                    ErrorCode::NotAuthorized => RefusalReason::Credential,
                    _ => RefusalReason::Protocol,
                };
                self.refusals.record(reason, &peer, &failure.text);
                refuse(greeting.stream, failure).await;
                return None;
            }
        };
        // Not earlier: until the refusal above has finished, the connection counts as unauthenticated.
        drop(ticket);
        tracing::debug!(%peer, client = %client.name, "authenticated");
        let session = greeting.session;
        let lifetime_s = self.sessions.lifetime().as_secs() as u32;
        let offer = Some(Offer { id: session.id(), lifetime_s });
        self.sessions.add_session(Arc::clone(&session), &client);
        let arrived = self.take_client_place(greeting.stream, client, session, false).await?;
        Some(AuthenticatedClient { offer, own: self.own.clone(), ..arrived })
    }

    /// Assigns an authenticated connection its place within its client's limit.
    async fn take_client_place<T: Transport>(
        &self,
        stream: Channel<PrefixedStream<T>>,
        client: Client,
        session: Arc<Session>,
        asks_at_once: bool,
    ) -> Option<AuthenticatedClient<T>> {
        let suspension = self.credentials.borrow().suspension(&client.name).cloned();
        if let Some(why) = suspension {
            self.refusals.record(RefusalReason::Quota, &client.name, &why);
            refuse(stream, Failure::new(ErrorCode::NotAuthorized, &*why)).await;
            return None;
        }
        let seat = match self.allowances.take_place(
            &client.name,
            session.id(),
            self.sessions.lifetime(),
        ) {
            Ok(seat) => seat,
            Err(most) => {
                let text = format!("this client has reached its limit of {most} sessions");
                self.refusals.record(RefusalReason::ClientLimit, &client.name, &text);
                refuse(stream, Failure::new(ErrorCode::NotAuthorized, text)).await;
                return None;
            }
        };
        let Ok(place) = self.clients.take_permit(Arc::clone(&client.name)) else {
            let why = "too many connections";
            self.refusals.record(RefusalReason::ClientLimit, &client.name, &why);
            let text = "this client has too many connections";
            refuse(stream, Failure::new(ErrorCode::ResourceExceeded, text)).await;
            return None;
        };
        stream.mark_authenticated(client.account.memory());
        client.account.on_connection();
        let (offer, own) = (None, Vec::new());
        let (_permit, _seat) = (place, seat);
        Some(AuthenticatedClient {
            stream,
            client,
            session,
            offer,
            own,
            has_early_request: asks_at_once,
            _permit,
            _place: _seat,
        })
    }

    async fn hello<T: Transport>(&self, stream: PrefixedStream<T>) -> io::Result<Greeting<T>> {
        let stream = self.acceptor.0.accept(stream).await?;
        let session = SessionId::random().and_then(|id| Session::from_tls(id, stream.get_ref().1));
        let session = Arc::new(session.map_err(io::Error::other)?);
        let mut stream = Channel::tls(stream);
        let token = match Message::read(&mut stream).await? {
            Message::Hello { version, token } if version == VERSION => Ok(token),
            Message::Hello { version, .. } => {
                let text = format!("version {version} is not supported (expected {VERSION})");
                Err(Failure::new(ErrorCode::UnsupportedVersion, text))
            }
            other => {
                let text = format!("expected Hello, not {other}");
                Err(Failure::new(ErrorCode::UnsupportedMessage, text))
            }
        };
        Ok(Greeting { stream, token, session })
    }

    fn authenticate(&self, token: Result<Secret, Failure>) -> Result<Client, Failure> {
        let digest = token?.digest();
        let credentials = self.credentials.borrow();
        let found = credentials.find(&digest);
        let name = found.map(|credential| Arc::clone(&credential.name));
        match name {
            Some(name) => Ok(Client { account: self.accounts.account_of(&name), name, digest }),
            None => {
                let text = "unknown credential (revoked?): ask for a new invite";
                Err(Failure::new(ErrorCode::NotAuthorized, text))
            }
        }
    }
}

/// Handshakes that run or wait.
#[derive(Clone, Debug)]
pub(super) struct HandshakeQueue {
    waiting: PendingTable,
    table: Arc<Table>,
}

#[derive(Debug)]
struct Table {
    limits: PendingLimits,
    running: Mutex<PendingPeers<RunningHandshake>>,
    /// Notified when a running handshake has ended.
    handshake_ended: Notify,
    /// Semaphores for running handshakes per source. Only sources with running or waiting handshakes have one.
    sources: Mutex<BTreeMap<Source, Arc<Semaphore>>>,
}

/// A running handshake. Dropping `_evict` evicts it.
#[derive(Debug)]
struct RunningHandshake {
    started_at: Instant,
    _evict: oneshot::Sender<()>,
}

/// Permission to make a TLS handshake.
#[derive(Debug)]
struct HandshakePermit {
    table: Arc<Table>,
    source: Source,
    id: PendingId,
    evicted: oneshot::Receiver<()>,
    _of_source: OwnedSemaphorePermit,
}

/// A connection was evicted to make room for others.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Evicted;

impl HandshakeQueue {
    /// Creates a queue with these limits.
    #[must_use]
    pub(super) fn new(limits: AdmissionLimits) -> HandshakeQueue {
        let total = limits.total.max(1);
        let running = PendingLimits { total, per_source: limits.per_source.max(1) };
        let waiting =
            PendingLimits { total: limits.waiting_total, per_source: limits.waiting_per_source };
        let table = Table {
            limits: running,
            running: Mutex::new(PendingPeers::new(running)),
            handshake_ended: Notify::new(),
            sources: Mutex::default(),
        };
        HandshakeQueue { waiting: PendingTable::new(waiting), table: Arc::new(table) }
    }

    /// Waits for permission to run a handshake.
    ///
    /// # Errors
    /// The handshake was evicted while it waited.
    async fn wait_for_permission(&self, address: IpAddr) -> Result<HandshakePermit, Evicted> {
        let source = Source::of(address);
        let places = self.table.places_for(source);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned()
            && let Some(admitted) = self.table.admit(source)
        {
            return Ok(Table::issue_permit(&self.table, source, admitted, place));
        }
        let mut waiting = self.waiting.admit(address);
        tokio::select! {
            ticket = self.wait_in_queue(source, places) => Ok(ticket),
            () = waiting.evicted() => Err(Evicted),
        }
    }

    async fn wait_in_queue(&self, source: Source, places: Arc<Semaphore>) -> HandshakePermit {
        let table = &self.table;
        let place = tokio::select! {
            // The semaphore is never closed.
            Ok(place) = places.acquire_owned() => place,
            () = table.evict_stalled_handshakes(source) => unreachable!("the eviction loop never returns"),
        };
        loop {
            let freed = table.handshake_ended.notified();
            if let Some(admitted) = table.admit(source) {
                return Table::issue_permit(table, source, admitted, place);
            }
            tokio::select! {
                () = freed => {}
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Returns the number of handshakes in progress.
    #[must_use]
    pub(super) fn count(&self) -> usize {
        lock(&self.table.running).len()
    }
}

/// A handshake that may run.
struct AdmittedHandshake {
    id: PendingId,
    /// Closed when the handshake is evicted.
    evicted: oneshot::Receiver<()>,
}

impl Table {
    fn places_for(&self, source: Source) -> Arc<Semaphore> {
        const FEW_SOURCES: usize = 64;
        let mut sources = lock(&self.sources);
        // An entry is unused if this map has the only pointer to it.
        if sources.len() >= FEW_SOURCES.max(2 * lock(&self.running).len()) {
            sources.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let new = || Arc::new(Semaphore::new(self.limits.per_source));
        Arc::clone(sources.entry(source).or_insert_with(new))
    }

    /// Lets a handshake run if there is room, or if another one can be evicted.
    fn admit(&self, source: Source) -> Option<AdmittedHandshake> {
        let mut running = lock(&self.running);
        if running.len() >= self.limits.total {
            let (victims, victim) = running.next_victim(source)?;
            let has_more = running.count_of(victims) > running.count_of(source) + 1;
            if !has_more && !victim.is_stalled() {
                return None;
            }
            running.make_room(source);
        }
        let (evict, evicted) = oneshot::channel();
        let (id, _) =
            running.admit(source, RunningHandshake { started_at: Instant::now(), _evict: evict });
        Some(AdmittedHandshake { id, evicted })
    }

    fn issue_permit(
        table: &Arc<Table>,
        source: Source,
        admitted: AdmittedHandshake,
        place: OwnedSemaphorePermit,
    ) -> HandshakePermit {
        let AdmittedHandshake { id, evicted } = admitted;
        HandshakePermit { table: Arc::clone(table), source, id, evicted, _of_source: place }
    }

    /// Evicts handshakes of a source when they stall. Never returns.
    async fn evict_stalled_handshakes(&self, source: Source) {
        loop {
            sleep(CHECK_INTERVAL).await;
            let mut running = lock(&self.running);
            if running.oldest_of(source).is_some_and(RunningHandshake::is_stalled) {
                running.evict_oldest_of(source);
            }
        }
    }
}

impl RunningHandshake {
    fn is_stalled(&self) -> bool {
        self.started_at.elapsed() >= STALL_TIME
    }
}

impl HandshakePermit {
    /// Resolves when the handshake has to make room for another one. Cancel safe.
    async fn evicted(&mut self) {
        // Nothing is ever sent. The sender is dropped.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        lock(&self.table.running).remove(self.source, self.id);
        self.table.handshake_ended.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
