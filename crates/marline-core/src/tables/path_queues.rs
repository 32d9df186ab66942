//! Queues of paths, for the congestion controllers that share them: one per local address and remote address with port.
//!
//! The port counts because a NAT gives many users one address, and their links have separate queues. In UDP, all
//! connections of a client have the same port. In native TCP a server sees one for each connection, so they do not
//! share a queue, and each is a stranger to the others; a client's share the server's port.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use marline_policy::PathQueue;

use crate::FourTuple;

/// Limit on queues. Senders on further paths have one each.
const MAX_QUEUES: usize = 4_096;

/// Queues of the paths of one or several endpoints of a process, which must share a clock. Clones refer to the same
/// queues.
#[derive(Clone, Debug, Default)]
pub struct PathQueues(Arc<Mutex<BTreeMap<(IpAddr, SocketAddr), PathQueue>>>);

impl PathQueues {
    /// The queue of a path.
    pub(crate) fn queue(&self, path: FourTuple) -> PathQueue {
        let key = (path.local.ip(), path.remote);
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&key) {
            return queue.clone();
        }
        if queues.len() >= MAX_QUEUES {
            queues.retain(|_, queue| !queue.is_unused());
        }
        let queue = PathQueue::default();
        if queues.len() < MAX_QUEUES {
            queues.insert(key, queue.clone());
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: u32) -> FourTuple {
        let local = SocketAddr::from(([10, 0, 0, 1], 443));
        let remote = SocketAddr::from(((0x0b00_0000 + number).to_be_bytes(), 4_500));
        FourTuple { local, remote }
    }

    #[test]
    fn senders_of_a_path_share_its_queue_and_the_table_is_bounded() {
        let queues = PathQueues::default();
        let one = queues.queue(path(0));
        assert!(!one.is_unused());
        // Another port may be that of another user behind the same NAT.
        let mut neighbor = path(0);
        neighbor.remote.set_port(4_501);
        let neighbor = queues.queue(neighbor);
        let shared = queues.queue(path(0));
        drop(shared);
        assert_eq!(queues.0.lock().expect("not poisoned").len(), 2);
        drop(neighbor);
        let others: Vec<PathQueue> =
            (1..MAX_QUEUES as u32 + 10).map(|number| queues.queue(path(number))).collect();
        assert_eq!(queues.0.lock().expect("not poisoned").len(), MAX_QUEUES);
        assert!(others.last().is_some_and(PathQueue::is_unused), "a sender of its own");
        drop(others);
        let last = queues.queue(path(9_999));
        assert!(!last.is_unused() && !one.is_unused(), "unused queues are removed");
        assert_eq!(queues.0.lock().expect("not poisoned").len(), 2);
    }
}
