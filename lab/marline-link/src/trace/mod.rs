//! Parsers for the contents of recorded files. The caller reads the files.

mod arrivals;
mod mahimahi;
mod ping;
#[cfg(test)]
mod tests;

use core::fmt;
use std::borrow::Cow;
use std::io::Read as _;

pub use arrivals::{Arrival, ArrivalTrace};
pub use mahimahi::{OPPORTUNITY_BYTES, Opportunities};
pub use ping::{PingTrace, Probe};

/// Maximum size of a file after decompression.
const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;

/// Error for an unusable trace: file, line (from 1; 0 for the file as a whole) and cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// File name, as given by the caller.
    pub file: String,
    /// Line number from 1, or 0 if the error does not concern a single line.
    pub line: usize,
    /// Description of the error.
    pub problem: String,
}

impl TraceError {
    /// Creates an error for the file as a whole.
    pub fn for_file(file: &str, why: impl Into<String>) -> Self {
        TraceError { file: file.to_owned(), line: 0, problem: why.into() }
    }

    fn for_line(file: &str, line: usize, why: impl Into<String>) -> Self {
        TraceError { file: file.to_owned(), line, problem: why.into() }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

impl core::error::Error for TraceError {}

/// Decodes the text of a trace file. Gzip is recognized by its first two bytes.
fn text<'a>(file: &str, bytes: &'a [u8]) -> Result<Cow<'a, str>, TraceError> {
    if bytes.is_empty() {
        return Err(TraceError::for_file(file, "the file is empty"));
    }
    let plain: Cow<'a, [u8]> = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut out = Vec::new();
        let read = flate2::read::GzDecoder::new(bytes)
            .take(MAX_DECOMPRESSED_BYTES + 1)
            .read_to_end(&mut out);
        read.map_err(|e| TraceError::for_file(file, format!("gzip: {e}")))?;
        Cow::Owned(out)
    } else {
        Cow::Borrowed(bytes)
    };
    if plain.len() as u64 > MAX_DECOMPRESSED_BYTES {
        return Err(TraceError::for_file(file, "more than 256 MiB after decompression"));
    }
    let not_text = |e: core::str::Utf8Error| {
        let line = plain[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        TraceError::for_line(file, line, "not text (invalid UTF-8)")
    };
    core::str::from_utf8(&plain).map_err(not_text)?;
    Ok(match plain {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    })
}

/// Checks the first line of a CSV and splits the others into numbered rows with exactly this many fields.
fn rows<'a, const N: usize>(
    file: &'a str,
    text: &'a str,
    header: &'a str,
) -> Result<impl Iterator<Item = Result<(usize, [&'a str; N]), TraceError>>, TraceError> {
    let mut lines = text.lines();
    match lines.next() {
        Some(first) if first.trim_end() == header => {}
        Some(first) => {
            let shown: String = first.chars().take(60).collect();
            let why = format!("the first line must be `{header}`, not `{shown}`");
            return Err(TraceError::for_line(file, 1, why));
        }
        None => return Err(TraceError::for_file(file, "the file is empty")),
    }
    let split = move |(index, line): (usize, &'a str)| {
        let mut fields = line.trim_end().split(',');
        let row: [&str; N] = core::array::from_fn(|_| fields.next().unwrap_or("\0"));
        if row.contains(&"\0") || fields.next().is_some() {
            let got = line.split(',').count();
            let why = format!("{got} fields, expected {N} (truncated file?)");
            return Err(TraceError::for_line(file, index + 2, why));
        }
        Ok((index + 2, row))
    };
    Ok(lines.enumerate().filter(|(_, line)| !line.trim().is_empty()).map(split))
}

/// Parses a field as a number.
fn number<T: core::str::FromStr>(
    file: &str,
    line: usize,
    name: &str,
    field: &str,
) -> Result<T, TraceError> {
    field.trim().parse().map_err(|_| {
        let shown: String = field.chars().take(40).collect();
        TraceError::for_line(file, line, format!("{name} `{shown}` is not a valid number"))
    })
}

/// Parses a non-negative decimal number of milliseconds, and returns nanoseconds.
fn millis(file: &str, line: usize, name: &str, field: &str) -> Result<u64, TraceError> {
    let value: f64 = number(file, line, name, field)?;
    if !(0.0..=1e12).contains(&value) {
        return Err(TraceError::for_line(file, line, format!("{name} {value} is out of range")));
    }
    Ok((value * 1e6 + 0.5) as u64)
}
