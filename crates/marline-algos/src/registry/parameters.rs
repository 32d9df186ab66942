//! Parameters of one policy in a spec: `key=value,...`, each read at most once.
//!
//! *Problem.* A policy's variants must be selectable by text, and a misspelled key or value must not be ignored: a
//! measurement with the wrong parameter is worse than none.
//!
//! *How.* The policy's reader requests each key with its default. So the known keys are recorded: the error for an
//! unknown key can list them, and [`Registry::parameters`](super::Registry::parameters) can list keys and defaults
//! without a second table that could become outdated. Errors are collected until all keys are read, so that a reader is
//! a plain struct literal without a `?`.

use core::fmt;
use core::ops::RangeInclusive;

use marline_time::Duration;

use super::PolicyKind;

/// Parameter that a policy accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    /// Key of the parameter.
    pub key: String,
    /// Value when the key is omitted.
    pub default: String,
    /// Description of the allowed values.
    pub expected: String,
}

/// Error in a parameter of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterError {
    /// Kind of the policy.
    pub kind: PolicyKind,
    /// The policy's name.
    pub policy: String,
    /// Key of the parameter.
    pub key: String,
    /// Reason why the parameter is invalid.
    pub problem: ParameterProblem,
}

/// Problem with a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterProblem {
    /// The policy has no such parameter.
    Unknown {
        /// Parameters, in the order in which they are read.
        known: Vec<String>,
    },
    /// The policy no longer has this parameter.
    Gone {
        /// Replacement, or the reason why there is none.
        instead: String,
    },
    /// The parameter was given twice.
    Repeated,
    /// The value cannot be parsed or is out of range.
    BadValue {
        /// The given value.
        given: String,
        /// Description of the allowed values.
        expected: String,
    },
}

impl fmt::Display for ParameterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParameterError { kind, policy, key, problem } = self;
        match problem {
            ParameterProblem::Unknown { known } if known.is_empty() => {
                write!(f, "{kind} `{policy}` has no parameter `{key}`; it takes no parameters")
            }
            ParameterProblem::Unknown { known } => {
                let known = known.join(", ");
                write!(f, "{kind} `{policy}` has no parameter `{key}`; known: {known}")
            }
            ParameterProblem::Gone { instead } => {
                write!(f, "{kind} `{policy}` no longer has the parameter `{key}`: {instead}")
            }
            ParameterProblem::Repeated => {
                write!(f, "{kind} `{policy}`: parameter `{key}` is given twice")
            }
            ParameterProblem::BadValue { given, expected } => {
                write!(f, "{kind} `{policy}`: `{key}={given}`: expected {expected}")
            }
        }
    }
}

impl core::error::Error for ParameterError {}

/// Reads the parameters of one policy. Every method takes a key and a default. If the value cannot be parsed, the
/// method returns the default, and the registry reports the error.
#[derive(Debug)]
pub struct Parameters<'a> {
    kind: PolicyKind,
    policy: &'a str,
    given: &'a [(&'a str, &'a str)],
    asked: Vec<ParameterInfo>,
    /// Removed keys and their replacements.
    gone: Vec<(&'static str, &'static str)>,
    error: Option<ParameterError>,
}

/// Nanoseconds per unit of time. The units are spelled as in link specs.
const TIME_UNITS: [(&str, f64); 6] =
    [("min", 60e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("h", 3_600e9), ("s", 1e9)];
const BYTE_UNITS: [(&str, f64); 4] = [("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("B", 1.0)];

impl<'a> Parameters<'a> {
    pub(super) const fn new(
        kind: PolicyKind,
        policy: &'a str,
        given: &'a [(&'a str, &'a str)],
    ) -> Self {
        Parameters { kind, policy, given, asked: Vec::new(), gone: Vec::new(), error: None }
    }

    /// Reads a custom value, given `default` in its textual form, a description of the `expected` values, and a parser.
    ///
    /// # Panics
    /// In debug builds, panics if the default cannot be parsed or the key is requested twice.
    pub fn parse_with<T>(
        &mut self,
        key: &str,
        default: &str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        debug_assert!(self.asked.iter().all(|info| info.key != key), "`{key}` is read twice");
        self.asked.push(ParameterInfo {
            key: key.to_owned(),
            default: default.to_owned(),
            expected: expected.to_owned(),
        });
        let given = self.given.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let value = read(given.unwrap_or(default));
        debug_assert!(value.is_some() || given.is_some(), "default `{key}={default}`");
        if let (None, Some(given)) = (&value, given) {
            let (given, expected) = (given.to_owned(), expected.to_owned());
            self.fail(key, ParameterProblem::BadValue { given, expected });
            return read(default);
        }
        value
    }

    /// Reads `on` or `off`.
    pub fn on_off(&mut self, key: &str, default: bool) -> bool {
        self.word(key, if default { "on" } else { "off" }, &[("on", true), ("off", false)])
    }

    /// Reads one of the words and returns the value paired with it.
    ///
    /// # Panics
    /// Panics if the default is not one of the words.
    pub fn word<T: Copy>(&mut self, key: &str, default: &str, words: &[(&str, T)]) -> T {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let find = |text: &str| words.iter().find(|(name, _)| *name == text).map(|(_, t)| *t);
        self.parse_with(key, default, &format!("one of {}", names.join(", ")), find)
            .expect("the default is one of the words")
    }

    /// Reads a duration such as `200ms`; `0` needs no unit.
    pub fn duration(&mut self, key: &str, default: Duration) -> Duration {
        let expected = "a duration such as `200ms`";
        self.parse_with(key, &format_duration(default), expected, read_duration).unwrap_or(default)
    }

    /// Reads a duration such as `200ms`, or `off`.
    pub fn duration_or_off(&mut self, key: &str, default: Option<Duration>) -> Option<Duration> {
        let text = default.map_or_else(|| "off".to_owned(), format_duration);
        let read = |text: &str| match text {
            "off" => Some(None),
            text => read_duration(text).map(Some),
        };
        self.parse_with(key, &text, "a duration such as `200ms`, or `off`", read).unwrap_or(default)
    }

    /// Reads a number or a percentage: `0.25` and `25%` are equal.
    pub fn number(&mut self, key: &str, default: f64, range: RangeInclusive<f64>) -> f64 {
        let expected =
            format!("a number from {} to {}, or a percentage", range.start(), range.end());
        let read = |text: &str| read_number(text).filter(|number| range.contains(number));
        self.parse_with(key, &default.to_string(), &expected, read).unwrap_or(default)
    }

    /// Reads a number, a percentage, or `unlimited` (infinity).
    pub fn number_or_unlimited(
        &mut self,
        key: &str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> f64 {
        let (least, most) = (range.start(), range.end());
        let expected = format!("a number from {least} to {most}, a percentage, or `unlimited`");
        let read = |text: &str| match text {
            "unlimited" => Some(f64::INFINITY),
            text => read_number(text).filter(|number| range.contains(number)),
        };
        self.parse_with(key, &default.to_string(), &expected, read).unwrap_or(default)
    }

    /// Reads a whole number.
    pub fn count(&mut self, key: &str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let read = |text: &str| text.parse().ok().filter(|number| range.contains(number));
        self.parse_with(key, &default.to_string(), &expected, read).unwrap_or(default)
    }

    /// Reads a number of bytes such as `64kB` or `1500B`.
    pub fn bytes(&mut self, key: &str, default: u64) -> u64 {
        let read = |text: &str| read_scaled(text, &BYTE_UNITS).map(|bytes| bytes as u64);
        let expected = "a number of bytes such as `64kB` or `1500B`";
        self.parse_with(key, &format_bytes(default), expected, read).unwrap_or(default)
    }

    /// Rejects a value that is valid by itself but inconsistent with the others.
    pub fn refuse(&mut self, key: &str, expected: &str) {
        let given = self.given.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
        let (given, expected) = (given.to_owned(), expected.to_owned());
        self.fail(key, ParameterProblem::BadValue { given, expected });
    }

    /// Declares a key that the policy no longer accepts. The error for it names the replacement `instead`.
    pub fn declare_removed(&mut self, key: &'static str, instead: &'static str) {
        self.gone.push((key, instead));
    }

    fn fail(&mut self, key: &str, problem: ParameterProblem) {
        let (kind, policy, key) = (self.kind, self.policy.to_owned(), key.to_owned());
        self.error.get_or_insert(ParameterError { kind, policy, key, problem });
    }

    /// Returns the parameters read, or the first error. An unknown key is reported before an invalid value.
    pub(super) fn finish(mut self) -> Result<Vec<ParameterInfo>, ParameterError> {
        let given = self.given;
        for (at, (key, _)) in given.iter().enumerate() {
            let gone = self.gone.iter().find(|(name, _)| name == key);
            let problem = if let Some((_, instead)) = gone {
                ParameterProblem::Gone { instead: (*instead).to_owned() }
            } else if self.asked.iter().all(|info| info.key != *key) {
                let known = self.asked.iter().map(|info| info.key.clone()).collect();
                ParameterProblem::Unknown { known }
            } else if given[..at].iter().any(|(earlier, _)| earlier == key) {
                ParameterProblem::Repeated
            } else {
                continue;
            };
            self.error = None;
            self.fail(key, problem);
            break;
        }
        self.error.map_or(Ok(self.asked), Err)
    }
}

/// Parses a decimal number, without `+`, exponents or infinities.
fn read_plain(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b'-');
    text.parse().ok().filter(|number: &f64| plain && number.is_finite())
}

fn read_number(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => read_plain(percent).map(|number| number / 100.0),
        None => read_plain(text),
    }
}

fn read_scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = units.iter().find(|(unit, _)| *unit == &text[digits.len()..])?.1;
    let value = (read_plain(digits)? * scale).round();
    (0.0..9e18).contains(&value).then_some(value)
}

fn read_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    read_scaled(text, &TIME_UNITS).map(|nanos| Duration::from_nanos(nanos as u64))
}

/// Formats a duration in the largest unit that leaves no fraction.
fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    let fits = units.iter().find(|(_, scale)| nanos > 0 && nanos.is_multiple_of(*scale));
    let (unit, scale) = fits.copied().unwrap_or(("ns", 1));
    if nanos == 0 { "0".to_owned() } else { format!("{}{unit}", nanos / scale) }
}

fn format_bytes(bytes: u64) -> String {
    let units = [("MB", 1_000_000), ("kB", 1_000)];
    let fits = units.iter().find(|(_, scale)| bytes > 0 && bytes.is_multiple_of(*scale));
    let (unit, scale) = fits.copied().unwrap_or(("B", 1));
    format!("{}{unit}", bytes / scale)
}

#[cfg(test)]
mod tests;
