//! Scene of a client whose own uploads fill deep queues while a game and a shell run: where the small messages wait,
//! queue by queue. Table and conclusions: docs/research/own-upload.md.

mod scene;

use crate::cases::parallel;
use scene::{Plan, Seen, run};

const BOTH: &[usize] = &[0, 1];
const WIFI_ALONE: &[usize] = &[0];
const UPLOADS: [usize; 3] = [0, 1, 4];
/// The game's p50 during one upload with `bbr`, measured live.
const BBR_LIVE_MS: f64 = 51.0;

fn table(congestion: &'static str, paths: &'static [usize], seconds: u64) -> Vec<Seen> {
    parallel(&UPLOADS, |uploads| run(&Plan { congestion, paths, uploads: *uploads, seconds }))
}

fn print(name: &str, rows: &[Seen]) {
    for (uploads, seen) in UPLOADS.iter().zip(rows) {
        println!("| {name} | {uploads} {}", seen.row());
    }
}

/// The delay is that of the links' queues: neither the lane nor the shell's send buffer holds anything back.
#[test]
fn small_messages_wait_only_in_the_queues_of_the_links() {
    let seen = run(&Plan { congestion: "cubic-westwood", paths: BOTH, uploads: 1, seconds: 12 });
    assert!(seen.lane_wait_ms < 1.0, "{seen:?}");
    assert!(seen.shell_wait_ms < 5.0, "{seen:?}");
    assert!(seen.queue_ms.iter().any(|ms| *ms > 10.0), "{seen:?}");
}

/// The goal: during uploads with nine tenths of the uplinks' capacity, a game and a shell as fast as the best known
/// result, which is BBR's.
#[test]
fn own_uploads_leave_small_messages_as_quick_as_bbr_does_and_cost_little_goodput() {
    println!("{}", Seen::HEAD);
    let usual = table("cubic-westwood", BOTH, 30);
    print("default", &usual);
    let bbr = table("bbr", BOTH, 30);
    print("bbr", &bbr);
    print("default, WiFi alone", &table("cubic-westwood", WIFI_ALONE, 30));
    print("bbr, WiFi alone", &table("bbr", WIFI_ALONE, 30));
    for (seen, best) in usual.iter().zip(&bbr) {
        let most_ms = best.game_ms[0].max(BBR_LIVE_MS);
        assert!(seen.game_ms[0] <= most_ms && seen.shell_ms[0] <= most_ms, "{most_ms}: {seen:?}");
        assert!(seen.game_lost_percent <= 0.5, "{seen:?}");
        assert!(seen.goodput_mbit >= best.goodput_mbit.min(0.9 * scene::UP_MBIT), "{seen:?}");
    }
}
