//! Buffer sweep: the size from which bonding wins, against the slides' argument.

use marline_lab::figure::Plot;
use marline_time::Duration;

use super::contestants::{LINK, Measured, NAMES, contestants};
use super::published::Published;
use crate::download::{Download, link};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

/// kB, a sixth apart.
const BUFFERS_KB: [u64; 19] = [
    250, 290, 340, 400, 470, 550, 640, 740, 860, 1_000, 1_160, 1_350, 1_570, 1_820, 2_120, 2_470,
    2_880, 3_400, 4_000,
];
const RTT_MS: [f64; 2] = [50.0, 150.0];
const LENGTH: Duration = Duration::from_secs(40);

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let path = |number: usize, loss: &str| {
        let text = format!("{LINK},delay={}ms,down.loss={loss}", RTT_MS[number] / 2.0);
        anyhow::Ok((NAMES[number], link(&text)?))
    };
    let paths = vec![path(0, "0")?, path(1, "0.01%")?];
    let download = Download { paths, length: context.length(LENGTH) };
    let mut runs = Vec::new();
    for kb in BUFFERS_KB {
        runs.extend(contestants(kb * 1_000, NAMES));
    }
    let rates =
        context.parallel("sweep", &runs, |variant| download.mbit_per_s(variant, context.master))?;
    let measured: Vec<Measured> = rates.chunks(4).map(Measured::of).collect();
    let buffers: Vec<f64> = BUFFERS_KB.iter().map(|kb| *kb as f64 / 1e3).collect();
    // The best path without a limit: with the largest buffer.
    let best = measured.last().map_or(f64::NAN, |last| last.best);
    let predicted = RTT_MS[1] / 1e3 * best / 8.0;
    let found = crossing(&buffers, &measured);
    let row = Row::new("buffer from which minRTT is faster than the best path")
        .paper(predicted, "MB")
        .ours(found, "MB")
        .within(file.tolerance("crossover")?)
        .remark("paper: RTT_max x best rate, with the rate that is measured here");
    all.tables.push(Table::new("crossover", "When bonding wins", vec![row]));
    all.grids.push(grid(&buffers, &measured));
    let line = |name: fn(&Measured) -> f64| -> Vec<(f64, f64)> {
        buffers.iter().copied().zip(measured.iter().map(name)).collect()
    };
    let figure = Plot::new("Throughput by buffer", "buffer (MB)", "throughput (Mbit/s)")
        .line("minRTT", &line(|ours| ours.min_rtt))
        .line("PAPD", &line(|ours| ours.papd))
        .line("best path alone", &line(|ours| ours.best))
        .mark_x(predicted, "RTT_max x best rate")
        .log_x()
        .figure("sweep", "RTT 50 and 150 ms, two links of 100 Mbit/s.");
    all.figures.push(figure);
    Ok(())
}

/// The buffer from which on minRTT stays ahead of the best path, between the last one at which it is
/// behind and the next.
fn crossing(buffers: &[f64], measured: &[Measured]) -> f64 {
    let lead = |ours: &Measured| ours.min_rtt / ours.best - 1.0;
    let Some(last) = measured.iter().rposition(|ours| lead(ours) <= 0.0) else { return f64::NAN };
    let (Some(next), Some(at)) = (measured.get(last + 1), buffers.get(last + 1)) else {
        return f64::NAN;
    };
    let (behind, ahead) = (lead(&measured[last]), lead(next));
    buffers[last] + (at - buffers[last]) * -behind / (ahead - behind)
}

fn grid(buffers: &[f64], measured: &[Measured]) -> Grid {
    let columns =
        [("buffer", "MB"), ("minRTT", "Mbit/s"), ("PAPD", "Mbit/s"), ("best path", "Mbit/s")];
    let mut grid = Grid::new("sweep", "Throughput by buffer, RTT 50 and 150 ms", &columns);
    for (buffer, ours) in buffers.iter().zip(measured) {
        grid.push(&[], &[*buffer, ours.min_rtt, ours.papd, ours.best]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossing_lies_between_behind_and_ahead() {
        let measured = [80.0, 110.0, 90.0, 110.0, 130.0].map(|min_rtt| Measured {
            min_rtt,
            papd: 0.0,
            best: 100.0,
        });
        let buffers = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert!((crossing(&buffers, &measured) - 3.5).abs() < 1e-9);
        assert!(crossing(&buffers[..1], &measured[..1]).is_nan());
        assert!(crossing(&buffers[..1], &measured[1..2]).is_nan());
    }
}
