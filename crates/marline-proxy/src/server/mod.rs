//! Server side of the proxy: authenticates clients and connects to their targets.
//!
//! Life cycle of a connection: silent -> opening of a known session, or handshake queue, TLS and
//! Hello (each within ten seconds) -> Welcome -> warm until Connect -> rules -> target -> bytes.
//! One multipath connection carries one application connection, so that there is no head-of-line
//! blocking between them, and each can have its own scheduler.

mod accounts;
pub mod admission;
pub mod allowances;
mod arrival;
mod datagrams;
pub mod dial;
mod handshakes;
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
use marline::{MemoryAccount, MemoryBudget};
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
use arrival::Arrived;
use datagrams::DatagramService;
use handshakes::HandshakeQueue;
use refusals::Refusals;
use remote::Remotes;
use sessions::Sessions;

use crate::channel::Channel;
use crate::credentials::Credentials;
use crate::deadlines::Deadlines;
use crate::memory_wait::wait_for_memory;
use crate::message::{ErrorCode, Failure, Message, Offer, VisitorId};
use crate::relay::{Traffic, relay, tell_end};
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
    /// On unauthenticated connections.
    pub admission: AdmissionLimits,
    /// Time limit for the first byte, then for the wait in the queue, and then for authentication.
    pub authentication: Duration,
    /// Time that a session lasts, an hour at most.
    pub session: Duration,
    /// Time an authenticated connection may wait for its request.
    pub idle: Duration,
    /// Connections per credential.
    pub per_client: usize,
    /// Authenticated connections in all.
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
    /// Where clients that have a session reach this server and no other.
    own: Vec<SocketAddr>,
    clients: Quota<Arc<str>>,
    remotes: Remotes,
    datagrams: DatagramService,
    stop: Stop,
    accounts: Accounts,
    /// Who is charged for peers that are not authenticated.
    strangers: MemoryAccount,
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

/// A target that is connected to so soon is told of together with Working, which tells a slow one from a
/// connection that is dead.
const WORKING_AFTER: Duration = Duration::from_millis(20);

/// What a connection may hold each way before its peer is authenticated: what a client sends ahead fits.
const STRANGER_BUFFER: u64 = 16 * 1_024;

/// A connection that arrived when another process took over has so long to say what it is for.
const ARRIVED_LATE: Duration = Duration::from_secs(2);

/// What an authenticated connection is for.
enum Wish {
    /// A target.
    Target(Target),
    /// An address to listen at.
    Listen(SocketAddr),
    /// Somebody who came there.
    Visitor(VisitorId),
    /// Datagrams beside the connection, of which this is the client's end.
    Datagrams(LaneEnd),
}

/// An authenticated connection's owner.
#[derive(Clone, Debug)]
struct Client {
    name: Arc<str>,
    digest: Digest,
    account: Arc<Account>,
}

impl Server {
    /// A server with this key (in `acceptor`), these clients and rules.
    #[must_use]
    pub fn new(
        acceptor: TlsAcceptor,
        credentials: watch::Receiver<Arc<Credentials>>,
        rules: Rules,
        limits: ServerLimits,
        stop: Stop,
    ) -> Server {
        Server::within(MemoryBudget::new(None), acceptor, (credentials, rules), limits, stop)
    }

    /// The same, with a budget that its clients share: each credential has an account of its own.
    #[must_use]
    pub fn within(
        budget: MemoryBudget,
        acceptor: TlsAcceptor,
        (credentials, rules): (watch::Receiver<Arc<Credentials>>, Rules),
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
            strangers: budget.account(STRANGER_BUFFER),
            accounts: Accounts::new(budget),
            allowances: Allowances::default(),
            refusals: Refusals::default(),
            deadlines: Deadlines::default(),
        }
    }

    /// Who is charged for connections until their peers are authenticated: their windows are small.
    #[must_use]
    pub const fn strangers(&self) -> &MemoryAccount {
        &self.strangers
    }

    /// Tells clients where to reach this very server, for others share the address that they know: their further
    /// connections come there, for the session is known nowhere else.
    #[must_use]
    pub fn advertise(self, own: Vec<SocketAddr>) -> Server {
        Server { own, ..self }
    }

    /// Applies these rules and this limit on connections per client to new requests. Existing
    /// connections are not affected.
    pub fn change(&self, rules: Rules, per_client: usize) {
        self.rules.send_replace(Arc::new(rules));
        self.clients.bound(per_client, self.limits.clients_total);
    }

    /// Applies these rules of remote forwards: to new ones, and to existing ones as well. There are none
    /// at first, and nobody may listen.
    pub fn allow_remote(&self, rules: Vec<RemoteRule>) {
        self.remotes.change(rules);
    }

    /// Latency requirements of applications, by which it sends to clients; none at first.
    #[must_use]
    pub const fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Carries datagrams of clients from now on, on lanes with these settings. Before, they are refused. Existing lanes
    /// keep theirs.
    pub fn offer_datagrams(&self, config: LaneConfig, filtering: UdpFiltering) {
        self.datagrams.offer(config, filtering);
    }

    /// Counts of the UDP that it carries.
    #[must_use]
    pub fn udp_counts(&self) -> UdpCounts {
        self.datagrams.counts()
    }

    /// What came by each credential, by name.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientCounts> {
        let mut clients = self.accounts.counts(|name| self.clients.count_of(name));
        self.allowances.add_quotas(&mut clients, allowances::unix_s());
        clients
    }

    /// How many were refused so far, by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (RefusalReason, u64)> {
        self.refusals.counts()
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.borrow())
    }

    /// Connections that have not authenticated yet.
    #[must_use]
    pub fn unauthenticated(&self) -> usize {
        self.silent.count() + self.handshakes.count()
    }

    /// Connections that have authenticated.
    #[must_use]
    pub fn authenticated(&self) -> usize {
        self.clients.count()
    }

    /// Sessions that it knows.
    #[cfg(test)]
    pub(crate) fn sessions_known(&self) -> usize {
        self.sessions.count()
    }

    /// What a restart does to them.
    #[cfg(test)]
    pub(crate) fn forget_sessions(&self) {
        self.sessions.clear();
    }

    /// Serves one connection from `peer` to its end.
    pub async fn serve<T: Transport>(&self, stream: T, peer: IpAddr) {
        // Boxed, as what else is over soon and takes several times the room that a relay takes for hours.
        // Taken apart at once: what has a name keeps its room while bytes are passed.
        let Some(Arrived {
            mut stream,
            client,
            session,
            offer,
            own,
            mut asks_at_once,
            _permit,
            _seat,
        }) = Box::pin(self.arrive(stream, peer)).await
        else {
            return;
        };
        let mut unsaid = Unsaid::default();
        unsaid.add(&self.welcome(offer, own));
        let mut patience = ARRIVED_LATE;
        loop {
            let wish = tokio::select! {
                wish = Box::pin(self.request(&mut stream, &mut unsaid, asks_at_once)) => wish,
                () = self.unwanted(patience) => None,
                ended = self.unwelcome(&client) => return match ended {
                    Some(failure) => unsaid.refuse(stream, failure).await,
                    None => stream.abort(),
                },
            };
            patience = Duration::ZERO;
            let carried = match wish {
                Some(Ok(Wish::Target(target))) => {
                    // Boxed, and gone before bytes are passed, with all that it needs.
                    let dialing = Box::pin(self.dial(stream, unsaid, &client, &target));
                    let Some((stream, unsaid, socket)) = dialing.await else { return };
                    let usual = self.deadlines.begin(&stream, target.port);
                    let again = self.join(stream, unsaid, &client, (socket, &target)).await;
                    again.filter(|again| usual.is_none_or(|usual| usual.again(again)))
                }
                Some(Ok(Wish::Visitor(id))) => {
                    Box::pin(self.accept(stream, unsaid, &client, id)).await
                }
                Some(Ok(Wish::Listen(wanted))) => {
                    // Boxed: few do this, and all others would have its size.
                    return Box::pin(self.listen(stream, unsaid, &client, wanted)).await;
                }
                Some(Ok(Wish::Datagrams(end))) => {
                    let of = (&client, &*session);
                    return Box::pin(self.carry_datagrams(stream, unsaid, of, end)).await;
                }
                Some(Err(failure)) => return unsaid.refuse(stream, failure).await,
                // Unused to its end: good order on both sides.
                None => return drop(stream.shutdown().await),
            };
            match carried {
                Some(again) => (stream, unsaid, asks_at_once) = (again, Unsaid::default(), true),
                None => return,
            }
        }
    }

    fn welcome(&self, session: Option<Offer>, own: Vec<SocketAddr>) -> Message {
        let idle_limit_s = self.limits.idle.as_secs().min(u64::from(u16::MAX)) as u16;
        Message::Welcome { idle_limit_s, session, own }
    }

    /// Resolves when a connection without a request is of no use here: nothing new is begun, or it is begun by
    /// another process, which gets the client's next connection.
    async fn unwanted(&self, patience: Duration) {
        let elsewhere = async {
            self.stop.handed_over().await;
            tokio::time::sleep(patience).await;
        };
        tokio::select! {
            () = self.stop.draining() => {}
            () = elsewhere => {}
        }
    }

    /// Greets, and waits for the client's wish; `None` is an end without one. The greeting stays unsaid
    /// if the wish is on its way already: what is said next follows at once.
    async fn request<S: Transport>(
        &self,
        stream: &mut S,
        unsaid: &mut Unsaid,
        asks_at_once: bool,
    ) -> Option<Result<Wish, Failure>> {
        if !asks_at_once {
            unsaid.say(stream).await.ok()?;
        }
        match timeout(self.limits.idle, Message::read(stream)).await.ok()? {
            Ok(Message::Connect(target)) => Some(Ok(Wish::Target(target))),
            Ok(Message::Listen(wanted)) => Some(Ok(Wish::Listen(wanted))),
            Ok(Message::Accept(id)) => Some(Ok(Wish::Visitor(id))),
            Ok(Message::Datagrams(end)) => Some(Ok(Wish::Datagrams(end))),
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

    /// Connects to what was asked for. Gives the socket with what will go on; `None`: the client was told why not.
    async fn dial<T: Transport>(
        &self,
        mut stream: Channel<T>,
        mut unsaid: Unsaid,
        client: &Client,
        target: &Target,
    ) -> Option<(Channel<T>, Unsaid, TcpStream)> {
        unsaid.add(&Message::Working);
        let rules = self.rules();
        let mut dialing = Box::pin(async {
            let _room = wait_for_memory(client.account.memory()).await;
            dial::dial(&rules, target, client.account.memory()).await
        });
        let dialed = match timeout(WORKING_AFTER, &mut dialing).await {
            Ok(dialed) => dialed,
            Err(_) => {
                if unsaid.say(&mut stream).await.is_err() {
                    stream.abort();
                    return None;
                }
                dialing.await
            }
        };
        match dialed {
            Ok(socket) => Some((stream, unsaid, socket)),
            Err(failure) => {
                self.refuse_request(client, &failure, "a target");
                unsaid.refuse(stream, failure).await;
                None
            }
        }
    }

    /// Says that the connection is one with a socket's, and passes bytes to the end of both. Gives it back
    /// if it can be asked for more.
    async fn join<T: Transport>(
        &self,
        mut stream: Channel<T>,
        mut unsaid: Unsaid,
        client: &Client,
        (socket, target): (TcpStream, &Target),
    ) -> Option<Channel<T>> {
        let name = &client.name;
        unsaid.add(&Message::Connected);
        if unsaid.say(&mut stream).await.is_err() {
            socket.abort();
            stream.abort();
            return None;
        }
        tracing::debug!(client = %name, %target, "connected");
        // Pinned here, or it would be there three times: as it is, as the relay's argument, and where that waits.
        let cancel = pin!(async {
            tokio::select! {
                () = self.stop.over() => {}
                _ = self.unwelcome(client) => {}
            }
        });
        stream.keep();
        let (begun, traffic) = (Instant::now(), Traffic::part_of(&client.account.traffic));
        let end = relay(socket, stream, &traffic, cancel).await;
        tell_end(name, begun, &traffic, &end);
        match end {
            Ok(mut stream) => {
                tracing::debug!(client = %name, %target, "done");
                stream.renew().then_some(stream)
            }
            Err(error) => {
                tracing::debug!(client = %name, %target, "broken: {error}");
                None
            }
        }
    }

    /// Counts and tells of a client's request that is refused. What it asked for is its own business, but where
    /// the rules forbid it: somebody has to decide whether to allow that.
    fn refuse_request(&self, client: &Client, failure: &Failure, what: &str) {
        let reason = RefusalReason::of_request(failure);
        if reason == RefusalReason::Rules {
            return self.refusals.note(reason, &client.name, &failure.text);
        }
        tracing::debug!(client = %client.name, "{}", failure.text);
        let whose = if reason == RefusalReason::Target {
            "unreachable"
        } else {
            "internal error of the server"
        };
        self.refusals.note(reason, &client.name, &format_args!("{what}: {whose}"));
    }

    /// Resolves when the client's credential is taken away, or suspended: then with what it is told.
    async fn unwelcome(&self, client: &Client) -> Option<Failure> {
        let mut credentials = self.credentials.clone();
        let ends = |now: &Arc<Credentials>| {
            now.suspension(&client.name).is_some() || now.find(&client.digest).is_none()
        };
        let Ok(now) = credentials.wait_for(ends).await else {
            // Nobody follows the file any more: what is in force stays.
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

/// Messages that wait for the next one, to leave in one record with it.
#[derive(Debug, Default)]
struct Unsaid(Vec<u8>);

impl Unsaid {
    fn add(&mut self, message: &Message) {
        message.encode(&mut self.0);
    }

    async fn say(&mut self, stream: &mut impl Transport) -> std::io::Result<()> {
        let bytes = std::mem::take(&mut self.0);
        stream.write_all(&bytes).await?;
        stream.flush().await
    }

    /// Tells the client why not, and ends so that it can read it: what it sent ahead is read, or closing
    /// would reset the connection and the answer with it.
    async fn refuse(mut self, mut stream: impl Transport, failure: Failure) {
        const PATIENCE: Duration = Duration::from_secs(5);
        const MOST: u64 = 256 * 1_024;
        self.add(&Message::Failed(failure));
        let _ = timeout(PATIENCE, async {
            self.say(&mut stream).await?;
            stream.shutdown().await?;
            tokio::io::copy(&mut (&mut stream).take(MOST), &mut tokio::io::sink()).await
        })
        .await;
    }
}

async fn refuse(stream: impl Transport, failure: Failure) {
    Unsaid::default().refuse(stream, failure).await;
}

#[cfg(test)]
mod tests;
