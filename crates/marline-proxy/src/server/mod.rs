//! Server side of the proxy: authenticates clients and connects to their targets.
//!
//! Life cycle of a connection: silent -> opening of a known session, or handshake queue, TLS and Hello (each within
//! ten seconds) -> Welcome -> warm until Connect -> rules -> target -> bytes. One multipath connection carries one
//! application connection, so that they do not block each other and each can have its own scheduler.

mod accounts;
pub mod admission;
pub mod allowances;
mod arrival;
mod datagrams;
pub mod dial;
mod nat;
mod own_resolver;
mod refusals;
mod remote;
mod sessions;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline::datagrams::LaneConfig;
use marline::memory::{MemoryAccount, MemoryBudget};
use marline_io::PendingTable;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub use accounts::ClientCounts;
pub use nat::filter::UdpFiltering;
pub use refusals::RefusalReason;

use accounts::{Account, Accounts};
use admission::{AdmissionLimits, Quota};
use allowances::Allowances;
use arrival::{AuthenticatedClient, HandshakeQueue};
use datagrams::DatagramService;
use refusals::Refusals;
use remote::Remotes;
use sessions::Sessions;

use crate::channel::Channel;
use crate::credentials::Credentials;
use crate::deadlines::Deadlines;
use crate::memory_wait::wait_for_memory;
use crate::message::{ErrorCode, Failure, Message, Offer, VisitorId};
use crate::relay::{Traffic, log_end, relay};
use crate::remote_rules::RemoteRule;
use crate::rules::Rules;
use crate::secret::Digest;
use crate::session::LIFETIME;
use crate::session::datagram_keys::LaneEnd;
use crate::shutdown::Stop;
use crate::target::Target;
use crate::transport::Transport;
use crate::udp::UdpCounts;

/// Limits of a server.
#[derive(Copy, Clone, Debug)]
pub struct ServerLimits {
    /// Limits on unauthenticated connections.
    pub admission: AdmissionLimits,
    /// Time limit for each of the first byte, the wait in the queue, and authentication.
    pub authentication: Duration,
    /// Lifetime of a session, an hour at most.
    pub session: Duration,
    /// Time an authenticated connection may wait for its request.
    pub idle: Duration,
    /// Connections per credential.
    pub per_client: usize,
    /// Authenticated connections in total.
    pub clients_total: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            admission: AdmissionLimits::default(),
            authentication: Duration::from_secs(10),
            session: LIFETIME,
            idle: Duration::from_secs(600),
            per_client: 16_384,
            clients_total: 32_768,
        }
    }
}

/// The server.
#[derive(Debug)]
pub struct Server {
    acceptor: Acceptor,
    credentials: watch::Receiver<Arc<Credentials>>,
    rules: watch::Sender<Arc<Rules>>,
    limits: ServerLimits,
    /// Connections that have sent nothing yet.
    silent: PendingTable,
    handshakes: HandshakeQueue,
    sessions: Sessions,
    /// Addresses at which clients with a session reach this server and no other.
    own: Vec<SocketAddr>,
    clients: Quota<Arc<str>>,
    remotes: Remotes,
    datagrams: DatagramService,
    stop: Stop,
    accounts: Accounts,
    /// Memory account of connections that are not authenticated yet.
    unauthenticated_memory: MemoryAccount,
    allowances: Allowances,
    refusals: Refusals,
    deadlines: Deadlines,
}

struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// Delay before `Working` is sent, which lets the client distinguish a slow target from a dead connection. A target
/// that connects earlier is reported together with `Working`.
const WORKING_DELAY: Duration = Duration::from_millis(20);

/// Buffer size of an unauthenticated connection per direction, in bytes. The data that a client sends ahead fits.
const UNAUTHENTICATED_BUFFER: u64 = 16 * 1_024;

/// Time limit for the request on a new connection when another process has taken over.
const LATE_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Request on an authenticated connection.
enum ClientRequest {
    /// A target.
    Target(Target),
    /// An address to listen on.
    Listen(SocketAddr),
    /// A visitor of a remote forward.
    Visitor(VisitorId),
    /// A lane for datagrams. The field is the client's end of the lane.
    Datagrams(LaneEnd),
}

/// Client that owns an authenticated connection.
#[derive(Clone, Debug)]
struct Client {
    name: Arc<str>,
    digest: Digest,
    account: Arc<Account>,
}

impl Server {
    /// Creates a server with this key (in `acceptor`), these clients and rules.
    #[must_use]
    pub fn new(
        acceptor: TlsAcceptor,
        credentials: watch::Receiver<Arc<Credentials>>,
        rules: Rules,
        limits: ServerLimits,
        stop: Stop,
    ) -> Server {
        Server::with_budget(MemoryBudget::new(None), acceptor, credentials, rules, limits, stop)
    }

    /// Like [`new`](Self::new), with a budget that all clients share. Each credential has an account of its own.
    #[must_use]
    pub fn with_budget(
        budget: MemoryBudget,
        acceptor: TlsAcceptor,
        credentials: watch::Receiver<Arc<Credentials>>,
        rules: Rules,
        limits: ServerLimits,
        stop: Stop,
    ) -> Server {
        let sessions = Sessions::new(credentials.clone(), limits.session);
        Server {
            acceptor: Acceptor(acceptor),
            credentials,
            rules: watch::Sender::new(Arc::new(rules)),
            silent: PendingTable::new(limits.admission.silent()),
            handshakes: HandshakeQueue::new(limits.admission),
            sessions,
            own: Vec::new(),
            clients: Quota::new(limits.per_client, limits.clients_total),
            remotes: Remotes::default(),
            datagrams: DatagramService::default(),
            limits,
            stop,
            unauthenticated_memory: budget.account(UNAUTHENTICATED_BUFFER),
            accounts: Accounts::new(budget),
            allowances: Allowances::default(),
            refusals: Refusals::default(),
            deadlines: Deadlines::default(),
        }
    }

    /// Returns the memory account of connections that are not authenticated yet.
    #[must_use]
    pub const fn unauthenticated_account(&self) -> &MemoryAccount {
        &self.unauthenticated_memory
    }

    /// Announces addresses of this server to clients, for servers that share an address with others. Clients with a
    /// session open further connections to these addresses, because no other server knows the session.
    #[must_use]
    pub fn advertise(self, own: Vec<SocketAddr>) -> Server {
        Server { own, ..self }
    }

    /// Applies these rules and this limit on connections per client to new requests. Existing connections are not
    /// affected.
    pub fn change(&self, rules: Rules, per_client: usize) {
        self.rules.send_replace(Arc::new(rules));
        self.clients.bound(per_client, self.limits.clients_total);
    }

    /// Applies these rules of remote forwards to new and existing forwards. Without rules, no client may listen.
    pub fn allow_remote(&self, rules: Vec<RemoteRule>) {
        self.remotes.change(rules);
    }

    /// Returns the latency requirements of applications, which the server applies to data for clients. Initially
    /// empty.
    #[must_use]
    pub const fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Enables datagrams for clients, on lanes with these settings. Without this call, they are refused. Existing
    /// lanes keep their settings.
    pub fn offer_datagrams(&self, config: LaneConfig, filtering: UdpFiltering) {
        self.datagrams.set_config(config, filtering);
    }

    /// Returns the counts of relayed UDP.
    #[must_use]
    pub fn udp_counts(&self) -> UdpCounts {
        self.datagrams.counts()
    }

    /// Returns the counts per credential, by name.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientCounts> {
        let mut clients = self.accounts.counts(|name| self.clients.count_of(name));
        self.allowances.add_quotas(&mut clients, allowances::unix_s());
        clients
    }

    /// Returns the number of refusals so far, by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (RefusalReason, u64)> {
        self.refusals.counts()
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.borrow())
    }

    /// Returns the number of connections that have not authenticated yet.
    #[must_use]
    pub fn count_unauthenticated(&self) -> usize {
        self.silent.count() + self.handshakes.count()
    }

    /// Returns the number of connections that have authenticated.
    #[must_use]
    pub fn authenticated(&self) -> usize {
        self.clients.count()
    }

    /// Returns the number of known sessions.
    #[cfg(test)]
    pub(crate) fn known_session_count(&self) -> usize {
        self.sessions.count()
    }

    /// Forgets all sessions, as a restart does.
    #[cfg(test)]
    pub(crate) fn forget_sessions(&self) {
        self.sessions.clear();
    }

    /// Serves one connection from `peer` to its end.
    pub async fn serve<T: Transport>(&self, stream: T, peer: IpAddr) {
        // Boxed, because authentication is short and takes several times the memory of a relay that runs for hours.
        // Destructured immediately, because a named value keeps its memory while bytes are relayed.
        let Some(AuthenticatedClient {
            mut stream,
            client,
            session,
            offer,
            own,
            has_early_request: mut asks_at_once,
            _permit,
            _place: _seat,
        }) = Box::pin(self.authenticate_connection(stream, peer)).await
        else {
            return;
        };
        let mut unsaid = PendingMessages::default();
        unsaid.add(&self.welcome_message(offer, own));
        let mut patience = LATE_REQUEST_TIMEOUT;
        loop {
            let wish = tokio::select! {
                wish = Box::pin(self.read_request(&mut stream, &mut unsaid, asks_at_once)) => wish,
                () = self.wait_until_unwanted(patience) => None,
                ended = self.wait_until_revoked(&client) => return match ended {
                    Some(failure) => unsaid.refuse(stream, failure).await,
                    None => stream.abort(),
                },
            };
            patience = Duration::ZERO;
            let carried = match wish {
                Some(Ok(ClientRequest::Target(target))) => {
                    // Boxed, so that it is freed with all its state before bytes are relayed.
                    let dialing = Box::pin(self.dial(stream, unsaid, &client, &target));
                    let Some((stream, unsaid, socket)) = dialing.await else { return };
                    let usual = self.deadlines.apply_to(&stream, target.port);
                    let again =
                        self.confirm_and_relay(stream, unsaid, &client, socket, &target).await;
                    again.filter(|again| usual.is_none_or(|usual| usual.restore(again)))
                }
                Some(Ok(ClientRequest::Visitor(id))) => {
                    Box::pin(self.accept(stream, unsaid, &client, id)).await
                }
                Some(Ok(ClientRequest::Listen(wanted))) => {
                    // Boxed, because this is rare and would enlarge the future of all other requests.
                    return Box::pin(self.listen(stream, unsaid, &client, wanted)).await;
                }
                Some(Ok(ClientRequest::Datagrams(end))) => {
                    let carried = self.carry_datagrams(stream, unsaid, &client, &session, end);
                    return Box::pin(carried).await;
                }
                Some(Err(failure)) => return unsaid.refuse(stream, failure).await,
                // The connection ended without a request: close in an orderly way.
                None => return drop(stream.shutdown().await),
            };
            match carried {
                Some(again) => {
                    (stream, unsaid, asks_at_once) = (again, PendingMessages::default(), true)
                }
                None => return,
            }
        }
    }

    fn welcome_message(&self, session: Option<Offer>, own: Vec<SocketAddr>) -> Message {
        let idle_limit_s = self.limits.idle.as_secs().min(u64::from(u16::MAX)) as u16;
        Message::Welcome { idle_limit_s, session, own }
    }

    /// Resolves when a connection without a request is no longer needed: the server is draining, or another process
    /// accepts new work and gets the client's next connection.
    async fn wait_until_unwanted(&self, patience: Duration) {
        let elsewhere = async {
            self.stop.handed_over().await;
            tokio::time::sleep(patience).await;
        };
        tokio::select! {
            () = self.stop.draining() => {}
            () = elsewhere => {}
        }
    }

    /// Sends the greeting and waits for the client's request. Returns `None` if the connection ends without one. If
    /// the request is already on its way, the greeting is kept back and leaves together with the next message.
    async fn read_request<S: Transport>(
        &self,
        stream: &mut S,
        unsaid: &mut PendingMessages,
        asks_at_once: bool,
    ) -> Option<Result<ClientRequest, Failure>> {
        if !asks_at_once {
            unsaid.send(stream).await.ok()?;
        }
        match timeout(self.limits.idle, Message::read(stream)).await.ok()? {
            Ok(Message::Connect(target)) => Some(Ok(ClientRequest::Target(target))),
            Ok(Message::Listen(wanted)) => Some(Ok(ClientRequest::Listen(wanted))),
            Ok(Message::Accept(id)) => Some(Ok(ClientRequest::Visitor(id))),
            Ok(Message::Datagrams(end)) => Some(Ok(ClientRequest::Datagrams(end))),
            Ok(other) => {
                let text = format!("expected Connect, not {other}");
                Some(Err(Failure::new(ErrorCode::UnsupportedMessage, text)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Some(Err(Failure::new(ErrorCode::Malformed, error.to_string())))
            }
            Err(_) => None,
        }
    }

    /// Connects to the requested target. Returns the socket and the stream. Returns `None` if the target was not
    /// reached and the client has received the reason.
    async fn dial<T: Transport>(
        &self,
        mut stream: Channel<T>,
        mut unsaid: PendingMessages,
        client: &Client,
        target: &Target,
    ) -> Option<(Channel<T>, PendingMessages, TcpStream)> {
        unsaid.add(&Message::Working);
        let rules = self.rules();
        let mut dialing = Box::pin(async {
            let _room = wait_for_memory(client.account.memory()).await;
            dial::dial(&rules, target, client.account.memory()).await
        });
        let dialed = match timeout(WORKING_DELAY, &mut dialing).await {
            Ok(dialed) => dialed,
            Err(_) => {
                if unsaid.send(&mut stream).await.is_err() {
                    stream.abort();
                    return None;
                }
                dialing.await
            }
        };
        match dialed {
            Ok(socket) => Some((stream, unsaid, socket)),
            Err(failure) => {
                self.log_refusal(client, &failure, "a target");
                unsaid.refuse(stream, failure).await;
                None
            }
        }
    }

    /// Confirms that the target is connected, and relays bytes until both directions have ended. Returns the
    /// connection if it can be reused.
    async fn confirm_and_relay<T: Transport>(
        &self,
        mut stream: Channel<T>,
        mut unsaid: PendingMessages,
        client: &Client,
        socket: TcpStream,
        target: &Target,
    ) -> Option<Channel<T>> {
        let name = &client.name;
        unsaid.add(&Message::Connected);
        if unsaid.send(&mut stream).await.is_err() {
            socket.abort();
            stream.abort();
            return None;
        }
        tracing::debug!(client = %name, %target, "connected");
        // Pinned here, or the future would exist three times: here, as the relay's argument, and where the relay
        // awaits it.
        let cancel = pin!(async {
            tokio::select! {
                () = self.stop.wait_for_end() => {}
                _ = self.wait_until_revoked(client) => {}
            }
        });
        stream.keep_open();
        let (begun, traffic) = (Instant::now(), Traffic::part_of(&client.account.traffic));
        let end = relay(socket, stream, &traffic, cancel).await;
        log_end(name, begun, &traffic, &end);
        match end {
            Ok(mut stream) => {
                tracing::debug!(client = %name, %target, "connection closed");
                stream.renew().then_some(stream)
            }
            Err(error) => {
                tracing::debug!(client = %name, %target, "connection failed: {error}");
                None
            }
        }
    }

    /// Counts and logs a refused request. The log omits the target unless the rules forbid it, because an administrator
    /// then has to decide whether to allow it.
    fn log_refusal(&self, client: &Client, failure: &Failure, what: &str) {
        let reason = RefusalReason::from_failure(failure);
        if reason == RefusalReason::Rules {
            return self.refusals.record(reason, &client.name, &failure.text);
        }
        tracing::debug!(client = %client.name, "{}", failure.text);
        let whose =
            if reason == RefusalReason::Target { "unreachable" } else { "internal server error" };
        self.refusals.record(reason, &client.name, &format_args!("{what}: {whose}"));
    }

    /// Resolves when the client's credential is revoked or suspended. Returns the failure to send if the client was
    /// suspended.
    async fn wait_until_revoked(&self, client: &Client) -> Option<Failure> {
        let mut credentials = self.credentials.clone();
        let ends = |now: &Arc<Credentials>| {
            now.suspension(&client.name).is_some() || now.find(&client.digest).is_none()
        };
        let Ok(now) = credentials.wait_for(ends).await else {
            // The credential file is no longer watched, so the credentials cannot change.
            return std::future::pending().await;
        };
        let suspension = now.suspension(&client.name);
        match suspension {
            Some(why) => tracing::info!(client = %client.name, "connection ended: {why}"),
            None => tracing::info!(client = %client.name, "credential revoked: connection ended"),
        }
        suspension.map(|why| Failure::new(ErrorCode::NotAuthorized, &**why))
    }
}

/// Messages kept back to leave in one record with the next one.
#[derive(Debug, Default)]
struct PendingMessages(Vec<u8>);

impl PendingMessages {
    fn add(&mut self, message: &Message) {
        message.encode(&mut self.0);
    }

    async fn send(&mut self, stream: &mut impl Transport) -> std::io::Result<()> {
        let bytes = std::mem::take(&mut self.0);
        stream.write_all(&bytes).await?;
        stream.flush().await
    }

    /// Sends a refusal and closes so that the client can read it. Data that the client sent ahead is read first,
    /// because unread data would make closing reset the connection and lose the answer.
    async fn refuse(mut self, mut stream: impl Transport, failure: Failure) {
        const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
        const MAX_SKIPPED: u64 = 256 * 1_024;
        self.add(&Message::Failed(failure));
        let _ = timeout(CLOSE_TIMEOUT, async {
            self.send(&mut stream).await?;
            stream.shutdown().await?;
            tokio::io::copy(&mut (&mut stream).take(MAX_SKIPPED), &mut tokio::io::sink()).await
        })
        .await;
    }
}

async fn refuse(stream: impl Transport, failure: Failure) {
    PendingMessages::default().refuse(stream, failure).await;
}

#[cfg(test)]
mod tests;
