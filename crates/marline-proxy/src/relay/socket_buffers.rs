//! Buffers that the kernel has for a relay's socket, as far as that matters for the memory budget.
//!
//! While bytes flow they are next to empty, and nothing is charged. When a direction is blocked, they fill: what an
//! application or target sends waits in the receive buffer, which the kernel lets grow to megabytes, and what it does
//! not read waits in the send buffer. So a blocked direction is charged for as much as its buffer may hold, which is
//! lowered to what the account allows. A limit set once stays as high as the kernel lets anybody set it (some hundred
//! kilobytes): it gives its own up for it.
//!
//! Of what was not sent yet the kernel holds [`UNSENT`] at most, or a socket to somebody who does not read would hold
//! megabytes before anybody noticed.

use std::os::fd::BorrowedFd;

use marline::{MemoryAccount, MemoryCharge, MemoryKind};
use socket2::SockRef;

/// Bytes that the kernel holds unsent for a socket.
const UNSENT: u32 = 128 * 1_024;
/// The least that a limit leaves.
const LEAST: usize = 16 * 1_024;
/// While a buffer may hold so much, the kernel's own limits are good enough.
const PLENTY: u64 = 1024 * 1_024;

/// The kernel's buffers of one relay's socket.
#[derive(Debug, Default)]
pub(super) struct SocketBuffers {
    charge: Option<Box<MemoryCharge>>,
    /// Which direction was blocked: from the socket, and to it.
    blocked: (bool, bool),
    limited: bool,
}

impl SocketBuffers {
    /// A relay begins.
    pub(super) fn begin(socket: Option<BorrowedFd<'_>>, memory: &MemoryAccount) -> SocketBuffers {
        let mut buffers = SocketBuffers::default();
        let Some(socket) = socket else { return buffers };
        // Not known to a unix socket.
        let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT);
        if memory.allowance() < PLENTY {
            buffers.limit(socket, memory.allowance());
        }
        buffers
    }

    /// Directions are blocked or not, from the socket and to it.
    pub(super) fn note_blocked(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        memory: &MemoryAccount,
        blocked: (bool, bool),
    ) {
        if self.blocked != blocked {
            self.blocked = blocked;
            if let Some(socket) = socket {
                self.change(socket, memory);
            }
        }
    }

    fn change(&mut self, socket: BorrowedFd<'_>, memory: &MemoryAccount) {
        self.charge = None;
        if self.blocked == (false, false) {
            return;
        }
        let allowance = memory.allowance();
        if self.limited || self.capacity(socket) > allowance {
            self.limit(socket, allowance);
        }
        let charge = memory.charge(MemoryKind::Socket, self.capacity(socket));
        self.charge = Some(Box::new(charge));
    }

    /// What may wait in the buffers of blocked directions.
    fn capacity(&self, socket: BorrowedFd<'_>) -> u64 {
        let socket = SockRef::from(&socket);
        let of = |blocked: bool, size: std::io::Result<usize>| {
            if blocked { size.unwrap_or_default() as u64 } else { 0 }
        };
        let sent = of(self.blocked.1, socket.send_buffer_size()).min(2 * u64::from(UNSENT));
        of(self.blocked.0, socket.recv_buffer_size()) + sent
    }

    /// Lets the buffers hold so much.
    fn limit(&mut self, socket: BorrowedFd<'_>, allowance: u64) {
        self.limited = true;
        let socket = SockRef::from(&socket);
        // The kernel takes twice of what it is asked for, to have room for its own.
        let half = usize::try_from(allowance / 2).unwrap_or(usize::MAX).clamp(LEAST / 2, 1 << 20);
        // Refused by nobody, and without effect the budget is exceeded by what the kernel grants itself.
        let _ = socket.set_recv_buffer_size(half);
        let _ = socket.set_send_buffer_size(half);
        let unsent = u32::try_from(half).unwrap_or(UNSENT).min(UNSENT);
        let _ = socket.set_tcp_notsent_lowat(unsent);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use marline::MemoryBudget;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_blocked_direction_is_charged_for_what_its_buffer_may_hold() {
        let (near, _far) = connection().await;
        let socket = Some(near.as_fd());
        let budget = MemoryBudget::new(Some(1 << 30));
        let memory = budget.account(u64::MAX);
        let mut buffers = SocketBuffers::begin(socket, &memory);
        assert_eq!(memory.used(), 0);
        let receive = SockRef::from(&near).recv_buffer_size().unwrap();
        buffers.note_blocked(socket, &memory, (true, false));
        assert_eq!(memory.used(), receive as u64);
        buffers.note_blocked(socket, &memory, (true, true));
        assert!(memory.used() > receive as u64);
        buffers.note_blocked(socket, &memory, (false, false));
        assert_eq!(memory.used(), 0);
        // Memory is short now.
        budget.set_limit(Some(0));
        buffers.note_blocked(socket, &memory, (true, false));
        assert_eq!(memory.used(), LEAST as u64);
        assert_eq!(SockRef::from(&near).recv_buffer_size().unwrap(), LEAST);
        budget.set_limit(Some(1 << 30));
        buffers.note_blocked(socket, &memory, (true, true));
        assert!(SockRef::from(&near).recv_buffer_size().unwrap() > 10 * LEAST);
        drop(buffers);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn where_memory_is_short_a_socket_begins_with_small_buffers() {
        let (near, _far) = connection().await;
        let memory = MemoryBudget::new(Some(0)).account(u64::MAX);
        let _buffers = SocketBuffers::begin(Some(near.as_fd()), &memory);
        assert_eq!(SockRef::from(&near).recv_buffer_size().unwrap(), LEAST);
        assert_eq!(SockRef::from(&near).send_buffer_size().unwrap(), LEAST);
    }
}
