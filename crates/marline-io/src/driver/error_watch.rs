//! ICMP error watch: a small task per socket waits for errors, so that a refused SYN or a failed path is detected at
//! once and not at the next timeout.

use std::sync::{Arc, Weak};

use tokio::io::{Interest, Ready};

use super::shard::Shard;
use super::socket::Sock;
use super::state::{SocketEntry, Watch};

/// Starts the error watch of a shard's socket.
pub(super) fn start(shard: &Arc<Shard>, socket: &Arc<Sock>) -> Watch {
    let task = tokio::spawn(watch(Arc::downgrade(shard), Arc::clone(socket)));
    Watch(task.abort_handle())
}

async fn watch(shard: Weak<Shard>, socket: Arc<Sock>) {
    while let Ok(mut guard) = socket.fd.ready(Interest::ERROR).await {
        guard.clear_ready_matching(Ready::ERROR);
        drop(guard);
        let Some(shard) = shard.upgrade() else { return };
        shard.on_socket_error(&socket);
    }
}

impl Shard {
    fn on_socket_error(&self, socket: &Arc<Sock>) {
        let mut state = self.lock();
        let now = self.now(&mut state);
        let same = |entry: &Option<SocketEntry>| {
            entry.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.socket, socket))
        };
        if let Some(index) = state.sockets.iter().position(same)
            && state.drain_errors(now, index)
        {
            self.serve(&mut state, now);
        }
    }
}
