//! Tunnel to a target through a server, over a used or a warm connection if there is one, else over a new one.
//!
//! Round trips until the answer: a new connection needs two with a session (the multipath handshake, then the opening
//! and Connect together), and three without one, because TLS is added. A warm or used connection needs one. On a
//! recently used connection, the application's first bytes are sent ahead and do not wait. A refused request is
//! repeated, since no byte of the application was sent.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::admission::{Admission, Authentication, HandshakeTurn};
use super::answers::{expect_welcome, expect_working, parse_listening};
use super::backoff::Backoff;
use super::early_bytes::EarlyBytes;
use super::failed::Failed;
use super::leased_connection::Leased;
use super::open::{Open, OpenError};
pub use super::patience::Timeouts;
use super::pool::{Pool, UsedConnections};
use super::trouble::{LastTrouble, Trouble};
use crate::channel::Channel;
use crate::deadlines::Deadlines;
use crate::message::{Message, Offer, VERSION, VisitorId};
use crate::secret::Secret;
use crate::session::sealed::SealedStream;
use crate::session::{ANSWER_LEN, Answer, Binding, Session};
use crate::target::Target;
use crate::tls;
use crate::transport::Transport;

/// Opens the streams below TLS.
pub trait Connect: Send + Sync + 'static {
    /// Type of the opened streams.
    type Stream: Transport;

    /// Opens a stream to the server, preferably to its member at the addresses `own`, unless `own` is empty.
    fn connect(
        &self,
        own: &[SocketAddr],
    ) -> impl Future<Output = anyhow::Result<Self::Stream>> + Send;

    /// Records why the server rejects this client, or `None` if it does not.
    fn record_rejection(&self, _reason: Option<String>) {}
}

/// One server, as described by its invite.
pub struct Tunnel<C: Connect> {
    connect: C,
    tls: TlsConnector,
    token: Secret,
    pub(super) patience: Timeouts,
    deadlines: Deadlines,
    admission: Admission,
    pool: Pool<Channel<C::Stream>>,
    used: UsedConnections<Channel<C::Stream>>,
    trouble: LastTrouble,
    /// Reference for tasks that must not keep the tunnel alive.
    weak_self: Weak<Tunnel<C>>,
}

/// An authenticated connection, its idle limit, and its session.
pub(super) type AuthenticatedConnection<T> = (Channel<T>, Duration, Arc<Session>);

impl<C: Connect> Tunnel<C> {
    /// Creates a tunnel to the server with this key, for this client, with `warm` connections kept ready.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(
        connect: C,
        pin: [u8; 32],
        token: Secret,
        patience: Timeouts,
        warm: usize,
    ) -> anyhow::Result<Arc<Tunnel<C>>> {
        Tunnel::with_deadlines(connect, pin, token, patience, Deadlines::default(), warm)
    }

    /// Like [`new`](Self::new), with latency requirements of applications.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn with_deadlines(
        connect: C,
        pin: [u8; 32],
        token: Secret,
        patience: Timeouts,
        deadlines: Deadlines,
        warm: usize,
    ) -> anyhow::Result<Arc<Tunnel<C>>> {
        let tls = tls::connector(pin)?;
        let (admission, pool) = (Admission::default(), Pool::new(warm));
        let tunnel = Arc::new_cyclic(|weak_self| {
            let weak_self = Weak::clone(weak_self);
            let (used, trouble) = Default::default();
            Tunnel {
                connect,
                tls,
                token,
                patience,
                deadlines,
                admission,
                pool,
                used,
                trouble,
                weak_self,
            }
        });
        if warm > 0 {
            tokio::spawn(keep_pool_filled(Arc::downgrade(&tunnel)));
        }
        Ok(tunnel)
    }

    /// Returns the reason why the latest request for a connection to the server failed, if it did.
    pub fn last_trouble(&self) -> Option<Trouble> {
        self.trouble.now()
    }

    fn record_outcome(&self, error: Option<&OpenError>) {
        if let Some(rejection) = self.trouble.record_outcome(error) {
            self.connect.record_rejection(rejection);
        }
    }

    /// Opens a connection to the server, up to its Welcome, and closes it.
    ///
    /// # Errors
    /// The server is unreachable, has another key, or refuses this client.
    pub async fn check(&self) -> Result<(), OpenError> {
        let (mut stream, ..) = self.open_connection(None).await?;
        // The connection has served its purpose even if its end is not delivered.
        let _ = timeout(self.patience.warm, stream.shutdown()).await;
        Ok(())
    }

    /// Drops the warm connections and the session, without replacement.
    pub fn close(&self) {
        self.pool.close();
        self.used.close();
        self.admission.close();
        self.trouble.close();
    }

    /// Lends a connection that has just been connected to a target. If it ends properly, it is kept for the next
    /// request.
    fn lease(&self, channel: Channel<C::Stream>) -> Leased<C::Stream> {
        let weak_self = Weak::clone(&self.weak_self);
        let take_back = move |channel| {
            // Without a tunnel no further request will come. The dropped connection ends properly.
            if let Some(tunnel) = weak_self.upgrade() {
                tunnel.used.add(channel);
            }
        };
        Leased::new(channel, Box::new(take_back))
    }

    /// Returns a waiting connection, and true if it carried a request within the last second.
    async fn waiting(&self) -> Option<(Channel<C::Stream>, bool)> {
        match self.used.take() {
            Some((stream, since)) => Some((stream, since < Duration::from_secs(1))),
            None => self.pool.take().await.map(|stream| (stream, false)),
        }
    }

    async fn request_on_idle(
        &self,
        mut stream: Channel<C::Stream>,
        request: &Message,
    ) -> Result<Channel<C::Stream>, OpenError> {
        let ask = async {
            send(&mut stream, &request.to_bytes()).await?;
            self.expect_message(&mut stream, self.patience.warm, expect_working).await
        };
        let asked = timeout(self.patience.warm, ask).await;
        if let Err(error) = asked
            .unwrap_or_else(|_| Err(OpenError::timed_out("a warm connection", self.patience.warm)))
        {
            stream.abort();
            return Err(error);
        }
        self.connected(&mut stream).await?;
        Ok(stream)
    }

    pub(super) async fn connected(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Result<(), OpenError> {
        let connected = |message: &Message| matches!(message, Message::Connected).then_some(());
        self.expect_message(stream, self.patience.target, connected).await
    }

    async fn connect_transport(&self, own: &[SocketAddr]) -> Result<C::Stream, OpenError> {
        timeout(self.patience.connect, self.connect.connect(own))
            .await
            .map_err(|_| OpenError::timed_out("connecting to the server", self.patience.connect))?
            .map_err(OpenError::Server)
    }

    /// Opens an authenticated connection. If there is a request, it has been sent. Otherwise, only the server's
    /// Welcome has been read. Attempts are repeated if the server is overloaded, or if the path was lost before the
    /// server answered.
    pub(super) async fn open_connection(
        &self,
        request: Option<&Message>,
    ) -> Result<AuthenticatedConnection<C::Stream>, OpenError> {
        let fresh = self.request_again(request).await;
        self.record_outcome(fresh.as_ref().err());
        fresh
    }

    async fn request_again(
        &self,
        request: Option<&Message>,
    ) -> Result<AuthenticatedConnection<C::Stream>, OpenError> {
        let mut backoff = Backoff::new(self.patience.overload);
        loop {
            let attempt = match self.admission.wait_for_admission().await {
                Authentication::Session(session) => {
                    self.attempt_with_session(&session, request).await
                }
                Authentication::NewClient(turn) => {
                    self.attempt_with_handshake(turn, &[], request).await
                }
            };
            match attempt {
                Ok(fresh) => return Ok(fresh),
                Err(Failed::Forgotten) => {}
                Err(Failed::Permanent(error)) => return Err(error),
                Err(Failed::PathLost(error)) => {
                    tracing::debug!(
                        "the path was lost before the server answered ({error}): dialing again"
                    );
                    if !backoff.wait_for_next().await {
                        return Err(error);
                    }
                }
                Err(Failed::Busy(error)) => {
                    tracing::debug!("the server is busy ({error}): waiting");
                    if !backoff.wait_for_next().await {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Attempts to connect with a session, and starts a second attempt in parallel if the path is silent or the answer
    /// takes long. The path of a connection may fail between the server's SYN/ACK and the first answer, when no other
    /// path can be joined yet (RFC 8684 section 3.1). Such a connection completes only after the path has returned. No
    /// application data was sent, so the second attempt may send the same request.
    async fn attempt_with_session(
        &self,
        session: &Arc<Session>,
        request: Option<&Message>,
    ) -> Result<AuthenticatedConnection<C::Stream>, Failed> {
        let silence = Notify::new();
        let mut first = pin!(self.attempt_session_once(session, request, &silence));
        tokio::select! {
            attempted = &mut first => return attempted,
            () = silence.notified() => {}
            () = sleep(self.patience.hedge) => {}
        }
        let mut second = pin!(self.attempt_session_once(session, request, &silence));
        let (attempted, other) = tokio::select! {
            attempted = &mut first => (attempted, second),
            attempted = &mut second => (attempted, first),
        };
        match attempted {
            Err(Failed::Permanent(OpenError::Server(_)) | Failed::PathLost(_)) => other.await,
            attempted => attempted,
        }
    }

    async fn attempt_session_once(
        &self,
        session: &Arc<Session>,
        request: Option<&Message>,
        silence: &Notify,
    ) -> Result<AuthenticatedConnection<C::Stream>, Failed> {
        let stream = self.connect_transport(session.own_addresses()).await?;
        let Some(binding) = stream.binding() else {
            // Plain TCP has no binding for a session.
            let turn = self.admission.enter_without_session().await;
            return self.authenticate_by_tls(stream, &turn, request).await;
        };
        let opening = self.authenticate_by_session(stream, session, &binding, request, silence);
        let opened = timeout(self.patience.handshake, opening).await;
        let late = |_| OpenError::timed_out("the server", self.patience.handshake);
        match opened.map_err(late)?? {
            Ok(fresh) => Ok(fresh),
            Err(stream) => {
                self.admission.forget_session(session.id());
                match self.admission.try_enter() {
                    Some(turn) => self.authenticate_by_tls(stream, &turn, request).await,
                    None => {
                        stream.abort();
                        Err(Failed::Forgotten)
                    }
                }
            }
        }
    }

    async fn attempt_with_handshake(
        &self,
        turn: HandshakeTurn,
        own: &[SocketAddr],
        request: Option<&Message>,
    ) -> Result<AuthenticatedConnection<C::Stream>, Failed> {
        let stream = self.connect_transport(own).await?;
        self.authenticate_by_tls(stream, &turn, request).await
    }

    /// Opens `stream` with the session. Returns the stream if the server does not know the session. Notifies `silence`
    /// if no path answers.
    async fn authenticate_by_session(
        &self,
        mut stream: C::Stream,
        session: &Arc<Session>,
        binding: &Binding,
        request: Option<&Message>,
        silence: &Notify,
    ) -> Result<Result<AuthenticatedConnection<C::Stream>, C::Stream>, Failed> {
        const OPENING_ERROR: &str = "cannot open a connection to the server";
        let request = request.map(Message::to_bytes).unwrap_or_default();
        let opened = session.open(binding, &request);
        let (opening, keys) = opened.map_err(OpenError::Server)?;
        let answer = async {
            stream.write_all(&opening).await?;
            stream.flush().await?;
            let mut answer = [0; ANSWER_LEN];
            read_or_report_silence(&mut stream, &mut answer, silence).await?;
            Answer::parse(answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
        };
        let answer =
            answer.await.map_err(|error| Failed::handshake_io_error(OPENING_ERROR, error))?;
        if answer == Answer::Unknown {
            return Ok(Err(stream));
        }
        let mut stream = Channel::session(SealedStream::new(stream, keys, Vec::new()));
        let (limit, ..) =
            self.expect_message(&mut stream, self.patience.handshake, expect_welcome).await?;
        Ok(Ok((stream, limit, Arc::clone(session))))
    }

    /// Authenticates by TLS, which also yields a session.
    async fn authenticate_by_tls(
        &self,
        stream: C::Stream,
        _turn: &HandshakeTurn,
        request: Option<&Message>,
    ) -> Result<AuthenticatedConnection<C::Stream>, Failed> {
        let handshake = async {
            let handshake = self.tls.connect(tls::server_name(), stream).await;
            let stream = handshake.map_err(|e| {
                Failed::handshake_io_error("TLS handshake with the server failed", e)
            })?;
            // The token is sent only now that the pin is verified.
            let mut bytes =
                Message::Hello { version: VERSION, token: self.token.clone() }.to_bytes();
            if let Some(request) = request {
                request.encode(&mut bytes);
            }
            let mut stream = Channel::tls(stream);
            send(&mut stream, &bytes).await.map_err(Failed::classify_early_error)?;
            let welcomed =
                self.expect_message(&mut stream, self.patience.handshake, expect_welcome).await;
            let (limit, offer, own) = welcomed.map_err(Failed::classify_early_error)?;
            let session = self.remember(&stream, offer, own)?;
            Ok((stream, limit, session))
        };
        timeout(self.patience.handshake, handshake).await.map_err(|_| {
            OpenError::timed_out("TLS handshake with the server", self.patience.handshake)
        })?
    }

    fn remember(
        &self,
        stream: &Channel<C::Stream>,
        offer: Option<Offer>,
        own: Vec<SocketAddr>,
    ) -> Result<Arc<Session>, OpenError> {
        let (Some(Offer { id, lifetime_s }), Some(tls)) = (offer, stream.client_tls()) else {
            return Err(OpenError::Server(anyhow::anyhow!("the server offered no session")));
        };
        let session = Session::from_tls(id, tls).map_err(OpenError::Server)?;
        let session = Arc::new(session.with_addresses(own));
        self.admission.store_session(Arc::clone(&session), Duration::from_secs(lifetime_s.into()));
        Ok(session)
    }

    /// Sends a request, and bytes ahead if this is allowed. Returns the stream to the target.
    async fn request(
        &self,
        request: &Message,
        mut ahead: Option<&mut EarlyBytes<'_>>,
    ) -> Result<Leased<C::Stream>, OpenError> {
        self.renew_in_time();
        if let Some((stream, just_used)) = self.waiting().await {
            let asked = match ahead.as_deref_mut().filter(|_| just_used) {
                Some(ahead) => self.request_on_used_connection(stream, request, ahead).await,
                None => self.request_on_idle(stream, request).await,
            };
            match asked {
                Err(OpenError::Server(error))
                    if ahead.as_deref().is_none_or(EarlyBytes::is_repeatable) =>
                {
                    tracing::debug!("warm connection was dead ({error:#}); dialing a new one");
                    self.pool.clear();
                    self.used.clear();
                }
                asked => return asked.map(|stream| self.lease(stream)),
            }
        }
        let (mut stream, ..) = self.open_connection(Some(request)).await?;
        self.expect_message(&mut stream, self.patience.handshake, expect_working).await?;
        self.connected(&mut stream).await?;
        if let Some(ahead) = ahead {
            let repeated = ahead.repeat(&mut stream).await;
            repeated.map_err(|error| OpenError::from_io("cannot send to the server", error))?;
        }
        Ok(self.lease(stream))
    }

    /// Returns a stream to a visitor of an address where the server listens for this client.
    ///
    /// # Errors
    /// The visitor has left, or the server cannot be reached.
    pub(super) async fn accept(&self, id: VisitorId) -> Result<Leased<C::Stream>, OpenError> {
        self.request(&Message::Accept(id), None).await
    }

    /// Makes the server listen. Returns the control connection and the address.
    ///
    /// # Errors
    /// The server refuses, or cannot be reached.
    pub(crate) async fn listen(
        &self,
        wanted: SocketAddr,
    ) -> Result<(Channel<C::Stream>, SocketAddr), OpenError> {
        self.renew_in_time();
        let (mut stream, ..) = self.open_connection(None).await?;
        send(&mut stream, &Message::Listen(wanted).to_bytes()).await?;
        let address =
            self.expect_message(&mut stream, self.patience.handshake, parse_listening).await?;
        Ok((stream, address))
    }

    pub(super) fn renew_in_time(&self) {
        if self.admission.should_renew()
            && let Some(tunnel) = self.weak_self.upgrade()
        {
            tokio::spawn(async move { tunnel.renew().await });
        }
    }

    /// Makes a new session before the old one ends, on a connection of its own that is closed immediately.
    async fn renew(&self) {
        let turn = self.admission.enter_without_session().await;
        // Renew at the same member, which may hold state of this client, such as a remote forward.
        let own = self.admission.own_addresses();
        match self.attempt_with_handshake(turn, &own, None).await {
            Ok((mut stream, ..)) => {
                self.record_outcome(None);
                drop(timeout(self.patience.warm, stream.shutdown()).await);
            }
            Err(Failed::Busy(error) | Failed::PathLost(error) | Failed::Permanent(error)) => {
                tracing::debug!("cannot renew the session yet: {error}");
                self.record_outcome(Some(&error));
                self.admission.on_renewal_failed();
            }
            Err(Failed::Forgotten) => self.admission.on_renewal_failed(),
        }
    }

    /// Reads one message, which `pick` must accept.
    pub(super) async fn expect_message<T>(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        patience: Duration,
        pick: impl Fn(&Message) -> Option<T>,
    ) -> Result<T, OpenError> {
        let read = timeout(patience, Message::read(stream)).await;
        match read.map_err(|_| OpenError::timed_out("the server", patience))? {
            Ok(Message::Failed(failure)) => Err(OpenError::Refused(failure)),
            Ok(message) => pick(&message).ok_or_else(|| {
                OpenError::Server(anyhow::anyhow!("unexpected {message} from the server"))
            }),
            Err(error) => Err(OpenError::from_io("the server ended the connection", error)),
        }
    }
}

impl<C: Connect> Open for Tunnel<C> {
    type Stream = Leased<C::Stream>;

    async fn open(&self, target: &Target) -> Result<Self::Stream, OpenError> {
        self.open_behind(target, None).await
    }

    async fn open_behind(
        &self,
        target: &Target,
        ahead: Option<&mut EarlyBytes<'_>>,
    ) -> Result<Self::Stream, OpenError> {
        // Bytes with a deadline must wait until the deadline is set.
        let ahead = ahead.filter(|_| self.deadlines.for_port(target.port).is_none());
        let mut stream = self.request(&Message::Connect(target.clone()), ahead).await?;
        stream.apply_deadline(&self.deadlines, target.port);
        Ok(stream)
    }
}

pub(super) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<(), OpenError> {
    let written = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    written.await.map_err(|error| OpenError::from_io("cannot send to the server", error))
}

/// Fills `answer`, and notifies `silence` if no path of the stream answers in two checks in a row: a busy machine may
/// have answers in its queues that are read late.
async fn read_or_report_silence(
    stream: &mut impl Transport,
    answer: &mut [u8],
    silence: &Notify,
) -> io::Result<()> {
    const CHECK_INTERVAL: Duration = Duration::from_millis(25);
    let (mut filled, mut was_silent) = (0, false);
    while filled < answer.len() {
        match timeout(CHECK_INTERVAL, stream.read(&mut answer[filled..])).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read?,
            Err(_) => {
                let is_silent = stream.peer_state().unreachable;
                if is_silent && was_silent {
                    silence.notify_one();
                }
                was_silent = is_silent;
            }
        }
    }
    Ok(())
}

/// Fills the pool until the tunnel is gone.
async fn keep_pool_filled<C: Connect>(tunnel: Weak<Tunnel<C>>) {
    const FIRST_PAUSE: Duration = Duration::from_secs(1);
    const MAX_PAUSE: Duration = Duration::from_secs(60);
    /// Interval between checks whether the tunnel still exists, because awaiting `changed` would keep it alive.
    const CHECK_INTERVAL: Duration = Duration::from_secs(5);
    let mut pause = FIRST_PAUSE;
    while let Some(tunnel) = tunnel.upgrade() {
        if tunnel.pool.missing_count() == 0 {
            let _ = timeout(CHECK_INTERVAL, tunnel.pool.changed()).await;
            continue;
        }
        match tunnel.open_connection(None).await {
            Ok((stream, limit, _)) => {
                if pause > FIRST_PAUSE {
                    tracing::info!("the server answers again");
                }
                // The client must close first: the server's close could collide with a request.
                tunnel.pool.add(stream, limit * 4 / 5);
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                drop(tunnel);
                // Logged once per outage at a visible level. Repetitions are for debugging.
                match pause == FIRST_PAUSE {
                    true => tracing::warn!("{error}"),
                    false => tracing::debug!("the server is still not reachable: {error}"),
                }
                sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}
