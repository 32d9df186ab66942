//! Leased connection, returned to its tunnel when its user closes it properly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use marline::memory::MemoryAccount;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::channel::Channel;
use crate::deadlines::{Deadlines, PreviousScheduler};
use crate::transport::{PeerState, Transport};

/// Takes back a connection that ended properly.
type ReturnFn<S> = Box<dyn FnOnce(Channel<S>) + Send>;

/// A connection to a target, and the owner to which it returns.
pub struct Leased<S: Transport> {
    channel: Channel<S>,
    home: ReturnFn<S>,
    /// Scheduler of the connection before it got this target's deadline.
    previous_scheduler: Option<PreviousScheduler>,
}

impl<S: Transport> std::fmt::Debug for Leased<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leased").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl<S: Transport> Leased<S> {
    /// Lends `channel`, which has just been connected to a target.
    pub(super) fn new(mut channel: Channel<S>, home: ReturnFn<S>) -> Leased<S> {
        channel.keep_open();
        Leased { channel, home, previous_scheduler: None }
    }

    /// Applies the deadline for the target's port.
    pub(super) fn apply_deadline(&mut self, deadlines: &Deadlines, port: u16) {
        self.previous_scheduler = deadlines.apply_to(&self.channel, port);
    }

    /// Returns true if the connection belongs to a session.
    #[cfg(test)]
    pub(crate) const fn is_session(&self) -> bool {
        matches!(self.channel, Channel::Session(_))
    }
}

impl<S: Transport> Transport for Leased<S> {
    fn abort(self) {
        self.channel.abort();
    }

    fn peer_state(&self) -> PeerState {
        self.channel.peer_state()
    }

    fn mark_authenticated(&self, account: &MemoryAccount) {
        self.channel.mark_authenticated(account);
    }

    fn multipath(&self) -> Option<&marline::Stream> {
        self.channel.multipath()
    }

    fn buffered(&mut self, trim: bool) -> u64 {
        self.channel.buffered(trim)
    }

    fn finish(mut self) {
        // A connection with the scheduler for this target's deadline must not serve another target.
        let usual = self.previous_scheduler.is_none_or(|usual| usual.restore(&self.channel));
        if usual && self.channel.renew() {
            (self.home)(self.channel);
        }
    }
}

impl<S: Transport> AsyncRead for Leased<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_read(cx, buf)
    }
}

impl<S: Transport> AsyncWrite for Leased<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.channel).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_shutdown(cx)
    }
}
