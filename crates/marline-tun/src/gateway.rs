//! Gateway for programs behind an interface: the shard, the DNS service and the programs' streams.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use marline_core::{ConnectionConfig, Counters, Limits, MemoryAccount};
use marline_io::{CarrierKind, Requests, Shard, ShardConfig, ShardHandle, Tun};
use marline_proxy::client::open::Open;
use marline_proxy::client::open_targets::OpenTargets;
use marline_proxy::relay::Traffic;
use marline_proxy::shutdown::Stop;
use tokio::sync::mpsc;

use crate::addresses::{Addresses, GatewayQueries};
use crate::datagram::{DatagramWriter, Datagrams};
use crate::dns::{DirectNames, Forwarder, MAX_QUEUED_QUERIES, Query};
use crate::exceptions::{Destinations, Exceptions};
use crate::resolver::Resolvers;
use crate::responder::{PacketCounters, Responder};
use crate::serve::Service;
use crate::sink::Sink;
use crate::warning_limit::WarningLimit;

/// Maximum number of bytes buffered for a connection in each direction. The round-trip time to a program is a few
/// microseconds, so a larger buffer would only take data from the program earlier than necessary.
const BUFFER_BYTES: u64 = 1 << 20;
/// Initial window, in segments: between a program and its own machine there is no bandwidth to probe for.
const INITIAL_WINDOW: u32 = 64;

/// Source of the packets on the interface.
#[derive(Debug)]
pub enum PacketSource {
    /// A single program, which has no other interface.
    Program,
    /// This machine, and perhaps those for which it forwards.
    Machine {
        /// Destinations that bypass the tunnel or are blocked.
        exceptions: Exceptions,
        /// True if queries to resolvers of a private network are answered here, because those resolvers would get
        /// names that the tunnel resolves. If there are exceptions for names, queries to all resolvers are answered
        /// here.
        handles_dns_queries: bool,
        /// Resolution of names that are reached directly.
        direct_names: DirectNames,
    },
}

/// Settings of a gateway.
#[derive(Debug)]
pub struct GatewaySettings {
    /// Addresses of both ends of the interface.
    pub addresses: Addresses,
    /// Resolvers, as reached from the far end of the tunnel. If `None`, names do not resolve.
    pub resolvers: Option<Resolvers>,
    /// Source of the packets.
    pub served: PacketSource,
    /// Maximum number of connections. As many further SYNs, but at most 1,024, may wait.
    pub connections: usize,
    /// List in which the programs' streams are registered.
    pub targets: OpenTargets,
    /// Account for the memory of connections.
    pub memory: MemoryAccount,
}

/// Gateway that reads and writes an interface.
#[derive(Debug)]
pub struct Gateway {
    addresses: Addresses,
    resolvers: Option<Arc<Resolvers>>,
    connections: usize,
    targets: OpenTargets,
    traffic: Arc<Traffic>,
    destinations: Destinations,
    direct_names: Option<Arc<DirectNames>>,
    shard: Arc<ShardHandle>,
    requests: Requests,
    ask: mpsc::Sender<Query>,
    queries: mpsc::Receiver<Query>,
    tun: Arc<Tun>,
    packets: Arc<PacketCounters>,
}

impl Gateway {
    /// Starts on the current tokio runtime, which needs I/O and time. `tun` is the interface's descriptor. UDP other
    /// than DNS is passed to `datagrams`.
    ///
    /// # Errors
    /// The descriptor cannot be watched, the system provides no randomness or timer, or there are exceptions for
    /// names although names are not handled.
    pub fn start(
        tun: OwnedFd,
        settings: GatewaySettings,
        datagrams: Box<dyn Datagrams>,
    ) -> io::Result<Gateway> {
        let tun = Tun::adopt(tun)?;
        let writer = Arc::new(tun.try_clone()?);
        let (ask, queries) = mpsc::channel(MAX_QUEUED_QUERIES);
        let GatewaySettings { addresses, resolvers, served, connections, targets, memory } =
            settings;
        let (destinations, direct_names) = match served {
            PacketSource::Program => (Destinations::default(), None),
            PacketSource::Machine { exceptions, handles_dns_queries, direct_names } => {
                let queries = match (handles_dns_queries, exceptions.has_domains()) {
                    (true, true) => GatewayQueries::All,
                    (true, false) => GatewayQueries::Private,
                    (false, false) => GatewayQueries::Own,
                    (false, true) => {
                        let text = "cannot apply exceptions for domains: DNS does not go through the tunnel";
                        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                    }
                };
                let exceptions = Arc::new(exceptions);
                (Destinations { exceptions, queries }, Some(Arc::new(direct_names)))
            }
        };
        let responder = Responder::new(addresses, destinations.queries);
        let packets = responder.counters();
        let sink =
            Sink::new(responder, destinations.clone(), Arc::clone(&writer), ask.clone(), datagrams);
        let shard = Shard::start(shard_config(connections))?;
        shard.with_endpoint(|endpoint, _| endpoint.set_memory_account(memory.clone()));
        let requests = shard.open_gateway(tun, Box::new(sink))?;
        Ok(Gateway {
            addresses,
            resolvers: resolvers.map(Arc::new),
            connections,
            targets,
            traffic: Arc::new(Traffic::with_account(memory)),
            destinations,
            direct_names,
            shard,
            requests,
            ask,
            queries,
            tun: writer,
            packets,
        })
    }

    /// Returns a writer that delivers datagrams to the programs.
    #[must_use]
    pub fn datagram_writer(&self) -> DatagramWriter {
        DatagramWriter::new(Arc::clone(&self.tun))
    }

    /// Returns the counters of packets that are not TCP.
    #[must_use]
    pub fn packets(&self) -> Arc<PacketCounters> {
        Arc::clone(&self.packets)
    }

    /// Returns the counters of the core for TCP.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shard.counters().0
    }

    /// Connects the programs to their targets with this opener, until `stop` requests the end and the existing
    /// connections have ended.
    pub async fn serve<O: Open>(self, way: Arc<O>, stop: Stop) {
        let Gateway {
            addresses,
            resolvers,
            connections,
            targets,
            traffic,
            destinations,
            direct_names,
            shard,
            requests,
            ask,
            queries,
            tun,
            packets: _,
        } = self;
        let names = resolvers.clone().map(|resolvers| Forwarder {
            way: Arc::clone(&way),
            resolvers,
            exceptions: Arc::clone(&destinations.exceptions),
            direct: direct_names,
            queries,
            writer: DatagramWriter::new(Arc::clone(&tun)),
            warnings: WarningLimit::default(),
        });
        let warnings = WarningLimit::default();
        let service = Service {
            way,
            addresses,
            resolvers,
            destinations,
            ask,
            tun,
            stop,
            targets,
            traffic,
            warnings,
        };
        let answer_names = async {
            match names {
                Some(forwarder) => forwarder.run().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = service.run(requests, connections) => {}
            () = answer_names => {}
        }
        drop(shard);
    }
}

fn shard_config(connections: usize) -> ShardConfig {
    let limits = Limits::default();
    ShardConfig {
        links: std::sync::Arc::default(),
        carrier: CarrierKind::Gateway,
        shard: marline_core::Shard::SINGLE,
        reset_seed: None,
        accept: Some(connection_config()),
        limits: Limits {
            // Closing connections have their own limit.
            connections: connections.saturating_mul(2).saturating_add(limits.syn_queue),
            ..limits
        },
        queue: None,
        monitor: None,
        capture: None,
        tap: None,
        observers: Vec::new(),
        events: None,
        busy_poll: core::time::Duration::ZERO,
    }
}

/// Returns the configuration of the programs' connections: plain TCP with the SYN/ACK withheld until the target is
/// reached.
fn connection_config() -> ConnectionConfig {
    ConnectionConfig {
        mptcp: false,
        withhold_syn_ack: true,
        pacing: false,
        send_buffer: BUFFER_BYTES,
        receive_buffer: BUFFER_BYTES,
        initial_window: INITIAL_WINDOW,
        ..ConnectionConfig::new(marline::algos::reference_policies())
    }
}
