//! Succession of a server: another process takes over its addresses, and this one continues its connections.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use marline_core::Shard as Part;
use marline_io::succession::{Channel, HandoverState, NativePart, PendingSuccessor};
use marline_io::{Generations, LinkListener, PortSharing, Shard, ShardHandle, SocketOptions};
use std::sync::{Mutex, PoisonError};

use super::builder::with_previous_port;
use super::{Server, ServerBuilder};
use crate::BindError;
use crate::carrier::TunPath;
use core::net::SocketAddr;

/// TCP listeners that accompany the datagram sockets.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    open: Vec<LinkListener>,
    /// Listening sockets that do not yet accept connections.
    waiting: Vec<OwnedFd>,
}

/// Older processes by generation, with their channels.
pub(super) type OlderProcessChannels = Vec<(u8, OwnedFd)>;

/// State shared with the processes that use the server's addresses.
#[derive(Debug)]
pub(super) struct SharedProcessState {
    pub(super) generations: Arc<Generations>,
    pub(super) listeners: Mutex<Listeners>,
    /// Older processes, to which the predecessor passes packets until this process starts.
    pub(super) older_processes: Mutex<OlderProcessChannels>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Returns the state that a successor needs to take over from this server, without the program's additional
    /// descriptors.
    ///
    /// # Errors
    /// Too many older processes are alive, or no file descriptors are left.
    pub fn handover_state(&self) -> Result<HandoverState, BindError> {
        let io = |error| BindError::io("copy the sockets", error);
        let place = &self.inner.place;
        let older_processes = place.generations.older_processes().map_err(io)?;
        let own = place.generations.own_number();
        let numbers: Vec<u8> = older_processes.iter().map(|(number, _)| *number).collect();
        let Some(generation) = next_generation(own, &numbers) else {
            let text = format!("{} older processes still have connections", older_processes.len());
            return Err(BindError::Config(text));
        };
        let (mut sockets, mut native, mut further) = (Vec::new(), Vec::new(), Vec::new());
        for (index, shard) in self.inner.shards.iter().enumerate() {
            let copies = shard.copy_sockets().map_err(io)?;
            sockets.extend(copies.into_iter().map(|(local, fd)| (index as u8, local, fd)));
            let mut parts = shard.copy_native().map_err(io)?;
            // All shards share the same guards.
            parts.retain(|(part, ..)| index == 0 || *part != NativePart::Guard);
            native.extend(parts);
            further.extend(shard.copy_offload().map_err(io)?);
        }
        let listeners = lock(&place.listeners);
        let copy = |listener: &LinkListener| Ok((listener.local, listener.copy()?));
        let copies = listeners.open.iter().map(copy).collect::<std::io::Result<_>>().map_err(io)?;
        let Some(seed) = self.inner.config.own.reset_seed else {
            return Err(BindError::Config("the seed of carrier resets is missing".to_owned()));
        };
        Ok(HandoverState {
            generation,
            predecessor: own,
            seed,
            sockets,
            native,
            listeners: copies,
            older_processes,
            further,
        })
    }

    /// From now on, lets the successor at the other end of `channel` receive. Connections of this server continue: the
    /// successor passes on their frames.
    ///
    /// # Errors
    /// The successor is gone; this process continues to receive.
    pub fn hand_over(&self, channel: Channel) -> Result<(), BindError> {
        let place = &self.inner.place;
        place
            .generations
            .hand_over(channel)
            .map_err(|error| BindError::io("start the successor", error))?;
        // New connections to the listeners wait in the kernel's queue for the successor.
        lock(&place.listeners).open.clear();
        Ok(())
    }

    /// Starts receiving after a predecessor has stopped.
    ///
    /// # Errors
    /// The predecessor is gone, or refuses to hand over.
    pub fn start_receiving(
        &self,
        successor: PendingSuccessor,
        predecessor: u8,
        version: &str,
    ) -> Result<(), BindError> {
        let io = |error| BindError::io("take over from the predecessor", error);
        let place = &self.inner.place;
        successor.request_start(version).map_err(io)?;
        for (generation, channel) in std::mem::take(&mut *lock(&place.older_processes)) {
            place
                .generations
                .add_older_process(generation, Channel::from_fd(channel))
                .map_err(io)?;
        }
        place.generations.add_older_process(predecessor, successor.into_channel()).map_err(io)?;
        self.inner.shards.iter().for_each(|shard| shard.begin_receiving());
        let mut listeners = lock(&place.listeners);
        for waiting in std::mem::take(&mut listeners.waiting) {
            let opened = Shard::accept_links(&self.inner.shards, waiting).map_err(io)?;
            listeners.open.push(opened);
        }
        Ok(())
    }
}

/// Returns the generation of the next process: it must not be in use and should not have been used recently.
fn next_generation(own: u8, older_processes: &[u8]) -> Option<u8> {
    let following = (1..Part::GENERATIONS).map(|more| (own + more) % Part::GENERATIONS);
    following.into_iter().find(|number| !older_processes.contains(number))
}

/// Passes a predecessor's sockets to the shards. Returns their addresses.
pub(super) fn adopt_sockets(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
    sockets: Vec<(u8, SocketAddr, OwnedFd)>,
) -> Result<Vec<SocketAddr>, BindError> {
    let mut before = None;
    let mut listen = Vec::new();
    let first = sockets.iter().filter(|(shard, ..)| *shard == 0).map(|(_, local, _)| *local);
    for (wanted, local) in config.own.listen.iter().zip(first) {
        let wanted = with_previous_port(*wanted, before);
        if wanted.ip() != local.ip() || wanted.port() != 0 && wanted.port() != local.port() {
            return Err(changed_setting_error(config));
        }
        before = Some(local);
        listen.push(local);
    }
    let fits = listen.len() == config.own.listen.len()
        && sockets.len() == listen.len() * shards.len()
        && sockets
            .iter()
            .all(|(shard, local, _)| usize::from(*shard) < shards.len() && listen.contains(local));
    if !fits {
        return Err(changed_setting_error(config));
    }
    for (shard, local, fd) in sockets {
        // The socket is already bound.
        let options = SocketOptions {
            local,
            alias: None,
            interface: None,
            port: PortSharing::Alone,
            mark: 0,
        };
        let adopted = shards[usize::from(shard)].adopt_socket(fd, options);
        adopted.map_err(|source| BindError::Bind { address: local, source })?;
    }
    Ok(listen)
}

pub(super) fn changed_setting_error(config: &ServerBuilder) -> BindError {
    let listen: Vec<String> = config.own.listen.iter().map(ToString::to_string).collect();
    BindError::Config(format!(
        "upgrade refused: changing the addresses or the number of threads (to {} with {}) needs a restart",
        listen.join(" "),
        config.own.shards
    ))
}

/// Passes a predecessor's TUN interfaces to the shards: one queue of each interface to every shard, or its only queue.
pub(super) fn adopt_tuns(
    paths: &[TunPath],
    shards: &[&Shard],
    native: Vec<(NativePart, SocketAddr, OwnedFd)>,
) -> Result<(), BindError> {
    let mut left = native;
    for TunPath { interface, address } in paths {
        let what = format!("take over TUN interface `{interface}`");
        for shard in shards {
            let same = |part: &(NativePart, SocketAddr, OwnedFd)| part.1.ip() == *address;
            let Some(at) = left.iter().position(same) else { return Err(other_interfaces(paths)) };
            let (_, _, fd) = left.swap_remove(at);
            shard.adopt_tun(fd, *address).map_err(|error| BindError::io(&what, error))?;
        }
    }
    if left.is_empty() { Ok(()) } else { Err(other_interfaces(paths)) }
}

fn other_interfaces(paths: &[TunPath]) -> BindError {
    let paths: Vec<String> =
        paths.iter().map(|path| format!("{}={}", path.interface, path.address)).collect();
    BindError::Config(format!(
        "upgrade refused: changing the TUN interfaces or the number of threads (to {}) needs a restart",
        paths.join(" ")
    ))
}

/// Wraps the listeners of a predecessor, which do not yet accept connections.
pub(super) fn waiting(listeners: Vec<(SocketAddr, OwnedFd)>) -> Listeners {
    Listeners { open: Vec::new(), waiting: listeners.into_iter().map(|(_, fd)| fd).collect() }
}

/// Wraps listeners that already accept connections.
pub(super) const fn accepting(open: Vec<LinkListener>) -> Listeners {
    Listeners { open, waiting: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_numbers_wrap_and_skip_live_processes() {
        assert_eq!(next_generation(0, &[]), Some(1));
        assert_eq!(next_generation(15, &[14]), Some(0));
        assert_eq!(next_generation(15, &[0, 1, 3]), Some(2));
        let others: Vec<u8> = (0..16).filter(|number| *number != 7).collect();
        assert_eq!(next_generation(7, &others), None, "sixteen processes exist");
    }
}
