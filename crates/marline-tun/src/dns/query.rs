//! Query from a program, with its reply path.

use std::net::SocketAddr;

use tokio::sync::mpsc::OwnedPermit;

use super::message;
use crate::datagram::{Datagram, DatagramWriter};

/// Length of the prefix of a message of DNS over TCP. The prefix holds the message's length.
pub(super) const LENGTH_BYTES: usize = 2;

/// Destination of an answer.
#[derive(Debug)]
enum Reply {
    /// A datagram.
    Datagram { program: SocketAddr, service: SocketAddr },
    /// The connection on which the query arrived, with a reserved slot.
    Connection(OwnedPermit<Vec<u8>>),
}

/// A query from a program.
#[derive(Debug)]
pub(crate) struct Query {
    reply: Reply,
    pub(super) message: Vec<u8>,
}

impl Query {
    pub(crate) fn from_datagram(datagram: &Datagram<'_>) -> Query {
        let reply = Reply::Datagram { program: datagram.source, service: datagram.destination };
        Query { reply, message: datagram.payload.to_vec() }
    }

    /// Creates a query that arrived on a connection.
    pub(super) const fn on_connection(message: Vec<u8>, place: OwnedPermit<Vec<u8>>) -> Query {
        Query { reply: Reply::Connection(place), message }
    }

    /// Returns the reserved slot for the answer on the query's connection.
    #[cfg(test)]
    pub(super) fn into_answer_slot(self) -> OwnedPermit<Vec<u8>> {
        match self.reply {
            Reply::Connection(place) => place,
            Reply::Datagram { .. } => panic!("the query arrived in a datagram"),
        }
    }

    /// Sends the answer. Over UDP it is truncated to the length that the program accepts.
    pub(super) fn answer(self, writer: &DatagramWriter, mut message: Vec<u8>) {
        match self.reply {
            Reply::Datagram { program, service } => {
                message::truncate_to(&mut message, message::limit(&self.message));
                // The interface may no longer exist.
                if let Err(error) = writer.send(service, program, &message) {
                    tracing::debug!("cannot deliver a DNS answer: {error}");
                }
            }
            Reply::Connection(place) => drop(place.send(message)),
        }
    }

    /// Sends an answer without records and with this response code. A message that is not a query gets no answer.
    pub(super) fn refuse(self, writer: &DatagramWriter, code: u8) {
        if let Some(message) = message::without_records(&self.message, code) {
            self.answer(writer, message);
        }
    }

    /// Sends SERVFAIL.
    pub(super) fn fail(self, writer: &DatagramWriter) {
        self.refuse(writer, message::SERVFAIL);
    }
}
