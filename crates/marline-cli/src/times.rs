//! Lengths of time in a few characters.

use std::time::Duration;

/// How long ago something was: `10 s ago`, `16 min ago`, `3 h ago`, `9 d ago`.
#[must_use]
pub fn ago(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..120 => format!("{s} s ago"),
        s @ 120..7_200 => format!("{} min ago", s / 60),
        s @ 7_200..172_800 => format!("{} h ago", s / 3_600),
        s => format!("{} d ago", s / 86_400),
    }
}
