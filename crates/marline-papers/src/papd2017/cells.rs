//! Throughput tables with a large and a small buffer.

use marline_lab::figure::Bars;
use marline_time::Duration;

use super::contestants::{LARGE_BUFFER, LINK, Measured, NAMES, SMALL_BUFFER, contestants};
use super::published::{Cell, Published};
use crate::download::{Download, link};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

/// Runs of a cell.
const SEEDS: usize = 2;

/// One of the tables.
struct Half<'a> {
    name: &'static str,
    title: &'static str,
    cells: &'a [Cell],
    buffer: u64,
    length: Duration,
    /// The buffer is what limits: minRTT must show it.
    degrades: bool,
}

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let halves = [
        Half {
            name: "large-buffer",
            title: "Buffer large enough: minRTT is good enough, PAPD costs its measuring",
            cells: &file.published.large_buffer,
            buffer: LARGE_BUFFER,
            length: context.length(Duration::from_secs(20)),
            degrades: false,
        },
        Half {
            name: "small-buffer",
            title: "Small buffer: minRTT falls behind the best path, PAPD does not",
            cells: &file.published.small_buffer,
            buffer: SMALL_BUFFER,
            length: context.length(Duration::from_secs(40)),
            degrades: true,
        },
    ];
    for half in halves {
        let measured = measure(context, &half)?;
        all.tables.push(table(&half, &measured, file)?);
        all.grids.push(grid(&half, &measured));
        all.figures.push(figure(&half, &measured));
    }
    Ok(())
}

fn download(cell: &Cell, length: Duration) -> anyhow::Result<Download> {
    let path = |number: usize| {
        let (delay, loss) = (cell.rtt_ms[number] / 2.0, cell.loss[number] * 100.0);
        let text = format!("{LINK},delay={delay}ms,down.loss={loss}%");
        anyhow::Ok((NAMES[number], link(&text)?))
    };
    Ok(Download { paths: vec![path(0)?, path(1)?], length })
}

fn measure(context: &Context<'_>, half: &Half<'_>) -> anyhow::Result<Vec<Measured>> {
    let seeds = context.runs(SEEDS);
    let mut runs = Vec::new();
    for cell in half.cells {
        let download = download(cell, half.length)?;
        for seed in 0..seeds as u64 {
            for variant in contestants(half.buffer, NAMES) {
                runs.push((download.clone(), variant, context.master + seed));
            }
        }
    }
    let rates = context.parallel(half.name, &runs, |(download, variant, seed)| {
        download.mbit_per_s(variant, *seed)
    })?;
    Ok(rates.chunks(4 * seeds).map(Measured::of).collect())
}

fn name(cell: &Cell) -> String {
    let Cell { rtt_ms: [near, far], loss: [first, second], .. } = cell;
    format!("RTT {near}/{far} ms, loss {first}/{second}")
}

fn table(
    half: &Half<'_>,
    measured: &[Measured],
    file: &PaperFile<Published>,
) -> anyhow::Result<Table> {
    let (within, of_best) = (file.tolerance("papd_cell")?, file.tolerance("papd_of_best")?);
    let degraded = file.tolerance("min_rtt_of_best")?;
    let mut rows = Vec::new();
    for (cell, ours) in half.cells.iter().zip(measured) {
        let name = name(cell);
        let papd = Row::new(format!("{name}: PAPD"))
            .paper(cell.papd, "Mbit/s")
            .ours(ours.papd, "Mbit/s")
            .within(within);
        let least = of_best * ours.best;
        let text = format!("at least {of_best} of the best path ({:.1})", ours.best);
        rows.push(papd.holds(ours.papd >= least, text));
        let min_rtt = Row::new(format!("{name}: minRTT"))
            .paper(cell.min_rtt, "Mbit/s")
            .ours(ours.min_rtt, "Mbit/s");
        let text = format!("below {degraded} of the best path ({:.1})", ours.best);
        rows.push(match half.degrades {
            true => min_rtt.holds(ours.min_rtt < degraded * ours.best, text),
            false => min_rtt,
        });
        let best = Row::new(format!("{name}: the best path"));
        rows.push(best.paper(cell.best, "Mbit/s").ours(ours.best, "Mbit/s"));
    }
    Ok(Table::new(half.name, format!("{} (mean of {SEEDS} runs)", half.title), rows))
}

fn grid(half: &Half<'_>, measured: &[Measured]) -> Grid {
    let columns = [
        ("case", ""),
        ("minRTT, paper", "Mbit/s"),
        ("minRTT", "Mbit/s"),
        ("PAPD, paper", "Mbit/s"),
        ("PAPD", "Mbit/s"),
        ("best path, paper", "Mbit/s"),
        ("best path", "Mbit/s"),
        ("minRTT / best, paper", ""),
        ("minRTT / best", ""),
        ("PAPD / best, paper", ""),
        ("PAPD / best", ""),
    ];
    let mut grid = Grid::new(&format!("{}-cells", half.name), half.title, &columns);
    for (cell, ours) in half.cells.iter().zip(measured) {
        let numbers = [
            cell.min_rtt,
            ours.min_rtt,
            cell.papd,
            ours.papd,
            cell.best,
            ours.best,
            cell.min_rtt / cell.best,
            ours.min_rtt / ours.best,
            cell.papd / cell.best,
            ours.papd / ours.best,
        ];
        grid.push(&[&name(cell)], &numbers);
    }
    grid
}

fn figure(half: &Half<'_>, measured: &[Measured]) -> marline_lab::figure::Figure {
    let series = ["minRTT, paper", "minRTT", "PAPD, paper", "PAPD", "best path"];
    let mut bars = Bars::new(half.title, "throughput (Mbit/s)", &series);
    for (cell, ours) in half.cells.iter().zip(measured) {
        let values = [cell.min_rtt, ours.min_rtt, cell.papd, ours.papd, ours.best];
        let Cell { rtt_ms: [_, far], loss: [first, second], .. } = cell;
        let label = if half.degrades {
            format!("{far} ms, {second}")
        } else {
            format!("{first}, {second}")
        };
        bars = bars.group(&label, &values.map(|value| (value, None)));
    }
    let caption = if half.degrades {
        "First path: RTT 50 ms, no loss. Below each group: RTT and loss of the second path."
    } else {
        "Both paths: RTT 10 ms. Below each group: loss of the two paths."
    };
    bars.figure(half.name, caption)
}
