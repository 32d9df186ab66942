//! Outages of a link, scheduled or by command: the fate of packets on it, and its recovery.

use marline_time::{Duration, Instant};

use super::Link;
use crate::{OutageMode, Packet};

impl<P: Packet> Link<P> {
    /// Takes the link down or brings it up by command. A link is up if neither a command nor its
    /// own schedule holds it down.
    pub fn set_up(&mut self, now: Instant, up: bool) {
        self.advance(now);
        self.commanded_down = !up;
        self.follow_outage(now);
    }

    /// True if packets passed at the time of the last call.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.down_since.is_none()
    }

    /// Time at which the link's schedule next takes it down or brings it up. `None`: never.
    #[must_use]
    pub fn next_outage_change(&self) -> Option<Instant> {
        Some(self.outage.next_change()).filter(|next| *next != Instant::FAR_FUTURE)
    }

    pub(super) const fn is_suspended(&self) -> bool {
        self.down_since.is_some() && matches!(self.config.outage.mode, OutageMode::Suspend)
    }

    /// Applies the state required by the command and the schedule.
    pub(super) fn follow_outage(&mut self, now: Instant) {
        let down = self.commanded_down || self.outage.is_down();
        match (self.down_since, down) {
            (None, true) => {
                self.pause_head(now);
                self.down_since = Some(now);
                if self.config.outage.mode == OutageMode::Kill {
                    self.kill(now);
                }
            }
            (Some(since), false) => {
                self.down_since = None;
                if self.config.outage.mode == OutageMode::Suspend {
                    self.delay_flight_by_pause(now.since(since));
                }
                self.start_head(now);
            }
            _ => {}
        }
    }

    /// Drops everything that has not arrived yet.
    fn kill(&mut self, now: Instant) {
        self.paused_bytes = None;
        self.queued_bytes = 0;
        let arrived = self.flight.partition_point(|packet| packet.at <= now);
        self.stats.dropped_outage += (self.queue.len() + self.flight.len() - arrived) as u64;
        while let Some(packet) = self.queue.pop_front() {
            self.drop_packet(now, packet);
        }
        while self.flight.len() > arrived {
            if let Some(lost) = self.flight.pop_back() {
                self.drop_packet(now, lost.packet);
            }
        }
        self.last_arrival = now;
    }

    /// Delays packets in flight by the duration of the pause.
    fn delay_flight_by_pause(&mut self, pause: Duration) {
        for packet in &mut self.flight {
            packet.at += pause;
        }
        self.last_arrival += pause;
    }
}
