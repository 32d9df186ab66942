//! Clocks of a connection's busy and limited times, for three fields of `TCP_INFO`.
//!
//! The core does not count these times. Nothing happens between two time steps, so the state during each step is
//! known.

use marline_core::ConnectionInfo;
use marline_time::{Duration, Instant};

use crate::machine::State;

/// The clocks of one connection.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Clocks {
    /// Time at which the connection was established.
    pub(crate) since: Instant,
    /// Time with unsent or unacknowledged data.
    pub(crate) busy: Duration,
    /// Time in which the peer's window was too small for the next segment.
    pub(crate) window_limited: Duration,
    /// Time in which all data was sent, the path had room, and a writer waited for buffer space.
    pub(crate) buffer_limited: Duration,
}

impl Clocks {
    pub(super) const fn since(now: Instant) -> Self {
        Clocks {
            since: now,
            busy: Duration::ZERO,
            window_limited: Duration::ZERO,
            buffer_limited: Duration::ZERO,
        }
    }

    fn advance(&mut self, by: Duration, info: &ConnectionInfo, writer_waits: bool) {
        let Some(flow) = info.subflows.first() else { return };
        if info.unsent == 0 && flow.tcp.unacked_segments == 0 {
            return;
        }
        self.busy += by;
        let mss = u64::from(flow.mss);
        let outstanding = flow.in_flight + flow.sacked + flow.lost;
        let path_has_room = flow.in_flight + mss <= flow.cwnd;
        if info.unsent > 0 {
            let next = info.unsent.min(mss);
            if path_has_room && outstanding + next > flow.tcp.peer_window {
                self.window_limited += by;
            }
        } else if writer_waits && path_has_room {
            self.buffer_limited += by;
        }
    }
}

impl State {
    /// Advances the clocks by a step in which nothing happens.
    pub(crate) fn advance_clocks(&mut self, by: Duration) {
        if by.is_zero() {
            return;
        }
        for (id, life) in &mut self.sockets.connections {
            if !life.open || life.over.is_some() {
                continue;
            }
            if let Some(info) = self.endpoint.info(*id) {
                life.clocks.advance(by, &info, life.full);
            }
        }
    }
}
