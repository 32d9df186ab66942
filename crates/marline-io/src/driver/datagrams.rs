//! Datagrams of a session: the application's interface to a lane, which sends over the subflows of one connection.

use core::future::poll_fn;
use core::task::{Context, Poll, ready};
use std::fmt;
use std::sync::Arc;

use marline_core::ConnectionId;
use marline_datagram::{
    FlowId, Keys, Lane, LaneConfig, LaneIds, LaneStats, PathId, PathInfo, SendError,
};
use marline_policy::FlowClass;
use marline_time::Instant;

use super::carrier::Carrier;
use super::lane_traffic::{Arrivals, LanePath, PathNumbers};
use super::shard::{Shard, ShardHandle};
use super::stream::Stream;

/// Error of a lane that is gone because its shard has stopped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LaneEndedError;

impl fmt::Display for LaneEndedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the network driver has stopped")
    }
}

impl std::error::Error for LaneEndedError {}

/// Reason for not opening a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneError {
    /// The connection uses native TCP, which cannot carry datagrams.
    Native,
    /// The id is in use, or there are too many lanes.
    Refused,
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaneError::Native => "native TCP cannot carry datagrams; use the UDP carrier",
            LaneError::Refused => "too many datagram lanes, or the id is in use",
        })
    }
}

impl std::error::Error for LaneError {}

/// One end of a session's datagrams. Dropping it ends the lane here; the peer is not notified.
#[derive(Debug)]
pub struct Datagrams {
    shard: Arc<ShardHandle>,
    id: u64,
}

impl Datagrams {
    /// Sends a datagram of a flow. Sends immediately what the path allows. The rest waits, at most until the deadline
    /// of its class.
    ///
    /// # Errors
    /// See [`SendError`]. A closed lane fails with [`SendError::NoPath`].
    pub fn send(&self, flow: FlowId, payload: &[u8]) -> Result<(), SendError> {
        self.send_each(core::iter::once((flow, payload)), |_, result| result)
            .unwrap_or(Err(SendError::NoPath))
    }

    /// Sends several datagrams and calls `on_result` with each result. Returns the value of the last call.
    pub fn send_each<'a, R>(
        &self,
        datagrams: impl Iterator<Item = (FlowId, &'a [u8])>,
        mut on_result: impl FnMut(FlowId, Result<(), SendError>) -> R,
    ) -> Option<R> {
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        let last = state.lanes().with(self.id, |lane| {
            let sent =
                datagrams.map(|(flow, payload)| on_result(flow, lane.send(now, flow, payload)));
            sent.last()
        });
        self.shard.serve(&mut state, now);
        last.flatten()
    }

    /// Returns the maximum length of a datagram that is accepted now, in bytes; 0 without a path.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.shard.lock().lanes().with(self.id, |lane| lane.largest_datagram()).unwrap_or(0)
    }

    /// Sets the class of a flow, instead of deriving it from the flow's rate.
    pub fn set_class(&self, flow: FlowId, class: FlowClass) {
        let now = self.shard.clock().now();
        self.shard.lock().lanes().with(self.id, |lane| lane.set_flow_class(flow, class, now));
    }

    /// Assigns the peer's path number to the subflow with our id `local_flow`. The path is used once the subflow is
    /// established.
    pub fn add_path(&self, path: PathId, local_flow: u64) {
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        state.lanes().assign_path_number(self.id, LanePath { id: path, flow: local_flow }, now);
        self.shard.serve(&mut state, now);
    }

    /// Waits for datagrams or for other changes to the lane. Safe to cancel.
    ///
    /// # Errors
    /// Fails if the lane is gone.
    pub async fn recv(&self, arrivals: &mut Arrivals) -> Result<(), LaneEndedError> {
        poll_fn(|cx| self.poll_recv(cx, arrivals)).await
    }

    /// Poll version of [`recv`](Self::recv). Only the task of the last call is woken.
    ///
    /// # Errors
    /// Fails if the lane is gone.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        arrivals: &mut Arrivals,
    ) -> Poll<Result<(), LaneEndedError>> {
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        if state.wakeups().is_stopped() {
            return Poll::Ready(Err(LaneEndedError));
        }
        let Some(silent) = state.lanes().take(self.id, cx, arrivals) else {
            return Poll::Ready(Err(LaneEndedError));
        };
        if arrivals.is_empty() {
            return Poll::Pending;
        }
        if let (Carrier::Udp(carrier), [_, ..]) = (state.carrier(), &silent[..]) {
            // A NAT may have assigned a new address, which the peer learns from a frame of the subflow.
            silent.iter().for_each(|flow| carrier.keep_open(now, *flow));
            self.shard.serve(&mut state, now);
        }
        budget.made_progress();
        Poll::Ready(Ok(()))
    }

    /// Returns the counters since the lane was opened.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.shard.lock().lanes().with(self.id, |lane| lane.stats()).unwrap_or_default()
    }

    /// Returns the state of each path.
    #[must_use]
    pub fn paths(&self) -> Vec<PathInfo> {
        let now = self.shard.clock().now();
        let paths = |lane: &mut Lane| lane.paths(now).collect();
        self.shard.lock().lanes().with(self.id, paths).unwrap_or_default()
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.shard.lock().lanes().remove(self.id);
    }
}

impl Stream {
    /// Generates an id for a lane of this connection, with which the peer addresses the lane. Returns `None` for native
    /// TCP, which cannot have lanes.
    #[must_use]
    pub fn draw_lane_id(&self) -> Option<u64> {
        let mut state = self.shard().lock();
        (!state.carrier().is_native()).then(|| state.lanes().draw_id())
    }

    /// Opens a lane whose paths are the subflows of this connection. Our id must come from
    /// [`draw_lane_id`](Self::draw_lane_id), and the keys must never have sealed a packet.
    ///
    /// # Errors
    /// See [`LaneError`].
    pub fn open_lane(
        &self,
        config: LaneConfig,
        ids: LaneIds,
        keys: Keys,
        numbers: PathNumbers,
    ) -> Result<Datagrams, LaneError> {
        let shard = Arc::clone(self.shard());
        let connection = self.own_id();
        let make = |now| Lane::new(config, ids, keys, now);
        open_lane(&shard, ids.local, ids.peers, make, connection, numbers)?;
        Ok(Datagrams { shard, id: ids.local })
    }
}

fn open_lane(
    shard: &Shard,
    id: u64,
    peer: u64,
    make: impl FnOnce(Instant) -> Lane,
    connection: ConnectionId,
    numbers: PathNumbers,
) -> Result<(), LaneError> {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    if state.carrier().is_native() {
        return Err(LaneError::Native);
    }
    if !state.lanes().admits(id, peer) {
        return Err(LaneError::Refused);
    }
    state.lanes().insert(id, peer, make(now), connection, numbers);
    shard.serve(&mut state, now);
    Ok(())
}
