//! Figures of a series: distributions of latencies, box plots of the variants, and the subflows over time in one
//! run of each variant.

use std::collections::BTreeMap;

use super::qlogs::file_name_part;
use super::{Job, Record};
use crate::experiment::{Stack, Timeline, TimelineConfig, simulate_recorded};
use crate::figure::{BoxPlot, Figure, FiveNumbers, Plot, cdf};
use crate::results::{Cell, Table, quantile};

/// Maximum number of points of a curve. More would overlap.
const MAX_POINTS: usize = 1_000;
/// Ratio of the maximum to the median above which an axis is logarithmic.
const LOGARITHMIC_RATIO: f64 = 10.0;

/// Standard figures of a series.
#[derive(Clone, Debug)]
pub struct Figures<'a> {
    /// Title.
    pub title: &'a str,
    /// Runs.
    pub runs: &'a [(&'a Job, &'a Record)],
}

impl Figures<'_> {
    /// Draws `cdf` and `boxes` of all lanes. For each variant on stack `sim` it draws the subflows of the end that
    /// sent more data, in the first run: `windows-VARIANT` and `delays-VARIANT`. Equal runs give equal text.
    #[must_use]
    pub fn draw(&self) -> Vec<Figure> {
        let lanes = self.latencies();
        let all: Vec<f64> = lanes.iter().flat_map(|(_, values)| values.iter().copied()).collect();
        let wide = quantile(&all, 1.0) > LOGARITHMIC_RATIO * quantile(&all, 0.5);
        let mut plot = Plot::new(self.title, "latency (ms)", "share of messages");
        let mut boxes = BoxPlot::new(self.title, "latency (ms)");
        if wide {
            (plot, boxes) = (plot.log_x(), boxes.log());
        }
        for (name, values) in lanes.iter().filter(|(_, values)| !values.is_empty()) {
            plot = plot.steps(name, &thin_points(&cdf(values)));
            let at = |share| quantile(values, share);
            let [low, q25, q50, q75, high] = [0.01, 0.25, 0.5, 0.75, 0.99].map(at);
            boxes = boxes.add(name, FiveNumbers { low, q25, q50, q75, high });
        }
        let mut figures = vec![
            plot.figure("cdf", "Latencies of all counted messages."),
            boxes.figure(
                "boxes",
                "Median and quartiles. The whiskers end at the 1st and 99th percentiles.",
            ),
        ];
        for job in self.first_simulated() {
            let (experiment, variant) = (&job.experiment, &job.lane.variant);
            let config = TimelineConfig::default();
            // Failed runs are reported in the summary.
            if let Ok((_, timeline)) = simulate_recorded(experiment, variant, job.seed, config) {
                figures.extend(subflows(job, &timeline));
            }
        }
        figures
    }

    /// Latencies of each lane, in the order of the plan.
    fn latencies(&self) -> Vec<(String, Vec<f64>)> {
        let mut lanes: Vec<(String, Vec<f64>)> = Vec::new();
        for (job, record) in self.runs {
            let name = format!("{} {}", job.lane.stack, job.lane.variant.name);
            let at = lanes.iter().position(|(known, _)| *known == name).unwrap_or(lanes.len());
            if at == lanes.len() {
                lanes.push((name, Vec::new()));
            }
            lanes[at].1.extend(record.latencies_ms());
        }
        lanes
    }

    /// The first run of each simulated variant.
    fn first_simulated(&self) -> Vec<&Job> {
        let mut jobs: Vec<&Job> = Vec::new();
        for (job, _) in self.runs.iter().filter(|(job, _)| job.lane.stack == Stack::Sim) {
            if jobs.iter().all(|known| known.lane.variant.name != job.lane.variant.name) {
                jobs.push(job);
            }
        }
        jobs
    }
}

/// Selects every n-th point and the last one.
fn thin_points(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(MAX_POINTS).max(1);
    let mut kept: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    if kept.last() != points.last() {
        kept.extend(points.last());
    }
    kept
}

/// Curves by name, in the order of the names.
type Curves = BTreeMap<String, Vec<(f64, f64)>>;

/// Draws windows and delays of the subflows of the end that sent more data.
fn subflows(job: &Job, timeline: &Timeline) -> [Figure; 2] {
    let end = sender(&timeline.subflows);
    let name = &job.lane.variant.name;
    let plot = |columns: &[(&str, &str)], unit: f64, what: &str| {
        let title = format!("{name}, seed {}: subflows of the {end}", job.seed);
        let mut plot = Plot::new(&title, "time (s)", what);
        for (name, points) in curves(&timeline.subflows, end, columns, unit) {
            plot = plot.line(&name, &thin_points(&points));
        }
        plot
    };
    let windows = [("cwnd_bytes", "window"), ("in_flight_bytes", "in flight")];
    let delays = [("srtt_us", "SRTT"), ("forecast_p90_us", "forecast, 90 %")];
    let file = file_name_part(name);
    [
        plot(&windows, 1e3, "kB").figure(
            &format!("windows-{file}"),
            "Congestion window and bytes in flight of each subflow.",
        ),
        plot(&delays, 1e3, "ms").figure(
            &format!("delays-{file}"),
            "Smoothed RTT and forecast answer time of each subflow.",
        ),
    ]
}

fn number(table: &Table, column: &str, row: usize) -> Option<f64> {
    match table.column(column)?.at(row) {
        Cell::Count(value) => Some(value as f64),
        Cell::Integer(value) => Some(value as f64),
        Cell::Real(value) => Some(value),
        _ => None,
    }
}

fn text<'a>(table: &'a Table, column: &str, row: usize) -> &'a str {
    match table.column(column).map(|column| column.at(row)) {
        Some(Cell::Text(text)) => text,
        _ => "",
    }
}

/// The end that sent more data.
fn sender(samples: &Table) -> &'static str {
    let sent = |end: &str| {
        let mine = (0..samples.rows()).filter(|row| text(samples, "end", *row) == end);
        mine.filter_map(|row| number(samples, "sent_bytes", row)).fold(0.0, f64::max)
    };
    if sent("client") > sent("server") { "client" } else { "server" }
}

/// Curves of a column of an end's samples by path: time in seconds, and values in this unit.
fn curves(samples: &Table, end: &str, columns: &[(&str, &str)], unit: f64) -> Curves {
    let mut curves = Curves::new();
    for row in (0..samples.rows()).filter(|row| text(samples, "end", *row) == end) {
        let Some(time_us) = number(samples, "time_us", row) else { continue };
        let path = text(samples, "path", row);
        for (column, what) in columns {
            if let Some(value) = number(samples, column, row) {
                let curve = curves.entry(format!("{path} {what}")).or_default();
                curve.push((time_us / 1e6, value / unit));
            }
        }
    }
    curves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::file::Lane;
    use crate::experiment::{Experiment, Variant, simulate};
    use crate::workload::{Gap, Workload};

    #[test]
    fn standard_figures_are_drawn_and_reproducible() {
        let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
        let workload = Workload::Bursts { bytes: 30_000, gap, count: 20 };
        let links = [("wifi", "rate=20M,delay=5ms,loss=2%"), ("lte", "rate=10M,delay=40ms")];
        let experiment = Experiment::over(&links, workload);
        let lane = |name: &str| Lane { stack: Stack::Sim, variant: Variant::new(name) };
        let jobs = Job::series(&experiment, &[lane("auto"), lane("the, same")], 2);
        let record = |job: &Job| {
            let outcome = simulate(&job.experiment, &job.lane.variant, job.seed).expect("run");
            Record::from_outcome(&job.experiment, &outcome).expect("record")
        };
        let records: Vec<Record> = jobs.iter().map(record).collect();
        let runs: Vec<(&Job, &Record)> = jobs.iter().zip(&records).collect();
        let draw = || Figures { title: "a title", runs: &runs }.draw();
        let figures = draw();
        let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
        let wanted = [
            "cdf",
            "boxes",
            "windows-auto",
            "delays-auto",
            "windows-the__same",
            "delays-the__same",
        ];
        assert_eq!(names, wanted);
        assert_eq!(figures, draw());
        assert!(figures[0].svg.contains("sim the, same") && figures[1].svg.contains("sim auto"));
        assert!(figures[2].svg.contains("subflows of the server"), "{}", figures[2].svg);
        for path in ["wifi SRTT", "lte forecast, 90 %"] {
            assert!(figures[3].svg.contains(path), "{path}");
        }
        assert!(figures.iter().all(|figure| figure.svg.len() < 400_000));
    }
}
