//! Progress display of the demo: bars on a terminal, plain lines elsewhere.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::application::Live;
use super::plan::{DemoPlan, WAYS};
use crate::path_table::bytes;

/// Silence beyond this is shown as a stall.
const STALL_MS: u64 = 300;

/// Between two lines where there is no terminal.
const PLAIN: Duration = Duration::from_secs(2);

/// The display.
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
        time.set_style(style("{bar:40} {msg}"));
        let lines = WAYS.iter().map(|way| {
            let line = bars.add(ProgressBar::new_spinner());
            line.set_style(style("  {prefix:18} {msg}"));
            line.set_prefix(way.name);
            line
        });
        let ways = lines.collect();
        Progress { bars, time, ways, plain }
    }

    /// Something worth a line of its own.
    pub(super) fn say(&self, text: &str) {
        if self.plain {
            eprintln!("{text}");
        } else {
            // Without a terminal there is nobody to tell.
            let _ = self.bars.println(text);
        }
    }

    /// Follows a run until it is dropped.
    pub(super) async fn follow(&self, plan: &DemoPlan, start: Instant, live: &[Arc<Live>]) {
        let beat = if self.plain { PLAIN } else { Duration::from_millis(200) };
        self.time.set_length(plan.run.as_millis() as u64);
        let mut ticks = tokio::time::interval_at(start, beat);
        loop {
            ticks.tick().await;
            let now = start.elapsed();
            let state = if now > plan.run {
                "waiting for stalled connections"
            } else if (plan.dies()..plan.returns()).contains(&now) {
                "WiFi is DEAD"
            } else {
                "WiFi works"
            };
            let texts: Vec<String> = live.iter().map(|live| way_text(live, now)).collect();
            if self.plain {
                let named =
                    WAYS.iter().zip(&texts).map(|(way, text)| format!("{}: {text}", way.name));
                let all = named.collect::<Vec<String>>().join(" | ");
                eprintln!("{:5.1} s, {state} | {all}", now.as_secs_f64());
                continue;
            }
            self.time.set_position((now.as_millis() as u64).min(plan.run.as_millis() as u64));
            self.time.set_message(format!("{:.1} s, {state}", now.as_secs_f64()));
            for (line, text) in self.ways.iter().zip(texts) {
                line.set_message(text);
            }
        }
    }

    /// Removes the bars: the table follows.
    pub(super) fn finish(&self) {
        self.time.finish_and_clear();
        self.ways.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn way_text(live: &Live, now: Duration) -> String {
    let latency = live.latency_us.load(Ordering::Relaxed) as f64 / 1e3;
    let file = bytes(live.file_bytes.load(Ordering::Relaxed));
    let silent = (now.as_millis() as u64).saturating_sub(live.answered_ms.load(Ordering::Relaxed));
    if silent > STALL_MS && now < Duration::from_secs(3_600) {
        format!("no echo for {:.1} s, file {file}", silent as f64 / 1e3)
    } else {
        format!("echo {latency:.1} ms, file {file}")
    }
}
