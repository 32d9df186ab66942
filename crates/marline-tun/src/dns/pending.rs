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
    since: Instant,
    /// True if the query was sent on the current connection.
    sent: bool,
}

/// Pending queries of the forwarder.
#[derive(Debug, Default)]
pub(super) struct PendingQueries {
    asked: BTreeMap<u16, PendingQuery>,
    next: u16,
}

impl PendingQueries {
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.asked.len() < MAX_QUERIES
    }

    /// Adds a query. A message that is not a query is dropped.
    pub(super) fn add(&mut self, query: Query) {
        if message::is_query(&query.message) {
            self.insert(PendingQuery { query, attempts: 0, since: Instant::now(), sent: false });
        }
    }

    /// Start time of the query that has waited longest.
    pub(super) fn oldest_start(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.since).min()
    }

    fn insert(&mut self, asked: PendingQuery) {
        while self.asked.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.asked.insert(self.next, asked);
        self.next = self.next.wrapping_add(1);
    }

    /// Encodes the queries not sent yet for DNS over TCP, with our own numbers.
    pub(super) fn encode_unsent(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, asked) in self.asked.iter_mut().filter(|(_, asked)| !asked.sent) {
            (asked.sent, asked.attempts) = (true, asked.attempts + 1);
            let message = &asked.query.message;
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
        let PendingQuery { query, .. } = self.asked.remove(&number)?;
        let mut answer = answer.to_vec();
        answer[..2].copy_from_slice(&query.message[..2]);
        Some((query, answer))
    }

    /// Prepares the remaining queries for another connection, with new numbers. Returns those that have used up
    /// their attempts.
    pub(super) fn renumber(&mut self) -> Vec<Query> {
        let mut failed = Vec::new();
        for asked in std::mem::take(&mut self.asked).into_values() {
            if asked.attempts >= ATTEMPTS {
                failed.push(asked.query);
            } else {
                self.insert(PendingQuery { sent: false, ..asked });
            }
        }
        failed
    }

    /// Removes all queries.
    pub(super) fn take_all(&mut self) -> Vec<Query> {
        std::mem::take(&mut self.asked).into_values().map(|asked| asked.query).collect()
    }
}
