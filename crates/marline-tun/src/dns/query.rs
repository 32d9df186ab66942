//! Query of a program, and the way its answer goes back.

use std::net::SocketAddr;

use tokio::sync::mpsc::OwnedPermit;

use super::message;
use crate::datagram::{Datagram, DatagramWriter};

/// Bytes of a message of DNS over TCP, its length before it.
pub(super) const LENGTH_BYTES: usize = 2;

/// Where an answer goes.
#[derive(Debug)]
enum Reply {
    /// In a datagram.
    Datagram { program: SocketAddr, service: SocketAddr },
    /// On the connection by which the query came, which has a place for it.
    Connection(OwnedPermit<Vec<u8>>),
}

/// A query of a program.
#[derive(Debug)]
pub(crate) struct Query {
    reply: Reply,
    pub(super) message: Vec<u8>,
}

impl Query {
    pub(crate) fn of(datagram: &Datagram<'_>) -> Query {
        let reply = Reply::Datagram { program: datagram.source, service: datagram.destination };
        Query { reply, message: datagram.payload.to_vec() }
    }

    /// One that came by a connection.
    pub(super) const fn on_connection(message: Vec<u8>, place: OwnedPermit<Vec<u8>>) -> Query {
        Query { reply: Reply::Connection(place), message }
    }

    /// The place for its answer on the connection by which it came.
    #[cfg(test)]
    pub(super) fn into_place(self) -> OwnedPermit<Vec<u8>> {
        match self.reply {
            Reply::Connection(place) => place,
            Reply::Datagram { .. } => panic!("it came in a datagram"),
        }
    }

    /// Answers it. What is too long for the program is cut short, by UDP.
    pub(super) fn answer(self, writer: &DatagramWriter, mut message: Vec<u8>) {
        match self.reply {
            Reply::Datagram { program, service } => {
                message::fit(&mut message, message::limit(&self.message));
                // The interface may be gone.
                if let Err(error) = writer.send(service, program, &message) {
                    tracing::debug!("a DNS answer was not delivered: {error}");
                }
            }
            Reply::Connection(place) => drop(place.send(message)),
        }
    }

    /// Answers without records, with this response code. What is not a query gets no answer.
    pub(super) fn refuse(self, writer: &DatagramWriter, code: u8) {
        if let Some(message) = message::without_records(&self.message, code) {
            self.answer(writer, message);
        }
    }

    /// The service failed.
    pub(super) fn fail(self, writer: &DatagramWriter) {
        self.refuse(writer, message::SERVFAIL);
    }
}
