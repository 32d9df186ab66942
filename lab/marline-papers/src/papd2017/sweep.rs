//! Buffer sweep: the size from which bonding wins, compared with the slides' argument.

use marline_lab::figure::{Figure, Plot};
use marline_time::Duration;
use serde::{Deserialize, Serialize};

use super::contestants::{NAMES, Scene};
use super::published::{Cell, Published};
use super::wires;
use crate::download::Download;
use crate::estimate::{RequiredRange, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const PART: Part = Part::new("sweep", 20, 40);
/// Buffers in kB, denser around the expected crossing.
const BUFFERS_KB: [u64; 8] = [300, 500, 800, 1_200, 1_500, 1_800, 2_400, 4_000];
/// Links of a cell of the small-buffer table.
const RTT_MS: [f64; 2] = [50.0, 150.0];
const LOSS: [f64; 2] = [0.0, 1e-4];
const START: Duration = Duration::from_secs(3);
const LENGTH: Duration = Duration::from_secs(10);

/// Throughputs of a root with one buffer, Mbit/s.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct ThroughputsAtBuffer {
    min_rtt: f64,
    papd: f64,
    /// The first path alone. The other path has the same rate, a longer RTT, and losses.
    best: f64,
}

impl ThroughputsAtBuffer {
    /// Means over roots, for each buffer.
    fn means(roots: &[&Vec<ThroughputsAtBuffer>]) -> Vec<ThroughputsAtBuffer> {
        let mean = |place: usize, of: fn(&ThroughputsAtBuffer) -> f64| {
            roots.iter().map(|root| of(&root[place])).sum::<f64>() / roots.len() as f64
        };
        let at = |place| ThroughputsAtBuffer {
            min_rtt: mean(place, |at| at.min_rtt),
            papd: mean(place, |at| at.papd),
            best: mean(place, |at| at.best),
        };
        (0..BUFFERS_KB.len()).map(at).collect()
    }
}

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let the_cell = |cell: &&Cell| cell.rtt_ms == RTT_MS && cell.loss == LOSS;
    let published = file.published.small_buffer.iter().find(the_cell);
    let best = published.map_or(f64::NAN, |cell| cell.best);
    let predicted = RTT_MS[1] / 1e3 * best / 8.0;
    let within = file.tolerance("crossover")?;
    let equal = file.tolerance("papd_of_best")?;
    let rows = |samples: &Samples<Vec<ThroughputsAtBuffer>>| {
        let crossing =
            samples.estimate(|picked| crossing_buffer(&ThroughputsAtBuffer::means(picked)));
        let row = Row::new("buffer size above which minRTT is faster than the best path");
        let row = row.statement("buffer-over-rtt").paper(predicted, "MB");
        let row = row.estimate(&crossing, "MB").within_of_paper(within);
        let says =
            "paper: the longest RTT (150 ms) times the paper's rate of the best path in this cell";
        let worst = samples.estimate(|picked| {
            let of = |at: &ThroughputsAtBuffer| at.papd / at.min_rtt.max(at.best);
            ThroughputsAtBuffer::means(picked).iter().map(of).fold(f64::INFINITY, f64::min)
        });
        let envelope =
            Row::new("PAPD / the better of minRTT and the best path, at the worst buffer");
        let envelope = envelope.statement("better-mode-wins").paper_claim("the better mode wins");
        let asked = RequiredRange::within(equal, 1.0);
        let text = format!("within {} % of the better", 100.0 * equal);
        let envelope = envelope.estimate(&worst, "").require_range(asked, text);
        Ok(vec![row.with_remark(says), envelope])
    };
    let (samples, rows) = context.judge_part(PART, |root| measure(context, root.seed), rows)?;
    all.tables.push(Table::new("crossover", "When bonding wins", rows));
    all.grids.push(grid(&samples));
    all.figures.push(figure(&samples, predicted));
    Ok(())
}

fn measure(context: &Context<'_>, seed: u64) -> anyhow::Result<Vec<ThroughputsAtBuffer>> {
    let download = Download { paths: wires(RTT_MS, LOSS)?, length: context.length(LENGTH) };
    let at = |kb: &u64| {
        let start = context.length(START);
        let scene = Scene { download: download.clone(), buffer: kb * 1_000, start };
        Ok(ThroughputsAtBuffer {
            min_rtt: scene.min_rtt(seed)?,
            papd: scene.papd(seed)?,
            best: scene.measure_single_path(NAMES[0], seed)?,
        })
    };
    BUFFERS_KB.iter().map(at).collect()
}

fn megabytes() -> impl Iterator<Item = f64> {
    BUFFERS_KB.iter().map(|kb| *kb as f64 / 1e3)
}

/// Buffer from which minRTT stays ahead of the best path, interpolated between the last buffer at which it is
/// behind and the next one.
fn crossing_buffer(means: &[ThroughputsAtBuffer]) -> f64 {
    let buffers: Vec<f64> = megabytes().collect();
    let lead = |at: &ThroughputsAtBuffer| at.min_rtt / at.best - 1.0;
    let Some(last) = means.iter().rposition(|at| lead(at) <= 0.0) else { return f64::NAN };
    let (Some(next), Some(at)) = (means.get(last + 1), buffers.get(last + 1)) else {
        return f64::NAN;
    };
    let (behind, ahead) = (lead(&means[last]), lead(next));
    buffers[last] + (at - buffers[last]) * -behind / (ahead - behind)
}

fn grid(samples: &Samples<Vec<ThroughputsAtBuffer>>) -> Grid {
    let columns =
        [("buffer", "MB"), ("minRTT", "Mbit/s"), ("PAPD", "Mbit/s"), ("best path", "Mbit/s")];
    let mut grid = Grid::new("sweep", "Throughput by buffer, RTT 50 and 150 ms", &columns);
    for (place, buffer) in megabytes().enumerate() {
        let between = |of: fn(&ThroughputsAtBuffer) -> f64| {
            let estimate = samples.mean(|root| of(&root[place]));
            Value::from_estimate(&estimate, "")
        };
        grid.rows.push(vec![
            Value::new(buffer, ""),
            between(|at| at.min_rtt),
            between(|at| at.papd),
            between(|at| at.best),
        ]);
    }
    grid
}

fn figure(samples: &Samples<Vec<ThroughputsAtBuffer>>, predicted: f64) -> Figure {
    let all: Vec<&Vec<ThroughputsAtBuffer>> = samples.all().iter().collect();
    let means = ThroughputsAtBuffer::means(&all);
    let line = |of: fn(&ThroughputsAtBuffer) -> f64| -> Vec<(f64, f64)> {
        megabytes().zip(means.iter().map(of)).collect()
    };
    Plot::new("Throughput by buffer", "buffer (MB)", "throughput (Mbit/s)")
        .line("minRTT", &line(|at| at.min_rtt))
        .line("PAPD", &line(|at| at.papd))
        .line("best path alone", &line(|at| at.best))
        .add_vertical_line(predicted, "RTT_max x best rate")
        .log_x()
        .figure("sweep", "RTT 50 and 150 ms, two links of 100 Mbit/s.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossing_lies_between_behind_and_ahead() {
        let at = |min_rtt| ThroughputsAtBuffer { min_rtt, papd: 0.0, best: 100.0 };
        let means = [80.0, 110.0, 90.0, 110.0, 130.0].map(at);
        // Halfway from 0.8 to 1.2 MB.
        assert!((crossing_buffer(&means) - 1.0).abs() < 1e-9);
        assert!(crossing_buffer(&means[..1]).is_nan());
        assert!(crossing_buffer(&means[1..2]).is_nan());
    }
}
