//! Throughput tables with a large and a small buffer.

use marline_lab::figure::{Bars, Figure};
use marline_time::Duration;

use super::contestants::{
    LARGE_BUFFER, LINK, NAMES, PAPDS, Rates, SMALL_BUFFER, Scene, estimate_for_scene,
};
use super::published::{Cell, Published, ms};
use crate::download::{Download, link};
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// Why a row with the slides' PAPD column is not judged.
const SHARE: &str = "share=0.1: derived from this column of both tables";
/// Why minRTT's distance from the best path is not judged with the small buffer.
const BUFFER: &str = "buffer of 700 kB: derived from minRTT's throughput in this table";

/// One of the tables.
struct BufferTable<'a> {
    name: &'static str,
    title: &'static str,
    cells: &'a [Cell],
    part: Part,
    buffer: u64,
    /// Time at the start that is not evaluated.
    start: Duration,
    /// True if the buffer is the bottleneck, so that bonding falls behind.
    degrades: bool,
}

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let halves = [
        BufferTable {
            name: "large-buffer",
            title: "Large buffer: minRTT is good enough, and PAPD performs equally well",
            cells: &file.published.large_buffer,
            part: Part::new("large-buffer", 20, 40),
            buffer: LARGE_BUFFER,
            start: Duration::from_secs(2),
            degrades: false,
        },
        BufferTable {
            name: "small-buffer",
            title: "Small buffer: minRTT falls behind the best path, and PAPD outperforms minRTT",
            cells: &file.published.small_buffer,
            part: Part::new("small-buffer", 20, 60),
            buffer: SMALL_BUFFER,
            start: Duration::from_secs(4),
            degrades: true,
        },
    ];
    for half in halves {
        let (samples, rows) = context.judge_part(
            half.part,
            |root| half.measure(context, root.seed),
            |samples| half.rows(samples, file),
        )?;
        all.tables.push(Table::new(half.name, half.title, rows));
        let estimates = half.estimates(&samples);
        all.grids.push(half.grid(&estimates));
        all.figures.push(half.figure(&estimates));
    }
    Ok(())
}

fn name(cell: &Cell) -> String {
    let Cell { rtt_ms: [near, far], loss: [first, second], .. } = cell;
    format!("RTT {near}/{far} ms, loss {first}/{second}")
}

/// Estimates of a cell: minRTT, both PAPDs, the best path.
type Estimates = [Estimate; 4];

impl BufferTable<'_> {
    fn scene(&self, context: &Context<'_>, cell: &Cell) -> anyhow::Result<Scene> {
        let path = |number: usize| {
            let (delay, loss) = (cell.rtt_ms[number] / 2.0, cell.loss[number] * 100.0);
            let text = format!("{LINK},delay={delay}ms,down.loss={loss}%");
            anyhow::Ok((NAMES[number], link(&text)?))
        };
        // One period of PAPD: ten windows, each of four times the longest RTT but at least 0.2 s.
        let longest_ms = cell.rtt_ms[0].max(cell.rtt_ms[1]);
        let period = ms((40.0 * longest_ms).max(2_000.0));
        let [start, counts] = [self.start, period].map(|length| context.length(length));
        let download = Download { paths: vec![path(0)?, path(1)?], length: start + counts };
        Ok(Scene { download, buffer: self.buffer, start })
    }

    /// Measures every cell with the losses of one seed.
    fn measure(&self, context: &Context<'_>, seed: u64) -> anyhow::Result<Vec<Rates>> {
        // A path alone has the same result in every cell that contains it. With the small buffer, the longer path
        // cannot be the best: the buffer per RTT is less than the rate of the other path.
        let paths = if self.degrades { 1 } else { 2 };
        let mut known: Vec<(&str, [f64; 2], Duration, f64)> = Vec::new();
        let mut rates = Vec::new();
        for cell in self.cells {
            let scene = self.scene(context, cell)?;
            let mut alone = Vec::new();
            for (path, name) in NAMES.into_iter().enumerate().take(paths) {
                let link = [cell.rtt_ms[path], cell.loss[path]];
                let length = scene.download.length;
                let same = known
                    .iter()
                    .find(|(of, as_this, long, _)| (*of, *as_this, *long) == (name, link, length));
                let rate = match same {
                    Some((.., rate)) => *rate,
                    None => scene.alone(name, seed)?,
                };
                known.push((name, link, length, rate));
                alone.push(rate);
            }
            rates.push(scene.run_bonded(alone, seed)?);
        }
        Ok(rates)
    }

    fn rows(
        &self,
        samples: &Samples<Vec<Rates>>,
        file: &PaperFile<Published>,
    ) -> anyhow::Result<Vec<Row>> {
        let within = file.tolerance("papd_cell")?;
        let degraded = file.tolerance("min_rtt_of_best")?;
        let mut rows = Vec::new();
        let estimates = self.estimates(samples);
        for (number, (cell, [min_rtt, ruleless, ruled, best])) in
            self.cells.iter().zip(&estimates).enumerate()
        {
            let name = name(cell);
            let row = Row::new(format!("{name}: minRTT"));
            let row = row.paper(cell.min_rtt, "Mbit/s").estimate(min_rtt, "Mbit/s");
            rows.push(match self.degrades {
                true => {
                    let ratio =
                        estimate_for_scene(samples, number, |means| means.min_rtt / means.best);
                    let text = format!("at most {degraded} times the best path's rate");
                    row.require_also(&ratio, RequiredRange::at_most(degraded), text)
                        .mark_fitted(BUFFER)
                }
                false => row,
            });
            let row = Row::new(format!("{name}: the best path"));
            rows.push(row.paper(cell.best, "Mbit/s").estimate(best, "Mbit/s"));
            for (papd, ours) in PAPDS.iter().zip([ruleless, ruled]) {
                let row = Row::new(format!("{name}: {papd}")).paper(cell.papd, "Mbit/s");
                rows.push(row.estimate(ours, "Mbit/s").within_of_paper(within).mark_fitted(SHARE));
            }
            for which in 0..PAPDS.len() {
                rows.push(self.ratio(samples, number, which, file)?);
            }
        }
        Ok(rows)
    }

    /// Ratio that a table claims, for one cell.
    fn ratio(
        &self,
        samples: &Samples<Vec<Rates>>,
        number: usize,
        which: usize,
        file: &PaperFile<Published>,
    ) -> anyhow::Result<Row> {
        let cell = &self.cells[number];
        let ratio = estimate_for_scene(samples, number, |means| means.papd[which] / means.min_rtt);
        let row = Row::new(format!("{}: {} / minRTT", name(cell), PAPDS[which]));
        let row = row.paper(cell.papd / cell.min_rtt, "").estimate(&ratio, "");
        if !self.degrades {
            return Ok(row.at_least(file.tolerance("papd_of_min_rtt")?));
        }
        let least = file.tolerance("papd_of_best")?;
        let of_best = estimate_for_scene(samples, number, |means| means.papd[which] / means.best);
        let text = format!("at least {least} times the best path's rate");
        Ok(row.at_least(1.0).require_also(&of_best, RequiredRange::at_least(least), text))
    }

    fn estimates(&self, samples: &Samples<Vec<Rates>>) -> Vec<Estimates> {
        let of = |number| {
            [
                estimate_for_scene(samples, number, |means| means.min_rtt),
                estimate_for_scene(samples, number, |means| means.papd[0]),
                estimate_for_scene(samples, number, |means| means.papd[1]),
                estimate_for_scene(samples, number, |means| means.best),
            ]
        };
        (0..self.cells.len()).map(of).collect()
    }

    fn grid(&self, estimates: &[Estimates]) -> Grid {
        let columns = [
            ("case", ""),
            ("minRTT, paper", "Mbit/s"),
            ("minRTT", "Mbit/s"),
            ("PAPD, paper", "Mbit/s"),
            ("PAPD", "Mbit/s"),
            ("PAPD with the rule", "Mbit/s"),
            ("best path, paper", "Mbit/s"),
            ("best path", "Mbit/s"),
        ];
        let mut grid = Grid::new(&format!("{}-cells", self.name), self.title, &columns);
        for (cell, ours) in self.cells.iter().zip(estimates) {
            let ours = ours.map(|one| Value::from_estimate(&one, ""));
            let [min_rtt, papd, ruled, best] = ours;
            let papers = [cell.min_rtt, cell.papd, cell.best].map(|value| Value::new(value, ""));
            let [paper_min_rtt, paper_papd, paper_best] = papers;
            grid.rows.push(vec![
                Value::Text(name(cell)),
                paper_min_rtt,
                min_rtt,
                paper_papd,
                papd,
                ruled,
                paper_best,
                best,
            ]);
        }
        grid
    }

    fn figure(&self, estimates: &[Estimates]) -> Figure {
        let series =
            ["minRTT, paper", "minRTT", "PAPD, paper", "PAPD", "PAPD with the rule", "best path"];
        let mut bars = Bars::new(self.title, "throughput (Mbit/s)", &series);
        for (cell, ours) in self.cells.iter().zip(estimates) {
            let bar = |one: &Estimate| {
                let real = one.low.is_finite() && one.high.is_finite();
                (one.value, real.then_some((one.low, one.high)))
            };
            let [min_rtt, papd, ruled, best] = ours;
            let Cell { rtt_ms: [_, far], loss: [first, second], .. } = cell;
            let label = match self.degrades {
                true => format!("{far} ms, {second}"),
                false => format!("{first}, {second}"),
            };
            let group = [
                (cell.min_rtt, None),
                bar(min_rtt),
                (cell.papd, None),
                bar(papd),
                bar(ruled),
                bar(best),
            ];
            bars = bars.group(&label, &group);
        }
        let caption = match self.degrades {
            true => {
                "First path: RTT 50 ms, no loss. Below each group: RTT and loss of the second path."
            }
            false => "Both paths: RTT 10 ms. Below each group: loss of the two paths.",
        };
        bars.figure(self.name, caption)
    }
}
