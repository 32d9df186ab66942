//! Shard operations for native carriers only: raw sockets, guards, and local ports.

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use marline_core::{
    ConnectError, ConnectionConfig, ConnectionId, FourTuple, NetworkError, Shard as Part,
};
use marline_time::Instant;
use marline_wire::SeqNum;

use super::carrier::Carrier;
use super::shard::Shard;
use super::socket::{Kind, Sock};
use super::state::{SocketEntry, State};
use crate::native::RawSockets;
use crate::succession::NativePart;
use crate::sys::error_queue as icmp;

impl Shard {
    /// Takes over raw sockets and the ports reserved with them.
    ///
    /// # Errors
    /// The sockets are already in use, or the system refuses.
    pub fn use_raw(&self, sockets: &RawSockets) -> io::Result<()> {
        Shard::share_raw(&[self], sockets)
    }

    /// Takes over raw sockets for all the shards of a listener.
    ///
    /// # Errors
    /// See [`use_raw`](Self::use_raw). Also fails if the sockets are not for this number of shards.
    pub fn share_raw(shards: &[&Shard], sockets: &RawSockets) -> io::Result<()> {
        let opened = sockets.take(shards.len())?;
        let joins_runs = opened.joins_runs();
        for shard in shards {
            let mut state = shard.lock();
            if let Carrier::Native(carrier) = &mut state.carrier {
                carrier.adopt(&opened);
            }
            state.out.join_runs(joins_runs);
            state.spare.join_runs(joins_runs);
        }
        for (shard, families) in shards.iter().zip(opened.sockets()) {
            for (ipv6, family) in [false, true].into_iter().zip(families) {
                if let Some(family) = family {
                    shard.add_socket(Sock::raw(family, ipv6)?)?;
                }
            }
            shard.lock().install_port_filter()?;
        }
        Ok(())
    }

    /// Opens a TUN interface, behind which this shard is the host with the address `local`. With `several`, other
    /// shards share that role, each with its own queue of the interface.
    ///
    /// # Errors
    /// The system's. Creating an interface needs CAP_NET_ADMIN; using a persistent one that belongs to the user does
    /// not.
    pub fn open_tun(&self, interface: &str, local: IpAddr, several: bool) -> io::Result<()> {
        self.add_socket(Sock::tun(interface, local, several)?)?;
        if let Carrier::Native(carrier) = &mut self.lock().carrier {
            carrier.own_address(local);
        }
        Ok(())
    }

    /// Takes over a TUN interface that another process has opened, instead of [opening](Self::open_tun) one.
    ///
    /// # Errors
    /// The system's.
    pub fn adopt_tun(&self, tun: OwnedFd, local: IpAddr) -> io::Result<()> {
        self.add_socket(Sock::adopted_tun(tun, local)?)?;
        if let Carrier::Native(carrier) = &mut self.lock().carrier {
            carrier.own_address(local);
        }
        Ok(())
    }

    /// Duplicates the descriptors of a native carrier. Returns nothing for other carriers.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy_native(&self) -> io::Result<Vec<(NativePart, SocketAddr, OwnedFd)>> {
        let state = self.lock();
        let Carrier::Native(carrier) = &state.carrier else { return Ok(Vec::new()) };
        let mut parts = Vec::new();
        for SocketEntry { socket, .. } in state.sockets.iter().flatten() {
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

    /// Duplicates the sockets for combined packets; each comes with its name.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy_offload(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let mut copies = Vec::new();
        for SocketEntry { socket, .. } in self.lock().sockets.iter().flatten() {
            if let Kind::Raw(raw) = &socket.kind {
                copies.extend(raw.copy_offload(socket.local.is_ipv6())?);
            }
        }
        Ok(copies)
    }

    /// Reserves a port for these shards to listen on; port 0 lets the system choose. Returns the address with its
    /// port.
    ///
    /// # Errors
    /// The system's: the port may be in use or privileged.
    pub fn guard(shards: &[&Shard], mut local: SocketAddr) -> io::Result<SocketAddr> {
        let mut guard = None;
        for shard in shards {
            let mut state = shard.lock();
            let Carrier::Native(carrier) = &mut state.carrier else { continue };
            (local, guard) = carrier.guard(local, guard)?;
            state.install_port_filter()?;
        }
        Ok(local)
    }

    /// Reserves the first local ports for connections that this shard opens.
    ///
    /// # Errors
    /// The system's.
    pub fn reserve_local_ports(&self) -> io::Result<()> {
        self.lock().grow_pool().map(|_| ())
    }

    /// Declares that this shard opens no connections. No ports are reserved for them, and packets leave according to
    /// the routing table: sockets that are only for sending are closed.
    pub fn disable_connecting(&self) {
        let mut state = self.lock();
        state.disable_port_pool();
        for entry in state.sockets.iter().flatten() {
            if let Kind::Raw(raw) = &entry.socket.kind {
                raw.close_spare();
            }
        }
    }
}

impl State {
    /// Position among the shards that share the ports.
    pub(super) const fn part(&self) -> Part {
        match &self.carrier {
            Carrier::Native(carrier) => carrier.shard(),
            Carrier::Udp(_) => Part::ALONE,
        }
    }

    /// Makes all raw sockets accept the carrier's packets.
    fn install_port_filter(&self) -> io::Result<()> {
        let Carrier::Native(carrier) = &self.carrier else { return Ok(()) };
        for entry in self.sockets.iter().flatten() {
            if let Kind::Raw(_) = entry.socket.kind {
                carrier.install_port_filter(entry.socket.as_fd(), entry.socket.local.is_ipv6())?;
            }
        }
        Ok(())
    }

    fn disable_port_pool(&mut self) {
        if let Carrier::Native(carrier) = &mut self.carrier {
            carrier.disable_port_pool();
            self.endpoint.set_local_ports(Some(Vec::new()));
        }
    }

    /// Reserves more local ports. First come the guards, then the filter, and then the core may use them.
    fn grow_pool(&mut self) -> io::Result<bool> {
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

    /// Handles an ICMP error about a segment, or an error of this machine. A process with a raw socket receives all
    /// ICMP messages of the machine, and most of them do not concern it.
    pub(super) fn on_native_error(&mut self, now: Instant, error: &icmp::NetworkError) {
        let at = |port: usize| u16::from_be_bytes([error.quoted[port], error.quoted[port + 1]]);
        let mut remote = error.remote;
        if error.ours {
            // The send call has reported this error, too.
            return;
        }
        let Some(local) = error.local else { return };
        remote.set_port(at(2));
        let path = FourTuple { local: SocketAddr::new(local, at(0)), remote };
        let [_, _, _, _, a, b, c, d, ..] = error.quoted;
        let seq = SeqNum(u32::from_be_bytes([a, b, c, d]));
        let said = match error.mtu {
            Some(_) => {
                let max_segment = self.carrier.segment_of_mtu(error.mtu, &path);
                NetworkError::TooBig { max_segment }
            }
            // Without the size, the error adds nothing that probing does not find.
            None if error.errno == libc::EMSGSIZE => return,
            None => NetworkError::Unreachable,
        };
        let believed = self.endpoint.network_error(now, &path, seq, said);
        if believed && said == NetworkError::Unreachable {
            self.observers.contacts.record_icmp_error(now, local, path.remote, error);
        }
        tracing::debug!(local = %path.local, remote = %path.remote, ?said, believed, "ICMP");
    }

    /// Reserves local ports after a join found none, for its next attempt.
    pub(super) fn reserve_missing_ports(&mut self) {
        if self.carrier.is_native() && self.endpoint.take_port_shortage() {
            // If this fails, the shortage is reported again.
            let _ = self.grow_pool();
        }
    }

    /// Opens a connection, and reserves more local ports if none is free.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        config: Arc<ConnectionConfig>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<ConnectionId, ConnectError> {
        loop {
            match self.endpoint.connect(now, Arc::clone(&config), local, remote) {
                Err(ConnectError::AddressInUse) => match self.grow_pool() {
                    Ok(true) => {}
                    Ok(false) => return Err(ConnectError::AddressInUse),
                    Err(error) => {
                        tracing::warn!(%error, "no more local ports can be reserved");
                        return Err(ConnectError::AddressInUse);
                    }
                },
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use marline_testkit::need;

    use super::*;
    use crate::driver::state::CarrierKind;
    use crate::driver::testing::without_sockets;

    /// Number of send-only sockets that are not bound to an interface.
    fn spare(shard: &Shard) -> usize {
        let raw = |entry: &SocketEntry| match &entry.socket.kind {
            Kind::Raw(raw) => raw.spare(),
            _ => 0,
        };
        shard.lock().sockets.iter().flatten().map(raw).sum()
    }

    #[tokio::test]
    async fn a_server_without_outgoing_connections_has_no_send_sockets() {
        if !need::root() {
            return;
        }
        let shard = without_sockets(CarrierKind::Raw, None);
        shard.use_raw(&RawSockets::open().unwrap()).unwrap();
        assert!(spare(&shard) > 0);
        shard.disable_connecting();
        assert_eq!(spare(&shard), 0);
    }
}
