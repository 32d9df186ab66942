//! Buffers of a relay outside its pumps: those of the kernel for its socket, and those of the encryption.
//!
//! While bytes flow, these buffers are nearly empty and nothing is charged. When a direction is blocked, they fill:
//! data from an application or target waits in the receive buffer, which the kernel lets grow to megabytes, and data
//! for it waits in the send buffer. Therefore a blocked direction is charged for the full size of its buffer.
//!
//! When memory is short, an outgoing connection starts with a small receive buffer, so that its peer sees a small
//! window from the start, and existing receive buffers stop growing. A receive buffer is never reduced: the kernel
//! would drop data that the advertised window allowed, and the sender, which treats that as congestion or sees a
//! window smaller than a segment (on loopback), would wait for up to two minutes. Once there is plenty of memory,
//! the kernel tunes the buffer again.
//!
//! Unsent bytes in the kernel are limited to [`UNSENT`], and to as little as [`MIN_UNSENT_LIMIT`] when memory is short.
//! Otherwise a socket whose peer does not read would hold megabytes.

use std::os::fd::{AsFd, BorrowedFd};

use marline::memory::{MemoryAccount, MemoryCharge, MemoryKind};
use marline_io::{restore_receive_buffer, set_initial_receive_buffer};
use socket2::{SockRef, Socket};

use crate::sys;

/// Limit on unsent bytes that the kernel holds for a socket.
const UNSENT: u32 = 128 * 1_024;
/// Limit on unsent bytes when no memory is left.
const MIN_UNSENT_LIMIT: u32 = 4 * 1_024;
/// Size of a buffer when no memory is left. Half of a receive buffer is its window.
const MIN_BUFFER_BYTES: usize = 8 * 1_024;
/// Default size of a receive buffer (`tcp_rmem`).
const DEFAULT_BUFFER: usize = 128 * 1_024;
/// Largest receive buffer that can be fixed at its size without privileges. Setting a larger one would shrink it to
/// `rmem_max`.
const MAX_FIXED_BUFFER: usize = 400_000;
/// Allowance, in bytes, from which the kernel's own limits suffice.
const AMPLE_ALLOWANCE: u64 = 1024 * 1_024;

/// Charges for the kernel's buffers of one relay's socket and for its encryption.
#[derive(Debug, Default)]
pub(super) struct SocketBuffers {
    charge: Option<Box<MemoryCharges>>,
    blocked: BlockedDirections,
    /// True if the receive buffer does not grow.
    is_fixed: bool,
    /// Limit on unsent bytes. 0: the kernel's default.
    unsent: u32,
}

/// Directions of a relay that wait for their writer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockedDirections {
    /// True if the direction from the socket is blocked.
    pub(super) from: bool,
    /// True if the direction to the socket is blocked.
    pub(super) to: bool,
}

#[derive(Debug)]
struct MemoryCharges {
    socket: MemoryCharge,
    kept: MemoryCharge,
}

impl SocketBuffers {
    /// Prepares the socket of a new relay.
    pub(super) fn begin(socket: Option<BorrowedFd<'_>>, memory: &MemoryAccount) -> SocketBuffers {
        let mut buffers = SocketBuffers::default();
        let Some(socket) = socket.as_ref().map(SockRef::from) else { return buffers };
        let allowance = memory.allowance();
        if allowance < AMPLE_ALLOWANCE {
            buffers.stop_growth(&socket);
            // The kernel doubles the requested size, to have room for its own data.
            let _ = socket.set_send_buffer_size(size_of(allowance) / 2);
        }
        buffers.limit_unsent(&socket, allowance);
        buffers
    }

    fn limit_unsent(&mut self, socket: &SockRef<'_>, allowance: u64) {
        let unsent = u32::try_from(allowance).unwrap_or(UNSENT).clamp(MIN_UNSENT_LIMIT, UNSENT);
        if unsent != self.unsent {
            self.unsent = unsent;
            let _ = sys::limit_unsent(socket, unsent);
        }
    }

    /// Records which directions are blocked.
    pub(super) fn record_blocked(
        &mut self,
        socket: Option<BorrowedFd<'_>>,
        memory: &MemoryAccount,
        blocked: BlockedDirections,
    ) {
        let Some(socket) = socket else { return };
        if self.is_fixed && memory.allowance() > AMPLE_ALLOWANCE {
            self.is_fixed = false;
            // If this fails, the buffer stays unchanged.
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
            self.stop_growth(socket);
        }
        let BlockedDirections { from, to } = self.blocked;
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

    /// Records how many bytes the encryption holds.
    pub(super) fn record_kept(&mut self, memory: &MemoryAccount, bytes: u64) {
        match &mut self.charge {
            Some(charges) => charges.kept.resize(bytes),
            None if bytes > 0 => self.charges(memory).kept.resize(bytes),
            None => {}
        }
    }

    fn charges(&mut self, memory: &MemoryAccount) -> &mut MemoryCharges {
        self.charge.get_or_insert_with(|| {
            let charge = |kind| memory.charge(kind, 0);
            let (socket, kept) = (charge(MemoryKind::Socket), charge(MemoryKind::Relay));
            Box::new(MemoryCharges { socket, kept })
        })
    }

    /// Stops the growth of the receive buffer.
    fn stop_growth(&mut self, socket: &SockRef<'_>) {
        let size = socket.recv_buffer_size().unwrap_or(usize::MAX);
        if !self.is_fixed && size <= MAX_FIXED_BUFFER {
            self.is_fixed = socket.set_recv_buffer_size(size / 2).is_ok();
        }
    }
}

/// Returns true if unused space of buffers should be freed.
pub(super) fn is_memory_tight(memory: &MemoryAccount) -> bool {
    memory.allowance() < AMPLE_ALLOWANCE
}

/// Returns the initial size of a buffer for an allowance. This is the kernel's default if the allowance is
/// [ample](AMPLE_ALLOWANCE).
fn size_of(allowance: u64) -> usize {
    let share = allowance / (AMPLE_ALLOWANCE / DEFAULT_BUFFER as u64);
    usize::try_from(share).unwrap_or(usize::MAX).clamp(MIN_BUFFER_BYTES, DEFAULT_BUFFER)
}

/// Prepares a socket that is not connected yet. When memory is short, it will advertise a small window.
pub(crate) fn prepare(socket: &Socket, memory: &MemoryAccount) {
    let allowance = memory.allowance();
    if allowance < AMPLE_ALLOWANCE {
        // If this fails, the kernel uses its own default.
        let _ = set_initial_receive_buffer(socket.as_fd(), size_of(allowance));
    }
}

#[cfg(test)]
mod tests {
    use marline::memory::MemoryBudget;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::outgoing::to_address;

    const FROM: BlockedDirections = BlockedDirections { from: true, to: false };

    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_blocked_direction_is_charged_its_buffer_limit() {
        let (near, _far) = connection().await;
        let socket = Some(near.as_fd());
        let budget = MemoryBudget::new(Some(1 << 30));
        let memory = budget.account(u64::MAX);
        let mut buffers = SocketBuffers::begin(socket, &memory);
        assert_eq!(memory.used(), 0);
        let receive = SockRef::from(&near).recv_buffer_size().unwrap();
        buffers.record_blocked(socket, &memory, FROM);
        assert_eq!(memory.used(), receive as u64);
        buffers.record_blocked(socket, &memory, BlockedDirections { from: true, to: true });
        assert!(memory.used() > receive as u64);
        buffers.record_kept(&memory, 77);
        buffers.record_blocked(socket, &memory, BlockedDirections::default());
        assert_eq!(memory.used(), 77, "memory of the encryption layer");
        buffers.record_kept(&memory, 0);
        assert_eq!(memory.used(), 0);
        // Memory is now short.
        budget.set_limit(Some(0));
        buffers.record_blocked(socket, &memory, FROM);
        assert_eq!(memory.used(), receive as u64, "granted memory is kept");
        drop(buffers);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn connections_start_with_small_buffers_while_memory_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let budget = MemoryBudget::new(Some(0));
        let memory = budget.account(u64::MAX);
        let near = to_address(listener.local_addr().unwrap(), &memory).await.unwrap();
        let mut buffers = SocketBuffers::begin(Some(near.as_fd()), &memory);
        let sizes = || {
            let socket = SockRef::from(&near);
            (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap())
        };
        assert_eq!(sizes(), (MIN_BUFFER_BYTES, MIN_BUFFER_BYTES));
        budget.set_limit(Some(1 << 30));
        buffers.record_blocked(Some(near.as_fd()), &memory, BlockedDirections::default());
        assert_eq!(sizes().0, DEFAULT_BUFFER);
    }
}
