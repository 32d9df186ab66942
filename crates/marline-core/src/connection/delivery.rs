//! Bytes in order on a subflow go to their places in the stream, by their mappings.

use marline_policy::{Ssn, SubflowId};
use marline_wire::TcpSegment;

use super::Connection;
use super::mapping_rx::MappingError;
use super::receiver::Delivered;
use crate::FallbackReason;
use crate::subflow::Ingress;
use crate::tables::Context;

impl Connection {
    /// Bytes of this segment that are in order on the subflow, and bytes held back until now.
    pub(super) fn take_payload(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        if let Some((ssn, range)) = ingress.in_order.clone() {
            self.deliver(cx, id, (ssn, &segment.payload[range]));
        }
        // A subflow that its own data ended says no more.
        let next = |connection: &mut Self| {
            let leg = connection.leg_mut(id).filter(|leg| !leg.tcp.is_over())?;
            leg.tcp.pop_reassembled()
        };
        while let Some((ssn, bytes)) = next(self) {
            self.deliver(cx, id, (ssn, &bytes));
            if let Some(leg) = self.leg_mut(id) {
                leg.tcp.recycle(bytes);
            }
        }
    }

    /// A server that nobody has answered may still turn out to speak plain TCP on the way.
    fn may_be_plain(&self, id: SubflowId) -> bool {
        self.session.is_server() && self.was_never_heard(id)
    }

    /// Looks at what a segment holds beside what is mapped: a box has put segments together and kept the options
    /// of one. Options pass.
    pub(super) fn note_torn(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let Some(start) =
            ingress.start.filter(|_| !self.session.is_plain() && !self.may_be_plain(id))
        else {
            return;
        };
        let mapped = segment.options.dss.is_some_and(|dss| dss.mapping.is_some());
        let end = start.plus(segment.payload.len() as u64);
        if self.receiver.note_segment(id, (start, end), mapped) {
            cx.out.counters.dss_not_matching += 1;
        }
    }

    /// Bytes in order.
    fn deliver(&mut self, cx: &mut Context<'_>, id: SubflowId, (ssn, bytes): (Ssn, &[u8])) {
        if self.session.is_plain() && self.leg(id).is_some() && !self.receiver.covers(id, ssn) {
            // Its infinite mapping did not pass; that it needs none says the same.
            self.receive_plain(cx, id, (ssn, self.receiver.next()));
        }
        let may_be_plain = self.may_be_plain(id);
        let mut result = self.translate(cx, id, ssn, bytes);
        let plain_follows = self.receiver.expects_plain(id);
        if result == Err(MappingError::Unmapped) && may_be_plain && plain_follows {
            // Options get lost here, if only those of segments that a box put together.
            self.fall_back(cx, FallbackReason::FirstDataWithoutOption);
            result = self.translate(cx, id, ssn, bytes);
        }
        if self.leg(id).is_none() {
            return;
        }
        self.receiver.hold_kept(id);
        match result {
            Ok(()) => {}
            Err(MappingError::BadChecksum(dsn)) => self.on_bad_checksum(cx, id, dsn),
            Err(error) => {
                cx.out.counters.dss_not_matching += 1;
                self.on_bad_mapping(cx, id, error);
            }
        }
    }

    /// Puts bytes at their places in the stream.
    fn translate(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        ssn: Ssn,
        bytes: &[u8],
    ) -> Result<(), MappingError> {
        let _now = cx.now;
        let Some(leg) = self.legs.get_mut(usize::from(id.0)).and_then(Option::as_deref_mut) else {
            return Ok(());
        };
        let Delivered { result, duplicate, news } = self.receiver.deliver(id, ssn, bytes);
        leg.tcp.stats_mut().bytes_duplicate += duplicate;
        if news {
            leg.last_new_at = cx.now;
        }
        cx.out.counters.duplicate_data += u64::from(duplicate > 0);
        result
    }
}
