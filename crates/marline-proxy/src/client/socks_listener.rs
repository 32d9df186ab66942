//! Listeners for applications: SOCKS ports, which also accept HTTP, and forwards.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline::memory::MemoryAccount;
use marline_io::{PendingLimits, PendingTable};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::early_bytes::EarlyBytes;
use super::listening::{listen_error, listen_with};
use super::open::{Open, OpenError};
use super::open_targets::OpenTargets;
use super::places::{Places, WaitTurn};
use super::transparent;
use super::udp_tunnel::CurrentUdpTunnel;
use crate::http::request::{Request as HttpRequest, may_start_http};
use crate::memory_wait::wait_for_memory;
use crate::message::Failure;
use crate::relay::{Traffic, log_end, relay};
use crate::shutdown::Stop;
use crate::socks::{self, Reply, Request, SocksError, Version};
use crate::target::Target;
use crate::transport::Transport;

/// Time limit for an application's complete request.
const SOCKS_TIMEOUT: Duration = Duration::from_secs(10);

/// Limit on applications without a complete request. Beyond it, the oldest one of the source that has the most is
/// disconnected.
const PENDING_APPLICATIONS: PendingLimits = PendingLimits { total: 1_024, per_source: 1_024 };

/// State shared by all listening ports.
pub struct SocksListener<O> {
    pub(super) way: Arc<O>,
    pub(super) places: Places,
    pending_requests: PendingTable,
    pub(super) udp: CurrentUdpTunnel,
    pub(super) stop: Stop,
    /// Bytes from and to all applications.
    pub traffic: Arc<Traffic>,
    targets: OpenTargets,
}

/// Service of a listening port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// The application names the target by SOCKS5, SOCKS4 or HTTP.
    Socks5,
    /// Fixed target.
    Forward(Target),
    /// Redirected connections, each with a target of its own.
    Transparent,
}

/// Binds a port for applications. It is served once there is a runtime.
///
/// # Errors
/// The port is taken or not allowed.
pub fn bind(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    listen_with(address, |_| Ok(())).map_err(|error| listen_error("TCP", address, error))
}

impl<O: Open> SocksListener<O> {
    /// Creates a listener whose applications use `way`, at most `places` at the same time. Their streams are added to
    /// `targets`, and their memory is charged to `memory`.
    #[must_use]
    pub fn new(
        way: Arc<O>,
        places: usize,
        stop: Stop,
        targets: OpenTargets,
        memory: MemoryAccount,
    ) -> Arc<SocksListener<O>> {
        let (udp, traffic) = (CurrentUdpTunnel::default(), Arc::new(Traffic::with_account(memory)));
        Arc::new(SocksListener {
            way,
            places: Places::new(places),
            pending_requests: PendingTable::new(PENDING_APPLICATIONS),
            udp,
            stop,
            traffic,
            targets,
        })
    }

    /// Changes the maximum number of simultaneous applications. Existing ones stay, and a lower limit is reached as
    /// they end. Needs a runtime.
    pub fn bound(&self, places: usize) {
        self.places.resize(places);
    }

    /// Serves one listening port until the drain or until `closed` resolves, and all accepted connections until
    /// they end.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        service: Service,
        closed: impl Future<Output = ()>,
    ) {
        let mut running = JoinSet::new();
        let mut closed = pin!(closed);
        loop {
            let (socket, remote, turn) = tokio::select! {
                next = self.accept(&listener) => next,
                // Removes ended tasks.
                Some(_) = running.join_next(), if !running.is_empty() => continue,
                () = self.stop.draining() => break,
                () = &mut closed => break,
            };
            // Small writes of an interactive application must not wait for each other.
            let _ = socket.set_nodelay(true);
            let (front, service) = (Arc::clone(&self), service.clone());
            running.spawn(async move {
                match service {
                    Service::Forward(target) => {
                        front.serve_known_target(socket, target, turn).await
                    }
                    Service::Transparent => match transparent::target(&socket) {
                        Ok(target) => front.serve_known_target(socket, target, turn).await,
                        Err(error) => tracing::info!("{error}"),
                    },
                    Service::Socks5 => {
                        // Serving the application takes another turn once its request is complete.
                        drop(turn);
                        front.application(socket, remote).await;
                    }
                }
            });
        }
        drop(listener);
        while running.join_next().await.is_some() {}
    }

    /// Accepts the next application, once fewer than the maximum wait for a place. The others queue in the kernel.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, WaitTurn) {
        let turn = self.places.wait_for_turn().await;
        loop {
            match listener.accept().await {
                Ok((socket, remote)) => return (socket, remote, turn),
                Err(error) => {
                    // The process is out of descriptors, or the application disconnected while queued.
                    tracing::warn!("cannot accept a connection; retrying: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves an application whose target is known without a request. Resets its connection if there is no place.
    async fn serve_known_target(&self, socket: TcpStream, target: Target, turn: WaitTurn) {
        let place = tokio::select! {
            place = self.places.take_place(turn) => place,
            () = self.stop.wait_for_end() => return socket.abort(),
        };
        match place {
            Ok(_place) => self.connect_to(socket, target, None).await,
            Err(_) => socket.abort(),
        }
    }

    /// Serves an application at a SOCKS port.
    async fn application(&self, mut socket: TcpStream, remote: SocketAddr) {
        let mut asking = self.pending_requests.admit(remote.ip());
        // Boxed, because reading a request takes more memory than a relay that runs for hours.
        let asked = tokio::select! {
            asked = Box::pin(read_application_request::<O>(&mut socket)) => asked,
            () = asking.evicted() => {
                tracing::info!("idle application disconnected before its request, as others are waiting");
                return socket.abort();
            }
        };
        let Some(asked) = asked else { return };
        let turn = self.places.wait_for_turn().await;
        drop(asking);
        let place = tokio::select! {
            place = self.places.take_place(turn) => place,
            () = self.stop.wait_for_end() => return socket.abort(),
        };
        let _place = match place {
            Ok(place) => place,
            Err(failure) => return Self::reject_request(socket, &asked, failure).await,
        };
        match asked {
            ApplicationRequest::Socks(version, Request::Connect(target)) => {
                self.connect_to(socket, target, Some(version)).await;
            }
            // Boxed like HTTP, because this is rare and would enlarge the future of all other requests.
            ApplicationRequest::Socks(_, Request::Associate(port)) => {
                Box::pin(self.associate(socket, port)).await;
            }
            ApplicationRequest::Http(request, behind) => {
                Box::pin(self.http(socket, *request, behind)).await
            }
        }
    }

    /// Refuses an application for which there is no place.
    async fn reject_request(mut socket: TcpStream, asked: &ApplicationRequest, failure: Failure) {
        match asked {
            ApplicationRequest::Socks(version, _) => {
                refuse(socket, Some(*version), &OpenError::Refused(failure)).await;
            }
            ApplicationRequest::Http(..) => Self::answer_refusal(&mut socket, &failure).await,
        }
    }

    /// Connects an application to its target. `asked` is the SOCKS version of a request that waits for an answer.
    async fn connect_to(&self, mut socket: TcpStream, target: Target, asked: Option<Version>) {
        let mut ahead = EarlyBytes::new(&socket);
        let opened = self.open_behind(&target, asked.is_none().then_some(&mut ahead)).await;
        let ahead = ahead.finish();
        let stream = match opened {
            None => return socket.abort(),
            Some(Ok(stream)) if ahead.is_err() => return stream.abort(),
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                tracing::warn!(%target, "{error}");
                return refuse(socket, asked, &error).await;
            }
        };
        if let Some(version) = asked
            && socks::reply(&mut socket, version, Reply::Succeeded).await.is_err()
        {
            return stream.abort();
        }
        self.relay_after_ahead(ahead.unwrap_or_default(), socket, stream, &target).await;
    }

    /// Opens a target. Returns `None` if the program is stopping.
    pub(super) async fn open(&self, target: &Target) -> Option<Result<O::Stream, OpenError>> {
        self.open_behind(target, None).await
    }

    async fn open_behind(
        &self,
        target: &Target,
        ahead: Option<&mut EarlyBytes<'_>>,
    ) -> Option<Result<O::Stream, OpenError>> {
        // Boxed, because handshakes take several times the memory of a relay that runs for hours.
        let opening = async {
            let _room = wait_for_memory(self.traffic.memory()).await;
            self.way.open_behind(target, ahead).await
        };
        tokio::select! {
            opened = Box::pin(opening) => Some(opened),
            () = self.stop.wait_for_end() => None,
        }
    }

    /// Relays bytes between an application and its target until the end.
    pub(super) async fn relay_bytes(
        &self,
        local: impl Transport,
        remote: O::Stream,
        target: &Target,
    ) {
        self.relay_after_ahead(0, local, remote, target).await;
    }

    /// Relays the rest after `ahead_bytes` bytes of the application, which the target already has.
    async fn relay_after_ahead(
        &self,
        ahead_bytes: u64,
        local: impl Transport,
        remote: O::Stream,
        target: &Target,
    ) {
        tracing::debug!(%target, "connected");
        let (begun, traffic) = (Instant::now(), Arc::new(Traffic::part_of(&self.traffic)));
        traffic.count(ahead_bytes, 0);
        let _listed = self.targets.add_stream(target, &remote, &traffic);
        let end = relay(local, remote, &traffic, pin!(self.stop.wait_for_end())).await;
        log_end(&"an application", begun, &traffic, &end);
        match end {
            Ok(remote) => {
                tracing::debug!(%target, "connection closed");
                remote.finish();
            }
            Err(error) => tracing::debug!(%target, "connection failed: {error}"),
        }
    }
}

/// A request from an application.
enum ApplicationRequest {
    Socks(Version, Request),
    /// The request and the bytes after its head.
    Http(Box<HttpRequest>, Vec<u8>),
}

/// Reads an application's request. Returns `None` if the request cannot be served and the application has been
/// answered.
async fn read_application_request<O: Open>(socket: &mut TcpStream) -> Option<ApplicationRequest> {
    match timeout(SOCKS_TIMEOUT, read_socks_request(socket)).await {
        Ok(Ok(Some((version, request)))) => Some(ApplicationRequest::Socks(version, request)),
        Ok(Ok(None)) => {
            let (request, behind) = SocksListener::<O>::http_request(socket).await?;
            Some(ApplicationRequest::Http(Box::new(request), behind))
        }
        Ok(Err(error)) => {
            tracing::info!("{error}");
            None
        }
        Err(_) => {
            tracing::info!("SOCKS request timed out");
            None
        }
    }
}

/// Reads a SOCKS request. Returns `None` if the first byte is that of HTTP. In that case, nothing has been read from
/// the socket.
async fn read_socks_request(
    socket: &mut TcpStream,
) -> Result<Option<(Version, Request)>, SocksError> {
    let mut first = [0];
    let seen = socket.peek(&mut first).await?;
    if seen > 0 && may_start_http(first[0]) {
        return Ok(None);
    }
    socks::accept(socket).await.map(Some)
}

async fn refuse(mut socket: TcpStream, asked: Option<Version>, error: &OpenError) {
    let Some(version) = asked else { return socket.abort() };
    // The application may have disconnected already.
    let _ = socks::reply(&mut socket, version, error.code().into()).await;
    let _ = socket.shutdown().await;
}
