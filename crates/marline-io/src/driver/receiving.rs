//! Start and stop of a shard's reception: only one of the processes that share its sockets receives.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;

use super::carrier::Carrier;
use super::error_watch;
use super::shard::Shard;
use super::socket::{Sock, SocketOptions};
use super::state::SocketEntry;
use super::streams::wake;

impl Shard {
    /// Makes the shard open sockets without receiving until [`begin_receiving`](Self::begin_receiving).
    pub fn defer_receiving(&self) {
        self.lock().receiving = false;
    }

    /// Starts receiving.
    pub fn begin_receiving(&self) {
        let mut state = self.lock();
        state.receiving = true;
        state.sockets_changed = true;
        wake(state.driver.take());
    }

    /// Stops receiving because another process receives from now on. This process still sends on the same sockets.
    pub(super) fn stop_receiving(&self) {
        self.reregister_sockets(false);
    }

    /// Stops answering packets that may belong to another process.
    pub(super) fn ignore_unknown(&self) {
        match &mut self.lock().carrier {
            Carrier::Udp(carrier) => carrier.ignore_foreign_ids(),
            Carrier::Native(carrier) => carrier.ignore_unknown(),
        }
    }

    /// Receives again after the other process has ended.
    pub(super) fn receive_again(&self) {
        self.reregister_sockets(true);
    }

    /// Re-registers all sockets: a socket that is watched for input would wake this process even if another one
    /// reads it.
    fn reregister_sockets(&self, receiving: bool) {
        let mut state = self.lock();
        let state = &mut *state;
        let interest =
            if receiving { Interest::READABLE | Interest::ERROR } else { Interest::PRIORITY };
        let handle = self.handle();
        for entry in state.sockets.iter_mut().flatten() {
            match entry.socket.duplicate_with_interest(interest) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    let watches = handle.as_ref().filter(|_| receiving);
                    let watch = watches.map(|handle| error_watch::start(&handle.shard, &socket));
                    let stalled = core::mem::take(&mut entry.stalled);
                    *entry = SocketEntry { socket, stalled, _error_watch: watch };
                }
                Err(error) => tracing::warn!(%error, "cannot re-register socket"),
            }
        }
        state.receiving = receiving;
        state.sockets_changed = true;
        wake(state.driver.take());
    }

    /// Takes over a socket that another process has opened.
    ///
    /// # Errors
    /// The socket is not a UDP socket.
    pub fn adopt_socket(&self, socket: OwnedFd, options: SocketOptions) -> io::Result<()> {
        self.add_socket(Sock::adopted(socket, options)?).map(drop)
    }
}
