//! Test of the recorded traces: all can be parsed and match their descriptions.

use std::path::Path;

use marline_link::trace::{ArrivalTrace, Opportunities, PingTrace};
use marline_link::{DuplexSpec, Link, RateConfig};
use marline_time::{Duration, Instant, Rate, SeedTree};

fn read(dir: &Path, folder: &str, file: &str) -> Vec<u8> {
    let path = dir.join(folder).join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(dir: &Path, folder: &str, end: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join(folder)).expect("the folder exists");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(end)).collect();
    names.sort();
    assert!(!names.is_empty(), "{folder} holds no *{end}");
    names
}

#[test]
fn mahimahi_traces_have_their_mean_rates() {
    let Some(dir) = marline_testkit::need::trace_dir() else { return };
    // Mbit/s of 1500-byte packets, from the traces' description.
    let expected = [
        ("ATT-LTE-driving.down.gz", 5.42),
        ("ATT-LTE-driving.up.gz", 0.92),
        ("TMobile-LTE-short.down.gz", 16.70),
        ("TMobile-LTE-short.up.gz", 13.32),
        ("TMobile-UMTS-driving.down.gz", 1.73),
        ("TMobile-UMTS-driving.up.gz", 0.88),
        ("Verizon-LTE-short.down.gz", 5.03),
        ("Verizon-LTE-short.up.gz", 5.95),
    ];
    for (file, mbit) in expected {
        let trace = Opportunities::parse(file, &read(&dir, "mahimahi", file)).unwrap();
        let mean = Rate::over(trace.len() as u64 * 1_500, trace.period()).bits_per_s() as f64 / 1e6;
        assert!((mean - mbit).abs() < 0.02, "{file}: {mean} {mbit}");
    }
}

#[test]
fn a_saturated_link_delivers_every_trace_opportunity() {
    let Some(dir) = marline_testkit::need::trace_dir() else { return };
    let spec: DuplexSpec = "trace=ATT-LTE-driving@30s,delay=20ms,queue=100kB".parse().unwrap();
    let load = &mut |file: &str| std::fs::read(dir.join("mahimahi").join(file)).ok();
    let config = spec.resolve(&SeedTree::new(1), load).unwrap().down;
    let RateConfig::Trace(trace) = config.rate.clone() else { panic!("a trace was requested") };
    let (first, end) = (trace.trace.first_at(30_000), trace.trace.first_at(90_000));
    let mut link = Link::new(config, &SeedTree::new(1), Instant::ZERO);
    let mut arrived = 0u64;
    for ms in 0..60_020 {
        let now = Instant::from_millis(ms);
        while link.queued_bytes() < 90_000 && ms < 60_000 {
            link.offer(now, vec![0; 1_504]);
        }
        while link.poll(now).is_some() {
            arrived += 1;
        }
    }
    // One packet of exactly an opportunity's size leaves at each opportunity; the last may be in flight.
    assert!(arrived.abs_diff(end - first) <= 60, "{arrived} of {}", end - first);
}

#[test]
fn ping_traces_are_read_with_all_their_carriers() {
    let Some(dir) = marline_testkit::need::trace_dir() else { return };
    let folder = "pam2025-multicarrier-ping";
    for file in files(&dir, folder, ".csv") {
        let carriers = PingTrace::parse_all(&file, &read(&dir, folder, &file)).unwrap();
        assert!((2..=3).contains(&carriers.len()), "{file}: {:?}", carriers.keys());
        for (carrier, trace) in carriers {
            let length = trace.period();
            let range = Duration::from_secs(15)..Duration::from_secs(60);
            assert!(range.contains(&length), "{file} {carrier}: {length:?}");
            assert!(trace.probes().len() > 90, "{file} {carrier}");
            assert!(trace.rtt_at(Duration::from_secs(3)) > Duration::from_millis(10));
        }
    }
}

#[test]
fn arrivals_show_the_hole_of_the_train_ride() {
    let Some(dir) = marline_testkit::need::trace_dir() else { return };
    let mut holes = Vec::new();
    for file in files(&dir, "hsr-mptcp-2018", ".arrivals.csv.gz") {
        let trace = ArrivalTrace::parse(&file, &read(&dir, "hsr-mptcp-2018", &file)).unwrap();
        let steps = trace.rate_steps(Duration::from_millis(100), 52).unwrap();
        assert!(steps.points().len() > 900, "{file}");
        holes.push(trace.longest_pause().as_millis());
    }
    assert!(holes.iter().any(|ms| (38_700..38_900).contains(ms)), "{holes:?}");
    assert!(holes.iter().any(|ms| *ms < 700), "{holes:?}");
}

#[test]
fn truncated_traces_are_errors_that_name_the_file() {
    let Some(dir) = marline_testkit::need::trace_dir() else { return };
    let file = "Verizon-LTE-short.up.gz";
    let whole = read(&dir, "mahimahi", file);
    for cut in [0, 1, 2, 9, 10, 500, whole.len() / 2, whole.len() - 1] {
        let error = Opportunities::parse(file, &whole[..cut]).unwrap_err();
        assert!(error.to_string().starts_with(file), "{cut}: {error}");
    }
}
