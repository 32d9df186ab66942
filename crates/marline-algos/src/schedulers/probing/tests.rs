use marline_testkit::views::{Stream, drain, view};

use super::*;

/// Builds a path that last sent something `ago_ms` before the current time, which is second 1.
fn sent_ago(id: u8, srtt_ms: u64, ago_ms: u64) -> SubflowView {
    SubflowView { last_sent_at: Instant::from_millis(1_000 - ago_ms), ..view(id, srtt_ms) }
}

#[test]
fn a_path_idle_for_more_than_five_of_its_round_trips_gets_the_last_segment() {
    for (ago_ms, probed) in [(250, false), (251, true)] {
        let mut stream = Stream::new(2_500);
        let paths = [sent_ago(0, 20, 5), sent_ago(1, 50, ago_ms)];
        let sent = drain(&mut Probing::default(), &mut stream, &paths);
        assert_eq!(sent.contains(&(1, 2000, 2500)), probed, "{ago_ms} ms: {sent:?}");
        assert_eq!(sent.len(), 3 + usize::from(probed));
    }
}

#[test]
fn a_path_without_an_rtt_is_probed_and_each_segment_goes_there_once() {
    let mut stream = Stream::new(500);
    let unknown = SubflowView { srtt: None, ..sent_ago(1, 50, 0) };
    let sent = drain(&mut Probing::default(), &mut stream, &[sent_ago(0, 20, 5), unknown]);
    assert_eq!(sent, [(0, 0, 500), (1, 0, 500)]);
}

#[test]
fn the_idle_time_is_configurable() {
    let mut stream = Stream::new(500);
    let paths = [sent_ago(0, 20, 5), sent_ago(1, 50, 251)];
    let mut scheduler = Probing::new(ProbingConfig { idle_rtts: 10 });
    assert_eq!(drain(&mut scheduler, &mut stream, &paths), [(0, 0, 500)]);
}
