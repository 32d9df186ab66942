//! HTTP server of a dashboard: one request per connection, and limits on everything that clients control.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use marline_io::{PendingEntry, PendingLimits, PendingTable};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::hub::{Dashboard, MAX_LAG, message, thread_time};
use crate::{Access, Source, page};

/// Maximum number of connections that are not viewers. Beyond it, the oldest one from the source with the most such
/// connections is closed.
const PENDING_LIMITS: PendingLimits = PendingLimits { total: 64, per_source: 32 };

/// Maximum number of viewers of single connections ([`Source::watch_places`]).
const MAX_POSITION_VIEWERS: usize = 32;

/// Timeout for a request's headers.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for a request with its response, except for viewers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a request's headers in bytes, and their maximum number.
const MAX_HEADER_BYTES: usize = 16 * 1_024;
const MAX_HEADERS: usize = 64;

/// Size of the kernel's send buffer per viewer, in bytes.
const SEND_BUFFER: u32 = 128 * 1_024;

/// A running dashboard. Dropping it stops the server.
pub struct RunningServer {
    door: DashboardListener,
    dashboard: Dashboard,
    source: Arc<dyn Source>,
    _watching: JoinSet<()>,
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("door", &self.door).finish_non_exhaustive()
    }
}

impl RunningServer {
    /// Returns the address on which the server listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.door.address
    }

    /// Duplicates the descriptor of the listening socket.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.door.listener.as_fd().try_clone_to_owned()
    }

    /// Returns the handle for reporting events.
    #[must_use]
    pub fn dashboard(&self) -> Dashboard {
        self.dashboard.clone()
    }

    /// Moves the server to this socket. Stored messages are kept, and current viewers are disconnected.
    ///
    /// # Errors
    /// The socket is not a TCP socket. Nothing has changed.
    pub fn move_to(&mut self, listener: TcpListener, access: Access) -> io::Result<()> {
        let (address, listener) = (listener.local_addr()?, Arc::new(listener));
        self.door =
            DashboardListener::open(address, listener, access, &self.dashboard, &self.source);
        Ok(())
    }

    /// Changes the access policy on the same socket. Current viewers are disconnected.
    pub fn admit(&mut self, access: Access) {
        let (address, listener) = (self.door.address, Arc::clone(&self.door.listener));
        self.door =
            DashboardListener::open(address, listener, access, &self.dashboard, &self.source);
    }
}

/// Listener of a dashboard. Dropping it ends all its connections.
#[derive(Debug)]
struct DashboardListener {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    _accepting: JoinSet<()>,
}

impl DashboardListener {
    fn open(
        address: SocketAddr,
        listener: Arc<TcpListener>,
        access: Access,
        dashboard: &Dashboard,
        source: &Arc<dyn Source>,
    ) -> DashboardListener {
        let source = Arc::clone(source);
        let (dashboard, places) =
            (dashboard.clone(), Arc::new(Semaphore::new(MAX_POSITION_VIEWERS)));
        let shown = Arc::new(SharedState { dashboard, access, source, places });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(Arc::clone(&listener), shown));
        DashboardListener { address, listener, _accepting: accepting }
    }
}

/// Serves a dashboard of `source` on `address` until the result is dropped.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    access: Access,
    source: Arc<dyn Source>,
) -> io::Result<RunningServer> {
    serve_on(listen(address)?, access, source)
}

/// Serves a dashboard on a socket that is already listening.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn serve_on(
    listener: TcpListener,
    access: Access,
    source: Arc<dyn Source>,
) -> io::Result<RunningServer> {
    let dashboard = Dashboard::default();
    let (address, listener) = (listener.local_addr()?, Arc::new(listener));
    let door = DashboardListener::open(address, listener, access, &dashboard, &source);
    let mut watching = JoinSet::new();
    watching.spawn(dashboard.clone().run_sampling(Arc::clone(&source)));
    Ok(RunningServer { door, dashboard, source, _watching: watching })
}

/// Creates a listening socket for a dashboard. Needs a runtime.
///
/// # Errors
/// The address cannot be bound.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit this size.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(64)
}

/// State shared by all connections.
struct SharedState {
    dashboard: Dashboard,
    access: Access,
    source: Arc<dyn Source>,
    places: Arc<Semaphore>,
}

/// State of a connection.
#[derive(Debug, Default)]
struct ConnectionState {
    /// Signal to end the connection immediately, even during a write.
    end: Arc<Notify>,
    /// True if the connection is a viewer, without a time limit.
    watches: AtomicBool,
    /// Notified when the connection becomes a viewer.
    watching: Notify,
    /// True if the connection receives samples, so that its CPU time counts toward their cost.
    is_viewer: AtomicBool,
}

impl ConnectionState {
    fn watch(&self) {
        self.watches.store(true, Ordering::Relaxed);
        self.watching.notify_one();
    }
}

async fn accept(listener: Arc<TcpListener>, shown: Arc<SharedState>) {
    let table = PendingTable::new(PENDING_LIMITS);
    // Its tasks end with this one.
    let mut serving = JoinSet::new();
    loop {
        let Ok((stream, remote)) = listener.accept().await else {
            // Out of descriptors: wait until some are free.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let shown = Arc::clone(&shown);
        let place = table.admit(remote.ip());
        serving.spawn(async move { serve_connection_requests(stream, &shown, place).await });
        while serving.try_join_next().is_some() {}
    }
}

async fn serve_connection_requests(stream: TcpStream, shown: &SharedState, place: PendingEntry) {
    let visit = ConnectionState::default();
    let service = service_fn(|request| std::future::ready(answer(&request, shown, &visit)));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS)
        .keep_alive(false);
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service));
    let serving = poll_fn(|cx| {
        let begin = visit.is_viewer.load(Ordering::Relaxed).then(thread_time);
        let polled = serving.as_mut().poll(cx);
        if let Some(begin) = begin {
            shown.dashboard.add_processor_time(thread_time().saturating_sub(begin));
        }
        polled
    });
    // Viewers have their own limit, and no timeout.
    let limit = async {
        let mut place = place;
        tokio::select! {
            () = tokio::time::sleep(REQUEST_TIMEOUT) => {}
            () = place.evicted() => {}
            () = visit.watching.notified() => {}
        }
        if visit.watches.load(Ordering::Relaxed) {
            drop(place);
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // Errors of a client are ignored.
        _ = serving => {}
        () = limit => {}
        () = visit.end.notified() => {}
    }
}

type Answer = Response<Either<Full<Bytes>, Events>>;

fn answer(
    request: &Request<Incoming>,
    shown: &SharedState,
    visit: &ConnectionState,
) -> Result<Answer, Infallible> {
    if let Some((status, why)) = Access::refusal(request) {
        return Ok(refusal(status, why));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused =
            refusal(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET or HEAD\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(refused);
    }
    let path = request.uri().path();
    if let Some((kind, bytes)) = page::file(path) {
        return Ok(page::answer(kind, Either::Left(Full::new(page::bytes(bytes)))));
    }
    if !matches!(path, "/events" | "/places") {
        return Ok(refusal(StatusCode::NOT_FOUND, "not found\n"));
    }
    if let Some((status, why)) = shown.access.check_request(request) {
        let mut refused = refusal(status, why);
        if status == StatusCode::UNAUTHORIZED {
            refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        return Ok(refused);
    }
    const EVENTS: &str = "text/event-stream";
    if request.method() == Method::HEAD {
        return Ok(page::answer(EVENTS, Either::Left(Full::default())));
    }
    if path == "/places" {
        return Ok(serve_places(request, shown, visit));
    }
    match shown.dashboard.add_viewer(Arc::clone(&visit.end), &*shown.source) {
        Some(messages) => {
            visit.watch();
            visit.is_viewer.store(true, Ordering::Relaxed);
            Ok(page::answer(EVENTS, Either::Right(Events { messages })))
        }
        None => Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "too many viewers\n")),
    }
}

/// Sends the byte positions of one connection: `?connection=NUMBER`.
fn serve_places(
    request: &Request<Incoming>,
    shown: &SharedState,
    visit: &ConnectionState,
) -> Answer {
    let number = request.uri().query().and_then(|query| query.strip_prefix("connection="));
    let Some(number) = number.and_then(|number| number.parse().ok()) else {
        return refusal(StatusCode::BAD_REQUEST, "missing parameter: ?connection=NUMBER\n");
    };
    let Ok(permit) = Arc::clone(&shown.places).try_acquire_owned() else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "too many viewers\n");
    };
    let Some(mut told) = shown.source.watch_places(number) else {
        return refusal(StatusCode::NOT_FOUND, "no such connection\n");
    };
    visit.watch();
    let (to_viewer, messages) = mpsc::channel(MAX_LAG);
    let end = Arc::clone(&visit.end);
    tokio::spawn(async move {
        let _permit = permit;
        while let Some(places) = told.recv().await {
            // A viewer that does not read is disconnected.
            if to_viewer.try_send(message("places", &places)).is_err() {
                end.notify_one();
                return;
            }
        }
    });
    page::answer("text/event-stream", Either::Right(Events { messages }))
}

fn refusal(status: StatusCode, why: &'static str) -> Answer {
    let body = Either::Left(Full::new(Bytes::from_static(why.as_bytes())));
    let mut response = page::answer("text/plain; charset=utf-8", body);
    *response.status_mut() = status;
    response
}

/// Response body of messages, which ends when the viewer is disconnected.
#[derive(Debug)]
struct Events {
    messages: mpsc::Receiver<Bytes>,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.messages.poll_recv(cx).map(|message| message.map(|bytes| Ok(Frame::data(bytes))))
    }
}
