use super::*;
use crate::experiment::file::ExperimentFile;
use crate::results::Format;

const TEXT: &str = "\
[[path]]
name = 'wifi'
link = 'rate=20M,delay=5ms,loss=2%'
[[path]]
name = 'lte'
link = 'rate=10M,delay=40ms'
[workload]
kind = 'bursts'
bytes = ['5kB', '20kB']
gap = '200ms'
count = 10
[[variant]]
name = 'default'
[[variant]]
name = 'both, twice'
scheduler = 'redundant'
[sweep]
'path.lte.delay' = ['40ms', '80ms']
";

fn scratch(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("marline-runs-{name}-{}", std::process::id()))
}

fn jobs() -> Vec<Job> {
    let file = ExperimentFile::from_toml("x.toml", TEXT).expect("file");
    Job::series(&file.experiment, &file.lanes(&[Stack::Sim]).expect("lanes"), 4)
}

/// Every output of a series run on this many threads.
fn outputs(jobs: &[Job], threads: usize) -> [String; 4] {
    let place = scratch(&format!("threads-{threads}"));
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: threads, instance: "none".to_owned(), files: None };
    let records = series.run(jobs, &|_| {}).expect("run");
    let summary = Summary::from_runs(jobs, &records);
    let json = serde_json::to_string(&summary.json("title")).expect("json");
    summary.write(&place, &[Format::Csv]).expect("files");
    let read = |name: &str| std::fs::read_to_string(place.join(name)).expect(name);
    let files = [read("messages.csv"), read("runs.csv")];
    std::fs::remove_dir_all(&place).expect("clean up");
    let [messages, runs] = files;
    [messages, runs, json, format!("{:?}", summary.table())]
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let jobs = jobs();
    let one = outputs(&jobs, 1);
    assert_eq!(one, outputs(&jobs, 4));
    let [messages, runs, json, table] = one;
    // Two variants, four seeds, ten bursts, and the header.
    assert_eq!((messages.lines().count(), runs.lines().count()), (81, 9));
    assert!(messages.contains("sim,\"both, twice\",4,9,"), "{messages}");
    let columns = |line: &str| line.replace("both, twice", "").split(',').count();
    let widths: std::collections::BTreeSet<usize> = runs.lines().map(columns).collect();
    assert_eq!(widths.len(), 1, "{runs}");
    // Both path names imply radios, so every output has joules.
    assert!(runs.contains("lte_traffic_j,lte_idle_j"), "{runs}");
    assert!(table.contains("J wifi (idle)") && json.contains("\"traffic_j\":"), "{table}");
    assert!(json.contains("\"doubtful\":0") && table.contains("p99 / sim default"), "{table}");
}

#[test]
fn finished_runs_are_not_repeated_and_new_ones_are_run() {
    let place = scratch("resumed");
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: 2, instance: "none".to_owned(), files: None };
    let jobs = jobs();
    let ran = |jobs: &[Job]| {
        let count = std::sync::atomic::AtomicUsize::new(0);
        let note = |_: &Progress<'_>| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        };
        let records = series.run(jobs, &note).expect("run");
        (count.into_inner(), records)
    };
    // The series is killed after three runs; the file of a run that was being written does not count.
    assert_eq!(ran(&jobs[..3]).0, 3);
    std::fs::write(place.join(format!("{}.json", store.key(&jobs[3]))), "{\"mess").expect("cut");
    let (made, records) = ran(&jobs);
    assert_eq!((made, ran(&jobs).0), (5, 0));
    assert_eq!(ran(&jobs).1, records);
    // A sweep shares the point that equals the file itself.
    let file = ExperimentFile::from_toml("x.toml", TEXT).expect("file");
    let mut swept = Vec::new();
    for point in file.points().expect("points") {
        let lanes = point.file.lanes(&[Stack::Sim]).expect("lanes");
        for mut job in Job::series(&point.file.experiment, &lanes, 4) {
            job.point.clone_from(&point.values);
            swept.push(job);
        }
    }
    let (made, records) = ran(&swept);
    assert_eq!((swept.len(), made), (16, 16));
    assert_eq!(ran(&swept).0, 0);
    Summary::from_runs(&swept, &records).write(&place, &[Format::Csv]).expect("files");
    let read = |name: &str| std::fs::read_to_string(place.join(name)).expect(name);
    let (long, runs, messages) = (read("sweep.csv"), read("runs.csv"), read("messages.csv"));
    assert!(long.starts_with("path.lte.delay_ms,stack,variant,seed,measure,value\n"), "{long}");
    assert!(long.contains("\n80,sim,default,1,p50_ms,"), "{long}");
    assert!(runs.contains("\n80,sim,\"both, twice\",4,10,0,"), "{runs}");
    // One row for each message of each run of a sweep.
    assert_eq!(messages.lines().count(), 1 + 16 * 10);
    assert!(messages.contains("\n40,sim,default,1,0,"), "{messages}");
    std::fs::remove_dir_all(&place).expect("clean up");
}

#[test]
fn batched_and_in_memory_sweeps_are_identical() {
    let file = ExperimentFile::from_toml("x.toml", TEXT).expect("file");
    let sweep = Sweep::from_file(&file, &[Stack::Sim], Seeds::Own(4)).expect("sweep");
    let jobs = sweep.jobs(0..usize::MAX);
    assert_eq!((sweep.runs(), jobs.len()), (16, 16));
    // Pieces cover the plan, each within one variant at one combination.
    let pieces = sweep.pieces(3);
    assert_eq!(pieces[..3], [0..3, 3..4, 4..7]);
    assert_eq!(pieces.iter().cloned().flatten().collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    for piece in &pieces {
        let of: Vec<&Job> = jobs[piece.clone()].iter().collect();
        let same = |job: &&Job| job.point == of[0].point && job.lane == of[0].lane;
        assert!(of.iter().all(same), "{piece:?}");
    }
    // Three shards, one of them run twice, from several stores with the same directory.
    let (place, whole) = (scratch("shards"), scratch("whole"));
    let store = |place: &std::path::Path| Store::open(&place.join("runs"), false).expect("store");
    let made = |shard: Option<Shard>, place: &std::path::Path| {
        let store = store(place);
        let series = Series { store: &store, jobs: 2, instance: "none".to_owned(), files: None };
        sweep.run(&series, shard, &|_| {}).expect("runs");
    };
    for shard in ["3/3", "1/3", "1/3"] {
        made(shard.parse().ok(), &place);
    }
    let both = [Format::Csv, Format::Parquet];
    // Earlier tables remain if new ones fail.
    let earlier = place.join("messages.csv");
    std::fs::write(&earlier, "earlier").expect("written");
    let refused = sweep.collect(&store(&place), &place, &both).expect_err("one shard is missing");
    let said = refused.to_string();
    assert!(said.contains("3 runs of this combination are not in"), "{said}");
    assert!(said.contains("the first: path.lte.delay = 40ms, sim default seed 2"), "{said}");
    let entries = std::fs::read_dir(&place).expect("directory").flatten();
    let mut left: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["messages.csv", "runs"]);
    assert_eq!(std::fs::read(&earlier).expect("file"), b"earlier");
    made("2/3".parse().ok(), &place);
    let swept = sweep.collect(&store(&place), &place, &both).expect("files");
    // The same runs, all held in memory.
    let whole_store = store(&whole);
    let series = Series { store: &whole_store, jobs: 1, instance: "none".to_owned(), files: None };
    let records = series.run(&jobs, &|_| {}).expect("runs");
    let summary = Summary::from_runs(&jobs, &records);
    summary.write(&whole, &both).expect("files");
    StoredRuns::write_list(&whole, &whole_store, &jobs).expect("file");
    let names =
        "messages.csv runs.csv sweep.csv messages.parquet runs.parquet sweep.parquet series.json";
    for name in names.split(' ') {
        let read = |place: &std::path::Path| std::fs::read(place.join(name)).expect(name);
        assert!(read(&place) == read(&whole), "{name}");
    }
    let table = swept.table();
    assert_eq!(table.len(), 1 + 2 * 2, "{table:?}");
    assert_eq!(table[0][..3], ["path.lte.delay", "stack", "variant"], "{table:?}");
    let first = Summary::from_runs(&jobs[..8], &records[..8]);
    assert_eq!(table[1][3], crate::figure::number(first.lanes[0].latency.p50_ms), "{table:?}");
    for place in [place, whole] {
        std::fs::remove_dir_all(&place).expect("clean up");
    }
}

#[test]
fn a_run_made_by_several_writers_is_stored_completely() {
    let place = scratch("at-once");
    let (jobs, record) = (jobs(), Record::failed("x".repeat(300_000)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = Store::open(&place, false).expect("store");
                for _ in 0..20 {
                    store.save(&jobs[0], &record).expect("kept");
                    assert_eq!(store.last(&jobs[0]).as_ref(), Some(&record), "whole");
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(&place).expect("files").count(), 1, "nothing else is left");
    std::fs::remove_dir_all(&place).expect("clean up");
}

#[test]
fn forecast_calibration_is_shown_on_request() {
    let text = TEXT.replacen("name = 'default'", "name = 'default'\nscore_forecasts = true", 1);
    let file = ExperimentFile::from_toml("x.toml", &text).expect("file");
    let jobs = Job::series(&file.experiment, &file.lanes(&[Stack::Sim]).expect("lanes"), 2);
    let place = scratch("scored");
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: 2, instance: "none".to_owned(), files: None };
    let records = series.run(&jobs, &|_| {}).expect("run");
    // Records read from disk equal those measured.
    assert_eq!(records, series.run(&jobs, &|_| {}).expect("run"));
    std::fs::remove_dir_all(&place).expect("clean up");
    let table = Summary::from_runs(&jobs, &records).calibration();
    let names: Vec<&[String]> = table.iter().map(|row| &row[..3]).collect();
    assert_eq!(names[1..], [["sim", "default", "wifi"], ["sim", "default", "lte"]], "{table:?}");
    assert!(table[1][4].ends_with(" %"), "{table:?}");
    assert!(Summary::from_runs(&jobs[2..], &records[2..]).calibration().is_empty());
}

#[test]
fn a_failed_run_is_reported_and_retried() {
    let mut jobs = jobs();
    jobs.truncate(1);
    jobs[0].lane.variant.scheduler = Some("nothing".to_owned());
    let place = scratch("failing");
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: 1, instance: "none".to_owned(), files: None };
    let records = series.run(&jobs, &|_| {}).expect("run");
    let summary = Summary::from_runs(&jobs, &records);
    assert_eq!((summary.lanes[0].runs, summary.lanes[0].failed), (0, 1));
    let warnings = summary.warnings();
    assert!(warnings[0].contains("FAILED") && warnings[0].contains("nothing"), "{warnings:?}");
    assert_eq!(series.missing_jobs(&jobs).len(), 1);
    std::fs::remove_dir_all(&place).expect("clean up");
}

#[test]
fn only_old_partial_files_are_removed() {
    use std::time::{Duration, SystemTime};
    let place = scratch("abandoned");
    std::fs::create_dir(&place).expect("a directory");
    let make = |name: &str, at: SystemTime| {
        let file = std::fs::File::create(place.join(name)).expect("a file");
        file.set_modified(at).expect("its time");
    };
    let (now, minute) = (SystemTime::now(), Duration::from_secs(60));
    let day = 24 * 60 * minute;
    make("0a.0000000000000001.partial", now - 30 * day);
    make("0b.0000000000000002.partial", now - day - minute);
    make("0b.0000000000000003.partial", now - day + minute);
    make("0c.0000000000000004.partial", now);
    make("0d.0000000000000005.partial", now + 2 * day);
    make("0a.json", now - 30 * day);
    Store::open(&place, false).expect("store");
    let names = std::fs::read_dir(&place).expect("it is there").flatten();
    let names = names.map(|entry| entry.file_name().into_string().expect("text"));
    let left: std::collections::BTreeSet<String> = names.collect();
    std::fs::remove_dir_all(&place).expect("clean up");
    let kept = ["0a.json", "0b.0000000000000003.partial", "0c.0000000000000004.partial"];
    assert_eq!(
        left,
        [&kept[..], &["0d.0000000000000005.partial"]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect()
    );
}
