//! State of a shard, guarded by its mutex: the hub of the driver.
//!
//! Two state machines do the work: the endpoint (the core) and the carrier. The driver's own data belongs to owners:
//! structs with private fields, one per file. Only this file borrows two owners at a time, in the order of [`State`]'s
//! fields. Other files borrow one at a time, change it with its methods, and pass on what these return.

use core::net::SocketAddr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use marline_core::{ConnectError, ConnectionConfig, ConnectionId, Endpoint, PacketMeta, Transmit};
use marline_datagram::PathId;
use marline_time::Instant;

use super::carrier::Carrier;
use super::lanes::Lanes;
use super::observers::{ObservedSegments, Observers};
use super::path_owners::PathOwners;
use super::routing::Routing;
use super::sending::Sending;
use super::sockets::{Kind, Sockets};
use super::streams::Streams;
use super::wakeups::Wakeups;
use crate::carrier::{Datagram, FlowEnds, FramedBatch, Outer};
use crate::links::DataDirection;
use crate::succession::NativePart;

/// Endpoint, carrier and owners of a shard.
pub(super) struct State {
    endpoint: Endpoint,
    carrier: Carrier,
    sockets: Sockets,
    sending: Sending,
    routing: Routing,
    path_owners: PathOwners,
    observers: Observers,
    streams: Streams,
    lanes: Lanes,
    wakeups: Wakeups,
}

/// Endpoint, carrier and owners given to a new state, which creates the others itself.
pub(super) struct Parts {
    pub(crate) endpoint: Endpoint,
    pub(crate) carrier: Carrier,
    pub(crate) routing: Routing,
    pub(crate) observers: Observers,
    pub(crate) streams: Streams,
    pub(crate) lanes: Lanes,
    pub(crate) wakeups: Wakeups,
}

/// Access to one owner at a time.
impl State {
    pub(super) fn new(parts: Parts) -> State {
        let Parts { endpoint, carrier, routing, observers, streams, lanes, wakeups } = parts;
        let mut state = State {
            sending: Sending::new(carrier.headroom()),
            endpoint,
            carrier,
            sockets: Sockets::new(),
            routing,
            path_owners: PathOwners::default(),
            observers,
            streams,
            lanes,
            wakeups,
        };
        state.update_traffic_filter();
        state
    }

    pub(super) const fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    pub(super) const fn carrier(&mut self) -> &mut Carrier {
        &mut self.carrier
    }

    pub(super) const fn sockets(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    pub(super) const fn sending(&mut self) -> &mut Sending {
        &mut self.sending
    }

    pub(super) const fn routing(&mut self) -> &mut Routing {
        &mut self.routing
    }

    pub(super) const fn path_owners(&mut self) -> &mut PathOwners {
        &mut self.path_owners
    }

    pub(super) const fn observers(&mut self) -> &mut Observers {
        &mut self.observers
    }

    pub(super) const fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }

    pub(super) const fn lanes(&mut self) -> &mut Lanes {
        &mut self.lanes
    }

    pub(super) const fn wakeups(&mut self) -> &mut Wakeups {
        &mut self.wakeups
    }
}

/// Access to several owners at a time.
impl State {
    /// Notifies the endpoint and the lanes of a new pause of the process. Data in transit during a pause says nothing
    /// about the network.
    pub(super) fn record_pauses(&mut self, pauses: u64) {
        if self.wakeups.record_pauses(pauses) {
            self.endpoint.record_pause();
            self.lanes.record_pause();
        }
    }

    /// Limits the core's traffic events to those that have subscribers.
    pub(super) fn update_traffic_filter(&mut self) {
        self.endpoint.report_traffic(self.observers.traffic_filter());
    }

    /// Lets the core write its next batch into a buffer.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.sending.fill(&mut self.endpoint, now)
    }

    /// Passes a batch to the observers and to the client's routes, and adds the carrier's headers. Returns `None` if
    /// the batch cannot be sent now.
    pub(super) fn frame(
        &mut self,
        now: Instant,
        batch: &Transmit,
        out: &mut [u8],
    ) -> Option<FramedBatch> {
        let observed = ObservedSegments::on_sent(now, batch, out, &self.carrier);
        self.observers.observe(&observed);
        let routes = self.routing.routes();
        if routes.compares() {
            let ends = FlowEnds::new(batch.path.local.ip(), batch.path.remote);
            let (flow, segments) = (batch.local_flow, observed.segments());
            routes.on_segments(now, ends, flow, DataDirection::Up, segments);
        }
        match &mut self.carrier {
            Carrier::Udp(carrier) => carrier.frame(now, batch, out),
            Carrier::Native(carrier) => {
                carrier.frame(batch, out);
                self.sockets.find_native_outer(&batch.path).map(FramedBatch::Ready)
            }
        }
    }

    /// Passes an incoming segment to the observers.
    pub(super) fn observe_arrival(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {
        let header = self.carrier.header();
        self.observers.observe(&ObservedSegments::on_received(now, meta, segment, header));
    }

    /// Updates a lane's paths, memory limit, and silent paths before the lane sends.
    pub(super) fn prepare_lane(&mut self, id: u64, now: Instant) {
        let Carrier::Udp(carrier) = &self.carrier else { return };
        if let Some(connection) = self.lanes.connection_to_check(id, now) {
            let subflows = self.endpoint.subflow_locations(connection);
            self.lanes.look(id, now, &subflows, |flow| carrier.place(flow));
            if let Some(account) = self.endpoint.memory_account(connection) {
                self.lanes.charge_to(id, account);
            }
            self.endpoint.mark_in_use(now, connection);
        }
        let endpoint = &self.endpoint;
        self.lanes.record_probed(id, |path| endpoint.is_path_probed(path));
    }

    /// Reports the bytes that a lane carried to the client's routes.
    pub(super) fn report_lane_bytes(&mut self, id: u64, now: Instant) {
        let routes = self.routing.routes();
        if !routes.compares() {
            return;
        }
        let Carrier::Udp(carrier) = &self.carrier else { return };
        for (flow, heading, bytes) in self.lanes.take_carried(id, now) {
            if let Some(Outer { local, remote, .. }) = carrier.place(flow) {
                routes.on_lane(now, FlowEnds::new(local, remote), heading, bytes);
            }
        }
    }

    /// Gives a frame to its lane.
    pub(super) fn on_lane_frame(&mut self, id: u64, now: Instant, datagram: &Datagram<'_>) {
        let Carrier::Udp(carrier) = &self.carrier else { return };
        let from = |flow| carrier.place(flow) == Some(datagram.outer);
        self.lanes.arrive(id, now, datagram.bytes, from);
    }

    /// Returns the path of a lane to this address.
    pub(super) fn lane_path_to(&self, id: u64, remote: SocketAddr) -> Option<PathId> {
        let Carrier::Udp(carrier) = &self.carrier else { return None };
        let goes_there = |flow| carrier.place(flow).is_some_and(|outer| outer.remote == remote);
        let path = self.lanes.paths(id).iter().find(|path| goes_there(path.flow));
        path.map(|path| path.id)
    }

    /// Makes all raw sockets accept the carrier's packets.
    pub(super) fn install_port_filter(&self) -> io::Result<()> {
        let Carrier::Native(carrier) = &self.carrier else { return Ok(()) };
        for socket in self.sockets.iter() {
            if let Kind::Raw(_) = socket.kind {
                carrier.install_port_filter(socket.as_fd(), socket.local.is_ipv6())?;
            }
        }
        Ok(())
    }

    /// Duplicates the descriptors of a native carrier. Returns an empty list for other carriers.
    pub(super) fn copy_native(&self) -> io::Result<Vec<(NativePart, SocketAddr, OwnedFd)>> {
        let Carrier::Native(carrier) = &self.carrier else { return Ok(Vec::new()) };
        let mut parts = Vec::new();
        for socket in self.sockets.iter() {
            let part = match socket.kind {
                Kind::Raw(_) => NativePart::Receiver,
                Kind::Tun => NativePart::Tun,
                Kind::Udp(_) | Kind::Gateway { .. } => continue,
            };
            parts.push((part, socket.local, socket.as_fd().try_clone_to_owned()?));
        }
        let guards = carrier.copy_guards()?.into_iter();
        parts.extend(guards.map(|(local, fd)| (NativePart::Guard, local, fd)));
        Ok(parts)
    }

    /// Notifies lanes that connections received an answer on silent paths.
    pub(super) fn wake_lanes(&mut self) {
        for addresses in self.endpoint.take_answered_paths() {
            self.lanes.on_path_answer(addresses);
        }
    }

    /// Notifies connections that lanes received an answer on silent paths.
    pub(super) fn wake_connections(&mut self, now: Instant) {
        for path in self.lanes.take_answered() {
            self.endpoint.on_path_answer(now, path);
        }
    }

    /// Returns the earliest deadline, not counting the timer itself.
    pub(super) fn next_timeout(&mut self) -> Option<Instant> {
        let candidates = [
            self.endpoint.poll_timeout(),
            self.carrier.next_timeout(),
            self.lanes.next_timeout(),
            self.routing.routes().next_timeout(),
            self.sockets.next_timeout(),
        ];
        candidates.into_iter().flatten().min()
    }

    /// Handles the timers that are due.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        if self.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            self.endpoint.handle_timeout(now);
        }
        self.carrier.on_timeout(now);
        self.lanes.on_timeout(now);
        self.routing.routes().on_timeout(now);
    }

    /// Ends all connections and lanes when the task ends.
    pub(super) fn stop(&mut self) {
        self.wakeups.stop();
        self.sockets.clear();
        self.streams.wake_all();
        self.lanes.wake_all();
    }
}

/// Local ports of connections on native carriers, which are reserved before the core may use them.
impl State {
    /// Declares that no connections are opened, so no ports need to be reserved.
    pub(super) fn disable_port_pool(&mut self) {
        if let Carrier::Native(carrier) = &mut self.carrier {
            carrier.disable_port_pool();
            self.endpoint.set_local_ports(Some(Vec::new()));
        }
    }

    /// Reserves more local ports: first the guards, then the filter; only then may the core use the ports.
    pub(super) fn grow_port_pool(&mut self) -> io::Result<bool> {
        let Carrier::Native(carrier) = &mut self.carrier else { return Ok(false) };
        if !carrier.needs_pool() {
            return Ok(false);
        }
        let grown = carrier.grow_pool();
        let ports = carrier.pool().to_vec();
        self.install_port_filter()?;
        self.endpoint.set_local_ports(Some(ports));
        grown
    }

    /// Reserves local ports after a join found none, for its next attempt.
    pub(super) fn reserve_missing_ports(&mut self) {
        if self.carrier.is_native() && self.endpoint.take_port_shortage() {
            // If this fails, the shortage is reported again.
            let _ = self.grow_port_pool();
        }
    }

    /// Opens a connection, and reserves more local ports if none is free.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        config: &Arc<ConnectionConfig>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        loop {
            match self.endpoint.connect(now, Arc::clone(config), local, remote) {
                Err(ConnectError::AddressInUse) => match self.grow_port_pool() {
                    Ok(true) => {}
                    Ok(false) => return Err(ConnectError::AddressInUse),
                    Err(error) => {
                        tracing::warn!(%error, "cannot reserve more local ports; connection failed");
                        return Err(ConnectError::AddressInUse);
                    }
                },
                other => return other,
            }
        }
    }
}
