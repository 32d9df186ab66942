//! Queues of paths, for the congestion controllers that share them: one per local address, remote address, and user.
//!
//! The user counts because a NAT gives many users one address, and their links have separate queues. All connections of
//! a client are its own. A server knows users by the memory account of authenticated connections. Others share a queue
//! if they have the same remote port, as all connections of a client over UDP do.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use marline_policy::PathQueue;

use crate::{FourTuple, MemoryAccount};

/// Limit on queues. Senders on further paths have one each.
const MAX_QUEUES: usize = 4_096;

/// User of a queue, as far as an endpoint can tell users apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueUser {
    /// The user of this [account](MemoryAccount::address).
    Account(usize),
    /// Unknown: the user of this remote port.
    Port(u16),
}

impl QueueUser {
    /// The user of a connection with this account, or of an unauthenticated one on this path.
    pub(crate) fn new(account: Option<&MemoryAccount>, path: FourTuple) -> Self {
        account.map_or(QueueUser::Port(path.remote.port()), |account| {
            QueueUser::Account(account.address())
        })
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    local: IpAddr,
    remote: IpAddr,
    user: QueueUser,
}

/// Queues of the paths of one or several endpoints of a process, which must share a clock. Clones refer to the same
/// queues.
#[derive(Clone, Debug, Default)]
pub struct PathQueues(Arc<Mutex<BTreeMap<Key, PathQueue>>>);

impl PathQueues {
    /// The queue of a user's path.
    pub(crate) fn queue(&self, path: FourTuple, user: QueueUser) -> PathQueue {
        let key = Key { local: path.local.ip(), remote: path.remote.ip(), user };
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
    use core::net::SocketAddr;

    use super::*;

    fn queue(queues: &PathQueues, path: FourTuple) -> PathQueue {
        queues.queue(path, QueueUser::new(None, path))
    }

    fn path(number: u32) -> FourTuple {
        let local = SocketAddr::from(([10, 0, 0, 1], 443));
        let remote = SocketAddr::from(((0x0b00_0000 + number).to_be_bytes(), 4_500));
        FourTuple { local, remote }
    }

    #[test]
    fn senders_of_a_path_share_its_queue_and_the_table_is_bounded() {
        let queues = PathQueues::default();
        let one = queue(&queues, path(0));
        assert!(!one.is_unused());
        // Another port may be that of another user behind the same NAT.
        let mut neighbor = path(0);
        neighbor.remote.set_port(4_501);
        let neighbor = queue(&queues, neighbor);
        let shared = queue(&queues, path(0));
        drop(shared);
        assert_eq!(queues.0.lock().expect("not poisoned").len(), 2);
        drop(neighbor);
        let others: Vec<PathQueue> =
            (1..MAX_QUEUES as u32 + 10).map(|number| queue(&queues, path(number))).collect();
        assert_eq!(queues.0.lock().expect("not poisoned").len(), MAX_QUEUES);
        assert!(others.last().is_some_and(PathQueue::is_unused), "a sender of its own");
        drop(others);
        let last = queue(&queues, path(9_999));
        assert!(!last.is_unused() && !one.is_unused(), "unused queues are removed");
        assert_eq!(queues.0.lock().expect("not poisoned").len(), 2);
    }

    #[test]
    fn connections_of_an_authenticated_user_share_a_queue_whatever_their_ports() {
        let (queues, one, other) =
            (PathQueues::default(), MemoryAccount::default(), MemoryAccount::default());
        let mut second = path(0);
        second.remote.set_port(4_501);
        let queue = |account: Option<&MemoryAccount>, path| {
            queues.queue(path, QueueUser::new(account, path))
        };
        let held: Vec<PathQueue> = [
            (Some(&one), path(0)),
            (Some(&one), second),
            (Some(&other), path(0)),
            (None, path(0)),
            (None, second),
            (Some(&one), path(1)),
        ]
        .map(|(account, path)| queue(account, path))
        .into();
        assert_eq!((queues.0.lock().expect("not poisoned").len(), held.len()), (5, 6));
    }
}
