//! Script of the delivery delay: it begins when the application writes and ends with the DATA_ACK, including
//! retransmissions.

use std::time::Duration;

use marline_testkit::fixtures::{listening, served};

/// Histogram classes with entries, in milliseconds, and their counts.
fn classes(script: &marline_testkit::Script) -> Vec<(u128, u64)> {
    let histogram = script.endpoint.delivery_delays();
    let hit = histogram.classes().filter(|(_, count)| *count > 0);
    hit.map(|(bound, count)| (bound.map_or(0, |b| b.as_millis()), count)).collect()
}

#[test]
fn a_write_is_timed_until_its_data_ack() {
    let (mut script, mut peer, id) = served(listening(), 4);
    let before = script.endpoint.delivery_delays().count();
    assert_eq!(before, 0, "nothing was written");
    script.run(|e, now| e.write(now, id, b"asked")).expect("room");
    script.advance(Duration::from_millis(30));
    // A write while another one is timed is not timed itself.
    script.run(|e, now| e.write(now, id, b"and more")).expect("room");
    peer.receive_all(&mut script);
    peer.acknowledge(&mut script);
    assert_eq!(classes(&script), [(50, 1)]);
    script.advance(Duration::from_secs(3));
    // Losing it twice is part of the delay.
    script.run(|e, now| e.write(now, id, b"late")).expect("room");
    script.advance(Duration::from_millis(1_500));
    peer.receive_all(&mut script);
    peer.acknowledge(&mut script);
    assert_eq!(classes(&script), [(50, 1), (2_000, 1)]);
    let sum_ms = script.endpoint.delivery_delays().sum_us() / 1_000;
    assert!((1_529..1_532).contains(&sum_ms), "{sum_ms}");
}
