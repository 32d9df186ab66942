//! Rows of the comparison: links, workload and metric.

use std::time::Duration;

use super::contestant::Contestant::{
    self, Best, Duplicate, FirstPath, Kernel, Marline, SecondPath,
};
use crate::experiment::{Experiment, Fault, Moment, Stack, Variant};
use crate::workload::{Gap, Workload};

/// Metric of a row.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Measure {
    /// Time from a request to its answer.
    Answers,
    /// Time from the acceptance of a block by the sender's stack until it is read, and goodput.
    Blocks,
    /// Time from the start of a burst until it is read: for bursts before the fault, the burst hit by the fault, and
    /// bursts after it.
    Bursts,
    /// Goodput.
    Goodput,
    /// During a fault, the longest time without an answer and the longest wait for an answer.
    Handover,
}

/// Buffer sizes in bytes. `None`: tuned automatically.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Buffers {
    /// SO_SNDBUF of the kernel, which doubles the value for its overhead.
    pub kernel_send: Option<u64>,
    /// SO_RCVBUF of the kernel, which also doubles this value.
    pub kernel_receive: Option<u64>,
    /// Marline's send buffer, in bytes of payload.
    pub marline_send: Option<u64>,
    /// Marline's receive buffer, in bytes of payload.
    pub marline_receive: Option<u64>,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Short name.
    pub key: String,
    /// Title in the table.
    pub title: String,
    /// Links, workload and faults.
    pub experiment: Experiment,
    /// Metric.
    pub measure: Measure,
    /// Buffers of both ends.
    pub buffers: Buffers,
    /// Paths used only if no other path works.
    pub backup: Vec<String>,
    /// The best policies for this row.
    pub best: Variant,
    /// Compared variants.
    pub contestants: Vec<Contestant>,
    /// Default number of runs.
    pub repeats: u32,
    /// CPU demand, in halves of a processor.
    pub weight: u32,
}

/// Extent of a comparison.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A subset that takes an hour.
    Cover,
    /// Ten runs of everything.
    Full,
}

/// Runs of a variant that is not a reference.
const REPEATS: u32 = 10;
/// Runs of a small-window row in the subset. Each takes half a minute on two processors.
const SMALL_WINDOW_REPEATS: u32 = 3;

/// Every row.
#[must_use]
pub fn rows(extent: Extent) -> Vec<Row> {
    let mut rows = vec![
        echo("2a-a", "no jitter", "", ""),
        echo("2a-b", "jitter 5 / 12 ms", ",jitter=normal:5ms", ",jitter=normal:12ms"),
        blocks(),
        bursts(
            "2c-docs",
            400,
            Gap { least_ms: 300.0, most_ms: 1_000.0 },
            8,
            Moment::AroundBurst(8),
        ),
        bursts(
            "2c-maps",
            100_000,
            Gap { least_ms: 1_000.0, most_ms: 1_000.0 },
            6,
            Moment::InBurst(6, 0.0, 45.0),
        ),
        bursts(
            "2c-netflix",
            1_000_000,
            Gap { least_ms: 2_000.0, most_ms: 2_000.0 },
            4,
            Moment::InBurst(4, 0.0, 180.0),
        ),
        handover(),
        bulk(),
        loss(),
    ];
    rows.extend(small_window_rows(extent));
    rows
}

fn row(
    key: &str,
    title: String,
    links: [(&str, &str); 2],
    workload: Workload,
    measure: Measure,
) -> Row {
    let experiment = Experiment {
        warm_up: Duration::from_millis(1_500),
        patience: Duration::from_secs(15),
        ..Experiment::over(&links, workload)
    };
    Row {
        key: key.to_owned(),
        title,
        experiment,
        measure,
        buffers: Buffers::default(),
        backup: Vec::new(),
        best: Variant::new("best"),
        contestants: vec![Kernel, Marline],
        repeats: REPEATS,
        weight: 1,
    }
}

fn echo(key: &str, what: &str, wifi: &str, lte: &str) -> Row {
    let wifi = format!("rate=20M,delay=45ms,loss=1.5%{wifi}");
    let lte = format!("rate=10M,delay=52.5ms,loss=0.1%{lte}");
    let gap = Gap { least_ms: 100.0, most_ms: 200.0 };
    let ask = Workload::Ask { request_bytes: 200, answer_bytes: 200, gap, count: 200 };
    let title = format!("echo of 200 bytes under loss, {what}");
    Row {
        contestants: vec![Duplicate, Kernel, Marline, Best],
        best: Variant::new("redundant").scheduler("redundant"),
        ..row(key, title, [("wifi", &wifi), ("lte", &lte)], ask, Measure::Answers)
    }
}

fn blocks() -> Row {
    let links = [("wifi", "rate=8M,delay=10ms,queue=80ms"), ("3g", "rate=2M,delay=75ms,queue=2s")];
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: 30_000 };
    let title = "blocks of 8 KiB, send buffer of 100k".to_owned();
    Row {
        // Payload that the kernel held with the option set to 100k.
        buffers: Buffers {
            kernel_send: Some(100_000),
            marline_send: Some(152_000),
            ..Buffers::default()
        },
        contestants: vec![FirstPath, SecondPath, Kernel, Marline, Best],
        best: Variant::new("min-rtt+orp").scheduler("min-rtt+orp"),
        ..row("2b", title, links, workload, Measure::Blocks).with_warm_up(8_000)
    }
}

/// WiFi and LTE as in the path failures.
const FAILING_LINKS: [(&str, &str); 2] =
    [("wifi", "rate=50M,delay=6.5ms,queue=100ms"), ("lte", "rate=20M,delay=42.5ms,queue=300ms")];

/// Number of bursts after the affected one.
const BURSTS_AFTER_FAULT: u32 = 4;

fn bursts(key: &str, bytes: u32, gap: Gap, hit: u32, moment: Moment) -> Row {
    let workload = Workload::Bursts { bytes, gap, count: hit + BURSTS_AFTER_FAULT + 1 };
    let title = format!("bursts of {bytes} bytes, WiFi dies");
    // A copy pays off for a one-packet message. A longer one depends on how fast its last bytes arrive.
    let best = match bytes {
        0..=1_400 => Variant::new("redundant-idle").scheduler("redundant-idle"),
        _ => Variant::new("papd, bbr").scheduler("papd").congestion("bbr"),
    };
    Row {
        contestants: vec![FirstPath, SecondPath, Kernel, Marline, Best],
        best,
        ..row(key, title, FAILING_LINKS, workload, Measure::Bursts).with_failure(moment)
    }
}

fn handover() -> Row {
    let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
    let ask = Workload::Ask { request_bytes: 100, answer_bytes: 1_000, gap, count: 200 };
    let title = "ten requests a second, WiFi dies, LTE is a backup".to_owned();
    let row = row("2e", title, FAILING_LINKS, ask, Measure::Handover);
    let backup = vec!["lte".to_owned()];
    Row { backup, ..row.with_failure(Moment::Between(7_000.0, 8_000.0)) }
}

fn bulk() -> Row {
    let links =
        [("wifi", "rate=50M,delay=10ms,queue=100ms"), ("lte", "rate=20M,delay=30ms,queue=100ms")];
    let workload = Workload::Blocks { bytes: 65_536, lasts_ms: 15_000 };
    let title = "bulk over 50 and 20 Mbit/s".to_owned();
    Row { weight: 2, ..row("bulk", title, links, workload, Measure::Goodput).with_warm_up(3_000) }
}

/// Rows with one path: Marline's TCP compared with the kernel's.
fn loss() -> Row {
    let link = ("wifi", "rate=50M,delay=10ms,queue=100ms,loss=0.1%");
    let workload = Workload::Blocks { bytes: 65_536, lasts_ms: 30_000 };
    let title =
        "bulk over one path of 50 Mbit/s, RTT 20 ms, 0.1 % loss in each direction".to_owned();
    let mut row = Row {
        weight: 2,
        contestants: vec![FirstPath, Marline],
        ..row("loss", title, [link, link], workload, Measure::Goodput).with_warm_up(3_000)
    };
    row.experiment.scenario.paths.truncate(1);
    row
}

/// RTT of the second path in ms, and its loss in percent.
const SMALL_WINDOWS: [(u32, &str); 10] = [
    (100, "0.1"),
    (100, "1"),
    (150, "0"),
    (150, "0.01"),
    (150, "0.1"),
    (150, "1"),
    (200, "0"),
    (200, "0.01"),
    (200, "0.1"),
    (200, "1"),
];

fn small_window_rows(extent: Extent) -> Vec<Row> {
    let window = 660 << 10;
    let one = |key: &str, title: String, rtt_ms: u32, loss: &str, contestants: Vec<Contestant>| {
        let second = format!(
            "rate=100M,delay={}us,queue=20ms{}",
            rtt_ms * 500,
            if loss == "0" { String::new() } else { format!(",loss={loss}%") }
        );
        let first = "rate=100M,delay=25ms,queue=20ms";
        let workload = Workload::Blocks { bytes: 65_536, lasts_ms: 25_000 };
        Row {
            buffers: Buffers {
                kernel_send: Some(4_000_000),
                kernel_receive: Some(window),
                marline_send: Some(4_000_000),
                marline_receive: Some(window),
            },
            weight: 4,
            contestants,
            repeats: if extent == Extent::Cover { SMALL_WINDOW_REPEATS } else { REPEATS },
            ..row(key, title, [("one", first), ("two", &second)], workload, Measure::Goodput)
                .with_warm_up(8_000)
        }
    };
    let alone = "window of 660 KiB, the better path alone".to_owned();
    let mut rows = vec![one("2d-alone", alone, 200, "0", vec![FirstPath])];
    rows.extend(SMALL_WINDOWS.map(|(rtt_ms, loss)| {
        let title = format!("window of 660 KiB, second path {rtt_ms} ms, loss {loss} %");
        one(&format!("2d-{rtt_ms}-{loss}"), title, rtt_ms, loss, vec![Kernel, Marline])
    }));
    rows
}

impl Row {
    /// Number of runs of a variant.
    #[must_use]
    pub fn run_count(&self, contestant: Contestant) -> u32 {
        let measured = self.contestants.iter().all(|other| *other != Contestant::Kernel);
        let few = contestant.is_reference() && !measured;
        if few { self.repeats.min(3) } else { self.repeats }
    }

    /// Stack, settings (paths, policies, buffers) and experiment of a variant. References run without the row's
    /// faults.
    #[must_use]
    pub fn variant_setup(&self, contestant: Contestant) -> (Stack, Variant, Experiment) {
        let mut experiment = self.experiment.clone();
        let name = |number: usize| experiment.scenario.paths.get(number).map(|p| p.name.clone());
        let mut variant = match contestant {
            Contestant::Best => self.best.clone(),
            _ => Variant::new(contestant.key()),
        };
        match contestant {
            Contestant::FirstPath => variant.paths = name(0).into_iter().collect(),
            Contestant::SecondPath => variant.paths = name(1).into_iter().collect(),
            _ => variant.backup.clone_from(&self.backup),
        }
        if contestant.is_reference() {
            experiment.faults.clear();
        }
        let buffers = &self.buffers;
        (variant.send_buffer, variant.receive_buffer) = if contestant.is_marline() {
            (buffers.marline_send, buffers.marline_receive)
        } else {
            (buffers.kernel_send, buffers.kernel_receive)
        };
        (contestant.stack(), variant, experiment)
    }

    /// Title of a variant in tables.
    #[must_use]
    pub fn title_of(&self, contestant: Contestant) -> String {
        match contestant {
            Contestant::Best => format!("Marline, {}", self.best.name),
            _ => contestant.to_string(),
        }
    }

    fn with_warm_up(mut self, ms: u64) -> Row {
        self.experiment.warm_up = Duration::from_millis(ms);
        self
    }

    fn with_failure(mut self, moment: Moment) -> Row {
        let first = &self.experiment.scenario.paths[0].name;
        self.experiment.faults = vec![Fault::down(first, moment)];
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_valid_links() {
        for row in rows(Extent::Full) {
            row.experiment.check().unwrap_or_else(|error| panic!("{}: {error:#}", row.key));
        }
    }

    #[test]
    fn row_keys_are_unique() {
        let rows = rows(Extent::Cover);
        let keys: std::collections::BTreeSet<&str> = rows.iter().map(|r| r.key.as_str()).collect();
        assert_eq!(keys.len(), rows.len());
    }
}
