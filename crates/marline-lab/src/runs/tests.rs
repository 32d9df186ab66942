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

/// Every output of a series run on so many threads.
fn outputs(jobs: &[Job], threads: usize) -> [String; 4] {
    let place = scratch(&format!("threads-{threads}"));
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: threads, instance: "none".to_owned() };
    let records = series.run(jobs, &|_| {}).expect("run");
    let summary = Summary::of(jobs, &records);
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
    // Two variants, four seeds, ten bursts, and the head.
    assert_eq!((messages.lines().count(), runs.lines().count()), (81, 9));
    assert!(messages.contains("sim,\"both, twice\",4,9,"), "{messages}");
    let columns = |line: &str| line.replace("both, twice", "").split(',').count();
    let widths: std::collections::BTreeSet<usize> = runs.lines().map(columns).collect();
    assert_eq!(widths.len(), 1, "{runs}");
    // Both names are those of radios: joules stand in every form.
    assert!(runs.contains("lte_traffic_j,lte_idle_j"), "{runs}");
    assert!(table.contains("J wifi (idle)") && json.contains("\"traffic_j\":"), "{table}");
    assert!(json.contains("\"doubtful\":0") && table.contains("p99 / sim default"), "{table}");
}

#[test]
fn what_was_run_is_not_run_again_and_what_is_another_is() {
    let place = scratch("resumed");
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: 2, instance: "none".to_owned() };
    let jobs = jobs();
    let ran = |jobs: &[Job]| {
        let count = std::sync::atomic::AtomicUsize::new(0);
        let note = |_: &Progress<'_>| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        };
        let records = series.run(jobs, &note).expect("run");
        (count.into_inner(), records)
    };
    // Killed after three runs; a file that was being written then does not count.
    assert_eq!(ran(&jobs[..3]).0, 3);
    std::fs::write(place.join(format!("{}.json", store.key(&jobs[3]))), "{\"mess").expect("cut");
    let (made, records) = ran(&jobs);
    assert_eq!((made, ran(&jobs).0), (5, 0));
    assert_eq!(ran(&jobs).1, records);
    // A sweep shares the point that the file itself is.
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
    Summary::of(&swept, &records).write(&place, &[Format::Csv]).expect("files");
    let read = |name: &str| std::fs::read_to_string(place.join(name)).expect(name);
    let (long, runs, messages) = (read("sweep.csv"), read("runs.csv"), read("messages.csv"));
    assert!(long.starts_with("path.lte.delay_ms,stack,variant,seed,measure,value\n"), "{long}");
    assert!(long.contains("\n80,sim,default,1,p50_ms,"), "{long}");
    assert!(runs.contains("\n80,sim,\"both, twice\",4,10,0,"), "{runs}");
    // Each message of each run of a sweep.
    assert_eq!(messages.lines().count(), 1 + 16 * 10);
    assert!(messages.contains("\n40,sim,default,1,0,"), "{messages}");
    std::fs::remove_dir_all(&place).expect("clean up");
}

#[test]
fn who_asks_is_told_how_well_forecasts_held() {
    let text = TEXT.replacen("name = 'default'", "name = 'default'\nscore_forecasts = true", 1);
    let file = ExperimentFile::from_toml("x.toml", &text).expect("file");
    let jobs = Job::series(&file.experiment, &file.lanes(&[Stack::Sim]).expect("lanes"), 2);
    let place = scratch("scored");
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: 2, instance: "none".to_owned() };
    let records = series.run(&jobs, &|_| {}).expect("run");
    // What is read from the disk is what was measured.
    assert_eq!(records, series.run(&jobs, &|_| {}).expect("run"));
    std::fs::remove_dir_all(&place).expect("clean up");
    let table = Summary::of(&jobs, &records).calibration();
    let names: Vec<&[String]> = table.iter().map(|row| &row[..3]).collect();
    assert_eq!(names[1..], [["sim", "default", "wifi"], ["sim", "default", "lte"]], "{table:?}");
    assert!(table[1][4].ends_with(" %"), "{table:?}");
    assert!(Summary::of(&jobs[2..], &records[2..]).calibration().is_empty());
}

#[test]
fn a_run_that_fails_is_told_and_tried_again() {
    let mut jobs = jobs();
    jobs.truncate(1);
    jobs[0].lane.variant.scheduler = Some("nothing".to_owned());
    let place = scratch("failing");
    let store = Store::open(&place, false).expect("store");
    let series = Series { store: &store, jobs: 1, instance: "none".to_owned() };
    let records = series.run(&jobs, &|_| {}).expect("run");
    let summary = Summary::of(&jobs, &records);
    assert_eq!((summary.lanes[0].runs, summary.lanes[0].failed), (0, 1));
    let warnings = summary.warnings();
    assert!(warnings[0].contains("FAILED") && warnings[0].contains("nothing"), "{warnings:?}");
    assert_eq!(series.missing(&jobs).len(), 1);
    std::fs::remove_dir_all(&place).expect("clean up");
}
