//! Connection as its application sees it.

use marline_core::{CloseReason, ConnectionId, ConnectionInfo, Endpoint, ReadError, WriteError};
use marline_time::Instant;

/// Where a connection is in its life.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SocketStatus {
    /// Its handshake runs.
    Connecting,
    /// It may be read and written.
    Open,
    /// It is over; what had arrived before may still be read.
    Closed(CloseReason),
}

/// A connection for the moment of a wake-up.
#[derive(Debug)]
pub struct Socket<'a> {
    endpoint: &'a mut Endpoint,
    now: Instant,
    id: ConnectionId,
    status: SocketStatus,
}

impl<'a> Socket<'a> {
    pub(crate) const fn new(
        endpoint: &'a mut Endpoint,
        now: Instant,
        id: ConnectionId,
        status: SocketStatus,
    ) -> Self {
        Socket { endpoint, now, id, status }
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Where the connection is in its life.
    #[must_use]
    pub const fn status(&self) -> SocketStatus {
        self.status
    }

    /// See [`Endpoint::write`].
    ///
    /// # Errors
    /// The endpoint's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, WriteError> {
        self.endpoint.write(self.now, self.id, bytes)
    }

    /// See [`Endpoint::write_static`].
    ///
    /// # Errors
    /// The endpoint's.
    pub fn write_static(&mut self, bytes: &'static [u8]) -> Result<usize, WriteError> {
        self.endpoint.write_static(self.now, self.id, bytes)
    }

    /// See [`Endpoint::read`].
    ///
    /// # Errors
    /// The endpoint's.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, ReadError> {
        self.endpoint.read(self.now, self.id, out)
    }

    /// See [`Endpoint::shutdown`].
    pub fn shutdown(&mut self) {
        self.endpoint.shutdown(self.now, self.id);
    }

    /// See [`Endpoint::abort`].
    pub fn abort(&mut self) {
        self.endpoint.abort(self.now, self.id);
    }

    /// See [`Endpoint::release`].
    pub fn release(&mut self) {
        self.endpoint.release(self.now, self.id);
    }

    /// See [`Endpoint::info`].
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        self.endpoint.info(self.id)
    }
}
