use marline_time::{Duration, Instant};

use super::Player;
use crate::experiment::{Experiment, Fault, Measures, Moment, Variant, simulate};
use crate::runs::Record;
use crate::workload::{Film, Workload};

const FILM: Film = Film { segment_ms: 4_000, segments: 20, buffer_ms: 30_000 };

const fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn value(measures: &Measures, name: &str) -> f64 {
    measures.of(name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn a_player_takes_the_rate_that_fits_and_stops_when_its_buffer_is_full() {
    let mut player = Player::new(FILM, at(0));
    let mut requests = Vec::new();
    while let Some(now) = player.next_at {
        let bytes = player.request(now);
        requests.push((now, bytes));
        // 5 Mbit/s.
        player.on_segment_arrived(now + Duration::from_micros(bytes * 8 / 5));
    }
    assert_eq!(requests.len(), 20);
    // 145 kbit/s for 4 s, then at most 4 Mbit/s.
    assert_eq!((requests[0].1, requests[1].1), (72_500, 1_500_000));
    assert!(requests.iter().skip(1).all(|(_, bytes)| *bytes == 1_500_000));
    // The first seven follow one another; later ones wait until the buffer has room for a segment.
    let gaps: Vec<u64> =
        requests.windows(2).map(|pair| pair[1].0.since(pair[0].0).as_millis() as u64).collect();
    assert!(gaps[1..7].iter().all(|gap| *gap == 2_400), "{gaps:?}");
    assert!(gaps[15..].iter().all(|gap| *gap == 4_000), "{gaps:?}");
    let measures = player.measures();
    assert_eq!((value(&measures, "startup_ms"), value(&measures, "stalls")), (116.0, 0.0));
    assert_eq!(value(&measures, "film_kbit_per_s"), (145.0 + 19.0 * 3_000.0) / 20.0);
}

#[test]
fn playback_stalls_while_the_buffer_is_empty() {
    let mut player = Player::new(Film { segments: 3, ..FILM }, at(1_000));
    for (requested, arrived) in [(1_000, 1_500), (1_500, 8_000), (8_000, 8_500)] {
        assert_eq!(player.next_at, Some(at(requested)));
        player.request(at(requested));
        player.on_segment_arrived(at(arrived));
    }
    assert_eq!(player.next_at, None);
    // The first segment ends at 5.5 s.
    let measures = player.measures();
    let [startup, stalls, stalled] =
        ["startup_ms", "stalls", "stalled_ms"].map(|name| value(&measures, name));
    assert_eq!((startup, stalls, stalled), (500.0, 1.0, 2_500.0));
}

fn record(link: &str, fault: Option<Fault>) -> Record {
    let mut experiment = Experiment::over(&[("wifi", link)], Workload::Film(FILM));
    experiment.faults.extend(fault);
    experiment.patience = std::time::Duration::from_secs(5);
    let outcome = simulate(&experiment, &Variant::single_path("wifi", "wifi"), 1).expect("run");
    Record::from_outcome(&experiment, &outcome).expect("a record")
}

#[test]
fn video_metrics_follow_the_link_rate() {
    let whole = record("rate=3M,delay=20ms", None);
    assert_eq!((whole.messages.len(), whole.missing), (20, 0));
    let sizes: Vec<u32> = whole.messages.iter().map(|message| message.bytes).collect();
    assert_eq!((sizes[0], sizes[19]), (72_500, 1_000_000), "145 kbit/s, then 2 Mbit/s");
    assert_eq!(value(&whole.measures, "stalls"), 0.0);
    // An outage shorter than the buffer has no effect, but a longer one stalls the video.
    let outage = |lasts| {
        let down = Fault::down("wifi", Moment::Between(45_000.0, 45_000.0));
        record("rate=6M,delay=20ms", Some(Fault { lasts: Some(lasts), ..down }))
    };
    let [short, long] = [6, 32].map(|lasts| outage(std::time::Duration::from_secs(lasts)));
    assert_eq!(value(&short.measures, "stalled_ms"), 0.0);
    let stalled_ms = value(&long.measures, "stalled_ms");
    assert!((2_000.0..20_000.0).contains(&stalled_ms), "{stalled_ms}");
    // If nothing more arrives, it is interrupted until its planned end.
    let dead = record("rate=6M,delay=20ms", Some(Fault::down("wifi", Moment::Between(10e3, 10e3))));
    assert!(
        dead.missing > 5 && value(&dead.measures, "stalled_ms") > 30_000.0,
        "{:?}",
        dead.measures
    );
}
