//! Buffers of a relay outside its pumps: those of the kernel for its socket, and of the encryption.
//!
//! While bytes flow they are next to empty, and nothing is charged. When a direction is blocked, they fill: what an
//! application or target sends waits in the receive buffer, which the kernel lets grow to megabytes, and what it does
//! not read waits in the send buffer. So a blocked direction is charged for as much as its buffer may hold.
//!
//! Where memory is short, a connection that we open begins with a small receive buffer, so that its peer is told of a
//! small window from the first, and any receive buffer grows no further. It is never made smaller: the kernel would
//! drop what it promised room for, and the sender, which takes that for congestion, or sees a window that is smaller
//! than a segment (on loopback), would wait for up to two minutes before it sends on. Once there is plenty of memory,
//! the kernel tunes it again.
//!
//! Of what was not sent yet the kernel holds [`UNSENT`] at most, where memory is short as little as [`LEAST_UNSENT`],
//! or a socket whose peer does not read would hold megabytes.

use std::os::fd::{AsFd, BorrowedFd};

use marline::{MemoryAccount, MemoryCharge, MemoryKind};
use marline_io::{begin_with_small_receive_buffer, restore_receive_buffer};
use socket2::{SockRef, Socket};

/// Bytes that the kernel holds unsent for a socket.
const UNSENT: u32 = 128 * 1_024;
/// The same where there is no memory left.
const LEAST_UNSENT: u32 = 4 * 1_024;
/// Size of a buffer where there is no memory left. Half of a receive buffer is its window.
const LEAST: usize = 8 * 1_024;
/// Size of a receive buffer by default (`tcp_rmem`).
const USUAL: usize = 128 * 1_024;
/// A larger one cannot be fixed at its size by everybody (`rmem_max`): it would be smaller then.
const FIXED_AT_MOST: usize = 400_000;
/// While a buffer may hold so much, the kernel's own limits are good enough.
const PLENTY: u64 = 1024 * 1_024;

/// The kernel's buffers of one relay's socket, and what its encryption keeps.
#[derive(Debug, Default)]
pub(super) struct SocketBuffers {
    charge: Option<Box<Charges>>,
    /// Which direction was blocked: from the socket, and to it.
    blocked: (bool, bool),
    /// The receive buffer does not grow.
    is_fixed: bool,
    /// The limit of unsent bytes; 0: the kernel's own.
    unsent: u32,
}

#[derive(Debug)]
struct Charges {
    socket: MemoryCharge,
    kept: MemoryCharge,
}

impl SocketBuffers {
    /// A relay begins.
    pub(super) fn begin(socket: Option<BorrowedFd<'_>>, memory: &MemoryAccount) -> SocketBuffers {
        let mut buffers = SocketBuffers::default();
        let Some(socket) = socket.as_ref().map(SockRef::from) else { return buffers };
        let allowance = memory.allowance();
        if allowance < PLENTY {
            buffers.fix(&socket);
            // The kernel takes twice of what it is asked for, to have room for its own.
            let _ = socket.set_send_buffer_size(size_of(allowance) / 2);
        }
        buffers.limit_unsent(&socket, allowance);
        buffers
    }

    fn limit_unsent(&mut self, socket: &SockRef<'_>, allowance: u64) {
        let unsent = u32::try_from(allowance).unwrap_or(UNSENT).clamp(LEAST_UNSENT, UNSENT);
        if unsent != self.unsent {
            self.unsent = unsent;
            // Not known to a unix socket.
            let _ = socket.set_tcp_notsent_lowat(unsent);
        }
    }

    /// Directions are blocked or not, from the socket and to it.
    pub(super) fn note_blocked(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        memory: &MemoryAccount,
        blocked: (bool, bool),
    ) {
        let Some(socket) = socket else { return };
        if self.is_fixed && memory.allowance() > PLENTY {
            self.is_fixed = false;
            // Where it cannot be done, the buffer stays as it is.
            let _ = restore_receive_buffer(socket);
        }
        if self.blocked != blocked {
            self.blocked = blocked;
            self.change(&SockRef::from(&socket), memory);
        }
    }

    fn change(&mut self, socket: &SockRef<'_>, memory: &MemoryAccount) {
        let receive = socket.recv_buffer_size().unwrap_or_default() as u64;
        let allowance = memory.allowance();
        if receive > allowance {
            self.fix(socket);
        }
        let (from, to) = self.blocked;
        if to {
            self.limit_unsent(socket, allowance);
        }
        let sent = socket.send_buffer_size().unwrap_or_default() as u64;
        let held = if from { receive } else { 0 }
            + if to { sent.min(2 * u64::from(self.unsent)) } else { 0 };
        match &mut self.charge {
            Some(charges) => charges.socket.resize(held),
            None if held > 0 => self.charges(memory).socket.resize(held),
            None => {}
        }
    }

    /// The encryption keeps so many bytes.
    pub(super) fn note_kept(&mut self, memory: &MemoryAccount, bytes: u64) {
        match &mut self.charge {
            Some(charges) => charges.kept.resize(bytes),
            None if bytes > 0 => self.charges(memory).kept.resize(bytes),
            None => {}
        }
    }

    fn charges(&mut self, memory: &MemoryAccount) -> &mut Charges {
        self.charge.get_or_insert_with(|| {
            let charge = |kind| memory.charge(kind, 0);
            let (socket, kept) = (charge(MemoryKind::Socket), charge(MemoryKind::Relay));
            Box::new(Charges { socket, kept })
        })
    }

    /// Has the receive buffer stay as it is.
    fn fix(&mut self, socket: &SockRef<'_>) {
        let size = socket.recv_buffer_size().unwrap_or(usize::MAX);
        if !self.is_fixed && size <= FIXED_AT_MOST {
            self.is_fixed = socket.set_recv_buffer_size(size / 2).is_ok();
        }
    }
}

/// Whether unused room of buffers is worth returning.
pub(super) fn is_tight(memory: &MemoryAccount) -> bool {
    memory.allowance() < PLENTY
}

/// The size that a buffer begins with for an allowance: that of the kernel where there is [`PLENTY`].
fn size_of(allowance: u64) -> usize {
    let share = allowance / (PLENTY / USUAL as u64);
    usize::try_from(share).unwrap_or(usize::MAX).clamp(LEAST, USUAL)
}

/// Prepares a socket that is still to be connected: where memory is short, its peer is told of a small window.
pub(crate) fn prepare(socket: &Socket, memory: &MemoryAccount) {
    let allowance = memory.allowance();
    if allowance < PLENTY {
        // Where it cannot be done, the kernel goes on by its own measure.
        let _ = begin_with_small_receive_buffer(socket.as_fd(), size_of(allowance));
    }
}

#[cfg(test)]
mod tests {
    use marline::MemoryBudget;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::outgoing::to_address;

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
        buffers.note_kept(&memory, 77);
        buffers.note_blocked(socket, &memory, (false, false));
        assert_eq!(memory.used(), 77, "the encryption's");
        buffers.note_kept(&memory, 0);
        assert_eq!(memory.used(), 0);
        // Memory is short now.
        budget.set_limit(Some(0));
        buffers.note_blocked(socket, &memory, (true, false));
        assert_eq!(memory.used(), receive as u64, "what was promised is kept");
        drop(buffers);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn where_memory_is_short_a_connection_begins_with_small_buffers_until_there_is_plenty() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let budget = MemoryBudget::new(Some(0));
        let memory = budget.account(u64::MAX);
        let near = to_address(listener.local_addr().unwrap(), &memory).await.unwrap();
        let mut buffers = SocketBuffers::begin(Some(near.as_fd()), &memory);
        let sizes = || {
            let socket = SockRef::from(&near);
            (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap())
        };
        assert_eq!(sizes(), (LEAST, LEAST));
        budget.set_limit(Some(1 << 30));
        buffers.note_blocked(Some(near.as_fd()), &memory, (false, false));
        assert_eq!(sizes().0, USUAL);
    }
}
