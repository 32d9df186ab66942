//! Calls from `socket` to `accept`, `connect`, `shutdown` and `close`.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use libc::c_int;
use marline_core::{ConnectError, FourTuple};
use marline_time::Instant;

use super::{ConnectionState, Kind, Socket, errno_of};
use crate::machine::{Attempt, State};
use crate::mirror::Opening;

impl State {
    /// A new socket for the descriptor `fd`.
    pub(crate) fn open_socket(&mut self, fd: c_int, v6: bool, protocol: c_int, nonblocking: bool) {
        let mptcp = protocol == libc::IPPROTO_MPTCP;
        let socket = Socket { nonblocking, ..Socket::new(Kind::Unconnected, mptcp, v6) };
        self.sockets.by_fd.insert(fd, socket);
    }

    pub(crate) fn bind(&mut self, fd: c_int, address: SocketAddr) -> Result<(), c_int> {
        let socket = self.sockets.get(fd)?;
        if socket.bound.is_some() || !matches!(socket.kind, Kind::Unconnected) {
            return Err(libc::EINVAL);
        }
        socket.bound = Some(address);
        Ok(())
    }

    /// Starts to listen. Returns the address.
    pub(crate) fn listen(&mut self, fd: c_int) -> Result<SocketAddr, c_int> {
        let socket = self.sockets.get(fd)?;
        match socket.kind {
            Kind::Stream(_) => return Err(libc::EINVAL),
            Kind::Listener(_) => return socket.bound.ok_or(libc::EINVAL),
            Kind::Unconnected => {}
        }
        let bound = socket.bound.ok_or(libc::EINVAL)?;
        if self.sockets.is_taken(bound) {
            return Err(libc::EADDRINUSE);
        }
        self.sockets.get(fd)?.kind = Kind::Listener(VecDeque::new());
        Ok(bound)
    }

    /// Makes one attempt to accept. Returns the peer if there is a connection.
    pub(crate) fn accept(&mut self, fd: c_int, new_fd: c_int) -> Attempt<SocketAddr> {
        let socket = match self.sockets.get(fd) {
            Ok(socket) => socket,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let Kind::Listener(queue) = &mut socket.kind else {
            return Attempt::Done(Err(libc::EINVAL));
        };
        let Some(id) = queue.pop_front() else {
            return if socket.nonblocking {
                Attempt::Done(Err(libc::EAGAIN))
            } else {
                Attempt::Wait(None)
            };
        };
        let accepted = Socket {
            bound: socket.bound,
            options: socket.options.clone(),
            ..Socket::new(Kind::Stream(id), socket.mptcp, socket.v6)
        };
        self.sockets.by_fd.insert(new_fd, accepted);
        self.apply_socket_settings(new_fd, id);
        let life = self.sockets.connections.get(&id);
        Attempt::Done(life.map(|life| life.path.remote).ok_or(libc::ECONNABORTED))
    }

    /// Makes one attempt to connect. The first one sends the SYN.
    pub(crate) fn connect(
        &mut self,
        fd: c_int,
        remote: SocketAddr,
        deadline: &mut Option<Instant>,
    ) -> Attempt<()> {
        if let Some(found) = self.defer_connecting(fd, remote) {
            return Attempt::Done(found);
        }
        let started = match self.start_connecting(fd, remote, deadline, false) {
            Ok(started) => started,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let now = self.now;
        let Ok(socket) = self.sockets.get(fd) else { return Attempt::Done(Err(libc::EBADF)) };
        let (nonblocking, connecting) = (socket.nonblocking, socket.connecting);
        let Kind::Stream(id) = socket.kind else { return Attempt::Done(Err(libc::EINVAL)) };
        let Some(life) = self.sockets.connections.get(&id) else {
            return Attempt::Done(Err(libc::ECONNABORTED));
        };
        if !life.open && life.over.is_none() {
            return match (nonblocking, started) {
                (true, true) => Attempt::Done(Err(libc::EINPROGRESS)),
                (true, false) => Attempt::Done(Err(libc::EALREADY)),
                _ if deadline.is_some_and(|at| at <= now) => Attempt::Done(Err(libc::EINPROGRESS)),
                _ => Attempt::Wait(*deadline),
            };
        }
        let found = match life.over {
            Some(reason) => Err(errno_of(reason)),
            None if connecting => Ok(()),
            None => Err(libc::EISCONN),
        };
        if let Ok(socket) = self.sockets.get(fd) {
            socket.connecting = false;
        }
        self.sockets.take_error(id);
        Attempt::Done(found)
    }

    /// Local address for a connection of the socket.
    pub(super) fn local_ip(&self, fd: c_int, remote: SocketAddr) -> Option<IpAddr> {
        let bound = self.sockets.by_fd.get(&fd)?.bound.map(|bound| bound.ip());
        let wanted = bound.filter(|ip| !ip.is_unspecified());
        wanted.or_else(|| self.mirror.local(remote.ip()))
    }

    /// Sends the SYN unless it was already sent, for example by a call with data for it. Returns true if it was sent
    /// now.
    pub(super) fn start_connecting(
        &mut self,
        fd: c_int,
        remote: SocketAddr,
        deadline: &mut Option<Instant>,
        with_data: bool,
    ) -> Result<bool, c_int> {
        let socket = self.sockets.get(fd)?;
        if !matches!(socket.kind, Kind::Unconnected) {
            return Ok(false);
        }
        *deadline = socket.options.send_timeout.map(|timeout| self.now + timeout);
        let port = socket.bound.map_or(0, |bound| bound.port());
        let (options, mptcp) = (socket.options.clone(), socket.mptcp);
        let ip = self.local_ip(fd, remote).ok_or(libc::EADDRNOTAVAIL)?;
        let local = SocketAddr::new(ip, port);
        let mut config = self.mirror.connection_config(Opening::Active, mptcp, &options);
        config.fast_open = self.socket_fast_open(fd, with_data);
        let connected = self.endpoint.connect(self.now, config, local, remote);
        let id = connected.map_err(|error| match error {
            ConnectError::AddressInUse => libc::EADDRINUSE,
            ConnectError::TooManyConnections => libc::ENOBUFS,
            ConnectError::FamilyMismatch => libc::EAFNOSUPPORT,
            _ => libc::EIO,
        })?;
        let info = self.endpoint.info(id);
        let path = info.and_then(|info| info.subflows.first().map(|flow| flow.path));
        let path = path.unwrap_or(FourTuple { local, remote });
        self.sockets.connections.insert(id, ConnectionState::new(path, &options, self.now));
        let socket = self.sockets.get(fd)?;
        socket.kind = Kind::Stream(id);
        socket.connecting = true;
        self.apply_socket_settings(fd, id);
        Ok(true)
    }

    /// Handles `connect` to `AF_UNSPEC`: ends the connection and resets the socket to its initial state.
    pub(crate) fn disconnect(&mut self, fd: c_int) -> Result<(), c_int> {
        let now = self.now;
        let socket = self.sockets.get(fd)?;
        socket.deferred_destination = None;
        if let Kind::Stream(id) = core::mem::replace(&mut socket.kind, Kind::Unconnected) {
            self.endpoint.abort(now, id);
            self.endpoint.release(now, id);
        }
        Ok(())
    }

    pub(crate) fn shutdown(&mut self, fd: c_int, how: c_int) -> Result<(), c_int> {
        let now = self.now;
        if ![libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR].contains(&how) {
            self.sockets.get(fd)?;
            return Err(libc::EINVAL);
        }
        let id = self.sockets.stream(fd)?;
        let socket = self.sockets.get(fd)?;
        socket.read_shut |= how != libc::SHUT_WR;
        socket.write_shut |= how != libc::SHUT_RD;
        if how != libc::SHUT_RD {
            self.endpoint.shutdown(now, id);
        }
        Ok(())
    }

    /// Closes the descriptor.
    pub(crate) fn close(&mut self, fd: c_int) -> Result<(), c_int> {
        if self.sockets.forget_epoll(fd) {
            return Ok(());
        }
        let socket = self.sockets.by_fd.remove(&fd).ok_or(libc::EBADF)?;
        match socket.kind {
            Kind::Unconnected => {}
            Kind::Listener(queue) => {
                for id in queue {
                    self.endpoint.abort(self.now, id);
                    self.endpoint.release(self.now, id);
                }
            }
            Kind::Stream(id) => {
                if socket.options.abort_on_close {
                    self.endpoint.abort(self.now, id);
                }
                self.endpoint.release(self.now, id);
            }
        }
        Ok(())
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        IpAddr::V4(v4) => IpAddr::V4(v4),
    };
    SocketAddr::new(ip, address.port())
}

/// Converts an address for a socket of this family.
pub(crate) fn to_socket_family(v6: bool, address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if v6 => SocketAddr::new(IpAddr::V6(v4.to_ipv6_mapped()), address.port()),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_those_of_ipv4() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().expect("an address");
        assert_eq!(unmapped(mapped), "10.0.0.1:80".parse().expect("an address"));
        assert_eq!(to_socket_family(true, unmapped(mapped)), mapped);
        assert!(unmapped("[::]:80".parse().expect("an address")).ip().is_unspecified());
    }
}
