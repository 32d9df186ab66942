//! Queries that were asked on a connection and are not answered yet, by the numbers they have there.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::message;
use super::query::{LENGTH_BYTES, Query};

/// Queries on a connection at a time.
const MOST: usize = 256;
/// Connections on which a query is asked: one that broke may be the resolver's end of an idle one.
const ATTEMPTS: u32 = 2;

#[derive(Debug)]
struct Asked {
    query: Query,
    attempts: u32,
    since: Instant,
    /// It is on its way on the current connection.
    sent: bool,
}

/// The queries.
#[derive(Debug, Default)]
pub(super) struct Pending {
    asked: BTreeMap<u16, Asked>,
    next: u16,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.asked.len() < MOST
    }

    /// Adds a query; one that is none is dropped.
    pub(super) fn add(&mut self, query: Query) {
        if message::is_query(&query.message) {
            self.insert(Asked { query, attempts: 0, since: Instant::now(), sent: false });
        }
    }

    /// Since when the one that has waited longest waits.
    pub(super) fn since(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.since).min()
    }

    fn insert(&mut self, asked: Asked) {
        while self.asked.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.asked.insert(self.next, asked);
        self.next = self.next.wrapping_add(1);
    }

    /// What has yet to be asked, as DNS over TCP has it, under our numbers.
    pub(super) fn unasked(&mut self) -> Vec<u8> {
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

    /// The query that a message answers, and the answer under the program's number.
    pub(super) fn answered(&mut self, answer: &[u8]) -> Option<(Query, Vec<u8>)> {
        let number = u16::from_be_bytes(*answer.first_chunk()?);
        if !message::is_answer(answer) {
            return None;
        }
        let Asked { query, .. } = self.asked.remove(&number)?;
        let mut answer = answer.to_vec();
        answer[..2].copy_from_slice(&query.message[..2]);
        Some((query, answer))
    }

    /// The connection is gone: what is left is to be asked on another, under new numbers. Returns what was asked
    /// often enough.
    pub(super) fn renumber(&mut self) -> Vec<Query> {
        let mut failed = Vec::new();
        for asked in std::mem::take(&mut self.asked).into_values() {
            if asked.attempts >= ATTEMPTS {
                failed.push(asked.query);
            } else {
                self.insert(Asked { sent: false, ..asked });
            }
        }
        failed
    }

    /// Takes all of them out.
    pub(super) fn take_all(&mut self) -> Vec<Query> {
        std::mem::take(&mut self.asked).into_values().map(|asked| asked.query).collect()
    }
}
