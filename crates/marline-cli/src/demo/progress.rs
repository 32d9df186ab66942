//! Progress display of the demo: bars on a terminal, otherwise plain lines. Both fit 80 columns.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::application::LiveProgress;
use super::plan::{DemoPlan, SETUPS};
use crate::path_table::bytes;

/// Time without an answer that is shown as a stall, in milliseconds.
const STALL_MS: u64 = 300;

/// Interval between two lines of the display without a terminal.
const PLAIN_LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Progress display.
#[derive(Debug)]
pub(super) struct Progress {
    bars: MultiProgress,
    time: ProgressBar,
    ways: Vec<ProgressBar>,
    plain: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let plain = bars.is_hidden();
        let style = |template: &str| {
            ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> ")
        };
        let time = bars.add(ProgressBar::new(0));
        time.set_style(style("{bar:36} {msg}"));
        let lines = SETUPS.iter().map(|way| {
            let line = bars.add(ProgressBar::new_spinner());
            line.set_style(style("  {prefix:18} {msg}"));
            line.set_prefix(way.name);
            line
        });
        let ways = lines.collect();
        Progress { bars, time, ways, plain }
    }

    /// Prints a line above the bars.
    pub(super) fn print_line(&self, text: &str) {
        if self.plain {
            eprintln!("{text}");
        } else {
            // Does nothing without a terminal.
            let _ = self.bars.println(text);
        }
    }

    /// Updates the display until dropped.
    pub(super) async fn update_display(
        &self,
        plan: &DemoPlan,
        start: Instant,
        live: &[Arc<LiveProgress>],
    ) {
        if self.plain {
            eprintln!("{}", plain_line("time", "WiFi", &SETUPS.map(|way| way.name.to_owned())));
        }
        let beat = if self.plain { PLAIN_LINE_INTERVAL } else { Duration::from_millis(200) };
        self.time.set_length(plan.run.as_millis() as u64);
        let mut ticks = tokio::time::interval_at(start, beat);
        loop {
            ticks.tick().await;
            let now = start.elapsed();
            let (wifi, state) = if now > plan.run {
                ("works", "waiting for stalled connections")
            } else if (plan.failure_time()..plan.return_time()).contains(&now) {
                ("DEAD", "WiFi is DOWN")
            } else {
                ("works", "WiFi works")
            };
            if self.plain {
                let texts: Vec<String> = live.iter().map(|live| echo_text(live, now)).collect();
                let time = format!("{:.1} s", now.as_secs_f64());
                eprintln!("{}", plain_line(&time, wifi, &texts));
                continue;
            }
            let texts: Vec<String> = live.iter().map(|live| variant_text(live, now)).collect();
            self.time.set_position((now.as_millis() as u64).min(plan.run.as_millis() as u64));
            self.time.set_message(format!("{:.1} s, {state}", now.as_secs_f64()));
            for (line, text) in self.ways.iter().zip(texts) {
                line.set_message(text);
            }
        }
    }

    /// Removes the bars before the table is printed.
    pub(super) fn finish(&self) {
        self.time.finish_and_clear();
        self.ways.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn variant_text(live: &LiveProgress, now: Duration) -> String {
    let file = bytes(live.file_bytes.load(Ordering::Relaxed));
    format!("echo {}, file {file}", echo_text(live, now))
}

/// Returns the latency of the latest echo, or the time without an answer.
fn echo_text(live: &LiveProgress, now: Duration) -> String {
    let answered_ms = live.answered_ms.load(Ordering::Relaxed);
    let silent = (now.as_millis() as u64).saturating_sub(answered_ms);
    match live.latency_us.load(Ordering::Relaxed) {
        _ if silent > STALL_MS => format!("none {:.1} s", silent as f64 / 1e3),
        // No answer yet.
        0 => "-".to_owned(),
        latency_us => format!("{:.1} ms", latency_us as f64 / 1e3),
    }
}

/// Returns a line of the display without a terminal, with a column for each variant.
fn plain_line(time: &str, wifi: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("  {cell:>13}")).collect();
    format!("{time:>8}  {wifi:5}{cells}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::demo::columns::COLUMNS;

    #[test]
    fn a_plain_line_has_a_column_for_each_variant_and_fits() {
        let live = |latency_us, answered_ms| LiveProgress {
            latency_us: AtomicU64::new(latency_us),
            answered_ms: AtomicU64::new(answered_ms),
            file_bytes: AtomicU64::new(999_000_000),
        };
        let now = Duration::from_secs(608);
        let texts: Vec<String> =
            [live(0, 608_000), live(1_234, 608_000), live(22_900, 608_000), live(9, 0)]
                .iter()
                .map(|live| echo_text(live, now))
                .collect();
        assert_eq!(texts, ["-", "1.2 ms", "22.9 ms", "none 608.0 s"]);
        let line = plain_line("608.0 s", "works", &texts);
        assert!(line.len() <= COLUMNS && line.ends_with("none 608.0 s"), "{line}");
        assert!(variant_text(&live(9, 0), now).len() + 21 <= COLUMNS);
    }
}
