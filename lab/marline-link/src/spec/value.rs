//! Numbers with units: parsed exactly from decimals, and written in the shortest exact form.

use core::fmt;

use marline_time::{Duration, Rate};

/// Nanoseconds of each unit of time, longest first.
const TIME_UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];
const RATE_UNITS: [(&str, u64); 4] =
    [("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000), ("", 1)];
const BYTE_UNITS: [(&str, u64); 4] =
    [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000), ("B", 1)];

type Words<T> = Result<T, String>;

/// Parses a decimal number times a unit exactly. The unit must be one of `units`.
fn parse_scaled(text: &str, units: &[(&str, u64)]) -> Words<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let names: Vec<&str> = units.iter().map(|u| u.0).filter(|name| !name.is_empty()).collect();
        let names = names.join(", ");
        return Err(match unit {
            _ if text.starts_with('-') => format!("`{text}` is negative"),
            "" if digits.is_empty() => format!("a number is missing; units: {names}"),
            "" => format!("`{text}` needs a unit: {names}"),
            _ => format!("unknown unit `{unit}`; known: {names}"),
        });
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(format!("`{digits}` is not a number"));
    }
    let too_large = || format!("`{text}` is too large");
    let mut value = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
    value = scale.checked_mul(value).ok_or_else(too_large)?;
    let mut place = *scale;
    for digit in fraction.bytes().map(|byte| u64::from(byte - b'0')) {
        if place % 10 != 0 && digit != 0 {
            return Err(format!("`{text}` is smaller than the smallest unit"));
        }
        place /= 10;
        value = value.checked_add(place * digit).ok_or_else(too_large)?;
    }
    Ok(value)
}

/// Writes the value in the largest unit that leaves no fraction.
fn write_scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let exact =
        units.iter().find(|(_, scale)| value.is_multiple_of(*scale) && (value > 0 || *scale == 1));
    let (unit, scale) = exact.copied().unwrap_or(("", 1));
    write!(f, "{}{unit}", value / scale)
}

/// Formats a duration for link specs.
pub(super) struct Time(pub(super) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        write_scaled(f, marline_time::nanos(self.0), &TIME_UNITS)
    }
}

/// Formats a rate for link specs.
pub(super) struct Bits(pub(super) Rate);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0.bits_per_s(), &RATE_UNITS)
    }
}

/// Formats a number of bytes for link specs.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, &BYTE_UNITS)
    }
}

pub(super) fn duration(text: &str) -> Words<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    parse_scaled(text, &TIME_UNITS).map(Duration::from_nanos)
}

/// Parses a duration that is not zero.
pub(super) fn positive(text: &str) -> Words<Duration> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        some => Ok(some),
    }
}

pub(super) fn rate(text: &str) -> Words<Rate> {
    parse_scaled(text, &RATE_UNITS).map(Rate::from_bits_per_s)
}

pub(super) fn bytes(text: &str) -> Words<u64> {
    parse_scaled(text, &BYTE_UNITS)
}

/// Parses a probability: `1%` or `0.01`.
pub(super) fn probability(text: &str) -> Words<f64> {
    let (digits, percent) = match text.strip_suffix('%') {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'e' || b == b'-');
    let value: f64 = match digits.parse() {
        Ok(value) if plain => value,
        _ => return Err(format!("`{text}` is not a probability such as `1%` or `0.01`")),
    };
    let value = if percent { value / 100.0 } else { value };
    if !(0.0..=1.0).contains(&value) {
        return Err(format!("`{text}` is not between 0 and 100 %"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_numbers_are_exact() {
        assert_eq!(rate("1.5M"), Ok(Rate::from_bits_per_s(1_500_000)));
        assert_eq!(rate("9600"), Ok(Rate::from_bits_per_s(9_600)));
        assert_eq!(duration("0.1ms"), Ok(Duration::from_micros(100)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(bytes("64kB"), Ok(64_000));
        assert_eq!(duration(".5s"), Ok(Duration::from_millis(500)));
        assert_eq!(Time(Duration::from_millis(1_500)).to_string(), "1500ms");
        assert_eq!(Bits(Rate::from_mbit(20)).to_string(), "20M");
        assert_eq!(Bits(Rate::ZERO).to_string(), "0");
    }

    #[test]
    fn invalid_numbers_have_precise_errors() {
        assert_eq!(rate("20Q").unwrap_err(), "unknown unit `Q`; known: G, M, k");
        assert_eq!(duration("10").unwrap_err(), "`10` needs a unit: h, min, s, ms, us, ns");
        assert_eq!(duration("").unwrap_err(), "a number is missing; units: h, min, s, ms, us, ns");
        assert_eq!(duration("0.5ns").unwrap_err(), "`0.5ns` is smaller than the smallest unit");
        assert_eq!(rate("1.2.3M").unwrap_err(), "`1.2.3` is not a number");
        assert_eq!(rate("99999999999G").unwrap_err(), "`99999999999G` is too large");
        assert_eq!(rate("-1M").unwrap_err(), "`-1M` is negative");
        assert!(probability("101%").unwrap_err().contains("between"));
        assert!(probability("inf").is_err() && probability("NaN").is_err());
    }
}
