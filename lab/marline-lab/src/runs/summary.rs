//! Summary of a series: one line per variant and stack, and machine-readable files.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::Job;
use super::measurements::{Measure, Measurements};
use super::record::{Record, Statistics};
use crate::estimate::Estimate;
use crate::experiment::{Calibration, Load, Measures, Stack};
use crate::figure::number;
use crate::results::{self, Format, RunColumns, Sheets, Table, quantile};

/// Maximum relative difference of the medians of `sim` and `live` that agree.
const MEDIAN_TOLERANCE: f64 = 0.10;
/// Maximum relative difference of the 95th percentiles of `sim` and `live` that agree.
const P95_TOLERANCE: f64 = 0.20;

/// All runs of a variant on a stack, for one of their workloads.
#[derive(Clone, Debug, Serialize)]
pub struct LaneSummary {
    /// Stack.
    pub stack: Stack,
    /// Variant.
    pub variant: String,
    /// Name of the workload. Empty without a name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workload: String,
    /// Index of the workload, from 0.
    #[serde(skip)]
    pub number: usize,
    /// Number of completed runs.
    pub runs: usize,
    /// Number of failed runs.
    pub failed: usize,
    /// Number of unreliable runs.
    pub doubtful: usize,
    /// Number of messages that did not arrive in all runs.
    pub missing: u64,
    /// Summary of the latencies of all runs.
    pub latency: Statistics,
    /// 99th percentile divided by that of the messages' lower bounds.
    pub p99_to_bound: f64,
    /// Median goodput of the runs in Mbit/s.
    pub goodput_mbit_per_s: f64,
    /// Median over the runs of each measure of videos, pages and deadlines: name and value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<(&'static str, f64)>,
    /// Median price of a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Median over the runs per path: name, and bytes in both directions.
    pub path_bytes: Vec<(String, f64)>,
    /// Median over the runs per path with a radio: name, joules by traffic, and joules while idle.
    pub path_joules: Vec<(String, f64, f64)>,
    /// Accuracy of answer forecasts in all runs, for each path for which it is enabled: name and calibration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path_calibration: Vec<(String, Calibration)>,
}

impl LaneSummary {
    /// Formats the energy of a path's radio in J: by traffic, and while idle in parentheses. Blank without a radio.
    #[must_use]
    pub fn joules(&self, path: &str) -> String {
        let of = self.path_joules.iter().find(|(name, ..)| name == path);
        of.map_or(String::new(), |(_, traffic, idle)| format!("{traffic:.2} ({idle:.2})"))
    }
}

/// Comparison of virtual and real time.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// Variant.
    pub variant: String,
    /// Medians of virtual and live runs in ms.
    pub p50_ms: (f64, f64),
    /// 95th percentiles of virtual and live runs in ms.
    pub p95_ms: (f64, f64),
}

impl Agreement {
    /// Returns true if both are within their tolerances.
    #[must_use]
    pub fn holds(&self) -> bool {
        let within =
            |(sim, live): (f64, f64), tolerance: f64| (live / sim - 1.0).abs() <= tolerance;
        within(self.p50_ms, MEDIAN_TOLERANCE) && within(self.p95_ms, P95_TOLERANCE)
    }
}

/// Summary of a series.
#[derive(Debug)]
pub struct Summary<'a> {
    jobs: &'a [Job],
    records: &'a [Record],
    /// Lanes, in the order of the plan.
    pub lanes: Vec<LaneSummary>,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    marline_sim::median(&values.collect::<Vec<f64>>())
}

impl<'a> Summary<'a> {
    /// Summarizes these runs, in the order of their jobs.
    #[must_use]
    pub fn from_runs(jobs: &'a [Job], records: &'a [Record]) -> Summary<'a> {
        let mut lanes: Vec<LaneSummary> = Vec::new();
        let same = |job: &Job, lane: &LaneSummary| {
            job.lane.stack == lane.stack && job.lane.variant.name == lane.variant
        };
        for job in jobs {
            if lanes.iter().any(|lane| same(job, lane)) {
                continue;
            }
            let (stack, variant) = (job.lane.stack, job.lane.variant.name.clone());
            let mine = jobs.iter().zip(records).filter(|(other, _)| {
                other.lane.stack == stack && other.lane.variant.name == variant
            });
            let mine: Vec<&Record> = mine.map(|(_, record)| record).collect();
            for (number, load) in job.experiment.loads.iter().enumerate() {
                let of = |record: &&'a Record| record.workloads().nth(number).unwrap_or(record);
                let records: Vec<&Record> = mine.iter().map(of).collect();
                let workload = load.name.clone();
                let measures = Measures::names(load).into_iter().map(|(name, _)| {
                    let good = records.iter().filter_map(|record| record.measures.of(name));
                    (name, median(good))
                });
                let measures = measures.collect();
                let summary = lane(stack, &variant, &records);
                lanes.push(LaneSummary { workload, number, measures, ..summary });
            }
        }
        Summary { jobs, records, lanes }
    }

    /// The reference lane for ratios of a workload: the kernel's Multipath TCP if it was run, or else the kernel's
    /// TCP, or else the first lane.
    fn reference(&self, number: usize) -> Option<&LaneSummary> {
        let lanes = || self.lanes.iter().filter(|lane| lane.number == number);
        let of = |stack| lanes().find(|lane| lane.stack == stack);
        of(Stack::Mptcp).or_else(|| of(Stack::Tcp)).or(lanes().next())
    }

    /// The table as text, header first.
    #[must_use]
    pub fn table(&self) -> Vec<Vec<String>> {
        let Some(reference) = self.reference(0) else { return Vec::new() };
        let paths: Vec<&str> = self.path_names();
        let whose = format!("{} {}", reference.stack, reference.variant);
        let several = self.lanes.iter().any(|lane| lane.number > 0);
        let measures = ["runs", "messages", "p50 ms", "p95", "p99", "max", "Mbit/s"];
        let lane = ["stack", "variant"].into_iter().chain(several.then_some("workload"));
        let mut head: Vec<String> = lane.chain(measures).map(str::to_owned).collect();
        let mut measures: Vec<&str> = Vec::new();
        for (name, _) in self.lanes.iter().flat_map(|lane| &lane.measures) {
            if !measures.contains(name) {
                measures.push(name);
            }
        }
        head.extend(measures.iter().map(|name| name.replace('_', " ")));
        let priced = self.lanes.iter().any(|lane| lane.price.is_some());
        head.extend(priced.then(|| "price".to_owned()));
        head.extend(paths.iter().map(|path| format!("kB {path}")));
        let radios = self.radio_names();
        head.extend(radios.iter().map(|path| format!("J {path} (idle)")));
        head.push(format!("p50 / {whose}"));
        head.push(format!("p99 / {whose}"));
        head.push("p99 / bound".to_owned());
        let mut table = vec![head];
        for lane in &self.lanes {
            let latency = &lane.latency;
            let mut runs = lane.runs.to_string();
            for (count, what) in [(lane.failed, "failed"), (lane.doubtful, "unreliable")] {
                if count > 0 {
                    // Writing to a String cannot fail.
                    let _ = write!(runs, " ({count} {what})");
                }
            }
            let mut messages = latency.count.to_string();
            if lane.missing > 0 {
                let _ = write!(messages, " ({} missing)", lane.missing);
            }
            let mut row = vec![lane.stack.to_string(), lane.variant.clone()];
            row.extend(several.then(|| lane.workload.clone()));
            row.extend([runs, messages]);
            let values = [latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.max_ms];
            row.extend(values.map(number));
            row.push(number(lane.goodput_mbit_per_s));
            row.extend(measures.iter().map(|name| {
                let value = lane.measures.iter().find(|(known, _)| known == name);
                value.map_or(String::new(), |(_, value)| number(*value))
            }));
            row.extend(priced.then(|| lane.price.map_or(String::new(), number)));
            row.extend(paths.iter().map(|path| {
                let bytes = lane.path_bytes.iter().find(|(name, _)| name == path);
                bytes.map_or("-".to_owned(), |(_, bytes)| format!("{:.0}", bytes / 1e3))
            }));
            row.extend(radios.iter().map(|path| lane.joules(path)));
            let reference = self.reference(lane.number).unwrap_or(reference);
            row.push(number(latency.p50_ms / reference.latency.p50_ms));
            row.push(number(latency.p99_ms / reference.latency.p99_ms));
            row.push(number(lane.p99_to_bound));
            table.push(row);
        }
        table
    }

    /// Intervals of the table's numbers (95 %, bootstrap over the runs, ratios paired by seed), header first. Empty if
    /// no variant has [`MIN_RUNS`](super::MIN_RUNS) runs.
    #[must_use]
    pub fn intervals(&self) -> Vec<Vec<String>> {
        let Some(reference) = self.reference(0) else { return Vec::new() };
        let whose = format!("{} {}", reference.stack, reference.variant);
        let ratios = [format!("p50 / {whose}"), format!("p99 / {whose}"), "p99 / bound".to_owned()];
        let several = self.lanes.iter().any(|lane| lane.number > 0);
        let head = ["stack", "variant"].into_iter().chain(several.then_some("workload"));
        let head = head.chain(["runs", "p50 ms", "p95", "p99", "Mbit/s"]);
        let mut table: Vec<Vec<String>> = vec![head.map(str::to_owned).chain(ratios).collect()];
        for lane in &self.lanes {
            let theirs = self.completed_runs(self.reference(lane.number).unwrap_or(reference));
            let mine = self.completed_runs(lane);
            let records: Vec<&Record> = mine.iter().map(|(_, record)| *record).collect();
            let measured = Measurements::from_records(&records);
            let shown = [Measure::P50, Measure::P95, Measure::P99, Measure::Goodput];
            let mut estimates = shown.map(|measure| measured.estimate(measure)).to_vec();
            let both = |(seed, record): &(u64, &'a Record)| {
                let other = theirs.iter().find(|(other, _)| other == seed)?;
                Some((*record, other.1))
            };
            let (ours, others): (Vec<&Record>, Vec<&Record>) = mine.iter().filter_map(both).unzip();
            let (ours, others) =
                (Measurements::from_records(&ours), Measurements::from_records(&others));
            let to_reference = |measure| ours.ratio(measure, &others);
            estimates.extend([Measure::P50, Measure::P99].map(to_reference));
            estimates.push(measured.estimate(Measure::P99ToBound));
            let cells: Vec<String> = estimates.iter().map(between).collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                let mut row = vec![lane.stack.to_string(), lane.variant.clone()];
                row.extend(several.then(|| lane.workload.clone()));
                row.push(mine.len().to_string());
                row.extend(cells);
                table.push(row);
            }
        }
        if table.len() > 1 { table } else { Vec::new() }
    }

    /// The completed runs of a lane, with their seeds.
    fn completed_runs(&self, lane: &LaneSummary) -> Vec<(u64, &'a Record)> {
        let runs = self.jobs.iter().zip(self.records);
        let mine = runs.filter(|(job, record)| {
            job.lane.stack == lane.stack
                && job.lane.variant.name == lane.variant
                && record.error.is_none()
        });
        let of = |record: &'a Record| record.workloads().nth(lane.number).unwrap_or(record);
        mine.map(|(job, record)| (job.seed, of(record))).collect()
    }

    /// Accuracy of answer forecasts, one line per variant and path, header first. Empty if no variant enables it.
    #[must_use]
    pub fn calibration(&self) -> Vec<Vec<String>> {
        let head = ["stack", "variant", "path", "answers", "within p50", "p90", "p99"];
        let head = head.into_iter().chain(["SRTT + 4 RTTVAR", "pinball p90 / SRTT + 4 RTTVAR"]);
        let mut table = vec![head.map(str::to_owned).collect()];
        for lane in self.lanes.iter().filter(|lane| lane.number == 0) {
            for (path, calibration) in &lane.path_calibration {
                let mut row = vec![lane.stack.to_string(), lane.variant.clone(), path.clone()];
                row.push(calibration.answers.to_string());
                let shares =
                    calibration.shares().into_iter().chain([calibration.srtt_4var_share()]);
                row.extend(shares.map(|share| format!("{:.1} %", 100.0 * share)));
                row.push(number(calibration.pinball_ratio()));
                table.push(row);
            }
        }
        if table.len() > 1 { table } else { Vec::new() }
    }

    /// Paths in the order of their first occurrence.
    pub(super) fn path_names(&self) -> Vec<&'a str> {
        let mut names = Vec::new();
        for path in self.records.iter().flat_map(|record| &record.paths) {
            if !names.contains(&path.name.as_str()) {
                names.push(path.name.as_str());
            }
        }
        names
    }

    /// Paths with a radio.
    #[must_use]
    pub fn radio_names(&self) -> Vec<&'a str> {
        let paths = self.records.iter().flat_map(|record| &record.paths);
        let with: Vec<&str> = paths.filter(|p| p.radio.is_some()).map(|p| &*p.name).collect();
        self.path_names().into_iter().filter(|name| with.contains(name)).collect()
    }

    /// Agreement of variants that ran both in virtual time and live.
    #[must_use]
    pub fn agreement(&self) -> Vec<Agreement> {
        let live = self.lanes.iter().filter(|lane| lane.stack == Stack::Live);
        let pair = |live: &LaneSummary| {
            let which = |lane: &LaneSummary| (lane.variant.clone(), lane.number);
            let same = |lane: &&LaneSummary| lane.stack == Stack::Sim && which(lane) == which(live);
            let sim = self.lanes.iter().find(same)?.latency;
            let variant = match live.workload.as_str() {
                "" => live.variant.clone(),
                workload => format!("{}, {workload}", live.variant),
            };
            let p50_ms = (sim.p50_ms, live.latency.p50_ms);
            Some(Agreement { variant, p50_ms, p95_ms: (sim.p95_ms, live.latency.p95_ms) })
        };
        live.filter_map(pair).collect()
    }

    /// Lists unreliable, failed and incomplete results, one per line.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (job, record) in self.jobs.iter().zip(self.records) {
            let run = format!("{} {} seed {}", job.lane.stack, job.lane.variant.name, job.seed);
            warnings.extend(record.error.iter().map(|error| format!("{run} FAILED: {error}")));
            warnings.extend(record.doubts.iter().map(|doubt| format!("{run} unreliable: {doubt}")));
        }
        warnings
    }

    /// The runs with their records.
    #[must_use]
    pub fn runs(&self) -> Vec<(&'a Job, &'a Record)> {
        self.jobs.iter().zip(self.records).collect()
    }

    /// Table of runs ([`results::runs`]).
    #[must_use]
    pub fn runs_table(&self) -> Table {
        results::runs(&RunColumns::for_jobs(self.jobs), &self.runs())
    }

    /// Writes the tables `messages` and `runs` into a directory, and for a sweep also `sweep`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, directory: &Path, formats: &[Format]) -> anyhow::Result<()> {
        let columns = RunColumns::for_jobs(self.jobs);
        let like = results::messages(&columns, &[]);
        let mut sheets = Sheets::create(directory, &like, formats, u64::MAX)?;
        for run in self.runs() {
            sheets.append(&results::messages(&columns, &[run]), 0)?;
        }
        sheets.close()?;
        let mut tables = vec![self.runs_table()];
        if self.jobs.first().is_some_and(|job| !job.point.is_empty()) {
            tables.push(results::sweep_table(&columns, &tables[0]));
        }
        for table in tables {
            let mut sheets = Sheets::create(directory, &table, formats, u64::MAX)?;
            sheets.append(&table, 0)?;
            sheets.close()?;
        }
        Ok(())
    }

    /// The summary as JSON: lanes, agreement, and each run without its messages.
    #[must_use]
    pub fn json(&self, title: &str) -> Value {
        let workload = |(load, record): (&Load, &Record)| {
            json!({
                "name": load.name,
                "latency": Statistics::from_latencies(&record.latencies_ms()),
                "missing": record.missing,
                "goodput_mbit_per_s": record.goodput_mbit_per_s,
                "measures": record.measures,
            })
        };
        let run = |(job, record): (&Job, &Record)| {
            json!({
                "point": job.point,
                "stack": job.lane.stack,
                "variant": job.lane.variant,
                "seed": job.seed,
                "latency": Statistics::from_latencies(&record.latencies_ms()),
                "missing": record.missing,
                "goodput_mbit_per_s": record.goodput_mbit_per_s,
                "workloads": job.experiment.loads.iter().zip(record.workloads()).map(workload)
                    .collect::<Vec<Value>>(),
                "reinjected_bytes": record.reinjected_bytes,
                "paths": record.paths,
                "faults_ms": record.faults_ms,
                "doubts": record.doubts,
                "error": record.error,
            })
        };
        json!({
            "title": title,
            "lanes": self.lanes,
            "agreement": self.agreement(),
            "runs": self.jobs.iter().zip(self.records).map(run).collect::<Vec<Value>>(),
        })
    }
}

/// Formats an interval. Blank without one.
fn between(estimate: &Estimate) -> String {
    if estimate.low.is_nan() || estimate.high.is_nan() {
        return String::new();
    }
    format!("{} to {}", number(estimate.low), number(estimate.high))
}

fn lane(stack: Stack, variant: &str, records: &[&Record]) -> LaneSummary {
    let good: Vec<&&Record> = records.iter().filter(|record| record.error.is_none()).collect();
    let latencies: Vec<f64> = good.iter().flat_map(|record| record.latencies_ms()).collect();
    let least: Vec<f64> = good.iter().flat_map(|record| record.least_ms.clone()).collect();
    let names: Vec<String> = good
        .first()
        .map(|record| record.paths.iter().map(|path| path.name.clone()).collect())
        .unwrap_or_default();
    let bytes = |name: &String| {
        let of = |record: &&&Record| {
            let path = record.paths.iter().find(|path| path.name == *name);
            path.map(|path| (path.up_bytes + path.down_bytes) as f64)
        };
        (name.clone(), median(good.iter().filter_map(of)))
    };
    let joules = |name: &String| {
        let paths = good.iter().flat_map(|record| &record.paths).filter(|path| path.name == *name);
        let radios: Vec<_> = paths.filter_map(|path| path.radio.as_ref()).collect();
        let traffic = median(radios.iter().map(|radio| radio.traffic_j));
        let idle = median(radios.iter().map(|radio| radio.idle_j));
        (!radios.is_empty()).then(|| (name.clone(), traffic, idle))
    };
    let calibration = |name: &String| {
        let paths = good.iter().flat_map(|record| &record.paths).filter(|path| path.name == *name);
        let each: Vec<Calibration> = paths.filter_map(|path| path.calibration).collect();
        (!each.is_empty()).then(|| (name.clone(), Calibration::sum(&each)))
    };
    LaneSummary {
        stack,
        variant: variant.to_owned(),
        workload: String::new(),
        number: 0,
        runs: good.len(),
        failed: records.len() - good.len(),
        doubtful: good.iter().filter(|record| !record.doubts.is_empty()).count(),
        missing: good.iter().map(|record| u64::from(record.missing)).sum(),
        latency: Statistics::from_latencies(&latencies),
        p99_to_bound: quantile(&latencies, 0.99) / quantile(&least, 0.99),
        goodput_mbit_per_s: median(good.iter().map(|record| record.goodput_mbit_per_s)),
        measures: Vec::new(),
        price: good
            .iter()
            .map(|record| record.price())
            .collect::<Option<Vec<f64>>>()
            .filter(|prices| !prices.is_empty())
            .map(|prices| median(prices.into_iter())),
        path_bytes: names.iter().map(bytes).collect(),
        path_joules: names.iter().filter_map(joules).collect(),
        path_calibration: names.iter().filter_map(calibration).collect(),
    }
}
