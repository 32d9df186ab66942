//! Throughput tables with a large and a small buffer.

use marline_lab::figure::{Bars, Figure};
use marline_time::Duration;

use super::contestants::{
    LARGE_BUFFER, MORE_THAN_ONE, Means, NAMES, Rates, SMALL_BUFFER, Scene, estimate_over_scenes,
    line_of_ours, minimum_ratio, rates_of_scene,
};
use super::published::{Cell, Published, ms};
use super::wires;
use crate::download::Download;
use crate::estimate::{Estimate, RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// Why minRTT's distance from the best path is not judged with the small buffer.
const BUFFER: &str = "buffer of 700 kB: derived from minRTT's throughput in this table";
/// Number of lines between two lines of the large-buffer table that differ only in the loss of the first path (0.0001
/// and 0.1).
const LIGHT_TO_HEAVY: usize = 6;

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

/// Results of each root, one for each line of a table.
type LineSamples = Samples<Vec<Rates>>;

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
    ours: &mut Grid,
) -> anyhow::Result<()> {
    let large = BufferTable {
        name: "large-buffer",
        title: "Large buffer: minRTT is good enough, and PAPD performs equally well",
        cells: &file.published.large_buffer,
        part: Part::new("large-buffer", 20, 40),
        buffer: LARGE_BUFFER,
        start: Duration::from_secs(2),
        degrades: false,
    };
    let small = BufferTable {
        name: "small-buffer",
        title: "Small buffer: minRTT falls behind the best path, and PAPD outperforms minRTT",
        cells: &file.published.small_buffer,
        part: Part::new("small-buffer", 20, 60),
        buffer: SMALL_BUFFER,
        start: Duration::from_secs(4),
        degrades: true,
    };
    let (of_small, small_rows) = context.judge_part(
        small.part,
        |root| small.measure(context, root.seed),
        |samples| judge_small(small.cells, samples, file),
    )?;
    let gain = least_gain(&of_small);
    let (of_large, large_rows) = context.judge_part(
        large.part,
        |root| large.measure(context, root.seed),
        |samples| judge_large(large.cells, samples, &gain, file),
    )?;
    for (table, samples, rows) in [(large, of_large, large_rows), (small, of_small, small_rows)] {
        all.tables.push(Table::new(table.name, table.title, rows));
        table.show(&samples, all, ours);
    }
    Ok(())
}

fn name(cell: &Cell) -> String {
    let Cell { rtt_ms: [near, far], loss: [first, second], .. } = cell;
    format!("RTT {near}/{far} ms, loss {first}/{second}")
}

/// PAPD's throughput relative to minRTT's, in the line in which it is lowest.
fn least_gain(samples: &LineSamples) -> Estimate {
    estimate_over_scenes(samples, |means| minimum_ratio(means, |at| at.papd[0] / at.min_rtt))
}

fn judge_large(
    cells: &[Cell],
    samples: &LineSamples,
    small_gain: &Estimate,
    file: &PaperFile<Published>,
) -> anyhow::Result<Vec<Row>> {
    let [within, equal] = [file.tolerance("table_ratio")?, file.tolerance("papd_of_min_rtt")?];
    let of_best =
        estimate_over_scenes(samples, |means| minimum_ratio(means, |at| at.min_rtt / at.best));
    let good = Row::new("minRTT / best path, minimum of the nine lines")
        .statement("large-buffer-min-rtt")
        .paper(minimum_ratio(cells, |cell| cell.min_rtt / cell.best), "")
        .estimate(&of_best, "")
        .within_of_paper(within);
    let text = format!("within {} % of minRTT's", 100.0 * equal);
    // minRTT itself performs equally well. The second requirement is what PAPD adds.
    let equally = Row::new("PAPD / minRTT, minimum of the nine lines")
        .statement("large-buffer-papd")
        .paper(minimum_ratio(cells, |cell| cell.papd / cell.min_rtt), "")
        .estimate(&least_gain(samples), "")
        .require_range(RequiredRange::within(equal, 1.0), text)
        .require_also(small_gain, MORE_THAN_ONE, "more than minRTT's with the small buffer");
    let kept = estimate_over_scenes(samples, |means: &[Means]| {
        rate_kept_under_loss(means.iter().map(|at| at.min_rtt))
    });
    let stable =
        Row::new("minRTT at 0.1 loss / at 0.0001 on the first path, minimum of three lines")
            .statement("bbr-stable-throughput")
            .paper(rate_kept_under_loss(cells.iter().map(|cell| cell.min_rtt)), "")
            .estimate(&kept, "")
            .within_of_paper(within);
    Ok(vec![stable, good, equally])
}

/// Smallest share of the throughput that remains under heavy loss, over the lines with a large buffer.
fn rate_kept_under_loss(lines: impl Iterator<Item = f64> + Clone) -> f64 {
    let heavy = lines.clone().skip(LIGHT_TO_HEAVY);
    lines.zip(heavy).map(|(light, heavy)| heavy / light).fold(f64::INFINITY, f64::min)
}

fn judge_small(
    cells: &[Cell],
    samples: &LineSamples,
    file: &PaperFile<Published>,
) -> anyhow::Result<Vec<Row>> {
    let near = 1.0 - file.tolerance("papd_of_best")?;
    let papd =
        estimate_over_scenes(samples, |means| minimum_ratio(means, |at| at.papd[0] / at.best));
    let outperforms = Row::new("PAPD / minRTT, minimum of the ten lines")
        .statement("small-buffer-papd")
        .paper(minimum_ratio(cells, |cell| cell.papd / cell.min_rtt), "")
        .estimate(&least_gain(samples), "")
        .require_range(MORE_THAN_ONE, "more than 1")
        .require_also(
            &papd,
            RequiredRange::at_least(near),
            format!("at least {near} times the best path's rate in every line"),
        );
    let min_rtt =
        estimate_over_scenes(samples, |means| minimum_ratio(means, |at| at.min_rtt / at.best));
    let worst = Row::new("minRTT / best path, minimum of the ten lines")
        .statement("small-buffer-min-rtt")
        .paper(minimum_ratio(cells, |cell| cell.min_rtt / cell.best), "")
        .estimate(&min_rtt, "")
        .within_of_paper(file.tolerance("table_ratio")?)
        .mark_fitted(BUFFER);
    Ok(vec![outperforms, worst])
}

impl BufferTable<'_> {
    fn scene(&self, context: &Context<'_>, cell: &Cell) -> anyhow::Result<Scene> {
        // One period of PAPD: ten windows, each of four times the longest RTT but at least 0.2 s.
        let longest_ms = cell.rtt_ms[0].max(cell.rtt_ms[1]);
        let period = ms((40.0 * longest_ms).max(2_000.0));
        let [start, counts] = [self.start, period].map(|length| context.length(length));
        let download = Download { paths: wires(cell.rtt_ms, cell.loss)?, length: start + counts };
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
                    None => scene.measure_single_path(name, seed)?,
                };
                known.push((name, link, length, rate));
                alone.push(rate);
            }
            rates.push(scene.run_bonded(alone, seed)?);
        }
        Ok(rates)
    }

    /// Adds the lines of the table to the results, as a grid and as a figure.
    fn show(&self, samples: &LineSamples, all: &mut Reproduction, ours: &mut Grid) {
        let lines: Vec<[Estimate; 3]> =
            (0..self.cells.len()).map(|line| rates_of_scene(samples, line)).collect();
        all.grids.push(self.grid(&lines));
        all.figures.push(self.figure(&lines));
        for (line, cell) in self.cells.iter().enumerate() {
            ours.rows.push(line_of_ours(name(cell), samples, line));
        }
    }

    fn grid(&self, lines: &[[Estimate; 3]]) -> Grid {
        let columns = [
            ("case", ""),
            ("minRTT, paper", "Mbit/s"),
            ("minRTT", "Mbit/s"),
            ("PAPD, paper", "Mbit/s"),
            ("PAPD", "Mbit/s"),
            ("best path, paper", "Mbit/s"),
            ("best path", "Mbit/s"),
        ];
        let mut grid = Grid::new(&format!("{}-cells", self.name), self.title, &columns);
        for (cell, ours) in self.cells.iter().zip(lines) {
            let mut row = vec![Value::Text(name(cell))];
            for (paper, ours) in [cell.min_rtt, cell.papd, cell.best].iter().zip(ours) {
                row.extend([Value::new(*paper, ""), Value::from_estimate(ours, "")]);
            }
            grid.rows.push(row);
        }
        grid
    }

    fn figure(&self, lines: &[[Estimate; 3]]) -> Figure {
        let series = ["minRTT, paper", "minRTT", "PAPD, paper", "PAPD", "best path"];
        let mut bars = Bars::new(self.title, "throughput (Mbit/s)", &series);
        for (cell, ours) in self.cells.iter().zip(lines) {
            let [min_rtt, papd, best] = ours.map(|one| {
                let real = one.low.is_finite() && one.high.is_finite();
                (one.value, real.then_some((one.low, one.high)))
            });
            let Cell { rtt_ms: [_, far], loss: [first, second], .. } = cell;
            let label = match self.degrades {
                true => format!("{far} ms, {second}"),
                false => format!("{first}, {second}"),
            };
            let group = [(cell.min_rtt, None), min_rtt, (cell.papd, None), papd, best];
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
