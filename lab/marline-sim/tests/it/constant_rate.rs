//! Live video over lossy paths: never worse than over the better path, and without pauses.

#[path = "../../examples/constant_rate/scene.rs"]
mod scene;

use scene::{Scene, mean, run};

#[test]
fn live_video_over_two_lossy_paths_is_not_worse_than_over_the_better_one() {
    for loss in [[5.0, 5.0], [10.0, 10.0], [3.0, 0.0], [0.0, 3.0], [0.0, 0.0]] {
        for (rate, deadline_ms) in [(4.0, 150), (8.0, 100)] {
            let scene = Scene { rate, loss, delay_ms: [8, 30], seconds: 20 };
            let outcome = run(&scene, "auto", 3, &[deadline_ms]).remove(0);
            assert!(!outcome.is_worse(), "{scene:?}: {outcome:?}");
            let best = outcome.single.iter().map(|single| mean(single)).fold(100.0, f64::min);
            assert!(mean(&outcome.both) <= best + 0.1, "{scene:?}: {outcome:?}");
            assert!(outcome.longest_gap_ms < 150.0, "{scene:?}: {outcome:?}");
            assert!(outcome.price < 1.45, "{scene:?}: {outcome:?}");
        }
    }
}
