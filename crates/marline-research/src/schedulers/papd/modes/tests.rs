//! Tests of the state machine with modes of known throughput.

use super::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Runs the state machine with modes that deliver at given rates.
struct Harness {
    modes: Modes,
    reading: ModeInput,
    /// Bytes per millisecond: redundant, multipath.
    rates: [u64; 2],
    /// Additional bytes that arrive in the first 50 ms of each multipath phase.
    left_over: u64,
    in_mode_since: Instant,
    /// Milliseconds spent in each mode.
    spent: [u64; 2],
}

impl Harness {
    fn new(config: PapdConfig, rates: [u64; 2]) -> Self {
        Harness {
            modes: Modes::new(config),
            reading: ModeInput {
                now: Instant::from_secs(1),
                data_una: Dsn(0),
                longest_rtt: ms(100),
                spread_limit: f64::INFINITY,
                single_path_rate: 0.0,
                rates_are_known: false,
                is_void: false,
            },
            rates,
            left_over: 0,
            in_mode_since: Instant::from_secs(1),
            spent: [0; 2],
        }
    }

    fn run(&mut self, length_ms: u64) {
        for _ in 0..length_ms {
            let index = usize::from(self.modes.mode() == Mode::Multipath);
            self.spent[index] += 1;
            self.reading.now += ms(1);
            let fresh = self.reading.now.since(self.in_mode_since) <= ms(50);
            let extra = if fresh && index == 1 { self.left_over / 50 } else { 0 };
            self.reading.data_una = self.reading.data_una.plus(self.rates[index] + extra);
            if self.modes.on_reading(&self.reading) {
                self.in_mode_since = self.reading.now;
            }
        }
    }

    /// Creates a state machine that has completed the start and the first comparison.
    fn compared(config: PapdConfig, rates: [u64; 2]) -> Self {
        let mut harness = Harness::new(config, rates);
        harness.reading.rates_are_known = true;
        harness.run(850);
        harness
    }
}

#[test]
fn papd_is_redundant_until_every_rate_is_known() {
    let mut harness = Harness::new(PapdConfig::default(), [10_000, 18_000]);
    harness.run(1_500);
    assert!(!harness.modes.has_started() && harness.modes.mode() == Mode::Redundant);
    harness.reading.rates_are_known = true;
    harness.run(399);
    assert_eq!(harness.modes.mode(), Mode::Redundant, "one window for comparison");
    harness.run(3);
    assert_eq!(harness.modes.mode(), Mode::Multipath, "then the other mode is tried");
    harness.run(750);
    assert_eq!(harness.modes.mode(), Mode::Multipath, "it stays, because it is better");
    assert_eq!(harness.spent[0], 1_901);
    harness.run(200);
    assert_eq!(harness.modes.mode(), Mode::Redundant, "but a new winner is soon tested again");
}

/// Returns the numbers of windows for which the multipath mode ran each time.
#[test]
fn a_new_winner_is_on_probation() {
    let mut harness = Harness::new(PapdConfig::default(), [10_000, 18_000]);
    harness.reading.rates_are_known = true;
    let mut held = Vec::new();
    let mut since = 0;
    for now in 0..20_000 {
        let before = harness.modes.mode();
        harness.run(1);
        match (before, harness.modes.mode()) {
            (Mode::Redundant, Mode::Multipath) => since = now,
            (Mode::Multipath, Mode::Redundant) => held.push((now - since) / 400),
            _ => {}
        }
    }
    // The first trial and the probation window count together.
    assert_eq!(held[..3], [2, 9, 9]);
}

#[test]
fn a_start_without_end_ends_after_twenty_round_trips() {
    let mut harness = Harness::new(PapdConfig::default(), [10_000, 18_000]);
    harness.run(1_990);
    assert!(!harness.modes.has_started());
    harness.run(20);
    assert!(harness.modes.has_started());
    let mut idle = Harness::new(PapdConfig::default(), [10_000, 18_000]);
    idle.reading.is_void = true;
    idle.run(20_000);
    assert!(!idle.modes.has_started(), "with too little to send, there is nothing to compare");
}

#[test]
fn the_losing_mode_has_its_share_of_the_time() {
    for (rates, loser) in [([10_000, 18_000], 0), ([10_000, 3_000], 1)] {
        for share in [0.05, 0.1, 0.25] {
            let config = PapdConfig { share, ..PapdConfig::default() };
            let mut harness = Harness::compared(config, rates);
            harness.run(20_000);
            harness.spent = [0; 2];
            harness.run(80_000);
            let measured = harness.spent[loser] as f64 / 80_000.0;
            assert!((measured / share - 1.0).abs() < 0.1, "{rates:?} {share}: {measured}");
        }
    }
}

#[test]
fn a_little_better_is_not_enough() {
    let mut harness = Harness::compared(PapdConfig::default(), [10_000, 10_400]);
    harness.run(20_000);
    assert!(harness.spent[1] * 5 < harness.spent[0], "{:?}", harness.spent);
    let bold = PapdConfig { hysteresis: 0.0, ..PapdConfig::default() };
    let mut harness = Harness::compared(bold, [10_000, 10_400]);
    harness.run(20_000);
    assert!(harness.spent[0] * 5 < harness.spent[1], "{:?}", harness.spent);
}

#[test]
fn arrivals_of_the_previous_mode_do_not_count() {
    // A megabyte that the redundant mode left in flight would equal a whole window.
    let run = |discard_rtts| {
        let config = PapdConfig { discard_rtts, ..PapdConfig::default() };
        let mut harness = Harness::new(config, [10_000, 8_000]);
        harness.reading.rates_are_known = true;
        harness.left_over = 1_500_000;
        harness.run(30_000);
        harness.spent
    };
    let [redundant, multipath] = run(1.0);
    assert!(multipath * 5 < redundant, "{redundant} {multipath}");
    let [redundant, multipath] = run(0.0);
    assert!(multipath > redundant, "the test is ineffective: {redundant} {multipath}");
}

#[test]
fn a_void_window_changes_nothing() {
    let mut harness = Harness::new(PapdConfig::default(), [10_000, 18_000]);
    harness.reading.rates_are_known = true;
    harness.run(500);
    assert_eq!(harness.modes.mode(), Mode::Multipath);
    harness.run(200);
    harness.reading.is_void = true;
    harness.run(1);
    harness.reading.is_void = false;
    harness.run(300);
    assert_eq!(harness.modes.mode(), Mode::Redundant, "one invalid moment invalidates the window");
    harness.run(3_800);
    assert_eq!(harness.modes.mode(), Mode::Multipath, "the next comparison decides");
}

#[test]
fn when_the_paths_change_so_does_the_winner() {
    let mut harness = Harness::compared(PapdConfig::default(), [10_000, 18_000]);
    harness.run(8_000);
    harness.rates = [10_000, 4_000];
    harness.run(9_000);
    harness.spent = [0; 2];
    harness.run(20_000);
    assert!(harness.spent[1] * 7 < harness.spent[0], "{:?}", harness.spent);
}

#[test]
fn windows_follow_the_longest_rtt_within_bounds() {
    let config = PapdConfig::default();
    assert_eq!(config.window(ms(10)), ms(200));
    assert_eq!(config.window(ms(150)), ms(600));
    assert_eq!(config.window(ms(3_000)), ms(2_000));
}

#[test]
fn a_mode_that_cannot_win_is_not_tried() {
    let mut harness = Harness::compared(PapdConfig::default(), [10_000, 12_000]);
    assert_eq!(harness.modes.mode(), Mode::Multipath, "on trial");
    let mut ruled = Harness::new(PapdConfig::default(), [10_000, 12_000]);
    ruled.reading.rates_are_known = true;
    // 10,000 bytes a millisecond are more than 9 MB per second.
    ruled.reading.spread_limit = 9e6;
    ruled.run(20_000);
    assert_eq!(ruled.spent[1], 0);
    ruled.reading.spread_limit = 11e6;
    ruled.run(20_000);
    harness.run(20_000);
    assert!(ruled.spent[1] > 10_000 && harness.spent[1] > 10_000);
}

#[test]
fn a_mode_slower_than_one_path_is_left_after_a_window() {
    /// Returns the milliseconds until the multipath mode ends, which won but then became bad.
    fn left_after(alone: f64) -> u64 {
        let mut harness = Harness::compared(PapdConfig::default(), [10_000, 12_000]);
        harness.run(2_000);
        assert_eq!(harness.modes.mode(), Mode::Multipath, "it won, then won again");
        harness.rates[1] = 7_000;
        harness.reading.single_path_rate = alone;
        let mut passed = 0;
        while harness.modes.mode() == Mode::Multipath {
            harness.run(1);
            passed += 1;
        }
        passed
    }
    // A window of 400 ms, in addition to the one in which the change happened.
    assert!(left_after(10e6) <= 800);
    assert!(left_after(0.0) > 2_000, "otherwise only when its time has expired");
    assert!(left_after(7e6) > 2_000, "no other mode would be better");
}
