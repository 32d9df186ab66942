use std::collections::BTreeMap;

use super::*;
use crate::experiment::{Message, Outcome, simulate, simulate_recorded};
use crate::workload::{Gap, Workload};

const LINKS: [(&str, &str); 2] =
    [("wifi", "rate=20M,delay=5ms,loss=2%,down=3s-4s"), ("lte", "rate=10M,delay=40ms")];
const GAP: Gap = Gap { least_ms: 50.0, most_ms: 150.0 };

fn bursts() -> Workload {
    Workload::Bursts { bytes: 20_000, gap: GAP, count: 60 }
}

fn workloads() -> [Workload; 6] {
    let (request_bytes, answer_bytes) = (300, 5_000);
    [
        bursts(),
        Workload::RandomBursts { least_bytes: 1, most_bytes: 9_000, gap: GAP, count: 60 },
        Workload::Ask { request_bytes, answer_bytes, gap: GAP, count: 60 },
        Workload::Dialogue {
            request_bytes,
            answer_bytes,
            pieces: (100, 150),
            unanswered_bytes: 900,
            gap: GAP,
            count: 60,
        },
        Workload::Exchange { bytes: 1_000_000 },
        Workload::Blocks { bytes: 8_192, lasts_ms: 5_000 },
    ]
}

fn variants() -> [Variant; 3] {
    let auto = Variant::new("auto");
    [auto.clone().scheduler("redundant"), Variant::single_path("wifi", "wifi"), auto]
}

/// Rows by column name, as in a CSV file.
fn rows(table: &Table) -> Vec<BTreeMap<String, String>> {
    let text = table.csv();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a heading").split(',').collect();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), names.len(), "{line}");
        names.iter().map(ToString::to_string).zip(fields.iter().map(ToString::to_string)).collect()
    };
    lines.map(row).collect()
}

fn number(row: &BTreeMap<String, String>, column: &str) -> Option<i64> {
    let text = &row[column];
    (!text.is_empty()).then(|| text.parse().unwrap_or_else(|_| panic!("{column}: {text}")))
}

fn recorded(workload: Workload, variant: &Variant) -> (Experiment, Outcome, Timeline) {
    let experiment = Experiment::over(&LINKS, workload);
    let config = TimelineConfig::default();
    let (outcome, timeline) = simulate_recorded(&experiment, variant, 3, config).expect("run");
    (experiment, outcome, timeline)
}

#[test]
fn a_run_with_time_lines_is_the_run_without() {
    for workload in workloads() {
        for variant in variants() {
            // Scoring forecasts splits the run in two.
            let variant = if variant.plain { variant } else { variant.with_forecast_scores() };
            let experiment = Experiment::over(&LINKS, workload);
            let plain = marline_sim::digest::digest_of_runs(|| {
                simulate(&experiment, &variant, 3).expect("run")
            });
            let interval = Duration::from_micros(7_300);
            let config = TimelineConfig { interval, ..TimelineConfig::default() };
            let (with, digest) = marline_sim::digest::digest_of_runs(|| {
                simulate_recorded(&experiment, &variant, 3, config).expect("run")
            });
            assert!(plain == (with.0, digest), "{workload:?} {variant:?}");
            assert!(!with.1.subflows.is_empty() && !with.1.copies.is_empty());
        }
    }
}

/// The receiving application's log and the copies agree.
#[test]
fn the_copy_that_won_is_the_one_whose_arrival_completed_the_message() {
    for (workload, variant) in
        workloads().into_iter().flat_map(|workload| variants().map(|variant| (workload, variant)))
    {
        let (_, outcome, timeline) = recorded(workload, &variant);
        let said = format!("{workload:?} {}", variant.name);
        let rows = rows(&timeline.copies);
        let mut by_message: BTreeMap<(String, i64), Vec<_>> = BTreeMap::new();
        for row in &rows {
            let index = number(row, "index").expect("an index");
            by_message.entry((row["from"].clone(), index)).or_default().push(row);
        }
        let mut there = BTreeMap::new();
        let (mut found, messages) = (0, outcome.messages(&workload));
        for ((from, index), copies) in by_message {
            let Some(read_us) = number(copies[0], "read_us") else { continue };
            let new: i64 = copies.iter().filter_map(|row| number(row, "new_bytes")).sum();
            assert_eq!(Some(new), number(copies[0], "bytes"), "{said} {index}: each byte once");
            let won: Vec<_> = copies.iter().filter(|row| row["won"] == "1").collect();
            assert_eq!(won.len(), 1, "{said} {index}");
            let complete = number(won[0], "complete_us").expect("complete");
            // The copy arrived at that time, or earlier and waited for data before it on its subflow.
            assert!(number(won[0], "arrived_us").is_some_and(|arrived| arrived <= complete));
            // A message can be read when it and all before it are complete.
            let all = there.entry(from.clone()).or_insert(complete);
            *all = complete.max(*all);
            assert_eq!(*all, read_us, "{said} {from} {index}");
            let sequence = if matches!(workload, Workload::Exchange { .. }) {
                i64::from(from == "client")
            } else {
                index
            };
            let message = messages.iter().find(|message| i64::from(message.index) == sequence);
            let Message { sent_ms, latency_ms, .. } = message.expect("the answer arrived");
            assert!(((sent_ms + latency_ms) * 1e3 - read_us as f64).abs() < 1.0, "{said} {index}");
            found += 1;
        }
        assert_eq!(found, messages.len(), "{said}");
    }
}

#[test]
fn copies_have_places_times_and_paths() {
    let (_, outcome, timeline) = recorded(bursts(), &Variant::new("two").scheduler("redundant"));
    let rows = rows(&timeline.copies);
    let mut paths = BTreeMap::new();
    for row in &rows {
        let at = |column| number(row, column);
        let (Some(written), Some(sent)) = (at("written_us"), at("sent_us")) else {
            panic!("{row:?}");
        };
        assert!(
            written <= sent && at("arrived_us").is_none_or(|arrived| sent < arrived),
            "{row:?}"
        );
        let end = at("offset_bytes").zip(at("copy_bytes")).map(|(offset, bytes)| offset + bytes);
        assert!(end.is_some_and(|end| end <= 20_000) && row["bytes"] == "20000", "{row:?}");
        if row["arrived_us"].is_empty() {
            assert_eq!((at("new_bytes"), at("won")), (Some(0), Some(0)), "{row:?}");
        }
        *paths.entry((row["path"].clone(), row["arrived_us"].is_empty())).or_insert(0) += 1;
    }
    // Both paths carry everything; WiFi loses packets, LTE does not.
    let count = |name: &str, lost| paths.get(&(name.to_owned(), lost)).copied().unwrap_or(0);
    assert!(count("wifi", true) > 10 && count("wifi", false) > 300, "{paths:?}");
    assert!(count("lte", false) > 300 && count("lte", true) == 0, "{paths:?}");
    assert_eq!(outcome.incomplete, None);
}

#[test]
fn samples_are_on_the_grid_and_at_changes_and_in_order() {
    let (_, _, timeline) = recorded(bursts(), &Variant::new("default"));
    let rows = rows(&timeline.subflows);
    let times: Vec<i64> = rows.iter().filter_map(|row| number(row, "time_us")).collect();
    assert!(times.is_sorted() && times[0] < 0, "the handshakes come before the start");
    let on_grid = rows.iter().filter(|row| number(row, "time_us") == Some(500_000)).count();
    assert_eq!(on_grid, 4, "two ends, two subflows");
    assert!(times.iter().any(|time| time % 10_000 != 0), "changes between");
    // WiFi is down from 2 s to 3 s after the start.
    let at_server = |path: &str, from: i64, to: i64| {
        rows.iter()
            .filter(|row| row["end"] == "server" && row["path"] == path)
            .filter(|row| number(row, "time_us").is_some_and(|time| (from..to).contains(&time)))
            .collect::<Vec<_>>()
    };
    let silent = at_server("wifi", 2_200_000, 2_900_000);
    assert!(
        !silent.is_empty() && silent.iter().any(|row| row["health"] == "unreachable"),
        "{silent:?}"
    );
    assert!(silent.iter().all(|row| row["health"] == "usable" || !row["cause"].is_empty()));
    for row in at_server("lte", 1_000_000, 2_000_000) {
        let at = |column| number(row, column).unwrap_or_else(|| panic!("{column}: {row:?}"));
        assert!((80_000..400_000).contains(&at("srtt_us")), "{row:?}");
        let [p50, p90, p99] = ["forecast_p50_us", "forecast_p90_us", "forecast_p99_us"].map(at);
        assert!(50_000 < p50 && p50 <= p90 && p90 <= p99, "{row:?}");
        assert!(
            at("cwnd_bytes") > 1_000 && at("in_flight_bytes") >= 0 && row["state"] == "established"
        );
    }
}

#[test]
fn rows_are_bounded_and_omitted_ones_counted() {
    let experiment = Experiment::over(&LINKS, bursts());
    let variant = Variant::new("default");
    let run = |max_rows| {
        let config = TimelineConfig { max_rows, ..TimelineConfig::default() };
        simulate_recorded(&experiment, &variant, 3, config).expect("run").1
    };
    let (whole, cut) = (run(1_000_000), run(100));
    assert_eq!((whole.subflows_left_out, whole.copies_left_out), (0, 0));
    assert_eq!(rows(&cut.subflows)[..], rows(&whole.subflows)[..100]);
    assert_eq!(cut.subflows_left_out as usize, whole.subflows.rows() - 100);
    assert_eq!(cut.copies.rows(), 100, "messages without a copy included");
    assert!(cut.copies_left_out > 500, "{}", cut.copies_left_out);
    let config = TimelineConfig { interval: Duration::ZERO, ..TimelineConfig::default() };
    let error = simulate_recorded(&experiment, &variant, 3, config).expect_err("no interval");
    assert!(error.to_string().contains("at least 10"), "{error}");
}

#[test]
fn every_column_is_documented() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/research/lab.md");
    let page = std::fs::read_to_string(page).expect("docs/research/lab.md");
    let (_, section) = page.split_once("### Time lines").expect("a section");
    let (samples, copies) = section.split_once("`copies.csv` has a row").expect("two tables");
    let Timeline { subflows, copies: copied, .. } = Timeline::empty();
    for (of, table) in [(subflows, samples), (copied, copies)] {
        for column in of.columns() {
            assert!(table.contains(&format!("`{}`", column.name())), "{}", column.name());
        }
    }
}
