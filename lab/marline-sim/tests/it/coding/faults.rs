//! Tests of repairs under faults. Random worlds with repairs are in `tests/worlds.rs`.

use marline_time::Duration;

use super::{START, bursts, config, ms, scene};

const FIRST: &str = "rate=50M,delay=40ms,queue=100ms";
const SECOND: &str = "rate=20M,delay=50ms,queue=100ms";

/// The path of the repairs fails in the middle of them, and the path of the data at another time. Every burst arrives
/// intact, and bursts between the outages without delay.
#[test]
fn a_path_that_goes_takes_its_repairs_with_it_and_nothing_else() {
    for path in [0, 1] {
        let lossy = format!("{FIRST},down.loss=3%");
        let mut paths = scene(&[&lossy, SECOND], config("coded"), 5);
        paths.schedule_path_change(START + ms(2_041), path, false);
        paths.schedule_path_change(START + ms(6_000), path, true);
        let at: Vec<u64> = (0..40).map(|n| n * 400).collect();
        let result = bursts(&mut paths, 12_600, &at);
        assert!(result.server.repair_tx > 40, "{:?}", result.server);
        let last = &result.latencies[25..];
        assert!(last.iter().all(|took| *took < ms(250)), "path {path}: {last:?}");
        let worst = result.latencies.iter().max().copied().unwrap_or_default();
        assert!(worst < Duration::from_secs(1), "path {path}: {worst:?}");
    }
}

/// With checksums, repairs are verified like data, and bursts are restored as without (`bursts` compares all bytes).
#[test]
fn with_checksums_only_verified_repairs_are_used() {
    let lossy = format!("{FIRST},down.loss=5%");
    let mut with = config("coded,rate=50%");
    with.dss_checksum = true;
    let mut paths = scene(&[&lossy, SECOND], with, 7);
    let at: Vec<u64> = (0..100).map(|n| n * 300).collect();
    let result = bursts(&mut paths, 9_800, &at);
    assert!(result.client.repaired_bytes > 20_000, "{:?}", result.client);
    assert_eq!((result.client.data_csum_err, result.client.dss_not_matching), (0, 0));
}

/// Two windows of data at a time: repairs follow window by window, and both paths also carry data.
#[test]
fn long_messages_come_whole() {
    let lossy = [format!("{FIRST},down.loss=2%"), format!("{SECOND},down.loss=2%")];
    for scheduler in ["coded", "coded,rate=100%,window=5", "round-robin+coded"] {
        let mut paths = scene(&[&lossy[0], &lossy[1]], config(scheduler), 9);
        let at: Vec<u64> = (0..10).map(|n| n * 4_000).collect();
        let result = bursts(&mut paths, 400_000, &at);
        assert!(result.server.repair_tx > 0, "{scheduler}");
    }
}
