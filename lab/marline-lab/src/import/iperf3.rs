//! Output of `iperf3 --json`: the throughput of each interval becomes the rate of a link.
//!
//! A transfer that was limited by the link shows its rate. A transfer that was limited by its window, the sender
//! or losses shows less. UDP (`-u -b`) above the link's rate measures the link better.

use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

use super::{Measurement, Mistakes, PathDirection, Quantity, Sample, normalize_times};

#[derive(Debug, Deserialize)]
struct Output {
    #[serde(default)]
    start: Start,
    #[serde(default)]
    intervals: Vec<Interval>,
    /// The server's results: with `--get-server-output`, if the server also runs with `--json`.
    server_output_json: Option<Box<Output>>,
    error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Start {
    #[serde(default)]
    test_start: TestStart,
}

#[derive(Debug, Default, Deserialize)]
struct TestStart {
    #[serde(default)]
    protocol: String,
    /// 1: the server sends (`-R`).
    #[serde(default)]
    reverse: u8,
}

#[derive(Debug, Deserialize)]
struct Interval {
    sum: Sum,
}

#[derive(Debug, Deserialize)]
struct Sum {
    start: f64,
    bits_per_second: f64,
    #[serde(default)]
    omitted: bool,
    /// True if the sender measured this interval.
    #[serde(default)]
    sender: bool,
    /// Loss in percent, for UDP at the receiver.
    lost_percent: Option<f64>,
}

/// Reads the rates from a file's text, and for UDP at the receiver also the losses. The direction is as seen from
/// iperf3's client: up, or down with `-R`. Intervals omitted by `--omit` are left out. For UDP sent by the client, the
/// client's own intervals show the sending rate and not the link's, so the server's are used.
///
/// # Errors
/// The file is not iperf3 output, the test failed, the receiver's UDP results are missing, or intervals are invalid.
/// All errors are reported together.
pub fn read(file: &str, text: &str) -> anyhow::Result<Measurement> {
    let output: Output = serde_json::from_str(text)
        .with_context(|| format!("{file} is not output of `iperf3 --json`"))?;
    if let Some(error) = output.error {
        anyhow::bail!("{file}: iperf3 failed: {error}");
    }
    let Output { start: Start { test_start }, intervals, server_output_json, .. } = output;
    let way = if test_start.reverse == 1 { PathDirection::Down } else { PathDirection::Up };
    let only_sent = test_start.protocol == "UDP" && intervals.iter().any(|i| i.sum.sender);
    let intervals = match server_output_json {
        Some(server) if only_sent => server.intervals,
        None if only_sent => anyhow::bail!(
            "{file} shows the UDP data sent, not received: measure with -R, or with \
                --get-server-output and --json on the server, or use the output of such a server"
        ),
        _ => intervals,
    };
    let (mut samples, mut mistakes) = (Vec::<Sample>::new(), Mistakes::default());
    for (number, interval) in intervals.iter().enumerate().filter(|(_, i)| !i.sum.omitted) {
        let Sum { start, bits_per_second, lost_percent, .. } = interval.sum;
        let at = Duration::try_from_secs_f64(start);
        let lost = lost_percent.unwrap_or(0.0);
        let good = (0.0..=1e12).contains(&bits_per_second) && (0.0..=100.0).contains(&lost);
        match at {
            Ok(at) if good && samples.last().is_none_or(|last| last.at <= at) => {
                let mut values = vec![(way, Quantity::Rate, bits_per_second / 1e6)];
                values.extend(lost_percent.map(|percent| (way, Quantity::Loss, percent / 100.0)));
                samples.push(Sample { at, values });
            }
            _ => mistakes.record_mistake(
                number,
                format!(
                    "interval at {start} s: invalid values {bits_per_second} bit/s, {lost} % lost"
                ),
            ),
        }
    }
    mistakes.result(file)?;
    Ok(Measurement { samples: normalize_times(file, samples)?, ignored: Vec::new() })
}
