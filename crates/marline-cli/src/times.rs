//! Text forms of times.

use std::time::Duration;

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Returns the current time as in log lines: RFC 3339, UTC, microseconds.
#[must_use]
pub fn time_of_day() -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Formats an elapsed time: `10 s ago`, `16 min ago`, `3 h ago`, `9 d ago`.
#[must_use]
pub fn format_ago(time: Duration) -> String {
    format!("{} ago", span(time))
}

/// Formats a duration: `10 s`, `16 min`, `3 h`, `9 d`.
#[must_use]
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} d", s / 86_400),
    }
}
