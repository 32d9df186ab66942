use marline_testkit::views::{MSS, ack, ms};

use super::*;
use marline_time::Instant;

/// Feeds rounds of `samples` ACKs with a constant window of that many segments.
struct Rounds {
    hystart: HyStart,
    total: u64,
}

impl Rounds {
    fn new() -> Self {
        Rounds { hystart: HyStart::default(), total: 0 }
    }

    /// Feeds one round with this RTT. Returns the bytes of growth and whether slow start has ended.
    fn round(&mut self, samples: u64, rtt_ms: u64) -> (u64, bool) {
        let (mut bytes, mut leave) = (0, false);
        for _ in 0..samples {
            self.total += u64::from(MSS);
            // The bytes in flight at the end of a round form the next round.
            let first = u64::from(self.total == u64::from(MSS));
            let in_flight = (samples - first) * u64::from(MSS);
            let mut sample = ack(Instant::ZERO, u64::from(MSS), in_flight, ms(rtt_ms));
            sample.total_delivered = self.total;
            let growth = self.hystart.on_ack(&sample, MSS);
            bytes += growth.bytes;
            leave |= growth.leave;
        }
        (bytes, leave)
    }
}

#[test]
fn a_steady_rtt_doubles_without_end() {
    let mut rounds = Rounds::new();
    for _ in 0..20 {
        assert_eq!(rounds.round(16, 40), (16_000, false));
    }
    assert!(!rounds.hystart.in_css());
}

#[test]
fn a_rise_of_an_eighth_slows_growth_then_ends_slow_start_after_five_rounds() {
    let mut rounds = Rounds::new();
    rounds.round(16, 80);
    rounds.round(16, 80);
    assert_eq!(rounds.round(16, 89), (16_000, false), "9 ms of 80 is less than an eighth");
    // The threshold is now 89 + 11.125. The eighth sample of the round is judged.
    let (bytes, leave) = rounds.round(16, 101);
    assert!(rounds.hystart.in_css());
    assert_eq!((bytes, leave), (7_000 + 9 * 250, false));
    // This was the first of five rounds.
    for _ in 0..3 {
        assert_eq!(rounds.round(16, 101), (4_000, false));
    }
    assert!(rounds.round(16, 101).1, "five rounds of conservative slow start end it");
}

#[test]
fn thresholds_are_clamped_to_4_and_16_ms() {
    let mut short = Rounds::new();
    short.round(16, 8);
    short.round(16, 11);
    assert!(!short.hystart.in_css(), "3 ms never count");
    short.round(16, 15);
    assert!(short.hystart.in_css(), "4 ms do on a short path");
    let mut long = Rounds::new();
    long.round(16, 400);
    long.round(16, 416);
    assert!(long.hystart.in_css(), "16 ms do on a long path");
}

#[test]
fn seven_samples_are_not_judged() {
    let mut rounds = Rounds::new();
    rounds.round(7, 40);
    for rtt in [60, 90, 140, 200] {
        assert_eq!(rounds.round(7, rtt), (7_000, false));
    }
    assert!(!rounds.hystart.in_css());
}

#[test]
fn a_passing_rise_resumes_slow_start() {
    let mut rounds = Rounds::new();
    rounds.round(16, 40);
    rounds.round(16, 60);
    assert!(rounds.hystart.in_css());
    rounds.round(16, 50);
    assert!(!rounds.hystart.in_css(), "below its value when growth slowed down");
    assert_eq!(rounds.round(16, 50).0, 16_000);
}
