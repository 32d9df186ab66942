//! Results as a file: a later measurement of some rows or systems replaces only their values.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::measure::Task;
use crate::stats::Summary;

/// Everything measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// Values of all runs by system and metric; `null`: the event never happened.
    pub values: BTreeMap<String, BTreeMap<String, Vec<Option<f64>>>>,
    /// Version of each system.
    pub versions: BTreeMap<String, String>,
    /// Systems that could not be measured, with the reason.
    pub skipped: BTreeMap<String, String>,
    /// Conditions of the measurement by row.
    pub conditions: BTreeMap<String, String>,
    /// Remarks about failed runs and late links, by system and row.
    pub remarks: BTreeMap<String, Vec<String>>,
    /// Order of the systems compared with that of the measurement before.
    #[serde(default)]
    pub order: String,
}

impl Results {
    /// Reads the results from a file, or starts empty if it does not exist yet.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn read(file: &Path) -> anyhow::Result<Results> {
        match std::fs::read_to_string(file) {
            Ok(text) => Ok(serde_json::from_str(&text)?),
            Err(_) => Ok(Results::default()),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        // One line per metric, so that versions can be compared.
        let mut text = String::new();
        let value = serde_json::to_value(self)?;
        write_value(&value, 0, &mut text);
        std::fs::write(file, text + "\n")?;
        Ok(())
    }

    /// Adds a run's value, rounded to three digits.
    pub fn add(&mut self, system: &str, metric: &str, value: Option<f64>) {
        let rounded = value.map(|value| {
            let scale = 10f64.powi(2 - value.abs().max(1e-3).log10().floor() as i32);
            (value * scale).round() / scale
        });
        self.values
            .entry(system.into())
            .or_default()
            .entry(metric.into())
            .or_default()
            .push(rounded);
    }

    /// Replaces the results of these rows and systems with a new measurement.
    pub fn replace(&mut self, new: Results, tasks: &[Task], condition: &str) {
        self.order = self.compare_order(&new);
        let measured =
            |name: &str| tasks.iter().any(|task| name.split(' ').any(|word| word == task.row));
        for (system, version) in &new.versions {
            if let Some(metrics) = self.values.get_mut(system) {
                metrics.retain(|metric, _| !measured(metric));
            }
            self.remarks
                .retain(|name, _| !(name.starts_with(&format!("{system} ")) && measured(name)));
            self.versions.insert(system.clone(), version.clone());
            self.skipped.remove(system);
        }
        for (system, metrics) in new.values {
            self.values.entry(system).or_default().extend(metrics);
        }
        for task in tasks {
            self.conditions.insert(task.row.into(), condition.into());
        }
        self.skipped.extend(new.skipped);
        self.remarks.extend(new.remarks);
    }

    /// Compares the order of the systems in each row with that of a new measurement, in words.
    fn compare_order(&self, new: &Results) -> String {
        let (mut kept, mut unclear, mut reversed) = (0, 0, Vec::new());
        for (system, metrics) in &new.values {
            for (metric, other) in metrics.keys().flat_map(|metric| {
                let others = new.values.keys().skip_while(move |other| *other != system).skip(1);
                others.map(move |other| (metric, other))
            }) {
                let pair = |of: &Results| of.summary(system, metric).zip(of.summary(other, metric));
                let Some((before, after)) = pair(self).zip(pair(new)) else { continue };
                let [was, is] = [before, after].map(|(a, b)| a.median.total_cmp(&b.median));
                let overlap = [before, after].iter().any(|(a, b)| a.overlaps(*b));
                match () {
                    () if was.is_eq() || is.is_eq() || was == is => kept += 1,
                    () if overlap => unclear += 1,
                    () => reversed.push(format!("{metric}: {system}, {other}")),
                }
            }
        }
        if kept + unclear + reversed.len() == 0 {
            return String::new();
        }
        let listed = if reversed.is_empty() { "none".into() } else { reversed.join("; ") };
        format!(
            "order of two systems in a row, compared with the measurement before: the same {kept} times, another one \
             {unclear} times where ranges overlap; reversed with ranges apart on both days: {listed}"
        )
    }

    /// Median and range of a metric.
    pub fn summary(&self, system: &str, metric: &str) -> Option<Summary> {
        Summary::of(self.values.get(system)?.get(metric)?)
    }
}

fn write_value(value: &serde_json::Value, depth: usize, text: &mut String) {
    match value {
        serde_json::Value::Object(map) if !map.is_empty() => {
            text.push_str("{\n");
            for (place, (key, value)) in map.iter().enumerate() {
                *text += &format!(
                    "{}{}: ",
                    " ".repeat(depth + 1),
                    serde_json::Value::from(key.as_str())
                );
                write_value(value, depth + 1, text);
                text.push_str(if place + 1 < map.len() { ",\n" } else { "\n" });
            }
            *text += &format!("{}}}", " ".repeat(depth));
        }
        other => *text += &other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_reversed_only_if_the_ranges_are_apart_on_both_days() {
        let day = |values: [(&str, [f64; 2]); 3]| {
            let mut day = Results::default();
            for (system, runs) in values {
                runs.iter().for_each(|run| day.add(system, "gap", Some(*run)));
            }
            day
        };
        let first = day([("a", [1.0, 2.0]), ("b", [3.0, 4.0]), ("c", [3.5, 5.0])]);
        assert_eq!(Results::default().compare_order(&first), "");
        let second = day([("a", [5.0, 6.0]), ("b", [3.5, 4.0]), ("c", [3.0, 3.4])]);
        let text = first.compare_order(&second);
        assert!(text.ends_with("both days: gap: a, b; gap: a, c"), "{text}");
        assert!(text.contains("the same 0 times, another one 1 times"), "{text}");
    }
}
