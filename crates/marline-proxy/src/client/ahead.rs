//! First bytes of an application that go ahead of its target's answer.
//!
//! *Problem.* An application behind a forward has a connection before its target has one, and mostly speaks first. Held
//! back until the server has said Connected, its bytes would come a round trip later than they could. But a request
//! whose connection breaks before that is made again on another one, and no byte of an application may arrive twice.
//!
//! *Solution.* They go ahead where a repetition is unlikely to be wanted: on a connection that carried a request to its
//! end within the last second, so that its server was there. Each is kept until the target is connected. If the server
//! ends the connection in good order in place of an answer, it has begun nothing, and request and bytes are repeated.
//! If the connection breaks, nobody knows: then the application's is reset, as it would be a moment later. An outage of
//! the network breaks none, and is waited for as always.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Bytes that go ahead at most: less than a session's stream seals without waiting for room, and than a server's
/// receive window, for it reads them when it has reached the target.
const MOST: usize = 4 * 1_024;

/// What goes ahead of an application's target.
#[derive(Debug)]
pub struct Ahead<'a> {
    application: &'a TcpStream,
    /// What was taken from it.
    taken: Vec<u8>,
    /// Its end was seen.
    ended: bool,
    /// It broke.
    error: Option<io::Error>,
    /// What was taken went on a connection that broke: it may have arrived.
    spent: bool,
}

impl<'a> Ahead<'a> {
    /// Of this application.
    #[must_use]
    pub const fn of(application: &'a TcpStream) -> Ahead<'a> {
        Ahead { application, taken: Vec::new(), ended: false, error: None, spent: false }
    }

    /// The number of bytes that were taken from the application, and are its target's.
    ///
    /// # Errors
    /// The application's connection has broken.
    pub fn finish(self) -> io::Result<u64> {
        self.error.map_or(Ok(self.taken.len() as u64), Err)
    }

    /// Whether the request can be made again, and these bytes with it.
    pub(super) const fn is_repeatable(&self) -> bool {
        !self.spent
    }

    /// The connection that what was taken went on is of no use. If its server has begun nothing, nothing has arrived.
    pub(super) const fn on_break(&mut self, began_nothing: bool) {
        self.spent = !self.taken.is_empty() && !began_nothing;
    }

    /// Sends what was taken, to a target that is connected.
    pub(super) async fn repeat(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if self.taken.is_empty() { Ok(()) } else { send(writer, &self.taken).await }
    }

    /// What the application says first, if it speaks within `patience`.
    pub(super) async fn first_bytes(&mut self, patience: Duration) -> &[u8] {
        // Silent: so are most protocols whose servers speak first.
        let _ = timeout(patience, self.take()).await;
        &self.taken
    }

    /// Takes more, when there is more. Safe to cancel.
    async fn take(&mut self) {
        loop {
            let readable = self.application.readable().await;
            self.taken.reserve_exact(MOST - self.taken.len());
            match readable.and_then(|()| self.application.try_read_buf(&mut self.taken)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.error = Some(error),
                Ok(0) => return self.ended = true,
                Ok(_) => return,
            }
        }
    }

    /// Sends what the application says until `answer` is there. `None`: nothing went ahead, and `patience` is over.
    pub(super) async fn send_until<R>(
        &mut self,
        writer: &mut (impl AsyncWrite + Unpin),
        patience: Duration,
        answer: impl Future<Output = R>,
    ) -> io::Result<Option<R>> {
        let (mut answer, mut late) = (pin!(answer), pin!(sleep(patience)));
        loop {
            let before = self.taken.len();
            let (goes_on, waits) =
                (!self.ended && self.error.is_none() && before < MOST, before > 0);
            tokio::select! {
                biased;
                answer = &mut answer => return Ok(Some(answer)),
                () = self.take(), if goes_on => {}
                () = &mut late, if !waits => return Ok(None),
            }
            if self.taken.len() > before {
                send(writer, &self.taken[before..]).await?;
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
