//! Test of `marline-lab what-if` with captures of `marline-lab run --pcap`, at one end and at both.

use super::support::{run_err, run_ok};

/// Two paths, each with its own variant, whose captures represent a measurement.
pub(super) const TWO_PATHS: &str = "\
[[path]]
name = 'wifi'
link = 'delay=10ms,rate=50M,up.loss=3%'
[[path]]
name = 'lte'
link = 'delay=30ms,rate=50M'
[workload]
kind = 'ask'
request = 300
answer = 300
gap = '20ms'
count = 500
[[variant]]
name = 'wifi'
paths = ['wifi']
[[variant]]
name = 'lte'
paths = ['lte']
";

#[test]
fn one_capture_per_path_yields_rtts_and_two_one_way_delays() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    std::fs::write(at.join("two.toml"), TWO_PATHS).expect("a file");
    run_ok(at, &["run", "two.toml", "--seeds", "1", "--pcap", "--out", "out"]);
    let end = |path: &str, end: &str| format!("out/pcap/{path}-1-{end}.pcapng");
    let [wifi, lte] = ["wifi", "lte"].map(|path| end(path, "client"));
    let median = |args: &[&str], way: &str| -> f64 {
        let out = run_ok(at, &[&["what-if", "--csv"], args].concat());
        let line = out.lines().find(|line| line.contains(way) && line.contains(",p50_ms,"));
        let value = line.and_then(|line| line.rsplit(',').nth(2)).expect("a median");
        value.parse().expect("a number")
    };
    let round = median(&[&wifi, &lte], "both");
    assert!((20.0..21.0).contains(&round), "{round} ms");
    let both =
        ["wifi", "lte"].map(|path| format!("{},{}", end(path, "client"), end(path, "server")));
    let one_way = median(&[&both[0], &both[1], "--way", "up"], "both");
    assert!((10.0..10.5).contains(&one_way), "{one_way} ms");
    for (args, said) in [
        ([wifi.as_str(), both[1].as_str()].as_slice(), "give captures of both ends"),
        (&[&wifi, &lte, "--way", "up"], "--way and --clock-ahead need captures of both ends"),
    ] {
        let error = run_err(at, &[&["what-if"], args].concat());
        assert!(error.contains(said), "{error}");
    }
}
