//! Links between two network namespaces.

use std::time::Duration;

use anyhow::Context;
use marline_lab::net::{LinkOptions, Links, ScheduledCommand};

use super::Args;
use marline_lab::emulation::script::parse_timed_line;

/// Connects the client's namespace with the server's.
pub(crate) fn start(args: &Args, namespaces: [&str; 2]) -> anyhow::Result<Links> {
    let options = LinkOptions {
        seed: args.seed,
        trace_dir: args.trace_dir.clone(),
        spin: Duration::from_micros(args.supervisor.spin_us),
        tap_bytes: None,
    };
    let scheduled = |text: &String| {
        let (at, path, order) = parse_timed_line(text)?;
        Ok(ScheduledCommand { at, path, order })
    };
    let schedule = args.at.iter().map(scheduled).collect::<anyhow::Result<Vec<_>>>();
    let schedule = schedule.context("invalid --at")?;
    let links = Links::join_namespaces(namespaces, &args.path, schedule, &options)?;
    links.set_up()?;
    Ok(links)
}

/// Formats the paths as text.
pub(crate) fn names(links: &Links) -> String {
    let names: Vec<&str> = links.paths().iter().map(|path| path.name.as_str()).collect();
    names.join(", ")
}
