//! Video: segments with a bit rate chosen by the player, and a client buffer.
//!
//! *Player.* It requests segments sequentially while its buffer has room. It starts with the lowest rate, and then
//! uses the highest rate that is at most 0.8 times the harmonic mean of the last five segments' rates. Playback begins
//! with the first segment. When the buffer is empty, it pauses until the next segment is complete.
//!
//! *Source.* The rates are those that Apple's HLS Authoring Specification recommends for 16:9 in H.264; the rates, the
//! factor of 0.8 and the mean of five (as in FESTIVE, CoNEXT 2012) are from memory. Segments of 4 s and a buffer of 30
//! s are our choice.

use std::collections::VecDeque;

use marline_time::{Duration, Instant};

use super::{Flow, Measures};
use crate::workload::Film;

/// Available bit rates in kbit/s.
const BIT_RATES_KBIT_PER_S: [u32; 9] = [145, 365, 730, 1_100, 2_000, 3_000, 4_500, 6_000, 7_800];
/// Share of the measured rate that a chosen bit rate may use.
const MAX_RATE_SHARE: f64 = 0.8;
/// Number of segments whose rates are averaged.
const AVERAGED_SEGMENTS: usize = 5;

/// A segment that has been requested.
#[derive(Copy, Clone, Debug)]
struct PendingSegment {
    at: Instant,
    kbit_per_s: u32,
}

/// State of a player, determined only by the times of its requests and segments.
#[derive(Clone, Debug)]
pub(super) struct Player {
    film: Film,
    pub(super) requested: u32,
    pending: Option<PendingSegment>,
    /// Time at which the next request is due.
    pub(super) next_at: Option<Instant>,
    /// Rates of the last segments in kbit/s.
    rates: VecDeque<f64>,
    /// Time at which the buffer will be empty. `None` before the first segment.
    empty_at: Option<Instant>,
    start: Instant,
    playback_started_at: Option<Instant>,
    stalls: u32,
    stalled: Duration,
    /// Chosen bit rate of each arrived segment in kbit/s.
    chosen: Vec<u32>,
}

impl Player {
    pub(super) fn new(film: Film, start: Instant) -> Player {
        Player {
            film,
            requested: 0,
            pending: None,
            next_at: Some(start),
            rates: VecDeque::new(),
            empty_at: None,
            start,
            playback_started_at: None,
            stalls: 0,
            stalled: Duration::ZERO,
            chosen: Vec::new(),
        }
    }

    /// Requests the next segment and returns its size in bytes.
    pub(super) fn request(&mut self, now: Instant) -> u64 {
        let mean = self.rates.len() as f64 / self.rates.iter().map(|rate| 1.0 / rate).sum::<f64>();
        // Before the first segment the mean is NaN, which is not above any rate.
        let fits = |rate: &&u32| f64::from(**rate) <= MAX_RATE_SHARE * mean;
        let kbit_per_s =
            *BIT_RATES_KBIT_PER_S.iter().rev().find(fits).unwrap_or(&BIT_RATES_KBIT_PER_S[0]);
        self.requested += 1;
        self.pending = Some(PendingSegment { at: now, kbit_per_s });
        self.next_at = None;
        self.bytes(kbit_per_s)
    }

    fn bytes(&self, kbit_per_s: u32) -> u64 {
        u64::from(kbit_per_s) * u64::from(self.film.segment_ms) / 8
    }

    /// Handles the arrival of the requested segment.
    pub(super) fn on_segment_arrived(&mut self, now: Instant) {
        let Some(PendingSegment { at, kbit_per_s }) = self.pending.take() else { return };
        let took_ms = (now.since(at).as_secs_f64() * 1e3).max(0.001);
        self.rates.push_back(self.bytes(kbit_per_s) as f64 * 8.0 / took_ms);
        if self.rates.len() > AVERAGED_SEGMENTS {
            self.rates.pop_front();
        }
        self.chosen.push(kbit_per_s);
        self.playback_started_at.get_or_insert(now);
        let empty_at = match self.empty_at {
            Some(empty_at) if empty_at < now => {
                self.stalls += 1;
                self.stalled += now.since(empty_at);
                now
            }
            other => other.unwrap_or(now),
        } + self.film.segment();
        self.empty_at = Some(empty_at);
        let room = Duration::from_millis(self.film.buffer_ms.into()) - self.film.segment();
        let has_more = self.requested < self.film.segments;
        self.next_at = has_more.then(|| now.max(empty_at - room));
    }

    /// Replays these events of the client.
    pub(super) fn replay(film: Film, flow: &Flow) -> Player {
        let at = |ns| Instant::from_nanos(ns);
        let mut player = Player::new(film, at(flow.start_ns + flow.from_ns));
        for (place, sent) in flow.client.sent.iter().enumerate() {
            player.request(at(sent.at_ns));
            if let Some(received) = flow.client.received.get(place) {
                player.on_segment_arrived(at(received.at_ns));
            }
        }
        player
    }

    /// Size of an arrived segment in bytes.
    pub(super) fn size(&self, index: usize) -> u64 {
        self.chosen.get(index).map_or(0, |rate| self.bytes(*rate))
    }

    /// Startup delay, stalls and mean bit rate. An incomplete video counts as stalled until its planned end.
    pub(super) fn measures(&self) -> Measures {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let planned = self.start + Duration::from_millis(self.film.lasts_ms());
        let (mut stalls, mut stalled) = (self.stalls, self.stalled);
        let is_whole = self.chosen.len() == self.film.segments as usize;
        if let Some(empty_at) = self.empty_at.filter(|at| !is_whole && *at < planned) {
            (stalls, stalled) = (stalls + 1, stalled + planned.since(empty_at));
        }
        let kbit: u64 = self.chosen.iter().map(|rate| u64::from(*rate)).sum();
        Measures::from([
            ("startup_ms", ms(self.playback_started_at.unwrap_or(planned).since(self.start))),
            ("stalls", f64::from(stalls)),
            ("stalled_ms", ms(stalled)),
            ("film_kbit_per_s", kbit as f64 / self.chosen.len() as f64),
        ])
    }
}

#[cfg(test)]
mod tests;
