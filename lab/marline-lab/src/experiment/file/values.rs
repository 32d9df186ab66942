//! Values with units, as written in experiment files.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

use crate::emulation::script;

/// A time: `"45ms"`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Time(pub(super) Duration);

impl Time {
    pub(super) fn ms(self) -> f64 {
        self.0.as_secs_f64() * 1e3
    }
}

/// A number of bytes: `8192`, or `"200kB"` in decimal units.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) u64);

/// One value, or the minimum and maximum: `"100ms"` or `["100ms", "200ms"]`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Span<T> {
    pub(super) least: T,
    pub(super) most: T,
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = match toml::Value::deserialize(from)? {
            toml::Value::String(text) => text,
            other => return Err(Error::custom(format!("{other} is not a time such as \"45ms\""))),
        };
        script::duration(&text).map(Time).map_err(|error| Error::custom(format!("{error:#}")))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let wrong = |given: &dyn std::fmt::Display| {
            Error::custom(format!("{given} is not a number of bytes such as 8192 or \"200kB\""))
        };
        match toml::Value::deserialize(from)? {
            toml::Value::Integer(bytes) => bytes.try_into().map(Bytes).map_err(|_| wrong(&bytes)),
            toml::Value::String(text) => bytes(&text).map(Bytes).ok_or_else(|| wrong(&text)),
            other => Err(wrong(&other)),
        }
    }
}

fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match unit {
        "" | "B" => 1.0,
        "kB" => 1e3,
        "KiB" => 1_024.0,
        "MB" => 1e6,
        "MiB" => 1_048_576.0,
        _ => return None,
    };
    let number: f64 = number.trim().parse().ok()?;
    let bytes = number * scale;
    (0.0..1e15).contains(&bytes).then_some(bytes.round() as u64)
}

impl<'de, T: Deserialize<'de> + Copy> Deserialize<'de> for Span<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = |value: toml::Value| T::deserialize(value).map_err(Error::custom);
        match toml::Value::deserialize(from)? {
            toml::Value::Array(values) => {
                let count = values.len();
                let [least, most]: [toml::Value; 2] = values.try_into().map_err(|_| {
                    Error::custom(format!(
                        "expected one value, or [least, most], not {count} values"
                    ))
                })?;
                Ok(Span { least: read(least)?, most: read(most)? })
            }
            value => read(value).map(|value| Span { least: value, most: value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct TestDocument {
        at: Span<Time>,
        size: Span<Bytes>,
    }

    #[test]
    fn values_have_units_and_may_be_ranges() {
        let read = |text: &str| toml::from_str::<TestDocument>(text);
        let one = read("at = '45ms'\nsize = 8192").expect("values");
        assert_eq!((one.at.least.ms(), one.at.most.ms()), (45.0, 45.0));
        let two = read("at = ['0ms', '1.5s']\nsize = ['0.5MB', '2KiB']").expect("values");
        assert_eq!((two.at.most.ms(), two.size.least), (1_500.0, Bytes(500_000)));
        assert_eq!(two.size.most, Bytes(2_048));
        for (text, word) in [
            ("at = 45\nsize = 1", "such as \"45ms\""),
            ("at = '45'\nsize = 1", "one of us, ms, s"),
            ("at = '1s'\nsize = -1", "-1 is not a number of bytes"),
            ("at = '1s'\nsize = '1XB'", "1XB is not a number"),
            ("at = ['1s']\nsize = 1", "not 1"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.message().contains(word), "{text}: {error}");
            assert!(error.span().is_some(), "{error}");
        }
    }
}
