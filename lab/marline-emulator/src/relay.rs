//! Relay: a listening socket, its clients, and a link in each direction.

use std::io;
use std::net::SocketAddr;

use marline_time::{Duration, Instant};
use quinn_udp::EcnCodepoint;

use crate::clock::Clock;
use crate::command::{LinkCommand, Side};
use crate::config::RelayConfig;
use crate::flows::Flows;
use crate::lane::{FlowKey, Lane, LinkDatagram};
use crate::lanes::Lanes;
use crate::report::{ProcessorWait, RelayReport};
use crate::socket::{DatagramSocket, Outgoing, ReceiveBuffers, kernel_drops};

/// Maximum number of spare buffers.
const MAX_POOL: usize = 4_096;

/// Maximum size of one segmented send in bytes: below the largest UDP payload.
const MAX_BATCH_BYTES: usize = 60_000;

/// Identifies a socket of a relay.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Listen,
    Upstream(u32),
}

/// Datagrams sent in one call.
#[derive(Debug, Default)]
struct Batch {
    to: Option<(FlowKey, Option<EcnCodepoint>)>,
    bytes: Vec<u8>,
    segment: usize,
    due: Vec<Instant>,
}

impl Batch {
    /// Returns true if a datagram fits into the batch: all have one destination and one size, except for a shorter
    /// last datagram.
    fn accepts(&self, parcel: &LinkDatagram, limit: usize) -> bool {
        let ends_full = self.bytes.len() == self.segment * self.due.len();
        self.to == Some((parcel.flow, parcel.ecn))
            && self.due.len() < limit
            && ends_full
            && !parcel.bytes.is_empty()
            && parcel.bytes.len() <= self.segment
            && self.bytes.len() + parcel.bytes.len() <= MAX_BATCH_BYTES
    }

    fn push(&mut self, due: Instant, parcel: &LinkDatagram) {
        if self.due.is_empty() {
            self.to = Some((parcel.flow, parcel.ecn));
            self.segment = parcel.bytes.len();
        }
        self.bytes.extend_from_slice(&parcel.bytes);
        self.due.push(due);
    }

    fn clear(&mut self) {
        self.to = None;
        self.bytes.clear();
        self.due.clear();
    }
}

/// A relay.
#[derive(Debug)]
pub(crate) struct Relay {
    name: String,
    to: SocketAddr,
    /// Size of the IP and UDP headers on the emulated link in bytes.
    headers: usize,
    pub(crate) listen: DatagramSocket,
    pub(crate) flows: Flows,
    lanes: Lanes,
    pool: Vec<Vec<u8>>,
    batch: Batch,
}

impl Relay {
    pub(crate) fn new(config: RelayConfig, start: Instant) -> io::Result<Self> {
        let listen = DatagramSocket::bind(config.listen).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot bind UDP {}: {error}", config.listen))
        })?;
        Ok(Relay {
            name: config.name,
            to: config.to,
            headers: if config.to.is_ipv4() { 20 + 8 } else { 40 + 8 },
            listen,
            flows: Flows::new(config.to, config.max_flows, config.idle),
            lanes: Lanes::new(config.link, &config.seeds, config.schedule, start),
            pool: Vec::new(),
            batch: Batch::default(),
        })
    }

    /// Time of the relay's next event.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.lanes.next_event()
    }

    /// Reads one batch from a socket into the link.
    pub(crate) fn receive(&mut self, port: Port, clock: &Clock, buffers: &mut ReceiveBuffers) {
        let Relay { listen, flows, lanes, pool, headers, .. } = self;
        let headers = *headers;
        // Errors come from ICMP messages about earlier datagrams, or mean that the socket is empty.
        match port {
            Port::Listen => {
                let _ = listen.receive(buffers, |datagram| {
                    let now = clock.now();
                    let Some(flow) = flows.find_or_create_flow(datagram.from, datagram.to_ip, now)
                    else {
                        return;
                    };
                    let bytes = fill(pool, datagram.bytes);
                    lanes.up.offer(
                        now,
                        Some(datagram.age),
                        LinkDatagram { flow, ecn: datagram.ecn, headers, bytes },
                    );
                });
            }
            Port::Upstream(slot) => {
                let Some((flow, entry)) = flows.flow_in_slot(slot) else { return };
                let now = clock.now();
                let _ = entry.upstream.receive(buffers, |datagram| {
                    let bytes = fill(pool, datagram.bytes);
                    let ecn = datagram.ecn;
                    lanes.down.offer(
                        clock.now(),
                        Some(datagram.age),
                        LinkDatagram { flow, ecn, headers, bytes },
                    );
                });
                flows.answered(slot, now);
            }
        }
    }

    /// Executes scheduled commands that are due and sends due datagrams.
    pub(crate) fn advance(&mut self, clock: &Clock) {
        let now = clock.now();
        while let Some((at, command)) = self.lanes.take_scheduled(now) {
            // Without a free port, the flow keeps its port.
            let _ = self.apply(at, command);
        }
        for side in [Side::Up, Side::Down] {
            self.deliver(side, now, clock);
        }
    }

    fn lane(&mut self, side: Side) -> &mut Lane {
        if side.has_up() { &mut self.lanes.up } else { &mut self.lanes.down }
    }

    fn deliver(&mut self, side: Side, now: Instant, clock: &Clock) {
        let limit = self.listen.send_batch_limit();
        while let Some((due, parcel)) = self.lane(side).poll(now) {
            if !self.batch.accepts(&parcel, limit) {
                self.flush(side, clock);
            }
            self.batch.push(due, &parcel);
            self.recycle(parcel);
        }
        self.flush(side, clock);
        while let Some(dropped) = self.lane(side).take_dropped() {
            self.recycle(dropped);
        }
    }

    fn flush(&mut self, side: Side, clock: &Clock) {
        let Some((key, ecn)) = self.batch.to else { return };
        let result = match self.flows.get(key) {
            // The client was removed meanwhile.
            None => Ok(()),
            Some(flow) => {
                let (socket, to, from_ip) = match side {
                    Side::Down => (&self.listen, flow.client, flow.reply_from),
                    _ => (&flow.upstream, self.to, None),
                };
                let segment = self.batch.segment;
                socket.send(&Outgoing { to, from_ip, ecn, bytes: &self.batch.bytes, segment })
            }
        };
        let (now, count) = (clock.now(), self.batch.due.len() as u64);
        let lane = if side.has_up() { &mut self.lanes.up } else { &mut self.lanes.down };
        match result {
            Ok(()) => self.batch.due.iter().for_each(|due| lane.sent(*due, now)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => lane.send_blocked += count,
            Err(_) => lane.send_errors += count,
        }
        self.batch.clear();
    }

    fn recycle(&mut self, parcel: LinkDatagram) {
        if self.pool.len() < MAX_POOL {
            self.pool.push(parcel.bytes);
        }
    }

    pub(crate) fn apply(&mut self, now: Instant, command: LinkCommand) -> io::Result<()> {
        match command {
            LinkCommand::Break(side) => self.lanes.set_up(now, side, false),
            LinkCommand::Restore(side) => self.lanes.set_up(now, side, true),
            LinkCommand::Set(config) => self.lanes.set_config(now, *config),
            LinkCommand::Rebind => self.flows.rebind()?,
        }
        Ok(())
    }

    /// Removes idle clients.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.flows.expire(now);
    }

    pub(crate) fn report(&self, age: Duration, starved: ProcessorWait) -> RelayReport {
        RelayReport {
            name: self.name.clone(),
            running: age,
            flows: self.flows.len(),
            flows_refused: self.flows.refused,
            rebinds: self.flows.rebinds,
            lost_interfaces: Vec::new(),
            starved,
            kernel_drops: kernel_drops(&self.listen).unwrap_or(0) + self.flows.kernel_drops(),
            up: self.lanes.up.report(),
            down: self.lanes.down.report(),
            radio: self.lanes.up.radio(Instant::ZERO + age),
        }
    }
}

/// Copies bytes into a buffer of the pool.
fn fill(pool: &mut Vec<Vec<u8>>, bytes: &[u8]) -> Vec<u8> {
    let mut vector = pool.pop().unwrap_or_default();
    vector.clear();
    vector.extend_from_slice(bytes);
    vector
}
