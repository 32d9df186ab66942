//! `marline-lab what-if`: estimate of the effect of redundancy from captures of two paths.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use marline_lab::estimate::Estimate;
use marline_lab::import::{CaptureFile, PathPacket, path_packets, round_trips};
use marline_lab::what_if::{Delay, Sending, WhatIf, what_if};

use super::import::bytes;
use super::table::align_columns;
use marline_cli::cmd::monitor::print;

/// Printed quantiles.
const QUANTILES: [(f64, &str); 3] = [(0.5, "p50 (ms)"), (0.95, "p95 (ms)"), (0.99, "p99 (ms)")];

/// Arguments of `marline-lab what-if`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Captures (pcap, pcapng) of both ends of the first path, CLIENT,SERVER. Or one TCP capture of the sending end
    /// that includes the handshake, whose delays are round trips.
    #[arg(value_name = "FILE[,FILE]")]
    pub first: String,
    /// Captures of the second path, made at the same time with the same clocks.
    #[arg(value_name = "FILE[,FILE]")]
    pub second: String,
    /// Direction of the evaluated packets [default: down]. A single capture has only packets of its end.
    #[arg(long, value_enum)]
    pub way: Option<Direction>,
    /// Maximum time between the sending of two packets that form a pair.
    #[arg(long, value_name = "TIME", value_parser = marline_lab::emulation::script::duration, default_value = "5ms")]
    pub within: Duration,
    /// Milliseconds by which the server's clock is ahead of the client's, negative if it is behind.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = 0.0)]
    pub clock_ahead: f64,
    /// Print CSV instead of a table, with the columns way, measure, value, low, high.
    #[arg(long)]
    pub csv: bool,
}

/// A direction of a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// From the client.
    Up,
    /// To the client.
    Down,
}

/// Prints the table.
///
/// # Errors
/// A file cannot be read or used, or has too few packets.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let ms = args.clock_ahead;
    ensure!(ms.abs() < 1e12, "--clock-ahead {ms}: out of range; must be below 1e12 ms");
    let both_ends = [&args.first, &args.second].map(|files| files.contains(','));
    ensure!(
        both_ends[0] == both_ends[1],
        "{} and {}: give captures of both ends (CLIENT,SERVER) for both paths, or one capture for \
            each path",
        args.first,
        args.second
    );
    let delay = if both_ends[0] { Delay::OneWay } else { Delay::RoundTrip };
    ensure!(
        delay == Delay::OneWay || args.way.is_none() && ms == 0.0,
        "--way and --clock-ahead need captures of both ends; a single capture gives the round \
            trips of its own end's \
         packets"
    );
    let [first, second] = [read(args, delay, &args.first)?, read(args, delay, &args.second)?];
    let result = what_if(&first, &second, args.within, delay)?;
    let text = if args.csv { csv(args, &result) } else { table(args, &result) };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The packets of a path.
fn read(args: &Args, delay: Delay, files: &str) -> anyhow::Result<Vec<PathPacket>> {
    if delay == Delay::RoundTrip {
        let read = round_trips(files, &bytes(Path::new(files))?)?;
        if read.ambiguous > 0 {
            eprintln!("{files}: skipped {} ambiguous transmissions", read.ambiguous);
        }
        return Ok(read.sent);
    }
    let ends = files.split_once(',');
    let (client, server) =
        ends.with_context(|| format!("{files}: give two captures of each path, CLIENT,SERVER"))?;
    let (client_bytes, server_bytes) = (bytes(Path::new(client))?, bytes(Path::new(server))?);
    let client = CaptureFile { name: client, bytes: &client_bytes };
    let server = CaptureFile { name: server, bytes: &server_bytes };
    let [up, down] = path_packets(client, server, (args.clock_ahead * 1e6) as i64)
        .with_context(|| format!("the captures {files}"))?;
    Ok(if args.way == Some(Direction::Up) { up } else { down })
}

/// Name of a sending method.
fn display_name(args: &Args, way: Sending) -> &str {
    match way {
        Sending::First => &args.first,
        Sending::Second => &args.second,
        Sending::LowestRtt => "lowest RTT",
        Sending::Both => "both",
    }
}

fn table(args: &Args, result: &WhatIf) -> String {
    let head = ["", "lost (%)", "p50 (ms)", "p95 (ms)", "p99 (ms)"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for way in Sending::ALL {
        let mut row =
            vec![display_name(args, way).to_owned(), estimate_text(result.lost(way).percent())];
        row.extend(QUANTILES.map(|(share, _)| estimate_text(result.quantile(way, share))));
        rows.push(row);
    }
    for way in [Sending::First, Sending::Second, Sending::LowestRtt] {
        let mut row = vec![format!("both / {}", display_name(args, way)), String::new()];
        row.extend(QUANTILES.map(|(share, _)| estimate_text(result.ratio(way, share))));
        rows.push(row);
    }
    let head = format!(
        "{} packet pairs in {:.1} s, sent {:.3} ms apart (median)\n(in brackets: 95 % intervals)\n",
        result.pairs,
        result.lasts.as_secs_f64(),
        result.apart.as_secs_f64() * 1e3
    );
    let together = result.joint_loss_ratio();
    let together = match together.value.is_finite() {
        true => format!(
            "lost on both: {} times as often as expected by chance\n",
            estimate_text(together)
        ),
        false => String::new(),
    };
    head + &align_columns(&rows) + &together
}

fn csv(args: &Args, result: &WhatIf) -> String {
    let mut text = "way,measure,value,low,high\n".to_owned();
    let mut line = |way: &str, measure: &str, estimate: Estimate| {
        let Estimate { value, low, high, .. } = estimate;
        let cells =
            [value, low, high].map(|x| if x.is_nan() { String::new() } else { x.to_string() });
        let way = marline_lab::results::csv_field(way);
        text += &format!("{way},{measure},{}\n", cells.join(","));
    };
    for way in Sending::ALL {
        line(display_name(args, way), "lost_percent", result.lost(way).percent());
        for (share, name) in QUANTILES {
            line(
                display_name(args, way),
                &name.replace(" (ms)", "_ms"),
                result.quantile(way, share),
            );
        }
    }
    for way in [Sending::First, Sending::Second, Sending::LowestRtt] {
        for (share, name) in QUANTILES {
            let measure = name.replace(" (ms)", "_ratio");
            line(
                &format!("both / {}", display_name(args, way)),
                &measure,
                result.ratio(way, share),
            );
        }
    }
    text
}

/// Formats a value and its interval.
fn estimate_text(estimate: Estimate) -> String {
    let number = |x: f64| match x {
        x if x.is_nan() => "-".to_owned(),
        x if x.is_infinite() => "lost".to_owned(),
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    };
    let Estimate { value, low, high, .. } = estimate;
    match value.is_nan() {
        true => "-".to_owned(),
        false => format!("{} [{}, {}]", number(value), number(low), number(high)),
    }
}
