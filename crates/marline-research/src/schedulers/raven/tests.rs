use marline_testkit::views::{Stream, backup, drain, full, ms, unreachable, view};

use super::*;

/// Builds a path that last received an answer at `heard_ms`; the clock of the context is at 1 s.
fn path(id: u8, srtt_ms: u64, rttvar_ms: u64, heard_ms: u64) -> SubflowView {
    let last_rx_at = Instant::from_millis(heard_ms);
    SubflowView { rttvar: ms(rttvar_ms), last_rx_at, ..view(id, srtt_ms) }
}

fn sent(subflows: &[SubflowView], bytes: u64) -> Vec<(u8, u64, u64)> {
    drain(&mut Raven::default(), &mut Stream::new(bytes), subflows)
}

#[test]
fn a_path_that_is_clearly_slower_carries_nothing() {
    // The intervals are 20 ± 5 and 40 ± 10.
    assert_eq!(sent(&[path(0, 20, 2, 1_000), path(1, 40, 4, 1_000)], 1_000), [(0, 0, 1_000)]);
}

#[test]
fn while_intervals_overlap_each_segment_goes_on_both_at_once() {
    // The intervals are 20 ± 5 and 40 ± 15: both RTTs may be 25.
    let both = [(0, 0, 1_000), (1, 0, 1_000), (0, 1_000, 1_500), (1, 1_000, 1_500)];
    assert_eq!(sent(&[path(0, 20, 2, 1_000), path(1, 40, 6, 1_000)], 1_500), both);
}

#[test]
fn only_the_paths_that_may_be_as_fast_carry_copies() {
    let paths = [path(0, 20, 2, 1_000), path(1, 22, 2, 1_000), path(2, 90, 5, 1_000)];
    assert_eq!(sent(&paths, 1_000), [(0, 0, 1_000), (1, 0, 1_000)]);
}

#[test]
fn intervals_grow_with_their_age_until_nothing_is_known() {
    let config = RavenConfig { fresh: ms(100), stale: ms(850), ..RavenConfig::default() };
    let copied = |heard_ms: u64| {
        let paths = [path(0, 20, 2, 1_000), path(1, 60, 4, heard_ms)];
        let sent = drain(&mut Raven::new(config), &mut Stream::new(1_000), &paths);
        sent.len() == 2
    };
    // 60 - 10 * sqrt(1 + age / 100 ms) reaches 25 at an age of 1,125 ms, but the interval is stale earlier.
    assert_eq!([1_000, 300, 150, 149].map(copied), [false, false, false, true]);
    // If the chosen path's answer is equally old, both intervals have grown: 20 + 5 * 2.92 and 60 - 10 * 2.92 meet at
    // 750 ms.
    let both = |heard_ms: u64| {
        let paths = [path(0, 20, 2, heard_ms), path(1, 60, 4, heard_ms)];
        drain(&mut Raven::new(config), &mut Stream::new(1_000), &paths).len()
    };
    assert_eq!([1_000, 500, 200].map(both), [1, 1, 2]);
}

#[test]
fn a_path_without_an_answer_may_be_anything() {
    let unknown = SubflowView { srtt: None, ..path(1, 40, 1, 1_000) };
    assert_eq!(sent(&[path(0, 20, 2, 1_000), unknown], 800), [(0, 0, 800), (1, 0, 800)]);
}

#[test]
fn bulk_is_not_copied() {
    let paths = [path(0, 20, 2, 1_000), path(1, 22, 2, 1_000)];
    let config = RavenConfig { limit: 3_000, ..RavenConfig::default() };
    let copies = |bytes: u64| {
        let sent = drain(&mut Raven::new(config), &mut Stream::new(bytes), &paths);
        sent.iter().filter(|(id, ..)| *id == 1).count()
    };
    assert_eq!([3_000, 3_001].map(copies), [3, 0]);
}

#[test]
fn backups_silent_and_full_ones_carry_no_copies() {
    let (fast, other) = (path(0, 20, 2, 1_000), path(1, 20, 2, 1_000));
    for other in [backup(other), unreachable(other, 5), full(other)] {
        assert_eq!(sent(&[fast, other], 500), [(0, 0, 500)], "{other:?}");
    }
}
