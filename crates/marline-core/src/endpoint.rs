//! The Endpoint: five calls, and the application's commands.

use core::net::SocketAddr;

use marline_policy::{AddressId, LocalAddress, PathManagerFactory, SchedulerFactory};
use marline_time::{Instant, Rng};
use std::sync::Arc;

use crate::{
    ConnectError, ConnectionConfig, ConnectionId, ConnectionInfo, Counters, EndpointConfig, Event,
    PacketMeta, ReadError, Transmit, TransmitBuf, WriteError,
};

/// All connections of one shard.
#[derive(Debug)]
pub struct Endpoint {
    _config: EndpointConfig,
    _rng: Box<dyn Rng>,
}

#[allow(unused_variables, clippy::unimplemented, missing_docs, reason = "the edge; bodies follow")]
impl Endpoint {
    /// A new endpoint. `rng` draws keys, ISNs, nonces and ids: it must be unpredictable in real use.
    #[must_use]
    pub fn new(config: EndpointConfig, rng: Box<dyn Rng>) -> Self {
        Endpoint { _config: config, _rng: rng }
    }

    // ---- the five calls

    /// A segment (TCP header on) came in.
    pub fn handle_packet(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {}
    /// The time of `poll_timeout` has come (calling early or late is harmless).
    pub fn handle_timeout(&mut self, now: Instant) {}
    /// Fills `buf` with the next batch. Clears it first. `None`: nothing to send now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut TransmitBuf) -> Option<Transmit> {
        None
    }
    /// When `handle_timeout` must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    // ---- the application's commands

    /// Opens a connection: sends the first SYN from `local` to `remote`. Port 0 in `local` lets the
    /// endpoint choose one.
    pub fn connect(
        &mut self,
        now: Instant,
        config: ConnectionConfig,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        Err(ConnectError::TooManyConnections)
    }
    /// Takes bytes into the send buffer; returns how many. `Blocked` if none fit.
    pub fn write(
        &mut self,
        now: Instant,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<usize, WriteError> {
        Err(WriteError::Unknown)
    }
    /// Copies received bytes out; `Ok(0)` is the end of the stream.
    pub fn read(
        &mut self,
        now: Instant,
        id: ConnectionId,
        out: &mut [u8],
    ) -> Result<usize, ReadError> {
        Err(ReadError::Unknown)
    }
    /// No more writes: DATA_FIN follows the data.
    pub fn shutdown(&mut self, now: Instant, id: ConnectionId) {}
    /// Ends the connection at once: MP_FASTCLOSE (RST on plain TCP).
    pub fn abort(&mut self, now: Instant, id: ConnectionId) {}
    /// The application lets go: reads no more. A connection with unread or further incoming data is
    /// aborted, one that is finished or finishing closes in the background.
    pub fn release(&mut self, now: Instant, id: ConnectionId) {}
    /// A local address appeared, changed its flags or went away, for one connection or all.
    pub fn set_local_address(
        &mut self,
        now: Instant,
        id: Option<ConnectionId>,
        address: LocalAddress,
    ) {
    }
    /// Changes the backup flag of a local address: MP_PRIO on its subflows.
    pub fn set_backup(&mut self, now: Instant, id: ConnectionId, local: AddressId, backup: bool) {}
    /// Replaces the scheduler of a running connection.
    pub fn set_scheduler(
        &mut self,
        now: Instant,
        id: ConnectionId,
        factory: Arc<dyn SchedulerFactory>,
    ) {
    }
    /// Replaces the path manager of a running connection.
    pub fn set_path_manager(
        &mut self,
        now: Instant,
        id: ConnectionId,
        factory: Arc<dyn PathManagerFactory>,
    ) {
    }
    /// The carrier found that segments to `remote` may be at most `max_segment` bytes.
    pub fn set_path_mtu(&mut self, now: Instant, remote: SocketAddr, max_segment: u16) {}
    /// The carrier found `remote` unreachable from `local` (ICMP, ENETUNREACH, ECONNREFUSED): the subflow
    /// becomes suspect at once; a SYN may be given up.
    pub fn path_unreachable(&mut self, now: Instant, local: SocketAddr, remote: SocketAddr) {}
    /// Asks for subflow actions by hand (manual path manager, `marline path`).
    pub fn path_action(
        &mut self,
        now: Instant,
        id: ConnectionId,
        action: marline_policy::PathAction,
    ) {
    }
    /// A picture of a connection.
    #[must_use]
    pub fn info(&self, id: ConnectionId) -> Option<ConnectionInfo> {
        None
    }
    /// All connections.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        Vec::new()
    }
    /// Counts since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}
