//! Traffic monitoring, active while there is a subscriber.

use marline_policy::{DataRange, Ssn, SubflowId};
use marline_wire::TcpSegment;

use super::path_set::PathSet;
use super::receiver::Receiver;
use super::session::Session;
use crate::tables::Context;
use crate::traffic::LostSegments;
use crate::{ConnectionId, SegmentReceived, Timer, Traffic};

/// Parts of a connection that are used to trace traffic.
#[derive(Copy, Clone)]
pub(super) struct TrafficTrace<'a> {
    pub(super) id: ConnectionId,
    pub(super) session: &'a Session,
    pub(super) paths: &'a PathSet,
    pub(super) receiver: &'a Receiver,
}

/// Reports traffic of a connection if there is a subscriber.
pub(super) fn report_traffic(
    cx: &mut Context<'_>,
    id: ConnectionId,
    what: impl FnOnce() -> Traffic,
) {
    if cx.out.traces_traffic(id) {
        cx.out.traffic(cx.now, id, what());
    }
}

/// Reports an expired timer.
pub(super) fn trace_timer(
    cx: &mut Context<'_>,
    id: ConnectionId,
    on: Option<SubflowId>,
    timer: Timer,
    count: u32,
) {
    report_traffic(cx, id, || Traffic::Timer { on, timer, count });
}

impl TrafficTrace<'_> {
    /// Traces a received segment. Returns the segments that were marked as lost before it was processed.
    #[cold]
    pub(super) fn trace_received(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> LostSegments {
        let mapping = segment.options.dss.and_then(|dss| dss.mapping).filter(|m| m.ssn != 0);
        let mapping = mapping.and_then(|mapping| {
            let start = self.session.unwrap_dsn(mapping.dsn, self.receiver.next())?;
            Some(DataRange::new(start, start.plus(mapping.length.into())))
        });
        let received = SegmentReceived {
            on: id,
            seq: segment.header.seq,
            ack: segment.header.ack,
            flags: segment.header.flags,
            payload_bytes: segment.payload.len() as u64,
            mapping,
        };
        cx.out.traffic(cx.now, self.id, Traffic::Received(received));
        self.paths.lost_segments_of(id)
    }

    /// Traces the stream positions of in-order bytes on a subflow before they are delivered.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_positions(
        &self,
        cx: &mut Context<'_>,
        on: SubflowId,
        ssn: Ssn,
        bytes: &[u8],
    ) {
        for data in self.receiver.stream_ranges(on, ssn, bytes.len() as u64) {
            let duplicate_bytes = self.receiver.received_bytes_in(data);
            let what = Traffic::DataReceived { on, data, duplicate_bytes };
            cx.out.traffic(cx.now, self.id, what);
        }
    }

    /// Traces segments newly marked as lost, and the state of the subflow.
    #[cold]
    pub(super) fn trace_state(
        &self,
        cx: &mut Context<'_>,
        on: SubflowId,
        before: &LostSegments,
        by_timer: bool,
    ) {
        let Some(subflow) = self.paths.get(on) else { return };
        for (data, bytes) in subflow.tcp().lost_segments().added_since(before) {
            cx.out.traffic(cx.now, self.id, Traffic::Lost { on, data, bytes, by_timer });
        }
        cx.out.traffic(cx.now, self.id, Traffic::Metrics(subflow.tcp().metrics(on)));
    }
}
