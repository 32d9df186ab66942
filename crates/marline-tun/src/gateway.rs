//! Gateway of programs behind an interface: the shard, the DNS service and the programs' streams.

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

use crate::addresses::{Addresses, TakenQueries};
use crate::datagram::{DatagramWriter, Datagrams};
use crate::dns::{DirectNames, Forwarder, QUEUED, Query};
use crate::exceptions::{Destinations, Exceptions};
use crate::resolver::Resolvers;
use crate::responder::{PacketCounters, Responder};
use crate::serve::Service;
use crate::sink::Sink;
use crate::warning_limit::WarningLimit;

/// Bytes that are buffered for a connection in each direction at most. The round trip to a program is a matter of
/// microseconds: more would only wait here instead of in the program, which then could not take it back.
const BUFFER: u64 = 1 << 20;
/// Segments sent at once at first: between a program and its own machine nothing is to be probed for.
const INITIAL_WINDOW: u32 = 64;

/// Whose packets come by the interface.
#[derive(Debug)]
pub enum Served {
    /// A program's, which has nothing else.
    Program,
    /// A machine's, and perhaps of those it forwards for.
    Machine {
        /// What does not go through the tunnel.
        exceptions: Exceptions,
        /// Whether queries to resolvers of a private network are answered here, as these are for names that the
        /// tunnel resolves. If there are exceptions of names, those to all resolvers are.
        takes_names: bool,
        /// Who asks for names that are reached directly.
        direct_names: DirectNames,
    },
}

/// Settings of a gateway.
#[derive(Debug)]
pub struct GatewaySettings {
    /// The ends of the interface.
    pub addresses: Addresses,
    /// Where DNS queries go, as the far end of the way sees it. `None`: names do not resolve.
    pub resolvers: Option<Resolvers>,
    /// Whose packets come.
    pub served: Served,
    /// Connections at a time. As many SYNs wait beyond, at most 1,024.
    pub connections: usize,
    /// Where the programs' streams are entered.
    pub targets: OpenTargets,
    /// Who is charged for what its connections hold.
    pub memory: MemoryAccount,
}

/// A gateway that reads and writes an interface.
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
    /// Starts on the current tokio runtime, which needs I/O and time. `tun` is the interface's descriptor; UDP
    /// other than DNS goes to `datagrams`.
    ///
    /// # Errors
    /// The descriptor cannot be watched, the system has no randomness or no timer for us, or there are exceptions of
    /// names although names are not taken.
    pub fn start(
        tun: OwnedFd,
        settings: GatewaySettings,
        datagrams: Box<dyn Datagrams>,
    ) -> io::Result<Gateway> {
        let tun = Tun::adopt(tun)?;
        let writer = Arc::new(tun.try_clone()?);
        let (ask, queries) = mpsc::channel(QUEUED);
        let GatewaySettings { addresses, resolvers, served, connections, targets, memory } =
            settings;
        let (destinations, direct_names) = match served {
            Served::Program => (Destinations::default(), None),
            Served::Machine { exceptions, takes_names, direct_names } => {
                let queries = match (takes_names, exceptions.has_domains()) {
                    (true, true) => TakenQueries::All,
                    (true, false) => TakenQueries::Private,
                    (false, false) => TakenQueries::Own,
                    (false, true) => {
                        let text = "exceptions for names need names to go through the tunnel";
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
            traffic: Arc::new(Traffic::charged_to(memory)),
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

    /// A writer of datagrams to the programs.
    #[must_use]
    pub fn datagram_writer(&self) -> DatagramWriter {
        DatagramWriter::new(Arc::clone(&self.tun))
    }

    /// What became of packets that are not TCP.
    #[must_use]
    pub fn packets(&self) -> Arc<PacketCounters> {
        Arc::clone(&self.packets)
    }

    /// What the core has counted of TCP.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shard.counters().0
    }

    /// Serves the programs by this way to their targets, until `stop` says that no more are to be served and those
    /// that were are done.
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
        shard: marline_core::Shard::ALONE,
        reset_seed: None,
        accept: Some(connection_config()),
        limits: Limits {
            // Those that are closing have a place of their own.
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

/// Plain TCP whose SYN/ACK waits for the target.
fn connection_config() -> ConnectionConfig {
    ConnectionConfig {
        mptcp: false,
        withhold_syn_ack: true,
        pacing: false,
        send_buffer: BUFFER,
        receive_buffer: BUFFER,
        initial_window: INITIAL_WINDOW,
        ..ConnectionConfig::new(marline::reference_policies())
    }
}
