//! A connection on loan: whoever is done with it in good order gives it back to its tunnel.

use std::io;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::tunnel::{Connect, Tunnel};
use crate::channel::Channel;
use crate::transport::Transport;

/// A connection to a target, and the tunnel that it is of.
pub struct Leased<C: Connect> {
    channel: Channel<C::Stream>,
    home: Weak<Tunnel<C>>,
}

impl<C: Connect> std::fmt::Debug for Leased<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leased").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl<C: Connect> Leased<C> {
    /// Lends `channel`, which has just been connected to a target.
    pub(super) fn new(mut channel: Channel<C::Stream>, home: Weak<Tunnel<C>>) -> Leased<C> {
        channel.keep();
        Leased { channel, home }
    }

    /// Whether it is a session's connection.
    #[cfg(test)]
    pub(crate) const fn is_session(&self) -> bool {
        matches!(self.channel, Channel::Session(_))
    }
}

impl<C: Connect> Transport for Leased<C> {
    fn abort(self) {
        self.channel.abort();
    }

    fn know_peer(&self) {
        self.channel.know_peer();
    }

    fn finish(mut self) {
        // Without a tunnel nobody will ask for anything: dropped, it ends in good order.
        if self.channel.renew()
            && let Some(home) = self.home.upgrade()
        {
            home.take_back(self.channel);
        }
    }
}

impl<C: Connect> AsyncRead for Leased<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_read(cx, buf)
    }
}

impl<C: Connect> AsyncWrite for Leased<C> {
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
