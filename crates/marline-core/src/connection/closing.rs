//! Closing state of a connection: shutdown, DATA_FIN, release, and the wait for a path.
//!
//! A DATA_FIN occupies one DSN after the data. It is sent in its own DSS as soon as all data has been assigned to
//! subflows, on the best one. A timer repeats it on all, because TCP does not retransmit a segment without payload.
//! When both sides' DATA_FINs are acknowledged the subflows close as in TCP; their FINs carry the last DATA_ACK.

use marline_policy::{Dsn, SubflowId, SubflowSet};
use marline_time::{Duration, Instant};

use super::repeats::PendingProbes;
use super::sender::Sender;
use super::wait::Wait;
use crate::on_demand::{OnDemand, UnusedState};
use crate::{CloseReason, Linger};

/// Number of resets of the last subflow by this side that a connection survives without progress in between.
const MAX_FUTILE_RESETS: u32 = 5;
/// Time for subflows to close after the application has released the connection (Linux: 60 s).
const SUBFLOW_CLOSE_TIME: Duration = Duration::from_secs(60);
/// Number of repeats of an unanswered DATA_FIN after which a released connection is given up.
const MAX_FIN_REPEATS: u32 = 10;
/// Number of consecutive unanswered probes on all subflows after which the peer counts as silent.
const MAX_UNANSWERED_PROBES: u32 = 2;
/// Number of DATA_FINs sent, after which ACKs without a DATA_ACK are no longer taken for a coincidence.
const MIN_FINS_WITHOUT_DATA_ACK: u32 = 4;

/// Time of the next DATA_FIN.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum NextFin {
    #[default]
    Never,
    At(Instant),
    /// The current retransmission timeout times this factor, after the last transmission. Stored as a factor because
    /// new RTT samples change the timeout.
    Timeouts(u32),
}

/// Timeouts that determine when a DATA_FIN is repeated.
#[derive(Copy, Clone, Debug)]
pub(super) struct FinTimeouts {
    /// Retransmission timeout.
    pub(super) rto: Duration,
    /// Time after which the answer to a DATA_FIN is overdue, if round trips were measured.
    pub(super) probe: Option<Duration>,
}

/// Our DATA_FIN.
#[derive(Copy, Clone, Debug, Default)]
struct DataFin {
    sent: bool,
    acked: bool,
    due: NextFin,
    /// Consecutive repeats, with backoff.
    count: u32,
    /// A tail probe was sent for the DATA_FIN.
    probed: bool,
    /// Subflows on which it still has to be sent.
    on: SubflowSet,
    /// Subflows on which it was sent last.
    sent_on: SubflowSet,
    /// Unanswered transmissions.
    pending_probes: PendingProbes,
}

/// State of closing, once it began.
#[derive(Copy, Clone, Debug, Default)]
struct ClosingState {
    fin: DataFin,
    /// Time at which the connection ended or was released by the application.
    since: Option<Instant>,
    /// DATA_ACK at that time.
    una: Dsn,
}

impl UnusedState for ClosingState {
    const UNUSED: &'static Self = &ClosingState {
        fin: DataFin {
            sent: false,
            acked: false,
            due: NextFin::Never,
            count: 0,
            probed: false,
            on: SubflowSet::EMPTY,
            sent_on: SubflowSet::EMPTY,
            pending_probes: PendingProbes::NONE_SENT,
        },
        since: None,
        una: Dsn(0),
    };
}

/// Progress of closing.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// The application finished writing.
    shutdown: bool,
    leaving: OnDemand<ClosingState>,
    /// The application released the connection.
    released: bool,
    /// Data arrived that the application will not read.
    has_unread_data: bool,
    /// Reason for the end of the connection, once it ended.
    closed: Option<CloseReason>,
    /// The connection was reported to the application.
    announced: bool,
    /// Subflows reset by us since the stream last advanced in either direction.
    futile_resets: u32,
    wait: OnDemand<Wait>,
    /// The application has authenticated the peer.
    peer_known: bool,
}

impl Closing {
    /// Marks the connection as known to the application.
    pub(super) const fn announce(&mut self) {
        self.announced = true;
    }

    pub(super) const fn is_announced(&self) -> bool {
        self.announced
    }

    /// Reason for the end of the connection, once it ended.
    pub(super) const fn reason(&self) -> Option<CloseReason> {
        self.closed
    }

    /// True if the connection has ended for the application. Subflows may linger.
    pub(super) const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Ends the connection. `false` if it had ended before.
    pub(super) fn close(&mut self, now: Instant, reason: CloseReason) -> bool {
        if self.closed.is_some() {
            return false;
        }
        self.closed = Some(reason);
        self.leaving.since = Some(now);
        true
    }

    /// Records that the application finished writing.
    pub(super) const fn shut_down(&mut self) {
        self.shutdown = true;
    }

    pub(super) const fn is_shut_down(&self) -> bool {
        self.shutdown
    }

    /// Records the release by the application. `una` is the current DATA_ACK.
    pub(super) fn release(&mut self, now: Instant, una: Dsn) {
        self.released = true;
        self.leaving.since = Some(now);
        self.leaving.una = una;
    }

    pub(super) const fn is_released(&self) -> bool {
        self.released
    }

    /// True if the connection has ended and the application has released it.
    pub(super) const fn is_forgotten(&self) -> bool {
        self.closed.is_some() && (self.released || !self.announced)
    }

    /// Records data that the application will not read.
    pub(super) const fn record_late_data(&mut self) {
        self.has_unread_data = true;
    }

    pub(super) const fn has_late_data(&self) -> bool {
        self.has_unread_data
    }

    pub(super) fn fin_sent(&self) -> bool {
        self.leaving.fin.sent
    }

    pub(super) fn fin_acked(&self) -> bool {
        self.leaving.fin.acked
    }

    /// True if our DATA_FIN was sent and is not acknowledged.
    pub(super) fn fin_outstanding(&self) -> bool {
        self.leaving.fin.sent && !self.leaving.fin.acked
    }

    /// First DSN that is not DATA_ACKed, including our DATA_FIN.
    pub(super) fn acked_end(&self, sender: &Sender) -> Dsn {
        if self.fin_acked() { sender.una().plus(1) } else { sender.una() }
    }

    /// One past the highest DSN sent, including our DATA_FIN.
    pub(super) fn sent_end(&self, sender: &Sender) -> Dsn {
        if self.fin_sent() { sender.written_end().plus(1) } else { sender.sent() }
    }

    /// Schedules the first DATA_FIN for now, because all data has been assigned to subflows.
    pub(super) fn send_fin(&mut self, now: Instant) {
        self.leaving.fin.sent = true;
        self.leaving.fin.due = NextFin::At(now);
    }

    /// Handles a DATA_ACK. `beyond` is true if it covers more than the data.
    pub(super) fn on_data_ack(&mut self, beyond: bool) {
        if let Some(ClosingState { fin, .. }) = self.leaving.if_used() {
            fin.acked |= fin.sent && beyond;
        }
    }

    /// Handles progress of the stream in either direction.
    pub(super) fn on_progress(&mut self) {
        self.futile_resets = 0;
        self.wait.retire();
    }

    /// Reduces the DATA_FIN's backoff: a peer that accepts data does not ignore the end of data.
    pub(super) fn on_data_taken(&mut self) {
        if let Some(ClosingState { fin, .. }) = self.leaving.if_used() {
            fin.count = fin.count.min(1);
        }
    }

    /// Handles a new subflow. A DATA_FIN in backoff is sent on it immediately, because the other subflows may drop
    /// options or all segments.
    pub(super) fn resume(&mut self, now: Instant, id: SubflowId) {
        if self.fin_outstanding() {
            (self.leaving.fin.count, self.leaving.fin.probed) = (0, false);
            self.leaving.fin.on = SubflowSet::single(id);
            self.leaving.fin.due = NextFin::At(now);
        }
    }

    /// Time of the last DATA_FIN in flight, and the subflows on which it was sent.
    pub(super) fn data_fin_in_flight(&self) -> Option<(Instant, SubflowSet)> {
        let sent_at =
            self.leaving.fin.pending_probes.last_sent_at().filter(|_| self.fin_outstanding())?;
        Some((sent_at, self.leaving.fin.sent_on))
    }

    /// Schedules the next DATA_FIN for now.
    pub(super) fn expedite_data_fin(&mut self, now: Instant) {
        self.leaving.fin.due = NextFin::At(now);
    }

    /// Cancels further DATA_FINs.
    pub(super) fn stop_fin(&mut self) {
        if let Some(ClosingState { fin, .. }) = self.leaving.if_used() {
            fin.due = NextFin::Never;
        }
    }

    /// Time of the next DATA_FIN.
    pub(super) fn next_data_fin_at(
        &self,
        timeouts: impl FnOnce() -> FinTimeouts,
    ) -> Option<Instant> {
        let fin = &self.leaving.fin;
        match fin.due {
            NextFin::Never => None,
            NextFin::At(at) => Some(at),
            NextFin::Timeouts(backoff) => {
                let FinTimeouts { rto, probe } = timeouts();
                let wait = rto * backoff;
                let wait = probe.filter(|_| !fin.probed).map_or(wait, |probe| probe.min(wait));
                Some(fin.pending_probes.last_sent_at()? + wait)
            }
        }
    }

    /// Next subflow for a DATA_FIN that is due: first the best one, for repeats each one. It is unknown which subflow
    /// lost it, and no subflow retransmits a signal without sequence space. Linux sends even the first one on all
    /// subflows.
    pub(super) fn next_fin_subflow(
        &mut self,
        usable: SubflowSet,
        best: Option<SubflowId>,
    ) -> Option<SubflowId> {
        let left = self.leaving.fin.on.iter().find(|id| usable.contains(*id));
        if left.is_some() {
            return left;
        }
        let first = self.leaving.fin.count == 0;
        let on = if first { SubflowSet::single(best?) } else { usable };
        (self.leaving.fin.on, self.leaving.fin.sent_on) = (on, SubflowSet::EMPTY);
        on.iter().next()
    }

    /// Records a DATA_FIN on this subflow. Returns true if it was sent on all its subflows.
    pub(super) fn record_data_fin(&mut self, id: SubflowId, usable: SubflowSet) -> bool {
        self.leaving.fin.on.remove(id);
        self.leaving.fin.sent_on.insert(id);
        !self.leaving.fin.on.iter().any(|id| usable.contains(id))
    }

    /// Schedules the next DATA_FIN after a transmission: once soon, like a tail probe (RFC 8985 section 7), then
    /// after an RTO, doubled each time. The peer's last segment arrived at `last_rx_at`. Returns the number of
    /// consecutive unanswered transmissions.
    pub(super) fn rearm_fin(&mut self, now: Instant, last_rx_at: Option<Instant>) -> u32 {
        let fin = &mut self.leaving.fin;
        let silent = fin.pending_probes.record_probe_at(now, last_rx_at);
        // After the first DATA_FIN, the tail probe is next, which does not count as backoff.
        if fin.count == 1 && !fin.probed {
            fin.probed = true;
        } else {
            fin.count += 1;
        }
        fin.due = NextFin::Timeouts(1 << (fin.count - 1).min(6));
        silent
    }

    /// Records that we reset the last subflow. Returns true if that happened too often.
    pub(super) const fn record_futile_reset(&mut self) -> bool {
        self.futile_resets += 1;
        self.futile_resets > MAX_FUTILE_RESETS
    }

    /// Handles a segment from the peer.
    pub(super) fn on_peer_segment(&mut self, now: Instant) {
        if let Some(wait) = self.wait.if_used() {
            wait.on_valid_segment(now);
        }
    }

    /// Starts the wait for a silent peer.
    pub(super) fn begin_wait(&mut self, now: Instant) {
        self.wait.begin(now);
    }

    /// Starts the wait for a connection without subflows.
    pub(super) fn begin_wait_without_subflows(&mut self, now: Instant, why: CloseReason) {
        self.wait.start_wait_without_subflows(now, why);
    }

    /// Handles the end of a subflow or an attempt. `last` is true if no other subflow is left. Returns true if only
    /// resets were received for too long.
    pub(super) fn on_subflow_lost(&mut self, now: Instant, why: CloseReason, last: bool) -> bool {
        self.wait.on_lost(now, why, last)
    }

    /// Handles this number of consecutive unanswered probes on all subflows. One answer may be lost.
    pub(super) fn on_unanswered_probes(&mut self, now: Instant, unanswered: u32) {
        if unanswered >= MAX_UNANSWERED_PROBES {
            self.wait.begin(now);
        }
    }

    /// Records that the application authenticated the peer.
    pub(super) const fn record_peer_authenticated(&mut self) {
        self.peer_known = true;
    }

    /// True if the application authenticated the peer.
    pub(super) const fn is_peer_authenticated(&self) -> bool {
        self.peer_known
    }

    /// True while waiting for a peer that the application has not authenticated.
    pub(super) fn is_unauthenticated_peer_waiting(&self, linger: Linger) -> bool {
        let strange = linger.unknown_peer.is_some() && !self.peer_known;
        self.closed.is_none() && strange && self.wait.started_at().is_some()
    }

    /// Time at which the wait for a path, or for any segment from the peer, ends.
    pub(super) fn wait_ends_at(&self, linger: Linger, server: bool) -> Option<Instant> {
        let Linger { timeout, unknown_peer: stranger } = linger;
        let strange = server && !self.peer_known && self.wait.is_by_reset();
        let timeout = stranger.filter(|_| strange).map_or(timeout, |short| short.min(timeout));
        let lingers_until = self.wait.started_at().map(|since| since + timeout);
        lingers_until.into_iter().chain(self.wait.answer_deadline()).min()
    }

    /// Sets the time within which a segment from the peer must arrive.
    pub(super) fn expect_answer(&mut self, now: Instant, within: Duration) {
        self.wait.expect_answer(now, within);
    }

    /// Starts probes on all subflows until a segment from the peer arrives. Returns true if the first is due now.
    pub(super) fn start_probes(&mut self, now: Instant) -> bool {
        self.wait.start_probes(now)
    }

    /// Stops probes because there is no subflow.
    pub(super) fn stop_probes(&mut self) {
        if let Some(wait) = self.wait.if_used() {
            wait.stop_probes();
        }
    }

    /// Time of the next probe on all subflows.
    pub(super) fn next_probe_at(&self) -> Option<Instant> {
        self.wait.next_probe_at()
    }

    /// Returns true if a probe is due, and then schedules the next one.
    pub(super) fn is_probe_due(&mut self, now: Instant) -> bool {
        self.wait.if_used().is_some_and(|wait| wait.is_probe_due(now))
    }

    /// Time at which subflows that do not close are dropped.
    pub(super) fn subflow_drop_at(&self) -> Option<Instant> {
        self.leaving.since.map(|since| since + SUBFLOW_CLOSE_TIME)
    }

    /// Extends the closing time if released data is still in flight up to `written` and the peer acknowledged more of
    /// it. A peer that answers but accepts no data (its window stays closed) gets no extension.
    pub(super) fn extend_closing(&mut self, now: Instant, una: Dsn, written: Dsn) -> bool {
        let delivers = written > una && una > self.leaving.una;
        if delivers {
            self.leaving.since = Some(now);
            self.leaving.una = una;
        }
        delivers
    }

    /// True if the DATA_FIN was sent so often that answers without a DATA_ACK show that a middlebox removes options.
    pub(super) fn is_fin_futile(&self) -> bool {
        self.leaving.fin.count >= MIN_FINS_WITHOUT_DATA_ACK
    }

    /// True if the peer did not answer the DATA_FIN of a released connection.
    pub(super) fn is_given_up(&self) -> bool {
        self.released && self.leaving.fin.count > MAX_FIN_REPEATS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    fn timeouts(rto_ms: u64, probe_ms: Option<u64>) -> impl FnOnce() -> FinTimeouts {
        let probe = probe_ms.map(Duration::from_millis);
        move || FinTimeouts { rto: Duration::from_millis(rto_ms), probe }
    }

    #[test]
    fn the_next_data_fin_follows_the_current_timeout() {
        let mut closing = Closing::default();
        assert_eq!(closing.next_data_fin_at(timeouts(1_000, None)), None);
        closing.send_fin(ms(10));
        assert_eq!(closing.next_data_fin_at(timeouts(1_000, None)), Some(ms(10)));
        closing.rearm_fin(ms(20), None);
        assert_eq!(closing.next_data_fin_at(timeouts(60_000, None)), Some(ms(60_020)));
        assert_eq!(
            closing.next_data_fin_at(timeouts(300, None)),
            Some(ms(320)),
            "the round trip time is known"
        );
        assert_eq!(closing.next_data_fin_at(timeouts(300, Some(125))), Some(ms(145)));
        assert_eq!(
            closing.next_data_fin_at(timeouts(300, Some(900))),
            Some(ms(320)),
            "the timeout is not longer than that of a probe"
        );
        closing.rearm_fin(ms(145), None);
        assert_eq!(closing.next_data_fin_at(timeouts(300, Some(125))), Some(ms(445)), "one probe");
        closing.rearm_fin(ms(445), None);
        assert_eq!(closing.next_data_fin_at(timeouts(300, Some(125))), Some(ms(1_045)));
        closing.resume(ms(500), SubflowId(1));
        assert_eq!(closing.next_data_fin_at(timeouts(300, Some(125))), Some(ms(500)));
        closing.rearm_fin(ms(500), None);
        assert_eq!(
            closing.next_data_fin_at(timeouts(300, Some(125))),
            Some(ms(625)),
            "on the other subflow as well"
        );
    }
}
