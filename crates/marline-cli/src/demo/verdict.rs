//! Summary sentence about the result of the demo, good or bad.

use std::time::Duration;

use super::outcome::{Latency, Outcome};
use crate::path_table::bytes;

/// Returns the measured result in one sentence: the pause over both paths compared with that over WiFi alone, and the
/// result of the download. `dead` is the time for which WiFi was down. Returns `None` if a compared variant is
/// missing.
#[must_use]
pub fn sentence(outcomes: &[Outcome], dead: Duration) -> Option<String> {
    let wifi = outcomes.iter().find(|outcome| outcome.way.wifi && !outcome.way.lte)?;
    let both = outcomes.iter().find(|outcome| outcome.way.shows_dashboard())?;
    let (with, without) = (both.echo.longest_pause, wifi.echo.longest_pause);
    let begin = if with < without { "" } else { ", and the second path did not help" };
    Some(format!(
        "WiFi died for {}{begin}: the longest pause was {} over both paths, {} over WiFi alone; {}.",
        seconds(dead),
        pause_text(both),
        pause_text(wifi),
        download(both),
    ))
}

/// Returns the longest pause. While the last echoes are unanswered, it has not ended and was only partly observed.
fn pause_text(of: &Outcome) -> String {
    let hole = of.echo.longest_pause;
    let length = if hole < Duration::from_secs(1) {
        format!("{:.0} ms", hole.as_secs_f64() * 1e3)
    } else {
        seconds(hole)
    };
    let never_ended = Latency::from_samples(&of.echo.latencies).unanswered > 0;
    if never_ended { format!("at least {length}") } else { length }
}

fn seconds(value: Duration) -> String {
    let text = format!("{:.1}", value.as_secs_f64());
    format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
}

fn download(of: &Outcome) -> String {
    let file = &of.file;
    match (&file.sha256, file.intact) {
        (Some(_), true) => "the download arrived complete".to_owned(),
        (Some(_), false) => "the download arrived DAMAGED".to_owned(),
        (None, _) => format!("only {} of the download arrived", bytes(file.bytes)),
    }
}
