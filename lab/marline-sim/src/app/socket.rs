//! A connection from the application's point of view.

use marline_core::{CloseReason, ConnectionId, ConnectionInfo, Endpoint, ReadError, WriteError};
use marline_time::Instant;

use super::App;

/// State of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SocketStatus {
    /// The handshake is in progress.
    Connecting,
    /// The connection can be read and written.
    Open,
    /// The connection has ended. Data that arrived earlier can still be read.
    Closed(CloseReason),
}

/// Request from an application that concerns another connection of its host.
#[derive(Debug)]
pub enum Call {
    /// Wake the application of a connection.
    Wake(ConnectionId),
    /// Open a connection like the host's last one to another port of the same peer.
    Open {
        /// The port.
        port: u16,
        /// Application of the connection.
        app: Box<dyn App>,
    },
}

/// A connection during one wake-up.
#[derive(Debug)]
pub struct Socket<'a> {
    endpoint: &'a mut Endpoint,
    now: Instant,
    id: ConnectionId,
    status: SocketStatus,
    calls: Vec<Call>,
}

impl<'a> Socket<'a> {
    pub(crate) const fn new(
        endpoint: &'a mut Endpoint,
        now: Instant,
        id: ConnectionId,
        status: SocketStatus,
    ) -> Self {
        Socket { endpoint, now, id, status, calls: Vec::new() }
    }

    /// Identifier of the connection.
    #[must_use]
    pub const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Requests another connection from the host.
    pub fn call(&mut self, call: Call) {
        self.calls.push(call);
    }

    pub(crate) fn take_requests(&mut self) -> Vec<Call> {
        core::mem::take(&mut self.calls)
    }

    /// The current time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// State of the connection.
    #[must_use]
    pub const fn status(&self) -> SocketStatus {
        self.status
    }

    /// See [`Endpoint::write`].
    ///
    /// # Errors
    /// The endpoint's error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, WriteError> {
        self.endpoint.write(self.now, self.id, bytes)
    }

    /// See [`Endpoint::write_static`].
    ///
    /// # Errors
    /// The endpoint's error.
    pub fn write_static(&mut self, bytes: &'static [u8]) -> Result<usize, WriteError> {
        self.endpoint.write_static(self.now, self.id, bytes)
    }

    /// See [`Endpoint::read`].
    ///
    /// # Errors
    /// The endpoint's error.
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
