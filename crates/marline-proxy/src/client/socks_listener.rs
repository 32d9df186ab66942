//! Listeners for applications: SOCKS ports, which speak HTTP as well, and forwards.

use std::fmt::Display;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::ahead::Ahead;
use super::listening::{cannot_listen, listening};
use super::open::{Open, OpenError};
use super::open_targets::OpenTargets;
use super::transparent;
use super::udp_tunnel::UdpWay;
use crate::few_lines::FewLines;
use crate::http::request::begins_with;
use crate::relay::{Traffic, relay, tell_end};
use crate::shutdown::Stop;
use crate::socks::{self, Reply, Request, SocksError, Version};
use crate::target::Target;
use crate::transport::Transport;

/// An application whose request is not complete within this time is disconnected.
const SOCKS_TIMEOUT: Duration = Duration::from_secs(10);

/// State shared by all listening ports.
pub struct SocksListener<O> {
    pub(super) way: Arc<O>,
    pub(super) places: Arc<Semaphore>,
    /// Their number.
    bound: Mutex<usize>,
    pub(super) udp: UdpWay,
    pub(super) stop: Stop,
    /// Bytes from and to all applications.
    pub traffic: Arc<Traffic>,
    targets: OpenTargets,
    unreached: FewLines,
}

/// Service of a listening port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Asks for the target by SOCKS5, SOCKS4 or HTTP.
    Socks5,
    /// Fixed target.
    Forward(Target),
    /// Connections that are led here have a target of their own.
    Transparent,
}

/// Binds a port for applications; it is served once there is a runtime.
///
/// # Errors
/// It is taken or not allowed.
pub fn bind(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    listening(address, |_| Ok(())).map_err(|error| cannot_listen("TCP", address, error))
}

impl<O: Open> SocksListener<O> {
    /// Applications use this `way`, at most `places` at the same time; their streams are entered in `targets`.
    #[must_use]
    pub fn new(
        way: Arc<O>,
        places: usize,
        stop: Stop,
        targets: OpenTargets,
    ) -> Arc<SocksListener<O>> {
        let (bound, places) = (Mutex::new(places), Arc::new(Semaphore::new(places)));
        let (udp, traffic) = (UdpWay::default(), Arc::default());
        let unreached = FewLines::default();
        Arc::new(SocksListener { way, places, bound, udp, stop, traffic, targets, unreached })
    }

    /// Changes the maximum number of simultaneous applications. Existing ones stay; a lower limit
    /// is reached as they end. Needs a runtime.
    pub fn bound(&self, places: usize) {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if places > *bound {
            self.places.add_permits(places - *bound);
        }
        if let Some(fewer @ 1..) = bound.checked_sub(places) {
            let places = Arc::clone(&self.places);
            // Waits in front of the applications that come from now on.
            tokio::spawn(async move {
                let fewer = u32::try_from(fewer).unwrap_or(u32::MAX);
                if let Ok(permits) = places.acquire_many_owned(fewer).await {
                    permits.forget();
                }
            });
        }
        *bound = places;
    }

    /// Serves one listening port until the drain or until `closed` resolves, and what it accepted until that ends.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        service: Service,
        closed: impl Future<Output = ()>,
    ) {
        let mut running = JoinSet::new();
        let mut closed = pin!(closed);
        loop {
            let next = tokio::select! {
                next = self.accept(&listener) => next,
                // Reaps those that ended.
                Some(_) = running.join_next(), if !running.is_empty() => continue,
                () = self.stop.draining() => break,
                () = &mut closed => break,
            };
            let (front, service) = (Arc::clone(&self), service.clone());
            running.spawn(async move {
                let (socket, place) = next;
                front.application(socket, service).await;
                drop(place);
            });
        }
        drop(listener);
        while running.join_next().await.is_some() {}
    }

    /// The next application. Without a free place nobody is accepted: they queue in the kernel.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, Option<OwnedSemaphorePermit>) {
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        loop {
            match listener.accept().await {
                Ok((socket, _)) => return (socket, place),
                Err(error) => {
                    // Out of descriptors, or the application gave up while queued.
                    tracing::warn!("accept: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn application(&self, mut socket: TcpStream, service: Service) {
        // An interactive application's bytes must not wait for each other.
        let _ = socket.set_nodelay(true);
        let (target, asked) = match service {
            Service::Forward(target) => (target, None),
            Service::Transparent => match transparent::target(&socket) {
                Ok(target) => (target, None),
                Err(error) => return tracing::info!("{error}"),
            },
            Service::Socks5 => match timeout(SOCKS_TIMEOUT, asked_by_socks(&mut socket)).await {
                Ok(Ok(Some((version, Request::Connect(target))))) => (target, Some(version)),
                // Boxed, as HTTP is: few do this, and all others would have its size.
                Ok(Ok(Some((_, Request::Associate(port))))) => {
                    return Box::pin(self.associate(socket, port)).await;
                }
                Ok(Ok(None)) => return Box::pin(self.http(socket)).await,
                Ok(Err(error)) => return tracing::info!("{error}"),
                Err(_) => return tracing::info!("SOCKS request timed out"),
            },
        };
        // An application that asked by SOCKS waits for the answer.
        let mut ahead = Ahead::of(&socket);
        let opened = self.open_behind(&target, asked.is_none().then_some(&mut ahead)).await;
        let ahead = ahead.finish();
        let stream = match opened {
            None => return socket.abort(),
            Some(Ok(stream)) if ahead.is_err() => return stream.abort(),
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                self.tell_unreached(&target, &error);
                return refuse(socket, asked, &error).await;
            }
        };
        if let Some(version) = asked
            && socks::reply(&mut socket, version, Reply::Succeeded).await.is_err()
        {
            return stream.abort();
        }
        self.pass_behind(ahead.unwrap_or_default(), socket, stream, &target).await;
    }

    /// Opens a target; `None`: everything is to end.
    pub(super) async fn open(&self, target: &Target) -> Option<Result<O::Stream, OpenError>> {
        self.open_behind(target, None).await
    }

    async fn open_behind(
        &self,
        target: &Target,
        ahead: Option<&mut Ahead<'_>>,
    ) -> Option<Result<O::Stream, OpenError>> {
        // Boxed, for handshakes take several times the room that a relay takes for hours.
        tokio::select! {
            opened = Box::pin(self.way.open_behind(target, ahead)) => Some(opened),
            () = self.stop.over() => None,
        }
    }

    /// Tells the log of a target that was not reached, at a bounded rate: an application may try again and again.
    pub(super) fn tell_unreached(&self, target: &Target, why: &dyn Display) {
        match self.unreached.take() {
            None => tracing::debug!(%target, "{why}"),
            Some(0) => tracing::warn!(%target, "{why}"),
            Some(others) => tracing::warn!(%target, "{why} (and {others} others failed)"),
        }
    }

    /// Passes bytes between an application and its target to the end.
    pub(super) async fn pass(&self, local: impl Transport, remote: O::Stream, target: &Target) {
        self.pass_behind(0, local, remote, target).await;
    }

    /// The same behind so many bytes of the application that the target has.
    async fn pass_behind(
        &self,
        ahead_bytes: u64,
        local: impl Transport,
        remote: O::Stream,
        target: &Target,
    ) {
        tracing::debug!(%target, "connected");
        let (begun, traffic) = (Instant::now(), Arc::new(Traffic::part_of(&self.traffic)));
        traffic.count(ahead_bytes, 0);
        let _listed = self.targets.enter(target, &remote, &traffic);
        let end = relay(local, remote, &traffic, pin!(self.stop.over())).await;
        tell_end(&"an application", begun, &traffic, &end);
        match end {
            Ok(remote) => {
                tracing::debug!(%target, "done");
                remote.finish();
            }
            Err(error) => tracing::debug!(%target, "broken: {error}"),
        }
    }
}

/// What an application asks for by SOCKS; `None`, and nothing is taken from the socket: the first byte is
/// HTTP's.
async fn asked_by_socks(socket: &mut TcpStream) -> Result<Option<(Version, Request)>, SocksError> {
    let mut first = [0];
    let seen = socket.peek(&mut first).await?;
    if seen > 0 && begins_with(first[0]) {
        return Ok(None);
    }
    socks::accept(socket).await.map(Some)
}

async fn refuse(mut socket: TcpStream, asked: Option<Version>, error: &OpenError) {
    let Some(version) = asked else { return socket.abort() };
    // The application may be gone already.
    let _ = socks::reply(&mut socket, version, error.code().into()).await;
    let _ = socket.shutdown().await;
}
