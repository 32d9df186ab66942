//! Results on disk: `DIR/KEY/result.json`, a CSV file for each table, an SVG file for each figure, and `run.json` with
//! data that changes from run to run.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use marline_lab::provenance;
use serde::{Deserialize, Serialize};

use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// Environment and duration of a reproduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of the program.
    pub version: String,
    /// Identifier of the build.
    pub program: String,
    /// Machine on which it ran.
    pub machine: Machine,
    /// Master root.
    pub master: u64,
    /// Amount of work, in words.
    pub effort: String,
    /// Share of the full number of runs, for keys that run in real time.
    pub scale: f64,
    /// Number of threads.
    pub jobs: usize,
    /// Wall-clock time, seconds.
    pub seconds: f64,
    /// CPU time, seconds, including the original cost of stored roots.
    pub cpu_s: f64,
    /// Hash over all packets, times and bytes read in the simulated runs, in hexadecimal. Equal hashes mean equal
    /// behavior. Empty if nothing was simulated.
    #[serde(default)]
    pub digest: String,
}

/// Description of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel version.
    pub kernel: String,
    /// Processor name.
    pub processor: String,
    /// Number of processors available to this process.
    pub processors: usize,
}

impl Machine {
    /// Describes the current machine.
    #[must_use]
    pub fn current() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let processor = name.unwrap_or_default().trim_start_matches(['\t', ' ', ':']);
        Machine {
            kernel: provenance::kernel_release(),
            processor: if processor.is_empty() { "unknown" } else { processor }.to_owned(),
            processors: marline_lab::parallel::available(),
        }
    }
}

/// Writes a result into `directory` and removes the files of an earlier result.
///
/// # Errors
/// Unwritable file, or two tables or figures with the same or an invalid name.
pub fn store(directory: &Path, result: &Reproduction, run: &RunInfo) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        let ours = path.extension().is_some_and(|ending| ending == "csv" || ending == "svg");
        if ours && path.is_file() {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    let tables = result.tables.iter().map(|table| (&table.name, "csv", table_csv(table)));
    let grids = result.grids.iter().map(|grid| (&grid.name, "csv", grid_csv(grid)));
    let figures = result.figures.iter().map(|figure| (&figure.name, "svg", figure.svg.clone()));
    let mut seen = std::collections::BTreeSet::new();
    for (name, ending, text) in tables.chain(grids).chain(figures) {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        ensure!(!name.is_empty() && name.chars().all(plain), "`{name}` is not a valid file name");
        ensure!(seen.insert((name, ending)), "two results are named {name}.{ending}");
        write(&directory.join(format!("{name}.{ending}")), &text)?;
    }
    write(&directory.join("result.json"), &serde_json::to_string_pretty(result)?)?;
    write(&directory.join("run.json"), &serde_json::to_string_pretty(run)?)
}

/// Reads a result that [`store`] wrote into `directory`. `None` if there is none.
///
/// # Errors
/// Unreadable result.
pub fn load(directory: &Path) -> anyhow::Result<Option<(Reproduction, RunInfo)>> {
    let (result, run) = (directory.join("result.json"), directory.join("run.json"));
    if !result.is_file() || !run.is_file() {
        return Ok(None);
    }
    let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
    let of = |path: &Path| format!("cannot parse {} (written by another version?)", path.display());
    let reproduction = serde_json::from_str(&read(&result)?).with_context(|| of(&result))?;
    let info = serde_json::from_str(&read(&run)?).with_context(|| of(&run))?;
    Ok(Some((reproduction, info)))
}

/// Writes a file atomically, because a partial result would be read as a complete one.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let named = || path.display().to_string();
    let beside = path.with_extension("part");
    fs::write(&beside, text.trim_end().to_owned() + "\n").with_context(named)?;
    fs::rename(&beside, path).with_context(named)
}

/// A field, quoted as in RFC 4180.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn line(fields: &[String]) -> String {
    fields.iter().map(|text| field(text)).collect::<Vec<_>>().join(",") + "\n"
}

/// Value, lower and upper end of the interval, unit.
fn cells(value: Option<&Value>) -> [String; 4] {
    let exact = |value: f64| if value.is_nan() { String::new() } else { value.to_string() };
    match value {
        None => Default::default(),
        Some(Value::Text(text)) => [text.clone(), String::new(), String::new(), String::new()],
        Some(Value::Number { value, interval, unit }) => {
            let end =
                |pick: fn((f64, f64)) -> f64| interval.map(pick).map_or_else(String::new, exact);
            [exact(*value), end(|ends| ends.0), end(|ends| ends.1), unit.clone()]
        }
    }
}

fn table_csv(table: &Table) -> String {
    let head = "what,statement,paper,paper_low,paper_high,paper_unit,ours,ours_low,ours_high,ours_unit,\
                bound_ratio,requirement,verdict,roots,needed,fitted,remark\n";
    let mut text = head.to_owned();
    for row in &table.rows {
        let mut fields = vec![row.what.clone(), row.statement.clone()];
        fields.extend(cells(row.paper.as_ref()));
        fields.extend(cells(row.ours.as_ref()));
        fields.push(row.bound_ratio.map_or_else(String::new, |ratio| ratio.to_string()));
        fields.extend([row.requirement.clone(), row.verdict.name().to_owned()]);
        fields.push(row.roots.map_or_else(String::new, |roots| roots.to_string()));
        fields.push(row.needed.map_or_else(String::new, |needed| needed.to_string()));
        fields.extend([row.fitted.clone(), row.remark.clone()]);
        text.push_str(&line(&fields));
    }
    text
}

fn grid_csv(grid: &Grid) -> String {
    let head = grid.columns.iter().map(|column| match column.unit.as_str() {
        "" => column.name.clone(),
        unit => format!("{} ({unit})", column.name),
    });
    let mut text = line(&head.collect::<Vec<_>>());
    for row in &grid.rows {
        let fields: Vec<String> = row.iter().map(|value| cells(Some(value))[0].clone()).collect();
        text.push_str(&line(&fields));
    }
    text
}
