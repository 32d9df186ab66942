//! Prometheus metrics of a client or server at `http://ADDR/metrics`.
//!
//! Nothing is counted in the packet path. Once a second, and at each scrape, the snapshots that the control socket also
//! provides are compared with the previous ones, and the differences are added up. Labels are bounded: a path is
//! identified by properties that outlive connections (a client's address and the server's, a server's own address), and
//! paths beyond [`MAX_PATHS`] are combined as `other`.

mod datagrams;
mod exposition;
mod service;
mod totals;

pub use totals::{MAX_PATHS, Side, Totals};

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use marline_dashboard::has_foreign_host;
use marline_io::{PendingLimits, PendingTable};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::control::Handle;
use crate::control::protocol::Event;

/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest interval between two samples.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Limits on concurrent connections. Beyond them, the oldest connection of the source with the most connections is
/// closed: a scrape takes milliseconds, and a slow client must not block the others.
const PENDING_LIMITS: PendingLimits = PendingLimits { total: 64, per_source: 32 };

/// Time limit for a scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answer to a request on loopback that uses a host name.
const FOREIGN_HOST_ANSWER: &str = "use an IP address or localhost: other host names are refused\n";

/// A metrics port that is being served. Dropping this stops the service.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    source: MetricsSource,
    _sampling: JoinSet<()>,
    accepting: JoinSet<()>,
}

/// Source of the metrics.
#[derive(Clone)]
struct MetricsSource {
    handle: Arc<dyn Handle>,
    totals: Arc<Totals>,
}

impl fmt::Debug for MetricsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsSource").field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl MetricsServer {
    /// Returns the local address.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Duplicates the descriptor of the listening socket.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Serves the same totals on this socket instead.
    ///
    /// # Errors
    /// The socket is not a TCP socket, and nothing has changed.
    pub fn move_to(&mut self, listener: TcpListener) -> io::Result<()> {
        self.address = listener.local_addr()?;
        self.listener = Arc::new(listener);
        self.accepting = JoinSet::new();
        self.accepting.spawn(accept(Arc::clone(&self.listener), self.source.clone()));
        Ok(())
    }

    /// Returns the totals. A caller that ends a connection may add its last snapshot, so that all data of a short
    /// connection is counted.
    #[must_use]
    pub fn totals(&self) -> Arc<Totals> {
        self.source.totals.clone()
    }
}

/// Returns a socket for metrics. Needs a runtime.
///
/// # Errors
/// The address cannot be bound.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Serves the metrics of `handle` on a socket that listens, until the result is dropped.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn serve_on(listener: TcpListener, handle: Arc<dyn Handle>) -> io::Result<MetricsServer> {
    let address = listener.local_addr()?;
    let listener = Arc::new(listener);
    let side = if handle.role() == "client" { Side::Client } else { Side::Server };
    let totals = Arc::new(Totals::new(side, handle.role()));
    let source = MetricsSource { handle, totals };
    let mut sampling = JoinSet::new();
    sampling.spawn(sample(source.clone()));
    let mut accepting = JoinSet::new();
    accepting.spawn(accept(Arc::clone(&listener), source.clone()));
    Ok(MetricsServer { address, listener, source, _sampling: sampling, accepting })
}

/// Samples the connections once a second and soon after one has closed, while its last counts are still available.
/// Also counts events.
async fn sample(MetricsSource { handle, totals }: MetricsSource) {
    let mut events = handle.events();
    let mut next = Instant::now();
    let mut allowed = next;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {
                let begin = Instant::now();
                take_sample(&totals, &*handle);
                // Many connections make a sample expensive, so samples become less frequent.
                allowed = begin + (begin.elapsed() * 20).max(MIN_SAMPLE_INTERVAL);
                next = allowed.max(begin + SAMPLE_INTERVAL);
            }
            event = events.recv() => match event {
                Ok(event) => {
                    totals.on_event(&event);
                    // Only the name of the event is counted, not the connection.
                    let event = Event::from_monitor_event(&event, 0).event;
                    if event == "CLOSED" {
                        next = next.min(allowed.max(Instant::now()));
                    }
                    totals.count_event(&event, 1);
                }
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    totals.count_event("LAGGED", missed);
                }
                Err(broadcast::error::RecvError::Closed) => return,
            },
        }
    }
}

/// Takes one sample.
fn take_sample(totals: &Totals, handle: &dyn Handle) {
    let connections = handle.connections();
    totals.paths(&handle.paths());
    totals.sample(&connections);
    totals.address_pairs(&handle.address_pairs().unwrap_or_default());
    if let Some((lanes, udp)) = handle.datagrams() {
        totals.datagrams(&lanes, &udp);
    }
    totals.service(&handle.service());
}

async fn accept(listener: Arc<TcpListener>, source: MetricsSource) {
    let table = PendingTable::new(PENDING_LIMITS);
    let address = listener.local_addr();
    let is_loopback = address.is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let mut serving = JoinSet::new();
    loop {
        let Ok((stream, remote)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let source = source.clone();
        let mut place = table.admit(remote.ip());
        serving.spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                // A page in a local browser may send requests with the name of another site (DNS rebinding). On
                // other addresses, scrapers use names.
                let refused = is_loopback && has_foreign_host(&request);
                answer(request, refused, &source)
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.keep_alive(false);
            // Errors of a scraper are ignored.
            let serving = http.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = tokio::time::timeout(SCRAPE_TIMEOUT, serving) => {}
                () = place.evicted() => {}
            }
        });
        while serving.try_join_next().is_some() {}
    }
}

async fn answer(
    request: Request<Incoming>,
    refused: bool,
    source: &MetricsSource,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        _ if refused => (StatusCode::FORBIDDEN, FOREIGN_HOST_ANSWER.to_owned()),
        (&Method::GET, "/metrics") => {
            take_sample(&source.totals, &*source.handle);
            (StatusCode::OK, source.totals.render())
        }
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
        _ => (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
