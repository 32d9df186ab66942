//! Buffers that the kernel has for a relay's socket, as far as that matters for the memory budget.
//!
//! While bytes flow they are next to empty, and nothing is charged. When a direction is blocked, they fill: what an
//! application or target sends waits in the receive buffer, which the kernel lets grow to megabytes, and what it does
//! not read waits in the send buffer. So a blocked direction is charged for as much as its buffer may hold.
//!
//! Where memory is short, a relay begins with small buffers, and a receive buffer that is larger grows no further. It
//! is not made smaller than it was: the kernel would drop what it promised room for, and the sender, which takes that
//! for congestion, would wait for up to two minutes before it sends on. A buffer whose size was set goes back to the
//! kernel's tuning once there is plenty of memory.
//!
//! Of what was not sent yet the kernel holds [`UNSENT`] at most, or a socket to somebody who does not read would hold
//! megabytes before anybody noticed.

use std::os::fd::BorrowedFd;

use marline::{MemoryAccount, MemoryCharge, MemoryKind};
use marline_io::restore_receive_buffer;
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
    /// The receive buffer's size was set.
    is_set: bool,
}

impl SocketBuffers {
    /// A relay begins.
    pub(super) fn begin(socket: Option<BorrowedFd<'_>>, memory: &MemoryAccount) -> SocketBuffers {
        let mut buffers = SocketBuffers::default();
        let Some(socket) = socket.as_ref().map(SockRef::from) else { return buffers };
        let allowance = memory.allowance();
        if allowance < PLENTY {
            buffers.is_set = true;
            set_receive_buffer(&socket, allowance);
            // The kernel takes twice of what it is asked for, to have room for its own.
            let _ = socket.set_send_buffer_size(size_of(allowance) / 2);
        }
        let unsent = u32::try_from(allowance).unwrap_or(UNSENT).clamp(LEAST as u32 / 2, UNSENT);
        // Not known to a unix socket.
        let _ = socket.set_tcp_notsent_lowat(unsent);
        buffers
    }

    /// Directions are blocked or not, from the socket and to it.
    pub(super) fn note_blocked(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        memory: &MemoryAccount,
        blocked: (bool, bool),
    ) {
        let Some(socket) = socket else { return };
        if self.is_set && memory.allowance() > PLENTY {
            self.is_set = false;
            // Where it cannot be done, the buffer stays as it is.
            let _ = restore_receive_buffer(socket);
        }
        if self.blocked != blocked {
            self.blocked = blocked;
            self.change(&SockRef::from(&socket), memory);
        }
    }

    fn change(&mut self, socket: &SockRef<'_>, memory: &MemoryAccount) {
        self.charge = None;
        let receive = socket.recv_buffer_size().unwrap_or_default() as u64;
        if receive > memory.allowance() && !self.is_set {
            self.is_set = true;
            set_receive_buffer(socket, receive);
        }
        let (from, to) = self.blocked;
        let sent = socket.send_buffer_size().unwrap_or_default() as u64;
        let held =
            if from { receive } else { 0 } + if to { sent.min(2 * u64::from(UNSENT)) } else { 0 };
        if held > 0 {
            self.charge = Some(Box::new(memory.charge(MemoryKind::Socket, held)));
        }
    }
}

/// A buffer's size for an allowance.
fn size_of(allowance: u64) -> usize {
    usize::try_from(allowance).unwrap_or(usize::MAX).clamp(LEAST, 8 << 20)
}

/// Sets the receive buffer, as far as the kernel lets it be set.
fn set_receive_buffer(socket: &SockRef<'_>, bytes: u64) {
    // The kernel takes twice of what it is asked for, to have room for its own. Where it takes nothing, it goes on by
    // its own measure.
    let _ = socket.set_recv_buffer_size(size_of(bytes) / 2);
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
        assert_eq!(memory.used(), receive as u64, "what was promised is kept");
        drop(buffers);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn where_memory_is_short_a_socket_begins_with_small_buffers() {
        let (near, _far) = connection().await;
        let budget = MemoryBudget::new(Some(0));
        let memory = budget.account(u64::MAX);
        let mut buffers = SocketBuffers::begin(Some(near.as_fd()), &memory);
        let sizes = || {
            let socket = SockRef::from(&near);
            (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap())
        };
        assert_eq!(sizes(), (LEAST, LEAST));
        budget.set_limit(Some(1 << 30));
        buffers.note_blocked(Some(near.as_fd()), &memory, (true, false));
        assert!(sizes().0 > 10 * LEAST);
    }
}
