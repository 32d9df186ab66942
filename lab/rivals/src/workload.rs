//! The neutral client: each workload prints its events, one per line, from which the harness computes metrics.

pub mod bulk;
pub mod call;
pub mod connections;
pub mod echo;
pub mod page;

use std::io::Write;

use anyhow::{Context, bail};

use crate::dial::Dial;

/// Runs `WORKLOAD TRANSPORT [ARGUMENT..]`.
///
/// # Errors
/// The workload is unknown, or its connection failed.
pub async fn run(arguments: &[String]) -> anyhow::Result<()> {
    let [workload, way, rest @ ..] = arguments else {
        bail!("usage: rivals client WORKLOAD TRANSPORT [ARGUMENT..]")
    };
    let dial = Dial::parse(way).await?;
    let number = |place: usize| -> anyhow::Result<u64> {
        rest.get(place).context("missing argument")?.parse().context("not a number")
    };
    match workload.as_str() {
        "echo" => echo::over_stream(&dial, number(0)?).await,
        "udp-echo" => echo::over_datagrams(&dial, number(0)?).await,
        "down" => bulk::down(&dial).await,
        "up" => bulk::up(&dial).await,
        "page" => page::load(&dial, number(0)?).await,
        "call" => call::over_stream(&dial, number(0)?).await,
        "udp-call" => call::over_datagrams(&dial, number(0)?).await,
        "connections" => connections::open(&dial, number(0)?).await,
        other => bail!("unknown workload `{other}`"),
    }
}

/// Prints an event.
pub fn event(kind: &str, values: &[u64]) {
    let values: Vec<String> = values.iter().map(u64::to_string).collect();
    let mut out = std::io::stdout().lock();
    // A failed write means that the harness has ended.
    let _ = writeln!(out, "{kind} {}", values.join(" "));
    let _ = out.flush();
}
