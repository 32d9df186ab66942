//! Tests of schedulers by their segments: path and time of each segment sent.

use marline::config::BufferTuning;
use marline_lab::experiment::{Experiment, START, Variant, stage};
use marline_lab::figure::{Delivery, Segment, SegmentLog};
use marline_lab::workload::{Gap, Workload};
use marline_sim::Paths;
use marline_time::{Duration, Instant};

const WIFI: usize = 0;
const CELL: usize = 1;
const MSS: u64 = 1_428;

fn at(ms: u64) -> Instant {
    START + Duration::from_millis(ms)
}

/// A window of 42 segments and 24 bytes.
const WINDOW: u64 = 60_000;
/// 20 ms with 14 segments in flight and a queue for as many; 200 ms.
const LINKS: [(&str, &str); 2] =
    [("wifi", "rate=8M,delay=10ms,queue=20ms"), ("3g", "rate=2M,delay=100ms,queue=1s")];

/// The server writes as fast as it can.
fn flood(variant: Variant, to_ms: u64) -> Vec<Segment> {
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: to_ms };
    let variant = Variant { unpaced: true, ..variant.congestion("reno") };
    record(&LINKS, workload, &variant.fixed_buffers(400_000, WINDOW), to_ms)
}

fn record(
    links: &[(&str, &str)],
    workload: Workload,
    variant: &Variant,
    to_ms: u64,
) -> Vec<Segment> {
    let mut paths = scene(links, workload, variant);
    let log = SegmentLog::for_paths(&paths);
    paths.world.observe(Box::new(log));
    paths.world.run_until(at(to_ms));
    let log = paths.world.observer::<SegmentLog>().expect("the observer was set");
    log.segments().to_vec()
}

fn scene(links: &[(&str, &str)], workload: Workload, variant: &Variant) -> Paths {
    stage(&Experiment::over(links, workload), variant, 1).expect("a scene")
}

/// A data segment from the server, and the server's state when it sent it.
#[derive(Copy, Clone, Debug)]
struct Sent {
    path: usize,
    at: Instant,
    start: u64,
    end: u64,
    /// First byte that is unacknowledged from the server's view.
    una: u64,
    /// End of the data sent before.
    next: u64,
    /// Path that these bytes were sent on before.
    before: Option<usize>,
}

impl Sent {
    fn is_repeat(&self) -> bool {
        self.before.is_some()
    }
}

/// Data segments in the order of sending. A subflow's own retransmissions are left out: they belong to TCP's loss
/// recovery.
fn sent(segments: &[Segment]) -> Vec<Sent> {
    let mut acks: Vec<(Instant, u64)> = segments
        .iter()
        .filter(|segment| segment.from_client)
        .filter_map(|segment| match segment.delivery {
            Delivery::Arrived(at) => Some((at, segment.data_acked?)),
            Delivery::Lost => None,
        })
        .collect();
    acks.sort_by_key(|(at, _)| *at);
    let mut all: Vec<Sent> = Vec::new();
    let data = segments.iter().filter(|segment| !segment.from_client && segment.payload > 0);
    for segment in data {
        let Some(start) = segment.stream_offset else { continue };
        let heard = acks.iter().take_while(|(at, _)| *at <= segment.sent);
        let holder = all.iter().rfind(|earlier| earlier.start <= start && start < earlier.end);
        let before = holder.map(|earlier| earlier.path);
        if before == Some(segment.path) {
            continue;
        }
        all.push(Sent {
            path: segment.path,
            at: segment.sent,
            start,
            end: start + u64::from(segment.payload),
            una: heard.map(|(_, acked)| *acked).max().unwrap_or(0),
            next: all.iter().map(|earlier| earlier.end).max().unwrap_or(0),
            before,
        });
    }
    all
}

fn bare(wrapper: &str) -> Variant {
    Variant::new(wrapper).scheduler(&format!("lowest-rtt{wrapper}"))
}

#[test]
fn without_the_mechanisms_the_fast_path_waits_for_the_slow_one() {
    let all = sent(&flood(bare(""), 2_000));
    assert!(all.iter().all(|s| !s.is_repeat()), "nothing is sent twice");
    // WiFi sends the data after the first 3G segment until the window is full, and then waits until that segment
    // arrives.
    let first = all.iter().find(|s| s.path == CELL).expect("3G is used");
    let stuck: Vec<&Sent> = all.iter().filter(|s| s.una == first.start).collect();
    let last = stuck.last().expect("WiFi continued");
    assert!(last.end <= first.start + WINDOW && last.end > first.start + WINDOW - MSS, "{last:?}");
    let next = all.iter().find(|s| s.at > last.at).expect("it continues");
    let silence = next.at.since(last.at);
    assert!(silence > Duration::from_millis(150), "{silence:?}");
}

#[test]
fn the_segment_at_the_trailing_edge_is_repeated_once_when_the_window_is_full() {
    let all = sent(&flood(bare("+orp,penalize=off"), 2_000));
    // A segment within a run is 20 bytes longer than its repetition, which has a mapping: those bytes follow
    // separately.
    let is_whole = |s: &&Sent| s.is_repeat() && s.end - s.start > 20;
    let repeats: Vec<&Sent> = all.iter().filter(is_whole).collect();
    assert!(repeats.len() >= 10, "{}", repeats.len());
    for repeat in &repeats {
        assert_eq!((repeat.path, repeat.before), (WIFI, Some(CELL)), "{repeat:?}");
        assert_eq!(repeat.start, repeat.una, "the oldest data: {repeat:?}");
        // The window ends 60,000 bytes beyond what is acknowledged; less than a segment of it is left.
        assert!(repeat.next + MSS > repeat.una + WINDOW, "not blocked: {repeat:?}");
        let twins = repeats.iter().filter(|other| other.start == repeat.start);
        assert_eq!(twins.count(), 1, "once for each trailing edge: {repeat:?}");
    }
}

#[test]
fn the_blocking_segment_is_repeated_once_the_window_is_full() {
    let all = sent(&flood(bare("+orp,penalize=off"), 400));
    let repeat = all.iter().position(|s| s.is_repeat()).expect("a repeat");
    let before = &all[..repeat];
    let blocked = before.iter().rfind(|s| s.next + MSS <= s.una + WINDOW).expect("new data");
    let waited = all[repeat].at.since(blocked.at);
    // WiFi's congestion window may be full at that moment: a segment takes 1.5 ms there.
    assert!(waited <= Duration::from_millis(3), "{waited:?}");
}

#[test]
fn wide_goes_on_with_all_that_the_slow_path_holds() {
    let all = sent(&flood(bare("+orp,retransmit=wide,penalize=off"), 400));
    // The first time at which WiFi has room for more than one segment.
    let together = |pair: &[Sent]| pair.iter().all(Sent::is_repeat) && pair[0].at == pair[1].at;
    let first = all.windows(2).position(together).expect("WiFi has room for several");
    let start = &all[first];
    assert_eq!(start.start, start.una);
    let burst = all[first..].iter().take_while(|s| s.is_repeat() && s.at == start.at);
    let mut next = start.una;
    for repeat in burst {
        assert_eq!(repeat.start, next, "in order, the oldest first, nothing left out");
        assert_eq!(
            (repeat.path, repeat.before),
            (WIFI, Some(CELL)),
            "data that 3G had taken before"
        );
        next = repeat.end;
    }
}

/// Times at which the slow subflow's window was cut to half or less, ms after the start.
fn penalties(wrapper: &str) -> Vec<u64> {
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: 3_000 };
    let variant = Variant { unpaced: true, ..bare(wrapper).congestion("reno") };
    let mut paths = scene(&LINKS, workload, &variant.fixed_buffers(400_000, WINDOW));
    let (mut cuts, mut before) = (Vec::new(), 0);
    for ms in 0..3_000 {
        paths.world.run_until(at(ms));
        let host = paths.world.node(paths.server);
        let (id, _) = host.connections().next().expect("a connection");
        let info = host.endpoint().info(id).expect("it is open");
        let window = info.subflows[CELL].cwnd;
        if window <= before / 2 + 1 {
            cuts.push(ms);
        }
        before = window;
    }
    cuts
}

#[test]
fn the_later_kernel_penalizes_once_per_round_trip_of_the_fast_path_and_2012_of_the_slow_one() {
    let none = penalties("+orp,penalize=off");
    assert!(none.is_empty(), "nothing else cuts the window here: {none:?}");
    let gaps = |cuts: &[u64]| -> Vec<u64> { cuts.windows(2).map(|w| w[1] - w[0]).collect() };
    let later = penalties("+orp,penalize=kernel");
    assert!(later.len() >= 3 && gaps(&later).iter().all(|gap| *gap >= 19), "{later:?}");
    assert!(
        gaps(&later).iter().any(|gap| *gap < 190),
        "within one RTT of the slow path: {later:?}"
    );
    let first = penalties("+orp,penalize=paper");
    assert!(first.len() >= 2 && gaps(&first).iter().all(|gap| *gap >= 190), "{first:?}");
}

#[test]
fn blest_and_ecf_keep_the_end_of_a_burst_from_the_slow_path() {
    let links =
        [("wifi", "rate=20M,delay=10ms,queue=100ms"), ("3g", "rate=20M,delay=60ms,queue=100ms")];
    let gap = Gap { least_ms: 1_000.0, most_ms: 1_000.0 };
    let workload = Workload::Bursts { bytes: 60_000, gap, count: 4 };
    let on_slow = |scheduler: &str| -> u64 {
        let variant = Variant::new(scheduler).scheduler(scheduler).congestion("reno");
        // The first bursts measure the RTT of both paths.
        let all = sent(&record(&links, workload, &variant, 5_000));
        let late = all.iter().filter(|s| s.path == CELL && s.at >= at(1_900));
        late.map(|s| s.end - s.start).sum()
    };
    let (bare, ecf) = (on_slow("lowest-rtt"), on_slow("ecf"));
    assert!(bare >= 20_000, "lowest RTT spills over: {bare}");
    assert!(ecf <= bare / 4, "{ecf} against {bare}");
    // BLEST considers the window, not the burst: with a small window it stays on the fast path.
    let on_slow = |scheduler: &str| {
        let variant = Variant::new(scheduler).scheduler(scheduler);
        let all = sent(&flood(variant, 3_000));
        all.iter().filter(|s| s.path == CELL && s.at >= at(1_000)).count()
    };
    let (bare, blest) = (on_slow("lowest-rtt"), on_slow("blest"));
    assert!(bare >= 20 && blest <= bare / 10, "{blest} against {bare}");
}

#[test]
fn a_capped_window_leaves_a_deep_buffer_nearly_empty() {
    let links = [("3g", "rate=2M,delay=75ms,queue=2s")];
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: 20_000 };
    let srtt_ms = |congestion: &str| {
        let variant = Variant::new("").congestion(congestion).buffers(Some(1 << 20), None);
        let mut paths = scene(&links, workload, &variant);
        let mut seen: Vec<f64> = Vec::new();
        for second in 5..20 {
            paths.world.run_until(at(second * 1_000));
            let host = paths.world.node(paths.server);
            let (id, _) = host.connections().next().expect("a connection");
            let srtt = host.endpoint().info(id).expect("it is open").subflows[0].srtt;
            seen.push(srtt.expect("measured").as_secs_f64() * 1e3);
        }
        let goodput = paths.client_report(0).expect("connected").goodput(at(5_000), at(20_000));
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        (mean, goodput.bits_per_s() as f64 / 1e6)
    };
    let (full, _) = srtt_ms("cubic-classic");
    let (capped, goodput) = srtt_ms("cubic-classic+cap");
    assert!(full > 600.0, "the buffer is filled: {full}");
    assert!(capped < 2.3 * 156.0, "about twice the base: {capped}");
    assert!(goodput > 1.7, "the link is still full: {goodput}");
}

#[test]
fn buffers_are_fixed_or_follow_windows_or_rates() {
    let links =
        [("wifi", "rate=8M,delay=10ms,queue=80ms"), ("3g", "rate=2M,delay=75ms,queue=300ms")];
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: 15_000 };
    let most_outstanding = |tuning: BufferTuning| -> u64 {
        let bounded = Variant::new("").buffers(Some(4 << 20), None);
        let variant = Variant { buffer_tuning: tuning, ..bounded };
        let mut paths = scene(&links, workload, &variant);
        let step = |ms: u64| {
            paths.world.run_until(at(ms));
            let written = paths.server_report(0).map_or(0, |report| report.written);
            written - paths.client_report(0).map_or(0, |report| report.read)
        };
        (100..15_000).step_by(50).map(step).max().unwrap_or(0)
    };
    let fixed = most_outstanding(BufferTuning::Fixed);
    let windows = most_outstanding(BufferTuning::Windows);
    let rates = most_outstanding(BufferTuning::Rates);
    assert!(fixed > 4_000_000, "the whole buffer: {fixed}");
    // 10 Mbit/s times 450 ms is 560 kB; the windows alone are 100 kB and 110 kB.
    assert!(windows < rates && rates < fixed, "{windows} < {rates} < {fixed}");
    assert!(rates > 1_000_000, "twice the sum of rates times the longest RTT: {rates}");
}
