//! Sockets behind file descriptors, and the effect of system calls on them.
//!
//! Descriptors are real ones, of unused kernel sockets: packetdrill closes them itself at the end, and some scripts
//! look for a listener in `/proc/net/tcp`.

mod clocks;
mod epolls;
mod fast_open;
mod ioctl_queries;
mod opening;
mod polling;
mod reports;
mod settings;
mod transfer;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use libc::c_int;
use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, Endpoint, Event, FallbackReason, FourTuple,
    WriteError,
};

pub(crate) use self::clocks::Clocks;
use self::epolls::Epoll;
pub(crate) use self::opening::{to_socket_family, unmapped};
pub(crate) use self::reports::Report;
use self::reports::Reports;
pub(crate) use self::transfer::{Reading, Writing};
use marline_time::Instant;

use crate::mirror::{Fallbacks, Mirror, Opening};
use crate::options::SocketOptions;

/// State of a socket.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Neither connected nor listening.
    Unconnected,
    /// Listening, with connections that have not been accepted yet.
    Listener(VecDeque<ConnectionId>),
    /// Connected, or connecting.
    Stream(ConnectionId),
}

/// A socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) kind: Kind,
    pub(crate) mptcp: bool,
    pub(crate) v6: bool,
    pub(crate) nonblocking: bool,
    pub(crate) bound: Option<SocketAddr>,
    /// Destination of a `connect` whose SYN waits for data.
    pub(crate) deferred_destination: Option<SocketAddr>,
    pub(crate) options: SocketOptions,
    /// An error that has not been returned yet.
    pub(crate) error: Option<c_int>,
    /// True if a `connect` has not returned its success yet.
    pub(crate) connecting: bool,
    pub(crate) read_shut: bool,
    pub(crate) write_shut: bool,
    /// The error queue, and pending entries.
    pub(crate) reports: Reports,
    /// State for edge-triggered watches.
    wakes: epolls::EdgeState,
}

/// State of a connection in addition to the endpoint's state.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) path: FourTuple,
    pub(crate) open: bool,
    pub(crate) over: Option<CloseReason>,
    /// True if the last write was rejected and no space has been reported since.
    pub(crate) full: bool,
    pub(crate) tos: u8,
    /// Time to live of sent packets, if set.
    pub(crate) hops: Option<u8>,
    /// True if the error of the ended connection was returned.
    pub(crate) is_error_returned: bool,
    pub(crate) clocks: Clocks,
}

impl ConnectionState {
    /// True if the connection is neither established nor ended.
    pub(crate) const fn is_blocking(&self) -> bool {
        !self.open && self.over.is_none()
    }

    fn new(path: FourTuple, options: &SocketOptions, now: Instant) -> Self {
        ConnectionState {
            path,
            open: false,
            over: None,
            full: false,
            tos: options.tos,
            hops: options.hops,
            is_error_returned: false,
            clocks: Clocks::since(now),
        }
    }
}

/// All sockets.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    pub(crate) by_fd: BTreeMap<c_int, Socket>,
    pub(crate) connections: BTreeMap<ConnectionId, ConnectionState>,
    epolls: BTreeMap<c_int, Epoll>,
    /// Reasons for fallbacks to plain TCP.
    pub(crate) fallbacks: Fallbacks,
}

/// The `errno` for an ended connection.
pub(crate) const fn errno_of(reason: CloseReason) -> c_int {
    match reason {
        CloseReason::Refused => libc::ECONNREFUSED,
        CloseReason::Unreachable => libc::EHOSTUNREACH,
        CloseReason::TimedOut => libc::ETIMEDOUT,
        CloseReason::PeerReset | CloseReason::PeerMisbehaved => libc::ECONNRESET,
        CloseReason::Aborted => libc::ECONNABORTED,
        CloseReason::ResourceLimit => libc::ENOBUFS,
        CloseReason::Finished => libc::EPIPE,
        _ => libc::EIO,
    }
}

impl Sockets {
    pub(crate) fn get(&mut self, fd: c_int) -> Result<&mut Socket, c_int> {
        self.by_fd.get_mut(&fd).ok_or(libc::EBADF)
    }

    /// The connection of a socket.
    pub(crate) fn stream(&self, fd: c_int) -> Result<ConnectionId, c_int> {
        match self.by_fd.get(&fd).ok_or(libc::EBADF)?.kind {
            Kind::Stream(id) => Ok(id),
            _ => Err(libc::ENOTCONN),
        }
    }

    /// Takes the error of an ended connection. As in the kernel, it is returned once, and later calls only see the
    /// end.
    pub(crate) fn take_error(&mut self, id: ConnectionId) -> Option<c_int> {
        let life = self.connections.get_mut(&id)?;
        let reason = life.over.filter(|reason| *reason != CloseReason::Finished)?;
        (!core::mem::replace(&mut life.is_error_returned, true)).then(|| errno_of(reason))
    }

    /// The configuration with which a listener at `local` would accept a connection.
    pub(crate) fn listener_config(
        &self,
        mirror: &Mirror,
        local: SocketAddr,
    ) -> Option<ConnectionConfig> {
        let listener = self.listener(local)?;
        let mptcp = listener.mptcp;
        let config = mirror.connection_config(Opening::Passive, mptcp, &listener.options);
        Some(ConnectionConfig {
            fast_open: fast_open::listener_fast_open(&listener.options),
            ..config
        })
    }

    /// True if another socket listens at this address.
    pub(crate) fn is_taken(&self, wanted: SocketAddr) -> bool {
        let any = wanted.ip().is_unspecified();
        let mut bound = self.by_fd.values().filter(|s| matches!(s.kind, Kind::Listener(_)));
        bound.any(|socket| {
            let same = |at: SocketAddr| {
                at.port() == wanted.port()
                    && (any || at.ip().is_unspecified() || at.ip() == wanted.ip())
            };
            socket.bound.is_some_and(same)
        })
    }

    fn listener(&self, local: SocketAddr) -> Option<&Socket> {
        self.by_fd.values().find(|socket| socket.listens_on(local))
    }

    /// Type-of-service byte and time to live of packets sent on a path.
    pub(crate) fn marks(&self, path: &FourTuple) -> (u8, Option<u8>) {
        let own = self.connections.values().find(|life| life.path == *path);
        // A joined subflow uses the values of its connection.
        let joined = || {
            let port = |life: &&ConnectionState| life.path.remote.port() == path.remote.port();
            self.connections.values().find(port)
        };
        if let Some(life) = own.or_else(joined) {
            return (life.tos, life.hops);
        }
        let listener = self.listener(path.local).map(|socket| &socket.options);
        listener.map_or((0, None), |options| (options.tos, options.hops))
    }

    /// Handles an event from the endpoint.
    pub(crate) fn on_event(&mut self, now: Instant, endpoint: &Endpoint, event: Event) {
        match event {
            Event::Incoming(id) => self.on_incoming(now, endpoint, id),
            Event::Connected { connection, .. } => {
                if let Some(life) = self.connections.get_mut(&connection) {
                    life.open = true;
                    life.clocks = Clocks::since(now);
                }
                self.count_fallback(endpoint, connection);
            }
            Event::Writable(id) => {
                if let Some(life) = self.connections.get_mut(&id) {
                    life.full = false;
                }
            }
            Event::Closed { connection, reason } => {
                if let Some(life) = self.connections.get_mut(&connection) {
                    life.over = Some(reason);
                }
            }
            // Listeners of scripts never delay their SYN/ACK.
            Event::Requested(_)
            | Event::Readable(_)
            | Event::FlowEnded { .. }
            | Event::FlowGone { .. }
            | Event::Monitor(_) => {}
        }
    }

    fn count_fallback(&mut self, endpoint: &Endpoint, id: ConnectionId) {
        let count = &mut self.fallbacks;
        match endpoint.info(id).and_then(|info| info.fallback) {
            Some(FallbackReason::SynAckWithoutOption) => count.syn_ack_without_keys += 1,
            Some(FallbackReason::SynRetries) => {
                count.unanswered_syns += 1;
                count.remembered += 1;
            }
            Some(FallbackReason::KnownNetwork) => count.remembered_network += 1,
            _ => {}
        }
    }

    fn on_incoming(&mut self, now: Instant, endpoint: &Endpoint, id: ConnectionId) {
        let Some(info) = endpoint.info(id) else { return };
        let by_third_ack = info.fallback == Some(FallbackReason::FirstDataWithoutOption);
        self.fallbacks.by_third_ack += u64::from(by_third_ack);
        let Some(path) = info.subflows.first().map(|flow| flow.path) else { return };
        let listener = self.by_fd.values_mut().find(|socket| socket.listens_on(path.local));
        let Some(listener) = listener else { return };
        let life =
            ConnectionState { open: true, ..ConnectionState::new(path, &listener.options, now) };
        if let Kind::Listener(queue) = &mut listener.kind {
            queue.push_back(id);
        }
        self.connections.insert(id, life);
    }
}

impl Socket {
    pub(crate) fn new(kind: Kind, mptcp: bool, v6: bool) -> Self {
        Socket {
            kind,
            mptcp,
            v6,
            nonblocking: false,
            bound: None,
            deferred_destination: None,
            options: SocketOptions::default(),
            error: None,
            connecting: false,
            read_shut: false,
            write_shut: false,
            reports: Reports::default(),
            wakes: epolls::EdgeState::default(),
        }
    }

    fn listens_on(&self, local: SocketAddr) -> bool {
        let Some(bound) = self.bound.filter(|_| matches!(self.kind, Kind::Listener(_))) else {
            return false;
        };
        let any = bound.ip().is_unspecified();
        bound.port() == local.port() && (any || bound.ip() == local.ip())
    }
}

/// The `errno` for a rejected write.
pub(crate) const fn write_errno(error: WriteError) -> c_int {
    match error {
        WriteError::Blocked => libc::EAGAIN,
        WriteError::Shutdown | WriteError::Closed(_) => libc::EPIPE,
        WriteError::Unknown => libc::EBADF,
    }
}
