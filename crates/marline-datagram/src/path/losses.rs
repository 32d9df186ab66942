//! Share of a path's frames that are lost for any reason.
//!
//! Frames with datagrams provide the share quickly. A path that carries only probes sends two per second, so each
//! acknowledged probe counts for more, and each lost probe for even more: a few probes are good evidence that a path
//! loses data, and poor evidence that it does not.

use marline_time::{Duration, Instant};

/// Weights of a frame: the usual one, and those of a frame lost or acknowledged after a pause.
const GAIN: f32 = 1.0 / 256.0;
const LOST_AFTER_PAUSE: f32 = 1.0 / 32.0;
const ARRIVED_AFTER_PAUSE: f32 = 1.0 / 96.0;
const PAUSE: Duration = Duration::from_millis(200);
/// Number of assumed earlier arrivals, which damps the first frames of a path.
const ASSUMED_ARRIVALS: f32 = 32.0;
/// Number of frames after which the share is meaningful.
const MIN_FRAMES: f32 = 128.0;

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

    /// Returns true if there were enough frames for a meaningful share.
    pub(super) const fn is_known(&self) -> bool {
        self.frames >= MIN_FRAMES
    }

    /// Records whether a frame was lost.
    pub(super) fn on_frame(&mut self, lost: bool, now: Instant) {
        let paused = self.last_at.is_none_or(|last| now.since(last) > PAUSE);
        let usual = match (paused, lost) {
            (false, _) => GAIN,
            (true, true) => LOST_AFTER_PAUSE,
            (true, false) => ARRIVED_AFTER_PAUSE,
        };
        self.frames = (self.frames + 1.0).min(1.0 / GAIN);
        let gain = usual.max(1.0 / (self.frames + ASSUMED_ARRIVALS));
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
        // A minute and a half of acknowledged probes.
        for _ in 0..180 {
            at += Duration::from_millis(500);
            losses.on_frame(false, at);
        }
        assert!(losses.share() < 0.012, "{}", losses.share());
    }
}
