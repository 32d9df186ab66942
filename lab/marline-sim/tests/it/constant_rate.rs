//! Live video over lossy paths: never worse than over the better of them, and without a pause.

#[path = "../../examples/constant_rate/scene.rs"]
mod scene;

use scene::{Cell, run};

#[test]
fn live_video_over_two_lossy_paths_is_not_worse_than_over_the_better_one() {
    for loss in [[5.0, 5.0], [10.0, 10.0], [3.0, 0.0], [0.0, 3.0], [0.0, 0.0]] {
        for (rate, deadline_ms) in [(4.0, 150), (8.0, 100)] {
            let cell = Cell { rate, loss, delay_ms: [8, 30], deadline_ms, seconds: 20 };
            let outcome = run(&cell, "auto", 1);
            let plain = outcome.plain[0].min(outcome.plain[1]);
            assert!(outcome.both <= outcome.better().min(plain) + 0.1, "{cell:?}: {outcome:?}");
            assert!(outcome.longest_gap_ms < 150.0, "{cell:?}: {outcome:?}");
            assert!(outcome.price < 1.45, "{cell:?}: {outcome:?}");
        }
    }
}
