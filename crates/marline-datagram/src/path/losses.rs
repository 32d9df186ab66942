//! Share of the frames of a path that are lost, whatever the cause.
//!
//! Frames that carry datagrams tell it quickly. A path that only answers questions is asked twice a second, so that
//! each answer there counts for more, and each loss for more again: few questions are good evidence that a path loses
//! something, and bad evidence that it loses nothing.

use marline_time::{Duration, Instant};

/// Weight of a frame; of one after a pause that was lost, and of one that arrived.
const GAIN: f32 = 1.0 / 256.0;
const LOST_AFTER_PAUSE: f32 = 1.0 / 32.0;
const ARRIVED_AFTER_PAUSE: f32 = 1.0 / 96.0;
const PAUSE: Duration = Duration::from_millis(200);
/// The first frames of a path count as if so many had arrived before them.
const KNOWN_BEFORE: f32 = 32.0;
/// Frames after which the share is known.
const KNOWN_AFTER: f32 = 128.0;

/// Smoothed share of lost frames, 0 to 1.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Losses {
    share: f32,
    frames: f32,
    last_at: Option<Instant>,
}

impl Losses {
    pub(super) const fn share(&self) -> f32 {
        self.share
    }

    /// Whether enough frames were judged that the share means something.
    pub(super) const fn is_known(&self) -> bool {
        self.frames >= KNOWN_AFTER
    }

    /// What became of a frame.
    pub(super) fn on_frame(&mut self, lost: bool, now: Instant) {
        let paused = self.last_at.is_none_or(|last| now.since(last) > PAUSE);
        let usual = match (paused, lost) {
            (false, _) => GAIN,
            (true, true) => LOST_AFTER_PAUSE,
            (true, false) => ARRIVED_AFTER_PAUSE,
        };
        self.frames = (self.frames + 1.0).min(1.0 / GAIN);
        let gain = usual.max(1.0 / (self.frames + KNOWN_BEFORE));
        self.share += (f32::from(u8::from(lost)) - self.share) * gain;
        self.last_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_found_within_some_hundred_frames_and_fades_with_answers() {
        let mut losses = Losses::default();
        let mut at = Instant::ZERO;
        for frame in 0..600u32 {
            at += Duration::from_millis(3);
            losses.on_frame(frame % 20 == 7, at);
        }
        assert!((0.03..0.08).contains(&losses.share()), "{}", losses.share());
        // A minute and a half of questions that are all answered.
        for _ in 0..180 {
            at += Duration::from_millis(500);
            losses.on_frame(false, at);
        }
        assert!(losses.share() < 0.012, "{}", losses.share());
    }
}
