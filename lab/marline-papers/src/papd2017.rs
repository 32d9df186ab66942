//! Reproduction of PAPD (IETF 100, 2017): two tables of throughputs with a large and a small buffer, five mobile
//! scenarios, and the argument of the slides that bonding cannot win with a buffer below RTT_max x best rate, with
//! several buffers and in randomly drawn scenes.

mod cells;
mod contestants;
mod drawn_links;
mod mobile;
mod published;
mod sweep;

use anyhow::Context as _;
use marline_link::DuplexConfig;
use marline_time::Duration;

use crate::download::{Download, link};
use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::{Grid, Reproduction};
use contestants::{LINK, NAMES};
use published::Published;

pub(crate) use contestants::{LARGE_BUFFER, SMALL_BUFFER};

const TEXT: &str = include_str!("../papers/papd2017.toml");

/// The two links of the tables with these round-trip times and losses.
pub(crate) fn wires(
    rtt_ms: [f64; 2],
    loss: [f64; 2],
) -> anyhow::Result<Vec<(&'static str, DuplexConfig)>> {
    let path = |number: usize| {
        let (delay, loss) = (rtt_ms[number] / 2.0, loss[number] * 100.0);
        let text = format!("{LINK},delay={delay}ms,down.loss={loss}%");
        anyhow::Ok((NAMES[number], link(&text)?))
    };
    Ok(vec![path(0)?, path(1)?])
}

/// Download of a phone in one of the scenarios, counted from 0.
pub(crate) fn phone(scenario: usize, length: Duration, seed: u64) -> anyhow::Result<Download> {
    let scenarios = PaperFile::<Published>::parse(TEXT)?.published.mobile;
    let scenario = scenarios.get(scenario).context("unknown scenario")?;
    mobile::download(scenario, length, seed)
}

/// Reproduction of PAPD (2017).
pub(super) struct Papd;

impl Paper for Papd {
    fn key(&self) -> &'static str {
        "papd2017"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let mut all = Reproduction::default();
        let title = "Throughput relative to the best path alone, also of PAPD with the rule";
        let columns = [("scene", ""), ("minRTT", ""), ("PAPD", ""), ("PAPD with the rule", "")];
        let mut ours = Grid::new("ours", title, &columns);
        sweep::run(context, &file, &mut all)?;
        drawn_links::run(context, &file, &mut all, &mut ours)?;
        cells::run(context, &file, &mut all, &mut ours)?;
        mobile::run(context, &file, &mut all, &mut ours)?;
        all.grids.push(ours);
        Ok(all)
    }
}
