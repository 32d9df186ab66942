//! First bytes of an application, sent ahead of the answer about its target.
//!
//! *Problem.* An application behind a forward has a connection before its target has one, and usually sends first.
//! If its bytes were held back until the server's Connected, they would arrive a round trip later than possible.
//! But a request whose connection breaks before that is repeated on another one, and no byte of an application may
//! arrive twice.
//!
//! *Solution.* Bytes are sent ahead where a repetition is unlikely: on a connection that carried a complete request
//! within the last second, so that its server was reachable. They are kept until the target is connected. If the
//! server closes the connection properly instead of answering, it has not started the request, and request and
//! bytes are repeated. If the connection breaks, the bytes may have arrived, and the application's connection is
//! reset. An outage of the network breaks no connection and is waited for as usual.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Maximum number of bytes sent ahead. It is below what a session's stream seals without waiting for room, and
/// below a server's receive window, because the server reads the bytes only after reaching the target.
const MAX_BYTES_AHEAD: usize = 4 * 1_024;

/// Bytes of an application that are sent ahead.
#[derive(Debug)]
pub struct EarlyBytes<'a> {
    application: &'a TcpStream,
    /// Bytes read from the application.
    bytes: Vec<u8>,
    /// True if the application's end was read.
    ended: bool,
    /// Error on the application's connection.
    error: Option<io::Error>,
    /// True if the bytes were sent on a connection that broke. They may have arrived.
    spent: bool,
}

impl<'a> EarlyBytes<'a> {
    /// Creates a value for an application from which no bytes have been read yet.
    #[must_use]
    pub const fn new(application: &'a TcpStream) -> EarlyBytes<'a> {
        EarlyBytes { application, bytes: Vec::new(), ended: false, error: None, spent: false }
    }

    /// Returns the number of bytes read from the application, which the target has received.
    ///
    /// # Errors
    /// The application's connection has broken.
    pub fn finish(self) -> io::Result<u64> {
        self.error.map_or(Ok(self.bytes.len() as u64), Err)
    }

    /// Returns true if the request can be repeated together with these bytes.
    pub(super) const fn is_repeatable(&self) -> bool {
        !self.spent
    }

    /// Records that the connection with the bytes has failed. If its server has not started the request, no byte
    /// has arrived.
    pub(super) const fn on_break(&mut self, began_nothing: bool) {
        self.spent = !self.bytes.is_empty() && !began_nothing;
    }

    /// Sends the bytes again, to a target that is connected.
    pub(super) async fn repeat(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { send(writer, &self.bytes).await }
    }

    /// Reads the first bytes of the application, if it sends within `patience`.
    pub(super) async fn read_first_bytes(&mut self, patience: Duration) -> &[u8] {
        // Silence is normal in protocols in which the server sends first.
        let _ = timeout(patience, self.read_more()).await;
        &self.bytes
    }

    /// Reads more bytes when they arrive. Cancel safe.
    async fn read_more(&mut self) {
        loop {
            let readable = self.application.readable().await;
            self.bytes.reserve_exact(MAX_BYTES_AHEAD - self.bytes.len());
            match readable.and_then(|()| self.application.try_read_buf(&mut self.bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.error = Some(error),
                Ok(0) => return self.ended = true,
                Ok(_) => return,
            }
        }
    }

    /// Sends the application's bytes until `answer` resolves. Returns `None` if nothing was sent ahead within
    /// `patience`.
    pub(super) async fn send_until<R>(
        &mut self,
        writer: &mut (impl AsyncWrite + Unpin),
        patience: Duration,
        answer: impl Future<Output = R>,
    ) -> io::Result<Option<R>> {
        let (mut answer, mut late) = (pin!(answer), pin!(sleep(patience)));
        loop {
            let before = self.bytes.len();
            let (goes_on, waits) =
                (!self.ended && self.error.is_none() && before < MAX_BYTES_AHEAD, before > 0);
            tokio::select! {
                biased;
                answer = &mut answer => return Ok(Some(answer)),
                () = self.read_more(), if goes_on => {}
                () = &mut late, if !waits => return Ok(None),
            }
            if self.bytes.len() > before {
                send(writer, &self.bytes[before..]).await?;
            }
        }
    }
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests;
