//! Key of a sweep as a column: numbers in one unit, which is part of the column's name, or else text.

use super::column::{Cell, Column};

/// A quantity that values of a sweep may have: suffix of the column's name, unit of the column, and a factor and a
/// divisor for each unit in files.
#[derive(Debug)]
struct Quantity {
    ending: &'static str,
    unit: &'static str,
    units: &'static [(&'static str, f64, f64)],
    /// Meaning of a number without a unit. `None` if it is a different quantity.
    bare: Option<f64>,
}

const TIME: Quantity = Quantity {
    ending: "_ms",
    unit: "ms",
    units: &[
        ("ns", 1.0, 1e6),
        ("us", 1.0, 1e3),
        ("ms", 1.0, 1.0),
        ("s", 1e3, 1.0),
        ("min", 6e4, 1.0),
        ("h", 3.6e6, 1.0),
    ],
    bare: None,
};
const BYTES: Quantity = Quantity {
    ending: "_bytes",
    unit: "B",
    units: &[
        ("B", 1.0, 1.0),
        ("kB", 1e3, 1.0),
        ("KiB", 1_024.0, 1.0),
        ("MB", 1e6, 1.0),
        ("MiB", 1_048_576.0, 1.0),
    ],
    bare: Some(1.0),
};
const RATE: Quantity = Quantity {
    ending: "_mbit_per_s",
    unit: "Mbit/s",
    units: &[("k", 1.0, 1e3), ("M", 1.0, 1.0), ("G", 1e3, 1.0)],
    bare: Some(1e-6),
};
const PERCENT: Quantity =
    Quantity { ending: "_percent", unit: "%", units: &[("%", 1.0, 1.0)], bare: Some(100.0) };
const PLAIN: Quantity = Quantity { ending: "", unit: "", units: &[], bare: Some(1.0) };

/// A key of a sweep.
#[derive(Clone, Debug)]
pub(super) struct SweptKey {
    key: String,
    /// Quantity. `None` for text.
    quantity: Option<&'static Quantity>,
}

/// Splits a number and its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let unit = |c: char| c.is_ascii_alphabetic() || c == '%';
    let (number, unit) = text.split_at(text.find(unit).unwrap_or(text.len()));
    Some((number.trim().parse().ok()?, unit))
}

impl Quantity {
    fn value(&self, text: &str) -> Option<f64> {
        let (number, unit) = split(text)?;
        if unit.is_empty() {
            // Zero is zero in any unit.
            return self.bare.map(|bare| number * bare).or((number == 0.0).then_some(0.0));
        }
        let (_, times, over) = self.units.iter().find(|(name, ..)| *name == unit)?;
        Some(number * times / over)
    }
}

impl SweptKey {
    /// Creates the column of a key from all its values in the file.
    pub(super) fn of<'a>(key: &str, values: impl Iterator<Item = &'a str> + Clone) -> SweptKey {
        let is_rate = key.rsplit('.').next() == Some("rate");
        let all =
            |quantity: &&Quantity| values.clone().all(|value| quantity.value(value).is_some());
        let bare: [&'static Quantity; 2] = if is_rate { [&RATE, &RATE] } else { [&PLAIN, &PLAIN] };
        let known: [&'static Quantity; 4] = [&TIME, &BYTES, &RATE, &PERCENT];
        let quantity = bare.into_iter().chain(known).find(all);
        SweptKey { key: key.to_owned(), quantity }
    }

    /// The empty column.
    pub(super) fn column(&self) -> Column {
        let Some(Quantity { ending, unit, .. }) = self.quantity else {
            return Column::text(self.key.clone());
        };
        let said = self.key.ends_with(ending.trim_start_matches('_'));
        let name = if said { self.key.clone() } else { format!("{}{ending}", self.key) };
        Column::real_column(name, unit)
    }

    /// The cell of a value.
    pub(super) fn cell<'a>(&self, text: &'a str) -> Cell<'a> {
        match self.quantity {
            Some(quantity) => quantity.value(text).into(),
            None => Cell::Text(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_converted_to_one_unit() {
        let of = |key: &str, values: &[&str]| {
            let swept = SweptKey::of(key, values.iter().copied());
            let column = swept.column();
            let cells: Vec<String> = values
                .iter()
                .map(|value| match swept.cell(value) {
                    Cell::Real(number) => number.to_string(),
                    Cell::Text(text) => format!("\"{text}\""),
                    other => format!("{other:?}"),
                })
                .collect();
            format!("{} [{}] {}", column.name(), column.unit(), cells.join(" "))
        };
        for (key, values, wanted) in [
            (
                "path.lte.delay",
                &["20ms", "1.5s", "500us"][..],
                "path.lte.delay_ms [ms] 20 1500 0.5",
            ),
            ("path.wifi.loss", &["0", "1%", "5%"], "path.wifi.loss_percent [%] 0 1 5"),
            ("path.wifi.rate", &["500k", "20M"], "path.wifi.rate_mbit_per_s [Mbit/s] 0.5 20"),
            ("path.wifi.up.rate", &["2000000"], "path.wifi.up.rate_mbit_per_s [Mbit/s] 2"),
            ("workload.bytes", &["10kB", "100kB"], "workload.bytes [B] 10000 100000"),
            ("variant.*.send_buffer", &["1KiB"], "variant.*.send_buffer_bytes [B] 1024"),
            ("workload.count", &["10", "20"], "workload.count [] 10 20"),
            ("path.lte.queue", &["300ms", "10kB"], "path.lte.queue [] \"300ms\" \"10kB\""),
            ("variant.a.scheduler", &["auto", "nan"], "variant.a.scheduler [] \"auto\" \"nan\""),
            ("path.lte.delay", &["0", "20ms"], "path.lte.delay_ms [ms] 0 20"),
        ] {
            assert_eq!(of(key, values), wanted);
        }
    }
}
