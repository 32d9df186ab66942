//! Queues of paths: one per pair of addresses, for the congestion controllers that share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use marline_policy::PathQueue;

use crate::PathAddresses;

/// Limit on queues. Senders on further paths have one each.
const MAX_QUEUES: usize = 4_096;

/// Queues of the paths of one or several endpoints of a process, which must share a clock. Clones refer to the same
/// queues.
#[derive(Clone, Debug, Default)]
pub struct PathQueues(Arc<Mutex<BTreeMap<PathAddresses, PathQueue>>>);

impl PathQueues {
    /// The queue of a path.
    pub(crate) fn queue(&self, path: PathAddresses) -> PathQueue {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&path) {
            return queue.clone();
        }
        if queues.len() >= MAX_QUEUES {
            queues.retain(|_, queue| !queue.is_unused());
        }
        let queue = PathQueue::default();
        if queues.len() < MAX_QUEUES {
            queues.insert(path, queue.clone());
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn path(number: u32) -> PathAddresses {
        let remote = IpAddr::from((0x0b00_0000 + number).to_be_bytes());
        PathAddresses { local: IpAddr::from([10, 0, 0, 1]), remote }
    }

    #[test]
    fn senders_of_a_path_share_its_queue_and_the_table_is_bounded() {
        let queues = PathQueues::default();
        let one = queues.queue(path(0));
        assert!(!one.is_unused());
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
