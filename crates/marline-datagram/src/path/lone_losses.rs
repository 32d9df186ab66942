//! Losses of single frames whose neighbors arrive. They are typical of a radio; a full queue or an outage drops several
//! frames in a row.

/// Weight of the newest frame in the share.
const GAIN: f32 = 1.0 / 256.0;

/// Share of the frames that were lost while their neighbors arrived.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct IsolatedLosses {
    share: f32,
    /// Position of the last lost frame, and true if it counted as isolated.
    last: Option<(u64, bool)>,
}

impl IsolatedLosses {
    pub(super) const fn share(&self) -> f32 {
        self.share
    }

    pub(super) fn on_answered(&mut self) {
        self.share *= 1.0 - GAIN;
    }

    /// Losses are detected in sending order, but one at a time: the first of several in a row counts as isolated until
    /// the second is detected.
    pub(super) fn on_lost(&mut self, place: u64) {
        match self.last {
            Some((last, counted)) if place.checked_sub(1) == Some(last) => {
                let taken_back = if counted { GAIN } else { 0.0 };
                self.share = (self.share - taken_back).max(0.0);
                self.last = Some((place, false));
            }
            _ => {
                self.share += (1.0 - self.share) * GAIN;
                self.last = Some((place, true));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_losses_count_and_several_in_a_row_do_not() {
        let mut losses = IsolatedLosses::default();
        for place in 0..2_000 {
            if place % 50 == 0 { losses.on_lost(place) } else { losses.on_answered() }
        }
        assert!((0.018..0.022).contains(&losses.share()), "{}", losses.share());
        let mut losses = IsolatedLosses::default();
        for place in 0..2_000 {
            if place % 100 < 4 { losses.on_lost(place) } else { losses.on_answered() }
        }
        assert!(losses.share() < 0.001, "{}", losses.share());
    }
}
