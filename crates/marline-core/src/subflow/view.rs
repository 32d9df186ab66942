//! Snapshots of a subflow, for policies and for monitoring.

use marline_policy::{AddressId, PathCost, SentSegment, SubflowId, SubflowView};
use marline_time::Instant;

use super::Subflow;
use crate::{Metrics, SubflowInfo, SubflowLocation, SubflowState, TcpDetail};

impl Subflow {
    /// Snapshot for policies.
    pub(crate) fn view(
        &self,
        now: Instant,
        id: SubflowId,
        local_id: AddressId,
        remote_id: AddressId,
        backup: bool,
    ) -> SubflowView {
        let tx = &self.tx;
        let forecast = tx.forecaster.forecast(now);
        SubflowView {
            id,
            local_id,
            remote_id,
            backup,
            // The connection sets this.
            metered: false,
            limited: false,
            wake_share: 0.0,
            health: self.health.get(),
            phase: tx.phase,
            eligibility: self.eligibility(now),
            mss: tx.mss,
            cwnd: self.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            bytes_in_flight: tx.board.bytes_in_flight(),
            bytes_queued: tx.board.bytes_lost(),
            bytes_copied: self.stats.trouble.bytes_reinjected as u32,
            bytes_sent: self.stats.bytes_sent as u32,
            bytes_received: self.stats.bytes_received as u32,
            srtt: tx.rtt.srtt(),
            rttvar: tx.rtt.rttvar(),
            min_rtt: tx.rtt.min(),
            delivery_rate: tx.rate.peak(),
            forecast,
            overdue_at: tx.overdue_at(&forecast),
            newest_sent_at: self.newest_repeatable(),
            bytes_since_loss: tx.losses.since_last,
            bytes_between_losses: tx.losses.bytes_between,
            last_sent_at: tx.last_sent_at,
            last_rx_at: self.last_rx_at,
            // The connection sets this.
            last_new_at: Instant::ZERO,
        }
    }

    /// Location without the flow ids; `None` unless the subflow is established.
    pub(crate) fn place(&self, backup: bool) -> Option<SubflowLocation> {
        let srtt = self.tx.rtt.srtt();
        let (path, cost) = (self.path(), PathCost::NONE);
        let place = SubflowLocation { local_flow: 0, peer_flow: 0, path, backup, cost, srtt };
        (self.state.get() == SubflowState::Established).then_some(place)
    }

    /// Metrics for traces.
    pub(crate) fn metrics(&self, on: SubflowId) -> Metrics {
        let tx = &self.tx;
        Metrics {
            on,
            phase: tx.phase,
            cwnd_bytes: self.cwnd(),
            ssthresh_bytes: self.congestion.ssthresh(),
            in_flight_bytes: tx.board.bytes_in_flight(),
            srtt: tx.rtt.srtt(),
            rttvar: tx.rtt.rttvar(),
            min_rtt: tx.rtt.min(),
            rto: tx.rto_without_backoff(),
            delivery_rate: tx.rate.peak(),
        }
    }

    /// Snapshot for monitoring.
    pub(crate) fn info(&self, id: SubflowId, backup: bool) -> SubflowInfo {
        let (tx, stats, trouble) = (&self.tx, &self.stats, &self.stats.trouble);
        let repeats = tx.board.iter().filter(|s| s.in_flight() && s.retransmitted());
        SubflowInfo {
            id,
            path: self.path(),
            state: self.state.get(),
            phase: tx.phase,
            backup,
            reliable: tx.rto.carrier.is_reliable(),
            health: self.health.get(),
            srtt: tx.rtt.srtt(),
            rttvar: tx.rtt.rttvar(),
            min_rtt: tx.rtt.min(),
            cwnd: self.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            in_flight: tx.board.bytes_in_flight(),
            repeats_in_flight: repeats.map(SentSegment::len).sum(),
            sacked: tx.board.bytes_sacked(),
            lost: tx.board.bytes_lost(),
            mss: tx.mss,
            delivery_rate: tx.rate.peak(),
            bytes_sent: stats.bytes_sent,
            bytes_received: stats.bytes_received,
            bytes_retransmitted: trouble.bytes_retransmitted,
            bytes_reinjected: trouble.bytes_reinjected,
            bytes_duplicate: trouble.bytes_duplicate,
            rtos: trouble.rtos.into(),
            probes: trouble.probes.into(),
            undone: trouble.undone.into(),
            forecast_score: tx.scorer.as_ref().map(|scorer| scorer.score()),
            last_rx_at: self.last_rx_at,
            tcp: self.detail(),
        }
    }

    fn detail(&self) -> TcpDetail {
        let tx = &self.tx;
        TcpDetail {
            timestamps: self.timestamps.enabled,
            sack: tx.sack_enabled,
            window_scales: self.peer_scales.then_some((self.rx.window_shift, tx.window_shift)),
            ecn: self.ecn.negotiated,
            rto: tx.rto_without_backoff(),
            backoff: tx.rto.count,
            unacked_segments: u32::try_from(tx.board.segments()).unwrap_or(u32::MAX),
            reordering: self.stats.trouble.reordering,
            reorderings: self.stats.trouble.reorderings,
            peer_window: tx.window,
            largest_received: self.ack.full_segment(),
            last_data_at: self.ack.last_arrival(),
            last_sent_at: tx.last_sent_at,
            took_syn_data: self.took_syn_data(),
        }
    }
}
