//! Targets of a client's open streams, which only the client's owner may list.
//!
//! Log, metrics and dashboard have no access to this list.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use marline::monitor::ConnectionId;

use crate::relay::Traffic;
use crate::target::Target;
use crate::transport::Transport;

/// Open streams with their targets. Clones share one list.
#[derive(Clone, Default)]
pub struct OpenTargets(Arc<Mutex<List>>);

#[derive(Default)]
struct List {
    last: u64,
    /// Streams in the order in which they were opened.
    open: BTreeMap<u64, Entry>,
}

struct Entry {
    target: Target,
    connection: Option<ConnectionId>,
    opened_at: Instant,
    traffic: Arc<Traffic>,
}

/// An open stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTarget {
    /// Target of the stream.
    pub target: Target,
    /// Connection that carries the stream. `None` if it is not a Marline connection.
    pub connection: Option<ConnectionId>,
    /// Time since the stream was opened.
    pub age: Duration,
    /// Bytes from the application to the target.
    pub to_target: u64,
    /// Bytes from the target to the application.
    pub from_target: u64,
}

/// Entry for a stream in the list. Dropping it removes the entry.
#[must_use]
pub struct ListEntry {
    list: OpenTargets,
    number: u64,
}

impl OpenTargets {
    /// Adds a stream to this target, whose bytes are counted in `traffic`.
    pub fn add_stream(
        &self,
        target: &Target,
        stream: &impl Transport,
        traffic: &Arc<Traffic>,
    ) -> ListEntry {
        let entry = Entry {
            target: target.clone(),
            connection: stream.multipath().map(marline::Stream::id),
            opened_at: Instant::now(),
            traffic: Arc::clone(traffic),
        };
        let mut list = self.lock();
        list.last += 1;
        let number = list.last;
        list.open.insert(number, entry);
        drop(list);
        ListEntry { list: self.clone(), number }
    }

    /// Returns all open streams, the oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<OpenTarget> {
        let shown = |entry: &Entry| {
            let (from_target, to_target) = entry.traffic.counts();
            let Entry { target, connection, opened_at: begun, traffic: _ } = entry;
            let (target, connection) = (target.clone(), *connection);
            OpenTarget { target, connection, age: begun.elapsed(), to_target, from_target }
        };
        self.lock().open.values().map(shown).collect()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Omits the targets, because printed values may get into a log.
impl fmt::Debug for OpenTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTargets").field("open", &self.lock().open.len()).finish()
    }
}

impl fmt::Debug for ListEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listed").finish_non_exhaustive()
    }
}

impl Drop for ListEntry {
    fn drop(&mut self) {
        self.list.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_listed_with_its_bytes_while_it_is_open() {
        let list = OpenTargets::default();
        let traffic = Arc::new(Traffic::default());
        let (stream, _other) = tokio::io::duplex(1);
        let [first, second] = ["example.org:443", "[2001:db8::1]:80"]
            .map(|text| list.add_stream(&text.parse().expect("a target"), &stream, &traffic));
        traffic.count(7, 1_000);
        let targets = |list: &OpenTargets| -> Vec<String> {
            list.list().iter().map(|open| open.target.to_string()).collect()
        };
        assert_eq!(targets(&list), ["example.org:443", "[2001:db8::1]:80"]);
        let OpenTarget { to_target, from_target, connection, .. } = list.list().remove(0);
        assert_eq!((to_target, from_target, connection), (7, 1_000, None));
        assert_eq!(format!("{list:?} {first:?}"), "OpenTargets { open: 2 } Listed { .. }");
        drop(first);
        assert_eq!(targets(&list), ["[2001:db8::1]:80"]);
        drop(second);
        assert!(list.list().is_empty());
    }
}
