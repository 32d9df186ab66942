//! Authentication of an arriving connection.
//!
//! The first byte selects the kind of authentication. An opening of a session is checked in microseconds and is not
//! subject to the limits on unauthenticated clients. TLS waits in the handshake queue. If the session is unknown or
//! the opening does not authenticate, the answer makes the client continue with TLS on the same connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline::memory::MemoryKind;
use marline_io::PendingPlace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::admission::Permit;
use super::allowances::ConnectionPlace;
use super::handshakes::Evicted;
use super::refusals::RefusalReason;
use super::{Client, Server, refuse};
use crate::channel::Channel;
use crate::message::{ErrorCode, Failure, Message, Offer, VERSION};
use crate::prefixed_stream::PrefixedStream;
use crate::secret::Secret;
use crate::session::sealed::Sealed;
use crate::session::{Answer, MAGIC, OPENING_LEN, Opening, Session, SessionId};
use crate::transport::Transport;

/// Memory of a TLS handshake with its certificate and buffers, in bytes.
const HANDSHAKE_BYTES: u64 = 32 * 1_024;

/// An authenticated connection.
pub(super) struct Arrived<T> {
    pub(super) stream: Channel<PrefixedStream<T>>,
    pub(super) client: Client,
    /// The session that authenticated the connection, or that its handshake began.
    pub(super) session: Arc<Session>,
    /// A session for further connections.
    pub(super) offer: Option<Offer>,
    /// Addresses of this server alone.
    pub(super) own: Vec<SocketAddr>,
    /// True if the request arrived together with the opening, so that the greeting can wait for the answer.
    pub(super) asks_at_once: bool,
    pub(super) _permit: Permit<Arc<str>>,
    pub(super) _seat: Option<Box<ConnectionPlace>>,
}

/// Result of reading the first bytes.
enum First<T> {
    Known(Channel<PrefixedStream<T>>, Client, Arc<Session>, bool),
    Stranger(PrefixedStream<T>),
}

/// Greeting of an unauthenticated client.
struct Greeting<T> {
    stream: Channel<PrefixedStream<T>>,
    token: Result<Secret, Failure>,
    session: Arc<Session>,
}

impl Server {
    /// Authenticates a connection. `None`: the connection has been refused and closed.
    pub(super) async fn arrive<T: Transport>(&self, stream: T, peer: IpAddr) -> Option<Arrived<T>> {
        let place = self.silent.admit(peer);
        match self.first(stream, peer, place).await? {
            First::Known(stream, client, session, asks_at_once) => {
                tracing::debug!(%peer, client = %client.name, "authenticated by session");
                self.seat(stream, client, session, asks_at_once).await
            }
            // Boxed, because a handshake takes several times the memory of a relay that runs for hours.
            First::Stranger(stream) => Box::pin(self.stranger(stream, peer)).await,
        }
    }

    async fn first<T: Transport>(
        &self,
        stream: T,
        peer: IpAddr,
        mut place: PendingPlace,
    ) -> Option<First<T>> {
        let looked_at = tokio::select! {
            looked_at = timeout(self.limits.authentication, self.look_at(stream)) => looked_at,
            () = place.evicted() => {
                tracing::debug!(%peer, "idle handshake evicted");
                return None;
            }
        };
        match looked_at {
            Ok(Ok(first)) => Some(first),
            Ok(Err(why)) => {
                let why = format_args!("authentication failed: {why}");
                self.refusals.note(RefusalReason::NotAClient, &peer, &why);
                None
            }
            Err(_) => {
                self.refusals.note(RefusalReason::Late, &peer, &"no data before timeout");
                None
            }
        }
    }

    /// Reads the first bytes and the rest of an opening.
    async fn look_at<T: Transport>(&self, mut stream: T) -> io::Result<First<T>> {
        let mut head = [0; OPENING_LEN];
        let mut filled = stream.read(&mut head).await?;
        if filled == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if head[0] != MAGIC {
            return Ok(First::Stranger(PrefixedStream::new(head[..filled].to_vec(), stream)));
        }
        while filled < OPENING_LEN {
            match stream.read(&mut head[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        let opening = Opening::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        let flight = opening.flight();
        let known = self.sessions.find(opening.session());
        let keys = known.zip(stream.binding()).and_then(|((session, client), binding)| {
            session.accept(&binding, &opening).map(|keys| (keys, client, session))
        });
        if let Some((keys, client, session)) = keys {
            let stream = PrefixedStream::new(Vec::new(), stream);
            let sealed = Sealed::new(stream, keys, Answer::Known.to_bytes().to_vec());
            return Ok(First::Known(Channel::session(sealed), client, session, flight > 0));
        }
        // The data that came with the opening cannot be decrypted any more.
        let mut unread = (&mut stream).take(flight as u64);
        tokio::io::copy(&mut unread, &mut tokio::io::sink()).await?;
        stream.write_all(&Answer::Unknown.to_bytes()).await?;
        stream.flush().await?;
        let count = stream.read(&mut head).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(First::Stranger(PrefixedStream::new(head[..count].to_vec(), stream)))
    }

    /// TLS handshake and the client's Hello, in turn.
    async fn stranger<T: Transport>(
        &self,
        stream: PrefixedStream<T>,
        peer: IpAddr,
    ) -> Option<Arrived<T>> {
        let entering = timeout(self.limits.authentication, self.handshakes.enter(peer));
        let mut ticket = match entering.await {
            Ok(Ok(ticket)) => ticket,
            Ok(Err(Evicted)) => {
                let why = "evicted before TLS: too many unauthenticated connections";
                self.refusals.note(RefusalReason::Crowd, &peer, &why);
                stream.abort();
                return None;
            }
            Err(_) => {
                let why = "timed out waiting to authenticate";
                self.refusals.note(RefusalReason::Crowd, &peer, &why);
                stream.abort();
                return None;
            }
        };
        let _charge = self.strangers.charge(MemoryKind::Handshake, HANDSHAKE_BYTES);
        let greeting = tokio::select! {
            greeting = timeout(self.limits.authentication, self.hello(stream)) => greeting,
            () = ticket.evicted() => {
                let why = "TLS handshake evicted: too many unauthenticated connections";
                self.refusals.note(RefusalReason::Crowd, &peer, &why);
                return None;
            }
        };
        let greeting = match greeting {
            Ok(Ok(heard)) => heard,
            Ok(Err(why)) => {
                let why = format_args!("authentication failed: {why}");
                self.refusals.note(RefusalReason::NotAClient, &peer, &why);
                return None;
            }
            Err(_) => {
                self.refusals.note(RefusalReason::Late, &peer, &"authentication timed out");
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
                self.refusals.note(reason, &peer, &failure.text);
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
        self.sessions.begin(Arc::clone(&session), &client);
        let arrived = self.seat(greeting.stream, client, session, false).await?;
        Some(Arrived { offer, own: self.own.clone(), ..arrived })
    }

    /// Assigns an authenticated connection its place within its client's limit.
    async fn seat<T: Transport>(
        &self,
        stream: Channel<PrefixedStream<T>>,
        client: Client,
        session: Arc<Session>,
        asks_at_once: bool,
    ) -> Option<Arrived<T>> {
        let suspension = self.credentials.borrow().suspension(&client.name).cloned();
        if let Some(why) = suspension {
            self.refusals.note(RefusalReason::Quota, &client.name, &why);
            refuse(stream, Failure::new(ErrorCode::NotAuthorized, &*why)).await;
            return None;
        }
        let seat = match self.allowances.seat(&client.name, session.id(), self.sessions.lifetime())
        {
            Ok(seat) => seat,
            Err(most) => {
                let text = format!("this client has reached its limit of {most} sessions");
                self.refusals.note(RefusalReason::ClientLimit, &client.name, &text);
                refuse(stream, Failure::new(ErrorCode::NotAuthorized, text)).await;
                return None;
            }
        };
        let Ok(place) = self.clients.enter(Arc::clone(&client.name)) else {
            let why = "too many connections";
            self.refusals.note(RefusalReason::ClientLimit, &client.name, &why);
            let text = "this client has too many connections";
            refuse(stream, Failure::new(ErrorCode::ResourceExceeded, text)).await;
            return None;
        };
        stream.know_peer(client.account.memory());
        client.account.on_connection();
        let (offer, own) = (None, Vec::new());
        let (_permit, _seat) = (place, seat);
        Some(Arrived { stream, client, session, offer, own, asks_at_once, _permit, _seat })
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
            Some(name) => Ok(Client { account: self.accounts.of(&name), name, digest }),
            None => {
                let text = "unknown credential (revoked?): ask for a new invite";
                Err(Failure::new(ErrorCode::NotAuthorized, text))
            }
        }
    }
}
