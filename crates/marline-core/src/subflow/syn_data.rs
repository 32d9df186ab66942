//! Data in the SYN (allowed by RFC 9293 section 3.10.7; RFC 7413 describes the effects of middleboxes).
//!
//! The active opener sends it once: a repeated SYN has no data, because the first one may have been dropped for its
//! data. A passive opener that accepts the data acknowledges it with its SYN/ACK. Otherwise it acknowledges only the
//! SYN, and the data counts as lost: it is sent again at its sequence number, before all other data.

use marline_policy::{DataRange, SentSegment, Ssn};
use marline_time::Instant;
use marline_wire::SeqNum;

use super::Subflow;

/// Data in the SYN.
#[derive(Copy, Clone, Debug)]
pub(super) struct SynData {
    range: DataRange,
    mapping_checksum: u16,
    /// Only part of the data may be accepted (Fast Open). If false, an HMAC covers all of it (Fast JOIN).
    divisible: bool,
    /// Number of these bytes that the SYN/ACK acknowledged.
    acked: u64,
}

impl Subflow {
    /// Adds this data to the next SYN.
    pub(crate) fn carry_with_syn(&mut self, range: DataRange, mapping_checksum: u16) {
        let data = SynData { range, mapping_checksum, divisible: false, acked: 0 };
        self.syn_data = Some(Box::new(data));
    }

    /// Adds data for Fast Open: it has no mapping, and a part of it may be accepted.
    pub(crate) fn set_unmapped_syn_data(&mut self, range: DataRange) {
        let data = SynData { range, mapping_checksum: 0, divisible: true, acked: 0 };
        self.syn_data = Some(Box::new(data));
    }

    /// Data of the SYN that is being built. Only the first SYN has any.
    pub(crate) fn payload_of_next_syn(&self) -> Option<DataRange> {
        let first = self.handshake.transmissions <= 1;
        self.syn_data.as_ref().filter(|_| first).map(|data| data.range)
    }

    fn syn_data_len(&self) -> u32 {
        self.syn_data.as_ref().map_or(0, |data| data.range.len() as u32)
    }

    /// True if this position acknowledges our SYN, alone or with its data.
    pub(crate) fn acks_syn(&self, ack: SeqNum) -> bool {
        let (beyond, len) = (ack.offset_from(self.iss.add(1)), self.syn_data_len());
        let divisible = self.syn_data.as_ref().is_some_and(|data| data.divisible);
        beyond == 0 || beyond == len || divisible && beyond < len
    }

    /// True if this position also acknowledges the data.
    pub(crate) fn acks_syn_data(&self, ack: SeqNum) -> bool {
        self.syn_data.is_some() && ack == self.iss.add(1 + self.syn_data_len())
    }

    /// Records which data the SYN/ACK acknowledged.
    pub(super) fn record_syn_data_ack(&mut self, ack: SeqNum) {
        let acked = u64::from(ack.offset_from(self.iss.add(1)));
        let Some(data) = self.syn_data.as_mut().filter(|_| acked > 0) else { return };
        data.acked = acked;
        let end = Ssn(1).plus(acked);
        (self.tx.una, self.tx.nxt, self.tx.recovery_point) = (end, end, end);
        if data.divisible && acked == data.range.len() {
            self.record_syn_data_taken();
        }
    }

    /// Number of data bytes of the SYN that the SYN/ACK acknowledged, and the number of the others, until the data is
    /// settled.
    pub(crate) fn syn_data_answer(&self) -> Option<(u64, DataRange)> {
        let data = self.syn_data.as_ref()?;
        Some((data.acked, DataRange::new(data.range.start.plus(data.acked), data.range.end)))
    }

    /// Settles the SYN's data once data may be sent: it was accepted, or counts as lost and is sent again. Data
    /// accepted by Fast Open has no mapping; the rest gets its own, with this checksum. With `None`, it is sent again
    /// unchanged.
    pub(crate) fn settle_syn_payload(&mut self, now: Instant, rest_checksum: Option<u16>) {
        let Some(data) = self.syn_data.take() else { return };
        let len = data.range.len();
        self.stats.bytes_sent += len;
        let taken = data.range.prefix(data.acked);
        if !taken.is_empty() {
            self.tx.released.push(taken);
        }
        if data.acked == len {
            return;
        }
        let (start, end) = (Ssn(1).plus(data.acked), Ssn(1).plus(len));
        let mapping_checksum = rest_checksum.unwrap_or(data.mapping_checksum);
        let sent_at = self.handshake.sent_at;
        self.tx.board.push(SentSegment {
            start,
            end,
            dsn: data.range.start.plus(data.acked),
            mapping_start: start,
            mapping_len: (len - data.acked) as u16,
            mapping_checksum,
            sent_at,
            untimed: self.handshake.untimed,
            first_sent_at: sent_at,
            transmissions: 1,
            rate: self.tx.rate.stamp(now, 0),
            ..SentSegment::default()
        });
        self.tx.nxt = end;
        self.tx.mark_lost(start);
        self.arm_rto(now);
    }

    /// Ends the attempt and returns the SYN's data, unless it is already on the scoreboard.
    pub(crate) fn abandon_syn_payload(&mut self) -> Option<DataRange> {
        self.syn_data.take().map(|data| data.range)
    }

    /// Passive opener: sets whether the SYN/ACK acknowledges only the SYN although its data was accepted, because the
    /// active opener repeated the SYN without data.
    pub(crate) fn acknowledge_syn_alone(&mut self, alone: bool) {
        self.syn_alone = alone;
    }

    /// Passive opener: drops the accepted data, because the active opener continues from its SYN without data and sends
    /// the data again.
    pub(crate) fn forget_syn_payload(&mut self) {
        self.rx.nxt = Ssn(1);
        self.rx.delivered_to = Ssn(1);
        self.timestamps.on_ack_sent(Ssn(1));
    }

    /// Passive opener: records that this many bytes of the SYN were accepted.
    pub(crate) fn take_syn_payload(&mut self, len: u64) {
        let end = Ssn(1).plus(len);
        self.rx.nxt = end;
        self.rx.delivered_to = end;
        self.rx.edge = self.rx.edge.max(end);
        self.stats.bytes_received += len;
    }
}
