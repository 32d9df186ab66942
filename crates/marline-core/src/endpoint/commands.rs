//! Commands of applications and drivers to an endpoint, except reads and writes.

use core::net::SocketAddr;
use std::sync::Arc;

use marline_policy::{
    AddressId, LocalAddress, PathAction, PathManagerFactory, SchedulerFactory, SubflowId,
    SubflowView,
};
use marline_time::Instant;
use marline_wire::SeqNum;

use super::Endpoint;
use crate::connection::{Connection, Origin};
use crate::subflow::{SubflowConfig, SynRetries};
use crate::tables::fast_open_memory::{Plan, syn_room};
use crate::{
    ConnectError, ConnectionConfig, ConnectionId, ConnectionInfo, FourTuple, MemoryAccount,
    NetworkError, SocketOption, SubflowLocation,
};

impl Endpoint {
    /// Opens a connection: sends the first SYN from `local` to `remote`. Port 0 in `local` lets the
    /// endpoint choose one. Connections that share their configuration (an `Arc`) keep it once.
    ///
    /// # Errors
    /// Fails if limits are reached, the families differ, or no port is free for this pair of addresses.
    pub fn connect(
        &mut self,
        now: Instant,
        config: impl Into<Arc<ConnectionConfig>>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(ConnectError::FamilyMismatch);
        }
        if self.slots.count() >= self.config.limits.connections {
            return Err(ConnectError::TooManyConnections);
        }
        let mut local = local;
        if local.port() == 0 {
            let port = self.flows.free_port(self.rng.as_mut(), local, remote);
            local.set_port(port.ok_or(ConnectError::AddressInUse)?);
        }
        let path = FourTuple { local, remote };
        if self.flows.has_tuple(&path) {
            return Err(ConnectError::AddressInUse);
        }
        let (key, config) = (self.draw_key(), config.into());
        let (id, slot) = self.insert(now, |cx, id, slot| {
            Connection::connect(cx, config, &Origin { id, slot, path, key })
        });
        self.update_after_call(now, slot);
        Ok(id)
    }

    /// Restricts new connections and subflows to these local ports, for drivers that must reserve ports. `None` (the
    /// default) allows any ephemeral port.
    pub fn set_local_ports(&mut self, ports: Option<Vec<u16>>) {
        self.flows.set_local_ports(ports);
    }

    /// Sets the configuration of connections that are accepted from now on. `None` refuses new connections. Existing
    /// connections are not affected.
    pub fn accept_with(&mut self, config: Option<ConnectionConfig>) {
        self.accept = config.map(Arc::new);
    }

    /// Like [`accept_with`](Self::accept_with), but an endpoint that refuses connections continues to do so, and the
    /// [local addresses](Self::set_local_address) are kept.
    pub fn update_accept_config(&mut self, config: &ConnectionConfig) {
        if let Some(now) = &self.accept {
            let local_addresses = now.local_addresses.clone();
            self.accept = Some(Arc::new(ConnectionConfig { local_addresses, ..config.clone() }));
        }
    }

    /// Refuses new connections from now on; existing connections, and joins to them, are not
    /// affected.
    pub fn stop_accepting(&mut self) {
        self.accept = None;
    }

    /// Returns true if a connection or subflow could not be opened since the last call because no local port was
    /// free.
    pub fn take_port_shortage(&mut self) -> bool {
        self.flows.take_port_shortage()
    }

    /// Number of bytes that a connection of this configuration can send with its SYN by Fast Open
    /// ([`ConnectionConfig::fast_open`]), if they are written between [`connect`](Self::connect) and the next
    /// [`poll_transmit`](Self::poll_transmit). Further bytes follow after the server's answer. `None` if Fast Open is
    /// off, no cookie is known, or the path is known to block it.
    #[must_use]
    pub fn fast_open_room(
        &self,
        now: Instant,
        config: &ConnectionConfig,
        path: &FourTuple,
    ) -> Option<usize> {
        let fast = config.fast_open.as_ref()?;
        if !fast.is_on(path.remote.port()) {
            return None;
        }
        let plan = self.fast_opens.plan(now, path.addresses(), fast);
        let capabilities = self.config.capabilities.for_path(*path);
        let (limits, syn) = (&self.config.limits, SynRetries::first(config));
        let ours = SubflowConfig::new(config, &capabilities, limits, syn).base_segment;
        match plan {
            Plan::Send(_, mss) => Some(syn_room(ours.into(), mss)),
            Plan::Ask(_) | Plan::Ordinary => None,
        }
    }

    /// Charges connections that are opened or accepted from now on to this account. Without an account, their memory
    /// is counted but limited only by their buffers.
    pub fn set_memory_account(&mut self, account: MemoryAccount) {
        self.account = account;
    }

    /// The account to which a connection's memory is charged; `None` if there is no such connection.
    #[must_use]
    pub fn memory_account(&self, id: ConnectionId) -> Option<&MemoryAccount> {
        self.connection(id).map(Connection::account)
    }

    /// Moves a connection's memory to another account, for example once its peer is authenticated.
    pub fn charge_memory_to(&mut self, now: Instant, id: ConnectionId, account: &MemoryAccount) {
        self.with_connection(now, id, |c, _| c.charge_to(account));
    }

    /// Changes an option of an established connection.
    pub fn set(&mut self, now: Instant, id: ConnectionId, option: SocketOption) {
        self.with_connection(now, id, |c, _| c.set(now, option));
    }

    /// Ends a record (`MSG_EOR`): no segment will contain bytes from both before and after this
    /// point, so that a lost segment delays only its own record. At most a thousand records are
    /// kept apart at a time.
    pub fn end_record(&mut self, now: Instant, id: ConnectionId) {
        self.with_connection(now, id, |c, _| c.end_record());
    }

    /// Shuts down the write side: a DATA_FIN follows the data.
    pub fn shutdown(&mut self, now: Instant, id: ConnectionId) {
        self.with_connection(now, id, |c, cx| c.shutdown(cx));
    }

    /// Ends the connection immediately: with MP_FASTCLOSE, or with RST on plain TCP.
    pub fn abort(&mut self, now: Instant, id: ConnectionId) {
        self.with_connection(now, id, |c, cx| c.abort(cx));
    }

    /// Releases the connection: the application will read no more. A connection with unread bytes is aborted; any
    /// other closes in the background and drops further data.
    pub fn release(&mut self, now: Instant, id: ConnectionId) {
        self.with_connection(now, id, |c, cx| c.release(cx));
    }

    /// Reports that a local address appeared, changed its flags or disappeared: for one connection, or for all existing
    /// and future ones.
    pub fn set_local_address(
        &mut self,
        now: Instant,
        id: Option<ConnectionId>,
        address: LocalAddress,
    ) {
        if let (None, Some(accept)) = (id, &mut self.accept)
            && let Some(at) = accept.local_addresses.iter().position(|l| l.id == address.id)
        {
            Arc::make_mut(accept).local_addresses[at] = address;
        }
        if id.is_none() && address.up {
            self.networks.forget_address(address.address.ip());
            self.plain_answers.forget_address(address.address.ip());
            self.fast_opens.forget_address(address.address.ip());
        }
        if address.up {
            self.flows.send_unsent(address.address.ip(), &mut self.out);
        }
        for id in id.map_or_else(|| self.connections(), |id| vec![id]) {
            self.with_connection(now, id, |c, cx| c.set_local_address(cx, address));
        }
    }

    /// Adds another address of a client's server, known from DNS instead of the server's announcements. Subflows may be
    /// opened to it. Does nothing if the address is known, if there is no room
    /// ([`Limits::remote_addresses`](crate::Limits::remote_addresses)), or if the server forbids joins to the address
    /// of the initial subflow because a load balancer has that address.
    pub fn add_remote_address(&mut self, now: Instant, id: ConnectionId, address: SocketAddr) {
        self.with_connection(now, id, |c, cx| c.add_remote_address(cx, address));
    }

    /// Changes the backup flag of a local address: MP_PRIO on its subflows.
    pub fn set_backup(&mut self, now: Instant, id: ConnectionId, local: AddressId, backup: bool) {
        self.with_connection(now, id, |c, cx| c.set_backup(cx, local, backup));
    }

    /// Replaces the scheduler of a running connection.
    pub fn set_scheduler(
        &mut self,
        now: Instant,
        id: ConnectionId,
        factory: Arc<dyn SchedulerFactory>,
    ) {
        self.with_connection(now, id, |c, _| c.set_scheduler(now, factory));
    }

    /// Replaces the path manager of a running connection.
    pub fn set_path_manager(
        &mut self,
        now: Instant,
        id: ConnectionId,
        factory: Arc<dyn PathManagerFactory>,
    ) {
        self.with_connection(now, id, |c, cx| c.set_path_manager(cx, factory));
    }

    /// Reports an ICMP message that quotes a segment from `path.local` to `path.remote` with
    /// sequence number `seq`. Such messages can be forged: one is accepted only if the segment may
    /// be in flight (RFC 5927 section 4.1). Returns `false` otherwise.
    pub fn network_error(
        &mut self,
        now: Instant,
        path: &FourTuple,
        seq: SeqNum,
        error: NetworkError,
    ) -> bool {
        let Some(flow) = self.flows.find(path, 0, 0) else { return false };
        let (slots, mut cx) = self.split_context(now);
        let Some(connection) = slots.get_mut(flow.slot) else { return false };
        let fits = connection.on_network_error(&mut cx, flow.subflow, seq, error);
        self.update_after_call(now, flow.slot);
        fits
    }

    /// Carries out a path action on request (manual path manager, `marline path`).
    pub fn path_action(&mut self, now: Instant, id: ConnectionId, action: PathAction) {
        self.with_connection(now, id, |c, cx| c.path_action(cx, action));
    }

    /// A value that identifies this connection to a protocol inside it, equal on both sides: HMAC-SHA-256 over
    /// `label` under both MPTCP keys, each generated randomly by one side. It is not secret, because the keys are
    /// sent in the clear. `None` if the handshake carried no keys (plain TCP) or is not complete.
    #[must_use]
    pub fn export_binding(&self, id: ConnectionId, label: &[u8]) -> Option<[u8; 32]> {
        self.connection(id)?.export_binding(label)
    }

    /// A snapshot of a connection.
    #[must_use]
    pub fn info(&self, id: ConnectionId) -> Option<ConnectionInfo> {
        self.connection(id).map(Connection::info)
    }

    /// The established subflows of a connection, in the order in which they were opened; none if there is no such
    /// connection.
    #[must_use]
    pub fn subflow_locations(&self, id: ConnectionId) -> Vec<SubflowLocation> {
        self.connection(id).map(Connection::subflow_locations).unwrap_or_default()
    }

    /// Address pairs of all established subflows that are degraded or unreachable. Each such subflow has an entry.
    #[must_use]
    pub fn impaired_paths(&self) -> Vec<FourTuple> {
        let connections = self.slots.ids();
        let connections = connections.iter().filter_map(|id| self.connection(*id));
        connections.flat_map(Connection::impaired_paths).collect()
    }

    /// One subflow as the connection's policies would see it now; `None` if there is no such connection or subflow.
    /// Read-only.
    #[must_use]
    pub fn subflow_view(
        &self,
        now: Instant,
        id: ConnectionId,
        subflow: SubflowId,
    ) -> Option<SubflowView> {
        self.connection(id)?.subflow_view(now, subflow)
    }

    /// Connections whose peer is known to have one of these addresses: the initial remote address or an announced
    /// one.
    #[must_use]
    pub fn connections_to(&self, addresses: &[SocketAddr]) -> Vec<ConnectionId> {
        let leads_there = |id: &ConnectionId| {
            self.connection(*id).is_some_and(|connection| connection.has_peer_at(addresses))
        };
        self.slots.ids().into_iter().filter(leads_there).collect()
    }

    /// All connections, including half-open ones.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.slots.ids()
    }
}
