//! Query of a program, and the way its answer goes back.

use std::net::SocketAddr;

use super::message;
use crate::datagram::{Datagram, DatagramWriter};

/// Bytes of a message of DNS over TCP, its length before it.
pub(super) const LENGTH_BYTES: usize = 2;

/// A query of a program.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    program: SocketAddr,
    service: SocketAddr,
    pub(super) message: Vec<u8>,
}

impl Query {
    pub(crate) fn of(datagram: &Datagram<'_>) -> Query {
        Query {
            program: datagram.source,
            service: datagram.destination,
            message: datagram.payload.to_vec(),
        }
    }

    pub(super) fn answer(&self, writer: &DatagramWriter, message: &[u8]) {
        // The interface may be gone; what is too long for it has been cut short.
        if let Err(error) = writer.send(self.service, self.program, message) {
            tracing::debug!("a DNS answer was not delivered: {error}");
        }
    }

    /// The service failed.
    pub(super) fn fail(&self, writer: &DatagramWriter) {
        if let Some(message) = message::failure(&self.message) {
            self.answer(writer, &message);
        }
    }
}
