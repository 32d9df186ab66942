//! ICMP error watch: a small task per socket waits for errors, so that a refused SYN or a failed path is detected at
//! once and not at the next timeout.

use std::sync::{Arc, Weak};

use tokio::io::{Interest, Ready};

use super::egress::drain_errors;
use super::shard::Shard;
use super::socket::Sock;
use super::sockets::Watch;

/// Starts the error watch of a shard's socket.
pub(super) fn start(shard: &Arc<Shard>, socket: &Arc<Sock>) -> Watch {
    let task = tokio::spawn(watch(Arc::downgrade(shard), Arc::clone(socket)));
    Watch::new(task.abort_handle())
}

async fn watch(shard: Weak<Shard>, socket: Arc<Sock>) {
    while let Ok(mut guard) = socket.fd.ready(Interest::ERROR).await {
        guard.clear_ready_matching(Ready::ERROR);
        drop(guard);
        let Some(shard) = shard.upgrade() else { return };
        on_socket_error(&shard, &socket);
    }
}

fn on_socket_error(shard: &Shard, socket: &Arc<Sock>) {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    let index = state.sockets().index_of(socket);
    if index.is_some_and(|index| drain_errors(&mut state, now, index)) {
        shard.serve(&mut state, now);
    }
}
