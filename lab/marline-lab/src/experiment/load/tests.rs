//! Tests of several workloads in a run.

use super::Load;
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Experiment, Outcome, Variant, simulate};
use crate::runs::Record;
use crate::workload::{Gap, Workload};

const PATHS: &str = "[[path]]\nname = 'wifi'\nlink = 'rate=20M,delay=10ms'\n\
                     [[path]]\nname = 'lte'\nlink = 'rate=10M,delay=40ms'\n";

fn read(workloads: &str) -> Experiment {
    let file = ExperimentFile::from_toml("x.toml", &format!("{PATHS}{workloads}"));
    file.unwrap_or_else(|error| panic!("{error:#}")).experiment
}

fn run(experiment: &Experiment) -> Outcome {
    let outcome = simulate(experiment, &Variant::new("default"), 7).expect("run");
    assert_eq!(outcome.incomplete, None);
    outcome
}

/// Median latency of a workload, ms.
fn p50_ms(experiment: &Experiment, outcome: &Outcome, number: usize) -> f64 {
    let messages = outcome.flows[number].messages(&experiment.loads[number].workload);
    let latencies: Vec<f64> = messages.iter().map(|message| message.latency_ms).collect();
    crate::results::quantile(&latencies, 0.5)
}

const ECHO: &str = "[[workload]]\nkind = 'echo'\nbytes = 200\ngap = '100ms'\ncount = 50\n";

#[test]
fn workloads_share_paths_and_those_of_a_connection_its_order() {
    let bulk = "[[workload]]\nkind = 'bulk'\nlasts = '5s'\n";
    let alone = read(ECHO);
    let beside = read(&format!("{ECHO}{bulk}"));
    let within = read(&format!("{ECHO}connection = 'c'\n{bulk}connection = 'c'\n"));
    let [alone, beside, within] = [alone, beside, within].map(|experiment| {
        let outcome = run(&experiment);
        assert_eq!(outcome, run(&experiment), "equal seeds, equal runs");
        (p50_ms(&experiment, &outcome, 0), experiment, outcome)
    });
    assert!(alone.0 > 20.0 && alone.0 < 21.0, "{}", alone.0);
    // On its own connection an echo waits only in the queues of the links, otherwise also behind the send buffer.
    assert!(beside.0 > 1.2 * alone.0 && beside.0 < 60.0, "{}", beside.0);
    assert!(within.0 > 1.3 * beside.0, "{} {}", within.0, beside.0);
    for (_, experiment, outcome) in [&beside, &within] {
        let record = Record::from_outcome(experiment, outcome).expect("a record");
        let counts: Vec<_> = record.workloads().map(|record| record.messages.len()).collect();
        assert!(counts[0] == 50 && counts[1] > 100, "{counts:?}");
        let rates: Vec<f64> = record.workloads().map(|of| of.goodput_mbit_per_s).collect();
        assert!(rates[0] < 0.1 && (20.0..30.0).contains(&rates[1]), "{rates:?}");
        for record in record.workloads() {
            assert_eq!(record.paths.len(), 2);
            let bounds = record.latencies_ms().into_iter().zip(&record.least_ms);
            assert!(bounds.into_iter().all(|(latency, least)| latency >= *least));
        }
    }
}

#[test]
fn each_workload_has_its_own_schedule_and_start() {
    let late = ECHO.replace("count = 50", "count = 50\nname = 'late'\nfrom = '2s'");
    let random = |text: &str| text.replace("'100ms'", "['50ms', '150ms']");
    let experiment = read(&format!("{}{}", random(ECHO), random(&late)));
    let outcome = run(&experiment);
    let sent: Vec<Vec<f64>> = (0..2)
        .map(|number| {
            let messages = outcome.flows[number].messages(&experiment.loads[number].workload);
            messages.iter().map(|message| message.sent_ms).collect()
        })
        .collect();
    assert_eq!((sent[0][0], sent[1][0]), (0.0, 2_000.0));
    assert!((sent[1][9] - 2_000.0 - sent[0][9]).abs() > 1.0, "{sent:?}");
    let names: Vec<&str> = experiment.loads.iter().map(|load| load.name.as_str()).collect();
    assert_eq!(names, ["echo", "late"]);
}

#[test]
fn an_upload_fills_the_uplinks() {
    let links = [("wifi", "rate=20M,up.rate=5M,delay=10ms"), ("lte", "rate=10M,up.rate=3M")];
    let workload = Workload::Upload { bytes: 65_536, lasts_ms: 6_000 };
    let experiment = Experiment::over(&links, workload);
    let record = Record::from_outcome(&experiment, &run(&experiment)).expect("a record");
    assert!((6.5..8.0).contains(&record.goodput_mbit_per_s), "{}", record.goodput_mbit_per_s);
    assert!(record.paths.iter().all(|path| path.up_bytes > 10 * path.down_bytes));
}

#[test]
fn a_file_names_what_is_wrong_with_its_workloads() {
    for (workloads, wanted) in [
        (format!("{ECHO}{ECHO}"), "x.toml:12:1: two workloads are named `echo`: give each"),
        (format!("{ECHO}{}", ECHO.replace("echo", "ecko")), "x.toml:13:9: unknown workload `ecko`"),
        (ECHO.replace("count = 50", "cuont = 50"), "unknown field `cuont`"),
        ("workload = []\n".to_owned(), "expected 1 to 32 workloads, found 0"),
        ("workload = 5\n".to_owned(), "expected [workload] or [[workload]]"),
    ] {
        let text = match workloads.starts_with("workload") {
            true => format!("{workloads}{PATHS}"),
            false => format!("{PATHS}{workloads}"),
        };
        let error = ExperimentFile::from_toml("x.toml", &text).expect_err("wrong");
        let error = format!("{error:#}");
        assert!(error.contains(wanted), "wanted {wanted}, got:\n{error}");
    }
    let sweep = "[sweep]\n'workload.echo.bytes' = [200, 400]\n";
    let points =
        ExperimentFile::from_toml("x.toml", &format!("{PATHS}{ECHO}name = 'echo'\n{sweep}"))
            .and_then(|file| file.points())
            .expect("points");
    let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
    let expected = Workload::Ask { request_bytes: 400, answer_bytes: 400, gap, count: 50 };
    assert_eq!(
        points[1].file.experiment.loads,
        [Load { name: "echo".to_owned(), ..Load::new(expected) }]
    );
}

fn voice(links: &str, variant: &Variant) -> Record {
    let text = format!("{links}[[workload]]\nkind = 'voice'\nlasts = '10s'\n");
    let experiment = ExperimentFile::from_toml("x.toml", &text).expect("a file").experiment;
    let outcome = simulate(&experiment, variant, 7).expect("run");
    assert_eq!(outcome, simulate(&experiment, variant, 7).expect("run"));
    Record::from_outcome(&experiment, &outcome).expect("a record")
}

#[test]
fn a_call_loses_what_its_paths_lose_and_is_late_where_they_are_slow() {
    let late = |record: &Record| record.measures.of("late_percent").expect("a deadline");
    let calm = voice(PATHS, &Variant::new("default"));
    assert_eq!((calm.messages.len(), late(&calm)), (1_000, 0.0));
    assert!(calm.latencies_ms().iter().all(|latency| (10.0..12.0).contains(latency)));
    let lossy = PATHS.replace("delay=10ms", "delay=10ms,loss=10%");
    let alone = voice(&lossy, &Variant::single_path("wifi", "wifi"));
    assert!((60..140).contains(&alone.missing), "{}", alone.missing);
    assert!((late(&alone) - f64::from(alone.missing) / 10.0).abs() < 1e-9);
    let both = voice(&lossy, &Variant::new("default"));
    assert!(late(&both) < 1.0, "{}", late(&both));
    let slow = voice(PATHS, &Variant::single_path("lte", "lte"));
    assert_eq!(late(&slow), 0.0);
    let slower = voice(&PATHS.replace("40ms", "160ms"), &Variant::single_path("lte", "lte"));
    assert_eq!((late(&slower), slower.missing), (100.0, 0));
}

#[test]
fn flags_of_a_path_are_those_of_the_program() {
    let variants = "[[variant]]\nname = 'free'\n\
                    [[variant]]\nname = 'metered'\npaths = ['wifi', 'lte,metered,radio=lte']\n\
                    [[variant]]\nname = 'backup'\npaths = ['wifi', 'lte,backup']\n";
    let text = format!("{PATHS}[workload]\nkind = 'bulk'\nlasts = '5s'\n{variants}");
    let file = ExperimentFile::from_toml("x.toml", &text).expect("a file");
    let lte_bytes = |contestant: &crate::experiment::file::Contestant| {
        let outcome = simulate(&file.experiment, &contestant.variant, 7).expect("run");
        outcome.paths[1].down.offered_bytes
    };
    let bytes: Vec<u64> = file.contestants.iter().map(lte_bytes).collect();
    assert!(bytes[0] > 4_000_000 && bytes[1] < bytes[0] / 2 && bytes[2] < 100_000, "{bytes:?}");
    for (wrong, wanted) in [
        ("paths = ['wifi', 'lte,metred']", "x.toml:17:19: path `lte,metred`"),
        ("paths = ['wifi', 'lte,metred']", "flags are `backup`, `metered`"),
        ("mode = 'balance'", "unknown mode `balance`; known: handover, interactive, balanced"),
        ("datagram_policy = 'audo'", "unknown datagram policy `audo`"),
    ] {
        let text = text.replace("paths = ['wifi', 'lte,backup']", wrong);
        let error = format!("{:#}", ExperimentFile::from_toml("x.toml", &text).expect_err("wrong"));
        assert!(error.contains(wanted), "wanted {wanted}, got:\n{error}");
    }
}
