//! Open sockets of a shard, and the batches for which the kernel had no room.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use marline_core::{Ecn, FourTuple};
use marline_time::{Duration, Instant};
use tokio::io::Interest;
use tokio::task::AbortHandle;

use super::sending::{Outgoing, SendError};
use super::socket::{Kind, Sock, SocketOptions};
use crate::carrier::Outer;
use crate::edge::network_error::NetworkError;

/// Delay before a batch for which the kernel had no room is sent again. Writability would be more precise, but a
/// send buffer of megabytes takes longer than this to drain.
const STALL_RETRY: Duration = Duration::from_micros(500);
/// Maximum number of batches that wait for room in the kernel. Further ones are dropped, as in a router.
const STALLED_CAPACITY: usize = 32;

/// Auxiliary task of a shard, which is aborted when this is dropped.
#[derive(Debug)]
pub(super) struct Watch(AbortHandle);

impl Watch {
    pub(super) const fn new(task: AbortHandle) -> Watch {
        Watch(task)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Batch for which the kernel had no room.
#[derive(Debug)]
struct Stalled {
    outer: Outer,
    ecn: Ecn,
    stride: usize,
    bytes: Vec<u8>,
}

/// Batches that wait for room, in order, by source address: a slow network does not hold up the others.
#[derive(Debug, Default)]
struct StalledQueue {
    batches: BTreeMap<IpAddr, VecDeque<Stalled>>,
}

impl StalledQueue {
    /// Returns true if a batch from this address already waits.
    fn holds(&self, local: IpAddr) -> bool {
        self.batches.contains_key(&local)
    }

    fn push(&mut self, batch: Stalled) {
        let queue = self.batches.entry(batch.outer.local).or_default();
        // A batch that does not fit is lost, as in a router.
        if queue.len() < STALLED_CAPACITY {
            queue.push_back(batch);
        }
    }

    /// Tries all batches again. Returns true if some still wait.
    fn retry(&mut self, now: Instant, socket: &Sock) -> bool {
        self.batches.retain(|_, queue| {
            while let Some(batch) = queue.front_mut() {
                let sent = socket.send(now, &batch.outer, batch.ecn, batch.stride, &batch.bytes);
                match sent {
                    Err(failed) if failed.would_block() => {
                        batch.bytes.drain(..failed.sent.min(batch.bytes.len()));
                        return true;
                    }
                    // On any other error the batch is lost, like any datagram.
                    _ => queue.pop_front(),
                };
            }
            false
        });
        !self.batches.is_empty()
    }
}

/// Socket that is read, with its index and address.
#[derive(Debug)]
pub(super) struct OpenSocket {
    pub(crate) index: u16,
    pub(crate) local: SocketAddr,
    pub(crate) socket: Arc<Sock>,
}

/// Open socket, with its waiting batches and its error watch.
#[derive(Debug)]
struct Entry {
    socket: Arc<Sock>,
    stalled: StalledQueue,
    _error_watch: Option<Watch>,
}

/// Sockets of a shard by index.
#[derive(Debug)]
pub(super) struct Sockets {
    entries: Vec<Option<Entry>>,
    stall_retry_at: Option<Instant>,
    /// Set while this process reads the sockets.
    receiving: bool,
    /// Set when the sockets have changed and the task must update its list.
    changed: bool,
}

/// The set of sockets.
impl Sockets {
    pub(super) const fn new() -> Sockets {
        Sockets { entries: Vec::new(), stall_retry_at: None, receiving: true, changed: true }
    }

    /// Adds a socket at the next free index, or at the index of a closed one. Returns the index.
    pub(super) fn add(&mut self, socket: Arc<Sock>, error_watch: Option<Watch>) -> usize {
        let index = match self.entries.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        let stalled = StalledQueue::default();
        self.entries[index] = Some(Entry { socket, stalled, _error_watch: error_watch });
        self.changed = true;
        index
    }

    /// Closes the socket bound to this address. Returns its index, if there was one.
    pub(super) fn close(&mut self, local: IpAddr) -> Option<usize> {
        let index = self.position(|socket| socket.local.ip() == local)?;
        self.entries[index] = None;
        self.changed = true;
        Some(index)
    }

    /// Closes all sockets.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Sets if this process reads the sockets, without a change of their registration.
    pub(super) const fn set_receiving(&mut self, receiving: bool) {
        self.receiving = receiving;
    }

    /// Starts reading.
    pub(super) const fn begin_receiving(&mut self) {
        self.receiving = true;
        self.changed = true;
    }

    /// Registers all sockets again: one that is watched for input would wake this process even if another one reads
    /// it. `watch` starts the error watch of a socket.
    pub(super) fn reregister(
        &mut self,
        receiving: bool,
        watch: impl Fn(&Arc<Sock>) -> Option<Watch>,
    ) {
        let interest = if receiving {
            Interest::READABLE | Interest::ERROR
        } else {
            crate::sys::WITHOUT_INPUT
        };
        for entry in self.entries.iter_mut().flatten() {
            match entry.socket.duplicate_with_interest(interest) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    let _error_watch = watch(&socket);
                    let stalled = core::mem::take(&mut entry.stalled);
                    *entry = Entry { socket, stalled, _error_watch };
                }
                Err(error) => tracing::warn!(%error, "cannot re-register socket"),
            }
        }
        self.receiving = receiving;
        self.changed = true;
    }

    /// Returns the sockets that are read, if they have changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<Vec<OpenSocket>> {
        if !core::mem::take(&mut self.changed) {
            return None;
        }
        let open = self.entries.iter().enumerate().filter(|_| self.receiving);
        let open = open.filter_map(|(index, entry)| {
            let socket = Arc::clone(&entry.as_ref()?.socket);
            Some(OpenSocket { index: index as u16, local: socket.local, socket })
        });
        Some(open.collect())
    }

    /// Iterates over the open sockets.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sock> {
        self.entries.iter().flatten().map(|entry| &*entry.socket)
    }

    /// Returns the socket at this index.
    pub(super) fn at(&self, index: usize) -> Option<&Sock> {
        self.entries.get(index)?.as_ref().map(|entry| &*entry.socket)
    }

    /// Returns the index of the first socket that meets a condition.
    pub(super) fn position(&self, fits: impl Fn(&Sock) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(|e| fits(&e.socket)))
    }

    /// Returns the index of this socket.
    pub(super) fn index_of(&self, socket: &Arc<Sock>) -> Option<usize> {
        self.position(|known| core::ptr::eq(known, Arc::as_ptr(socket)))
    }

    /// Sets the interface of an address in the raw sockets.
    pub(super) fn set_interface(&self, local: IpAddr, interface: Option<u32>) {
        for socket in self.iter() {
            if let Kind::Raw(raw) = &socket.kind {
                raw.set_interface(local, interface);
            }
        }
    }

    /// Returns the options of the UDP socket at this index, with the address that it got.
    pub(super) fn udp_options(&self, index: u16) -> Option<SocketOptions> {
        let socket = self.at(usize::from(index))?;
        match &socket.kind {
            Kind::Udp(udp) => Some(udp.options_at(socket.local)),
            _ => None,
        }
    }

    /// Duplicates the descriptors of the UDP sockets.
    pub(super) fn copy_udp(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let udp = self.iter().filter(|socket| matches!(socket.kind, Kind::Udp(_)));
        udp.map(|socket| Ok((socket.local, socket.as_fd().try_clone_to_owned()?))).collect()
    }

    /// Duplicates the sockets for combined packets; each comes with its name.
    pub(super) fn copy_offload(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let mut copies = Vec::new();
        for socket in self.iter() {
            if let Kind::Raw(raw) = &socket.kind {
                copies.extend(raw.copy_offload(socket.local.is_ipv6())?);
            }
        }
        Ok(copies)
    }

    /// Closes the raw sockets that are only for sending.
    pub(super) fn close_spare(&self) {
        for socket in self.iter() {
            if let Kind::Raw(raw) = &socket.kind {
                raw.close_spare();
            }
        }
    }
}

/// Sending.
impl Sockets {
    /// Finds the socket for native packets of a path.
    pub(super) fn native_outer(&self, path: &FourTuple) -> Option<Outer> {
        let socket = self.position(|socket| {
            if matches!(socket.kind, Kind::Gateway { .. }) {
                return true;
            }
            let local = socket.local.ip();
            let family = local.is_unspecified() && local.is_ipv6() == path.local.is_ipv6();
            family || local == path.local.ip()
        })?;
        Some(Outer { socket: socket as u16, local: path.local.ip(), remote: path.remote })
    }

    /// Returns true for a UDP socket on which the kernel takes several datagrams in one call.
    pub(super) fn sends_runs(&self, outer: &Outer) -> bool {
        !outer.is_link() && self.at(usize::from(outer.socket)).is_some_and(Sock::sends_runs)
    }

    /// Hands bytes to the kernel. If the kernel has no room, they wait.
    pub(super) fn send(&mut self, now: Instant, out: &Outgoing<'_>) -> Result<(), SendError> {
        let index = usize::from(out.outer.socket);
        let Some(Some(entry)) = self.entries.get_mut(index) else { return Ok(()) };
        let result = if !entry.stalled.holds(out.outer.local) {
            entry.socket.send(now, &out.outer, out.ecn, out.stride, out.bytes)
        } else {
            Err(io::Error::from(io::ErrorKind::WouldBlock).into())
        };
        let Err(failed) = result else { return Ok(()) };
        if !failed.would_block() {
            return Err(failed);
        }
        let bytes = out.bytes.get(failed.sent..).unwrap_or_default().to_vec();
        let (outer, ecn, stride) = (out.outer, out.ecn, out.stride);
        entry.stalled.push(Stalled { outer, ecn, stride, bytes });
        self.stall_retry_at = Some(now + STALL_RETRY);
        Ok(())
    }

    /// Sends the rest of a batch once more, without waiting. Returns the error, unless the kernel had no room.
    pub(super) fn send_rest(
        &self,
        now: Instant,
        out: &Outgoing<'_>,
        sent: usize,
    ) -> Option<io::Error> {
        let socket = self.at(usize::from(out.outer.socket))?;
        let rest = out.bytes.get(sent..).unwrap_or_default();
        match socket.send(now, &out.outer, out.ecn, out.stride, rest) {
            Err(again) if !again.would_block() => Some(again.error),
            // The kernel has no room now: the datagram is lost, as in any queue.
            _ => None,
        }
    }

    /// Sends waiting batches again when it is time.
    pub(super) fn retry_stalled(&mut self, now: Instant) {
        if self.stall_retry_at.is_none_or(|at| at > now) {
            return;
        }
        let mut still = false;
        for entry in self.entries.iter_mut().flatten() {
            still |= entry.stalled.retry(now, &entry.socket);
        }
        self.stall_retry_at = still.then_some(now + STALL_RETRY);
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.stall_retry_at
    }

    /// Takes the next ICMP error of a socket.
    pub(super) fn next_error(&self, index: usize) -> Option<NetworkError> {
        self.at(index)?.next_error()
    }

    /// MTU of the route from one of the sockets, if known.
    pub(super) fn route_mtu(&self, outer: &Outer) -> Option<u32> {
        self.at(usize::from(outer.socket))?.route_mtu(outer.remote, outer.local)
    }

    /// Puts a batch among those that wait.
    #[cfg(test)]
    pub(super) fn stall(&mut self, outer: Outer, ecn: Ecn, stride: usize, bytes: Vec<u8>) {
        if let Some(Some(entry)) = self.entries.get_mut(usize::from(outer.socket)) {
            entry.stalled.push(Stalled { outer, ecn, stride, bytes });
        }
    }
}
