//! Records of a JSON text sequence, written field by field.

use std::fmt::Write as _;
use std::net::SocketAddr;

use marline_time::{Duration, Instant};

/// A record being written: time, name, and the fields of its data in order.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    out: &'a mut String,
    first: bool,
}

impl<'a> Line<'a> {
    /// Starts the record of an event with this name at the time `after` the trace's zero.
    pub(crate) fn begin(out: &'a mut String, after: Duration, name: &str) -> Line<'a> {
        // Writing to a String cannot fail.
        let _ =
            write!(out, "\x1e{{\"time\":{},\"name\":\"mptcp:{name}\",\"data\":{{", millis(after));
        Line { out, first: true }
    }

    fn key(&mut self, name: &str) {
        if !core::mem::take(&mut self.first) {
            self.out.push(',');
        }
        let _ = write!(self.out, "\"{name}\":");
    }

    pub(crate) fn number(mut self, name: &str, value: impl Into<u64>) -> Line<'a> {
        self.key(name);
        let _ = write!(self.out, "{}", value.into());
        self
    }

    pub(crate) fn flag(mut self, name: &str, value: bool) -> Line<'a> {
        self.key(name);
        let _ = write!(self.out, "{value}");
        self
    }

    /// Writes a string that needs no escaping.
    pub(crate) fn word(mut self, name: &str, value: &str) -> Line<'a> {
        debug_assert!(!value.contains(['"', '\\']) && !value.contains(char::is_control), "{value}");
        self.key(name);
        let _ = write!(self.out, "\"{value}\"");
        self
    }

    pub(crate) fn address(self, name: &str, value: SocketAddr) -> Line<'a> {
        self.word(name, &value.to_string())
    }

    /// Writes a time in milliseconds.
    pub(crate) fn time(mut self, name: &str, value: Duration) -> Line<'a> {
        self.key(name);
        let _ = write!(self.out, "{}", millis(value));
        self
    }

    /// Writes an optional field.
    pub(crate) fn optional<T>(
        self,
        value: Option<T>,
        put: impl FnOnce(Line<'a>, T) -> Line<'a>,
    ) -> Line<'a> {
        match value {
            Some(value) => put(self, value),
            None => self,
        }
    }

    pub(crate) fn end(self) {
        self.out.push_str("}}\n");
    }
}

/// Milliseconds with full nanosecond precision, without trailing zeros.
fn millis(time: Duration) -> String {
    let ns = time.as_nanos();
    let (whole, rest) = (ns / 1_000_000, ns % 1_000_000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:06}").trim_end_matches('0').to_owned()
}

/// Time since `zero`. Zero if `at` is earlier.
pub(crate) fn time_since(at: Instant, zero: Instant) -> Duration {
    if at > zero { at.since(zero) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_nanoseconds_without_trailing_zeros() {
        let said = |ns: u64| millis(Duration::from_nanos(ns));
        assert_eq!(said(0), "0");
        assert_eq!(said(1_000_000), "1");
        assert_eq!(said(1_500_000), "1.5");
        assert_eq!(said(1_000_001), "1.000001");
        assert_eq!(said(60_000_250_000), "60000.25");
    }
}
