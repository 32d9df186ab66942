//! Section `[sweep]`: alternative values of keys, in every combination.
//!
//! ```toml
//! [sweep]
//! "path.lte.delay" = ["10ms", "50ms"]          # an item of the path's link
//! "variant.*.send_buffer" = { from = "100kB", to = "1600kB", steps = 5, scale = "log" }
//! "variant.auto.scheduler.budget" = [0, 0.25]   # a parameter of the policy
//! "workload.bytes" = ["10kB", "100kB"]
//! ```

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use toml::{Table, Value};

use super::check;
use super::diagnostic::{Diagnostic, KeyPath};
use super::document::{Axis, ExperimentFile};
use super::parameter;
use super::raw::RawFile;

/// Maximum number of values of one key.
const MAX_VALUES: usize = 1_000;
/// Maximum number of combinations.
const MAX_COMBINATIONS: usize = 100_000;
/// Items of a path that do not belong to its link.
const PATH_KEYS: [&str; 7] = ["name", "link", "family", "mtu", "price", "client", "server"];

/// A combination.
#[derive(Clone, Debug)]
pub struct Point {
    /// Keys with their values.
    pub values: Vec<(String, String)>,
    /// The experiment with these values.
    pub file: ExperimentFile,
}

/// Range of values.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: Value,
    to: Value,
    steps: usize,
    #[serde(default)]
    scale: Scale,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scale {
    #[default]
    Linear,
    Log,
}

/// Keys and values of a file's sweep.
pub(super) fn axes(text: &str) -> Result<Vec<Axis>, Vec<Diagnostic>> {
    let document: Table = toml::from_str(text).map_err(|error| vec![error.into()])?;
    let Some(Value::Table(sweep)) = document.get("sweep") else { return Ok(Vec::new()) };
    let (mut axes, mut diagnostics) = (Vec::new(), Vec::new());
    for (key, value) in sweep {
        match values(value) {
            Ok(values) => axes.push(Axis { key: key.clone(), values }),
            Err(error) => {
                let key_path = KeyPath::top_level("sweep").key(key);
                diagnostics.push(Diagnostic::new(text, &key_path, format!("{error:#}")));
            }
        }
    }
    let points = axes.iter().try_fold(1usize, |points, axis| points.checked_mul(axis.values.len()));
    if points.is_none_or(|points| points > MAX_COMBINATIONS) {
        let what = format!("more than {MAX_COMBINATIONS} combinations");
        diagnostics.push(Diagnostic::new(text, &KeyPath::top_level("sweep"), what));
    }
    if diagnostics.is_empty() { Ok(axes) } else { Err(diagnostics) }
}

fn values(value: &Value) -> anyhow::Result<Vec<Value>> {
    let values = match value {
        Value::Array(values) => values.clone(),
        Value::Table(_) => value.clone().try_into::<Range>()?.values()?,
        _ => bail!("expected a list, or {{ from = \"10ms\", to = \"80ms\", steps = 4 }}"),
    };
    let count = values.len();
    ensure!((1..=MAX_VALUES).contains(&count), "expected 1 to {MAX_VALUES} values, found {count}");
    Ok(values)
}

/// Parses a number with its unit.
fn parse_quantity(value: &Value) -> anyhow::Result<(f64, String)> {
    Ok(match value {
        Value::Integer(number) => (*number as f64, String::new()),
        Value::Float(number) => (*number, String::new()),
        Value::String(text) => {
            let unit = |c: char| c.is_ascii_alphabetic() || c == '%';
            let (number, unit) = text.split_at(text.find(unit).unwrap_or(text.len()));
            let number = number.parse().with_context(|| format!("`{text}` is not a number"))?;
            (number, unit.to_owned())
        }
        other => bail!("`{other}` is not a number"),
    })
}

impl Range {
    fn values(&self) -> anyhow::Result<Vec<Value>> {
        let ((from, unit), (to, other)) = (parse_quantity(&self.from)?, parse_quantity(&self.to)?);
        ensure!(unit == other, "`{unit}` and `{other}`: both ends need the same unit");
        ensure!((2..=MAX_VALUES).contains(&self.steps), "steps: must be 2 to {MAX_VALUES}");
        let log = self.scale == Scale::Log;
        ensure!(!log || (from > 0.0 && to > 0.0), "a logarithmic scale must start above 0");
        let whole = matches!((&self.from, &self.to), (Value::Integer(_), Value::Integer(_)));
        let step = |number: usize| {
            let share = number as f64 / (self.steps - 1) as f64;
            let value =
                if log { from * (to / from).powf(share) } else { from + (to - from) * share };
            // Six digits are enough and avoid 0.30000000000000004.
            let digits = 5 - value.abs().max(1e-9).log10().floor() as i32;
            let scale = 10f64.powi(digits);
            let value = (value * scale).round() / scale;
            match (unit.as_str(), whole) {
                ("", true) => Value::Integer(value.round() as i64),
                ("", false) => Value::Float(value),
                _ => Value::String(format!("{value}{unit}")),
            }
        };
        Ok((0..self.steps).map(step).collect())
    }
}

/// Every combination.
pub(super) fn points(
    name: &str,
    text: &str,
    axes: &[Axis],
    trace_dir: Option<&PathBuf>,
) -> anyhow::Result<Vec<Point>> {
    let total: usize = axes.iter().map(|axis| axis.values.len()).product();
    let mut points = Vec::new();
    for number in 0..total {
        let mut rest = number;
        let mut chosen = Vec::new();
        for axis in axes.iter().rev() {
            chosen.push((axis, &axis.values[rest % axis.values.len()]));
            rest /= axis.values.len();
        }
        chosen.reverse();
        let values: Vec<(String, String)> =
            chosen.iter().map(|(axis, value)| (axis.key.clone(), format_value(value))).collect();
        let mut file = apply_values(text, &chosen).map_err(|what| {
            let at: Vec<String> = values.iter().map(|(k, v)| format!("{k} = {v}")).collect();
            anyhow::anyhow!("{name}: with {}: {what}", at.join(", "))
        })?;
        (file.name, file.text) = (name.to_owned(), text.to_owned());
        file.experiment.trace_dir = trace_dir.cloned();
        points.push(Point { values, file });
    }
    Ok(points)
}

fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The experiment with these values.
pub(super) fn apply_values(
    text: &str,
    chosen: &[(&Axis, &Value)],
) -> Result<ExperimentFile, String> {
    let mut document: Table = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    document.remove("sweep");
    for (axis, value) in chosen {
        replace(&mut document, &axis.key, value).map_err(|error| format!("{error:#}"))?;
    }
    let swept = toml::to_string(&document).map_err(|error| error.to_string())?;
    let raw: RawFile = toml::from_str(&swept).map_err(|error| error.message().to_owned())?;
    check::check(raw, &swept).map_err(|diagnostics| {
        diagnostics.first().map(|diagnostic| diagnostic.what().to_owned()).unwrap_or_default()
    })
}

fn replace(document: &mut Table, key: &str, value: &Value) -> anyhow::Result<()> {
    let words: Vec<&str> = key.split('.').collect();
    match words[..] {
        ["workload", name, ref item @ ..]
            if !item.is_empty() && document.get("workload").is_some_and(Value::is_array) =>
        {
            let mut workloads = find_named(document, "workload", name)?.into_iter();
            workloads.try_for_each(|workload| set(workload, item, value))
        }
        ["workload" | "client" | "server", ..] | [_] => set(document, &words, value),
        ["path", name, ref item @ ..] if !item.is_empty() => {
            for path in find_named(document, "path", name)? {
                if PATH_KEYS.contains(&item[0]) {
                    set(path, item, value)?;
                } else {
                    amend_link(path, &item.join("."), value)?;
                }
            }
            Ok(())
        }
        ["variant", name, policy, ref words @ ..]
            if !words.is_empty() && parameter::is_policy(policy) =>
        {
            let plain = format_value(value);
            let mut variants = find_named(document, "variant", name)?.into_iter();
            variants.try_for_each(|variant| parameter::set(variant, policy, words, &plain))
        }
        ["variant", name, ref item @ ..] if !item.is_empty() => {
            find_named(document, "variant", name)?.into_iter().try_for_each(|v| set(v, item, value))
        }
        [list @ ("event" | "fault" | "background" | "stop"), number, ref item @ ..]
            if !item.is_empty() =>
        {
            let entries = document.get_mut(list).and_then(Value::as_array_mut);
            let entry = number.parse::<usize>().ok().and_then(|at| entries?.get_mut(at));
            let entry = entry.and_then(Value::as_table_mut);
            let what = || format!("`{key}`: no such {list}; indexes start at 0");
            set(entry.with_context(what)?, item, value)
        }
        _ => bail!(
            "`{key}` is not a valid key; for example \"path.wifi.delay\", \
                \"variant.NAME.send_buffer\", \
             \"variant.NAME.scheduler.KEY\", \"workload.bytes\", \"fault.0.between\""
        ),
    }
}

/// Sets a value at any depth of a table; missing tables are created.
fn set(table: &mut Table, words: &[&str], value: &Value) -> anyhow::Result<()> {
    let Some((last, way)) = words.split_last() else { return Ok(()) };
    let mut table = table;
    for word in way {
        let next = table.entry((*word).to_owned()).or_insert_with(|| Value::Table(Table::new()));
        table = next.as_table_mut().with_context(|| format!("unknown table `{word}`"))?;
    }
    table.insert((*last).to_owned(), value.clone());
    Ok(())
}

/// Appends an item to a link's description, where later items win.
fn amend_link(path: &mut Table, item: &str, value: &Value) -> anyhow::Result<()> {
    let link = path.get("link").and_then(Value::as_str).unwrap_or_default();
    let comma = if link.is_empty() { "" } else { "," };
    let link = format!("{link}{comma}{item}={}", format_value(value));
    path.insert("link".to_owned(), Value::String(link));
    Ok(())
}

/// The entries of a list with this name, or all for `*`.
fn find_named<'a>(
    document: &'a mut Table,
    list: &str,
    name: &str,
) -> anyhow::Result<Vec<&'a mut Table>> {
    let entries = document.get_mut(list).and_then(Value::as_array_mut);
    let tables = entries.map(|entries| entries.iter_mut().filter_map(Value::as_table_mut));
    let tables: Vec<&mut Table> = tables.map(Iterator::collect).unwrap_or_default();
    let title =
        |table: &Table| table.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let names: Vec<String> = tables.iter().map(|table| title(table)).collect();
    let mine: Vec<&mut Table> =
        tables.into_iter().filter(|table| name == "*" || title(table) == name).collect();
    ensure!(!mine.is_empty(), "no {list} is named `{name}`; known: {}", names.join(", "));
    Ok(mine)
}
