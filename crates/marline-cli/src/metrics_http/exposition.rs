//! Counters and gauges in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Names and values of a series' labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Metrics by their names.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    metrics: BTreeMap<&'static str, Metric>,
}

#[derive(Debug)]
struct Metric {
    kind: &'static str,
    about: &'static str,
    series: BTreeMap<Labels, Value>,
}

#[derive(Copy, Clone, Debug)]
enum Value {
    Count(u64),
    Level(f64),
}

impl Exposition {
    /// Adds a counter with this name and help text.
    pub(super) fn describe_counter(&mut self, name: &'static str, about: &'static str) {
        self.describe(name, "counter", about);
    }

    /// Adds a gauge with this name and help text.
    pub(super) fn describe_gauge(&mut self, name: &'static str, about: &'static str) {
        self.describe(name, "gauge", about);
    }

    fn describe(&mut self, name: &'static str, kind: &'static str, about: &'static str) {
        self.metrics.insert(name, Metric { kind, about, series: BTreeMap::new() });
    }

    /// Adds to a counter.
    pub(super) fn add(&mut self, name: &'static str, labels: Labels, count: u64) {
        let value = self.series(name, labels, Value::Count(0));
        if let Value::Count(before) = value {
            *before += count;
        }
    }

    /// Raises a counter to a value that other code has counted. A lower value is ignored.
    pub(super) fn raise_counter(&mut self, name: &'static str, labels: Labels, count: u64) {
        let value = self.series(name, labels, Value::Count(0));
        if let Value::Count(before) = value {
            *before = (*before).max(count);
        }
    }

    /// Sets a gauge.
    pub(super) fn set(&mut self, name: &'static str, labels: Labels, level: f64) {
        *self.series(name, labels, Value::Level(level)) = Value::Level(level);
    }

    fn series(&mut self, name: &'static str, labels: Labels, first: Value) -> &mut Value {
        let metric = self.metrics.entry(name).or_insert_with(|| {
            debug_assert!(false, "{name} is not described");
            Metric { kind: "untyped", about: "", series: BTreeMap::new() }
        });
        metric.series.entry(labels).or_insert(first)
    }

    /// Returns the names of all metrics, with or without a value.
    #[cfg(test)]
    pub(super) fn described_names(&self) -> Vec<&'static str> {
        self.metrics.keys().copied().collect()
    }

    /// Returns all metrics that have a value, as text.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for (name, metric) in self.metrics.iter().filter(|(_, metric)| !metric.series.is_empty()) {
            // Writing to a string cannot fail.
            let _ = write!(text, "# HELP {name} {}\n# TYPE {name} {}\n", metric.about, metric.kind);
            for (labels, value) in &metric.series {
                let _ = write!(text, "{name}{} ", format_labels(labels));
                let _ = match value {
                    Value::Count(count) => writeln!(text, "{count}"),
                    Value::Level(level) if level.is_infinite() => writeln!(text, "+Inf"),
                    Value::Level(level) => writeln!(text, "{level}"),
                };
            }
            text.push('\n');
        }
        text
    }
}

/// Returns the labels as written after a name; empty if there are none.
pub(super) fn format_labels(labels: &[(&'static str, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let shown = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape_label(value)));
    format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
}

fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_have_their_type_labels_and_value() {
        let mut all = Exposition::default();
        all.describe_counter("bytes_total", "Bytes");
        all.describe_gauge("limit_bytes", "The limit");
        all.describe_gauge("unused", "Nothing");
        all.add("bytes_total", vec![("path", "a\"b\\".to_owned())], 3);
        all.add("bytes_total", vec![("path", "a\"b\\".to_owned())], 4);
        all.raise_counter("bytes_total", Vec::new(), 9);
        all.raise_counter("bytes_total", Vec::new(), 5);
        all.set("limit_bytes", Vec::new(), f64::INFINITY);
        let wanted = "# HELP bytes_total Bytes\n# TYPE bytes_total counter\nbytes_total 9\n\
                      bytes_total{path=\"a\\\"b\\\\\"} 7\n\n\
                      # HELP limit_bytes The limit\n# TYPE limit_bytes gauge\nlimit_bytes +Inf\n\n";
        assert_eq!(all.render(), wanted);
        all.set("limit_bytes", Vec::new(), 0.5);
        assert!(all.render().contains("\nlimit_bytes 0.5\n"));
    }
}
