//! Queries without an answer yet, by their numbers on the connection.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::message;
use super::query::{LENGTH_BYTES, Query};

/// Maximum number of queries on a connection at a time.
const MAX_QUERIES: usize = 256;
/// Maximum number of connections on which a query is sent. A broken connection may merely be an idle one closed by
/// the resolver.
const ATTEMPTS: u32 = 2;

#[derive(Debug)]
struct PendingQuery {
    query: Query,
    attempts: u32,
    started_at: Instant,
    /// True if the query was sent on the current connection.
    sent: bool,
}

/// Pending queries of the forwarder.
#[derive(Debug, Default)]
pub(super) struct PendingQueries {
    pending: BTreeMap<u16, PendingQuery>,
    next: u16,
}

impl PendingQueries {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < MAX_QUERIES
    }

    /// Adds a query. A message that is not a query is dropped.
    pub(super) fn add(&mut self, query: Query) {
        if message::is_query(&query.message) {
            self.insert(PendingQuery {
                query,
                attempts: 0,
                started_at: Instant::now(),
                sent: false,
            });
        }
    }

    /// Returns the start time of the query that has waited longest.
    pub(super) fn oldest_start(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.started_at).min()
    }

    fn insert(&mut self, pending: PendingQuery) {
        while self.pending.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.pending.insert(self.next, pending);
        self.next = self.next.wrapping_add(1);
    }

    /// Encodes the queries not sent yet for DNS over TCP, with our own numbers.
    pub(super) fn encode_unsent(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, pending) in self.pending.iter_mut().filter(|(_, pending)| !pending.sent) {
            (pending.sent, pending.attempts) = (true, pending.attempts + 1);
            let message = &pending.query.message;
            // A datagram is shorter than 64 KiB.
            bytes.extend((message.len() as u16).to_be_bytes());
            bytes.extend(number.to_be_bytes());
            bytes.extend(&message[LENGTH_BYTES..]);
        }
        bytes
    }

    /// Returns the query that a message answers, and the answer with the program's number.
    pub(super) fn take_answered(&mut self, answer: &[u8]) -> Option<(Query, Vec<u8>)> {
        let number = u16::from_be_bytes(*answer.first_chunk()?);
        if !message::is_answer(answer) {
            return None;
        }
        let PendingQuery { query, .. } = self.pending.remove(&number)?;
        let mut answer = answer.to_vec();
        answer[..2].copy_from_slice(&query.message[..2]);
        Some((query, answer))
    }

    /// Prepares the remaining queries for another connection, with new query IDs. Returns those that have
    /// used up their attempts.
    pub(super) fn renumber(&mut self) -> Vec<Query> {
        let mut failed = Vec::new();
        for pending in std::mem::take(&mut self.pending).into_values() {
            if pending.attempts >= ATTEMPTS {
                failed.push(pending.query);
            } else {
                self.insert(PendingQuery { sent: false, ..pending });
            }
        }
        failed
    }

    /// Removes all queries.
    pub(super) fn take_all(&mut self) -> Vec<Query> {
        std::mem::take(&mut self.pending).into_values().map(|pending| pending.query).collect()
    }
}
