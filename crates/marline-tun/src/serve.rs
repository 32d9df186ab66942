//! Handler of the programs' requests: each becomes a stream to its target, or is refused in the way the target refused
//! it.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use marline_core::FourTuple;
use marline_io::{Request, Requests, Stream, Tun};
use marline_proxy::client::open::{Open, OpenError};
use marline_proxy::client::open_targets::OpenTargets;
use marline_proxy::client::places::{Places, WaitTurn};
use marline_proxy::message::ErrorCode;
use marline_proxy::relay::{Traffic, relay};
use marline_proxy::shutdown::Stop;
use marline_proxy::target::Target;
use marline_proxy::transport::Transport;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::addresses::Addresses;
use crate::dns::{Query, answer_queries};
use crate::exceptions::Destinations;
use crate::icmp::{self, Unreachable};
use crate::resolver::Resolvers;
use crate::stream::ProgramStream;
use crate::warning_limit::WarningLimit;

/// Timeout for the handshake. The program's system answers a SYN/ACK immediately unless the program gave up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Refusal as seen by a program.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// Shown as "Connection refused".
    Reset,
    /// Shown as "Host unreachable", for instance.
    Icmp(Unreachable),
}

impl Refusal {
    fn from_error(error: &OpenError) -> Refusal {
        match error.code() {
            ErrorCode::ConnectionReset => Refusal::Reset,
            ErrorCode::NotAuthorized => Refusal::Icmp(Unreachable::Prohibited),
            ErrorCode::DestinationUnreachable => Refusal::Icmp(Unreachable::Host),
            _ => Refusal::Icmp(Unreachable::Network),
        }
    }
}

/// Destination of a program's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    /// A target.
    Target(Target),
    /// The DNS service.
    Names,
}

/// Returns the program's stream once its handshake is complete, or `None` if the program has given up.
async fn accept_stream(request: Request) -> Option<Stream> {
    let stream = request.admit()?;
    match timeout(HANDSHAKE_TIMEOUT, stream.connected()).await {
        Ok(Ok(_)) => Some(stream),
        Ok(Err(reason)) => {
            tracing::debug!("the program closed its connection: {reason}");
            None
        }
        Err(_) => {
            stream.abort();
            None
        }
    }
}

/// Service of one interface.
pub(crate) struct Service<O> {
    pub(crate) way: Arc<O>,
    pub(crate) addresses: Addresses,
    pub(crate) resolvers: Option<Arc<Resolvers>>,
    pub(crate) destinations: Destinations,
    /// Sender to the DNS service.
    pub(crate) ask: mpsc::Sender<Query>,
    pub(crate) tun: Arc<Tun>,
    pub(crate) stop: Stop,
    pub(crate) targets: OpenTargets,
    /// Traffic of all streams.
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) warnings: WarningLimit,
}

impl<O: Open> Service<O> {
    /// Serves until the drain, with at most `connections` at a time. Further SYNs wait briefly and are then refused.
    /// Returns when the existing connections have ended.
    pub(crate) async fn run(self, mut requests: Requests, connections: usize) {
        let places = Arc::new(Places::new(connections));
        let service = Arc::new(self);
        let mut running = JoinSet::new();
        loop {
            let next = async {
                let turn = places.wait_for_turn().await;
                Some((requests.next().await?, turn))
            };
            let (request, turn) = tokio::select! {
                next = next => match next {
                    Some(next) => next,
                    None => break,
                },
                // Removes connections that have ended.
                Some(_) = running.join_next(), if !running.is_empty() => continue,
                () = service.stop.draining() => break,
            };
            let (service, places) = (Arc::clone(&service), Arc::clone(&places));
            running.spawn(async move { service.serve_at(&places, turn, request).await });
        }
        drop(requests);
        while running.join_next().await.is_some() {}
    }

    /// Serves a connection once there is a free slot.
    async fn serve_at(&self, places: &Places, turn: WaitTurn, request: Request) {
        let place = tokio::select! {
            place = places.take_place(turn) => place,
            () = self.stop.wait_for_end() => return request.refuse(),
        };
        match place {
            Ok(_place) => self.serve(request).await,
            Err(failure) => {
                let path = request.path();
                self.reject_request(
                    request,
                    path,
                    Refusal::from_error(&OpenError::Refused(failure)),
                );
            }
        }
    }

    async fn serve(&self, request: Request) {
        let path = request.path();
        let target = match self.destination(path.local) {
            Ok(Destination::Target(target)) => target,
            Ok(Destination::Names) => return self.answer_names(request).await,
            Err(refusal) => return self.reject_request(request, path, refusal),
        };
        // Boxed, because a handshake needs several times the memory of a relay, which may last for hours.
        let opened = tokio::select! {
            opened = Box::pin(self.way.open(&target)) => opened,
            () = self.stop.wait_for_end() => return request.refuse(),
        };
        match opened {
            Ok(remote) => self.relay_request(request, remote, &target).await,
            Err(error) => self.refuse(request, path, &target, &error),
        }
    }

    /// Returns the destination of a connection to this address. The gateway itself offers only DNS.
    fn destination(&self, local: SocketAddr) -> Result<Destination, Refusal> {
        let Destinations { exceptions, queries } = &self.destinations;
        let ip = local.ip();
        let is_gateway = self.addresses.is_gateway(ip);
        if self.addresses.is_resolver(local, *queries) {
            let resolvers = self.resolvers.as_ref().ok_or(Refusal::Reset)?;
            return Ok(match exceptions.has_domains() {
                // Names may have exceptions, so the DNS service handles each query.
                true => Destination::Names,
                false => Destination::Target(resolvers.current()),
            });
        }
        if exceptions.blocks(ip) {
            return Err(Refusal::Icmp(Unreachable::Prohibited));
        }
        // Port 0 is invalid.
        let target = Target::new(ip.into(), local.port()).ok();
        let target = target.filter(|_| !is_gateway).ok_or(Refusal::Reset);
        target.map(Destination::Target)
    }

    /// Answers DNS queries with the DNS service.
    async fn answer_names(&self, request: Request) {
        let Some(stream) = accept_stream(request).await else { return };
        tokio::select! {
            () = answer_queries(ProgramStream(stream), self.ask.clone()) => {}
            () = self.stop.wait_for_end() => {}
        }
    }

    async fn relay_request(&self, request: Request, remote: O::Stream, target: &Target) {
        let Some(stream) = accept_stream(request).await else { return remote.abort() };
        tracing::debug!(%target, "connected");
        let traffic = Arc::new(Traffic::part_of(&self.traffic));
        let _listed = self.targets.add_stream(target, &remote, &traffic);
        let over = pin!(self.stop.wait_for_end());
        match relay(ProgramStream(stream), remote, &traffic, over).await {
            Ok(remote) => remote.finish(),
            Err(error) => tracing::debug!(%target, "connection failed: {error}"),
        }
    }

    fn refuse(&self, request: Request, path: FourTuple, target: &Target, error: &OpenError) {
        match error.code() {
            // Common errors, of which the program is notified.
            ErrorCode::ConnectionReset | ErrorCode::DestinationUnreachable => {
                tracing::debug!(%target, "{error}");
            }
            _ => {
                let text = error.to_string();
                if self.warnings.should_log(&text) {
                    tracing::warn!(%target, "{text}");
                }
            }
        }
        self.reject_request(request, path, Refusal::from_error(error));
    }

    fn reject_request(&self, request: Request, path: FourTuple, refusal: Refusal) {
        let Refusal::Icmp(why) = refusal else { return request.refuse() };
        let Some(seq) = request.forget() else { return };
        let from = self.addresses.gateway_for(path.remote.ip());
        let mut packet = Vec::new();
        let (asker, target) = (path.remote, path.local);
        if icmp::write_syn_unreachable(from, asker, target, seq, why, &mut packet).is_ok() {
            // If the interface no longer exists, no response is needed.
            let _ = self.tun.write(&packet);
        }
    }
}
