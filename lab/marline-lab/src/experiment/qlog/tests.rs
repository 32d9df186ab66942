use marline_qlog::{Course, Recording, TransmissionKind, read};

use super::super::simulation::subflows;
use super::*;
use crate::experiment::simulate;
use crate::workload::{Gap, Workload};

const LINKS: [(&str, &str); 2] =
    [("wifi", "rate=20M,delay=5ms,loss=2%,down=3s-4s"), ("lte", "rate=10M,delay=40ms")];

fn bursts() -> Workload {
    let gap = Gap { least_ms: 50.0, most_ms: 150.0 };
    Workload::Bursts { bytes: 20_000, gap, count: 60 }
}

fn traced(variant: &Variant, seed: u64) -> (Paths, Outcome, Vec<EndTrace>) {
    let experiment = Experiment::over(&LINKS, bursts());
    run_traced(&experiment, variant, seed, QlogConfig::default()).expect("a run")
}

fn recordings(traces: &[EndTrace]) -> Vec<Recording> {
    let read = |trace: &EndTrace| read(&trace.text).unwrap_or_else(|error| panic!("{error}"));
    traces.iter().map(read).collect()
}

/// Total bytes of the records with this name and purpose.
fn bytes(recordings: &[Recording], purposes: &[&str]) -> u64 {
    let records = recordings.iter().flat_map(|recording| &recording.records);
    let sent = records.filter(|record| record.name == "segment_sent");
    let wanted =
        sent.filter(|record| record.word("purpose").is_some_and(|p| purposes.contains(&p)));
    wanted.filter_map(|record| record.number("length")).sum()
}

#[test]
fn a_run_with_traces_is_the_run_without_and_its_traces_are_the_same_bytes_each_time() {
    let experiment = Experiment::over(&LINKS, bursts());
    for variant in [Variant::new("auto"), Variant::new("redundant").scheduler("redundant")] {
        let plain = marline_sim::digest::digest_of_runs(|| {
            simulate(&experiment, &variant, 3).expect("run")
        });
        let with = || {
            marline_sim::digest::digest_of_runs(|| {
                simulate_traced(&experiment, &variant, 3, QlogConfig::default()).expect("run")
            })
        };
        let ((outcome, traces), digest) = with();
        assert!(plain == (outcome, digest), "{variant:?}");
        assert!(traces == with().0.1, "{variant:?}");
        let ends: Vec<&str> = traces.iter().map(|trace| trace.vantage.name()).collect();
        assert_eq!(ends, ["client", "server"]);
        let other = simulate_traced(&experiment, &variant, 4, QlogConfig::default()).expect("run");
        assert!(traces != other.1, "another seed is another run");
    }
}

#[test]
fn trace_sums_match_the_connection_counters() {
    for (name, scheduler) in [("auto", "auto"), ("redundant", "redundant"), ("min-rtt", "min-rtt")]
    {
        let variant = Variant::new(name).scheduler(scheduler);
        let (paths, outcome, traces) = traced(&variant, 5);
        let recordings = recordings(&traces);
        let infos = subflows(&paths);
        let again = bytes(&recordings, &["copy", "reinjection"]);
        assert_eq!(again, infos.iter().map(|info| info.bytes_reinjected).sum::<u64>(), "{name}");
        assert_eq!(again, outcome.reinjected_bytes, "{name}");
        let repeated = bytes(&recordings, &["retransmission", "probe"]);
        assert_eq!(
            repeated,
            infos.iter().map(|info| info.bytes_retransmitted).sum::<u64>(),
            "{name}"
        );
        let all = ["new", "copy", "reinjection", "retransmission", "probe", "repair"];
        let sent = bytes(&recordings, &all);
        assert_eq!(sent, infos.iter().map(|info| info.bytes_sent).sum::<u64>(), "{name}");
        assert_eq!(bytes(&recordings, &["new"]), 60 * 20_000, "{name}");
        assert!(again > 0 && repeated > 0, "{name}: {again} {repeated}");
    }
}

/// The server sends, and WiFi dies during the transfer.
#[test]
fn a_dead_path_leaves_a_hole_and_its_data_moves_in_the_trace() {
    let links = [("wifi", "rate=20M,delay=5ms,down=3s-8s"), ("lte", "rate=10M,delay=40ms")];
    let experiment = Experiment::over(&links, bursts());
    // This scheduler leaves reinjection to the retransmission timer, as the kernel does, so delivery stops long
    // enough.
    let variant = Variant::new("linux").scheduler("linux");
    let (_, _, traces) =
        run_traced(&experiment, &variant, 3, QlogConfig::default()).expect("a run");
    let recordings = recordings(&traces);
    let (client, server) = (&recordings[0], &recordings[1]);
    let course = Course::from_recording(server);
    // Delivery stops when the link goes down, or at the first burst after that.
    let hole = course.holes.iter().find(|hole| hole.ended_ms > 3_000.0).expect("a hole");
    assert!((2_900.0..3_200.0).contains(&hole.began_ms), "{hole:?}");
    let dead =
        hole.unreachable.as_ref().map(|(subflow, _)| *subflow).expect("a subflow was silent");
    let rescued: Vec<_> = course
        .carried
        .iter()
        .filter(|carried| carried.manner == TransmissionKind::Reinjection)
        .collect();
    assert!(!rescued.is_empty());
    for carried in rescued {
        assert_ne!(carried.subflow, dead);
        let first = course.carried.iter().find(|first| {
            let holds = first.dsn <= carried.dsn && carried.dsn < first.dsn + first.bytes;
            holds && first.manner == TransmissionKind::New
        });
        assert_eq!(first.map(|first| first.subflow), Some(dead), "{carried:?}");
    }
    // The client received each of these bytes, on the other subflow.
    let came = |record: &&marline_qlog::Record| record.name == "data_received";
    let end = client
        .records
        .iter()
        .filter(came)
        .filter_map(|r| Some(r.number("dsn")? + r.number("length")?));
    assert_eq!(end.max(), Some(60 * 20_000));
    let decided = |recording: &Recording| {
        recording.records.iter().any(|record| record.name == "scheduler_decided")
    };
    assert!(!decided(client), "that scheduler gives no reasons");
    let auto = Variant::new("auto").scheduler("auto");
    let (_, _, traces) = run_traced(&experiment, &auto, 3, QlogConfig::default()).expect("a run");
    assert!(read(&traces[1].text).is_ok_and(|recording| decided(&recording)));
}

#[test]
fn a_trace_is_bounded_and_further_connections_get_none() {
    let experiment = Experiment::over(&LINKS, bursts());
    let config = QlogConfig { limit_bytes: 30_000, connections: 1 };
    let traces = simulate_traced(&experiment, &Variant::new("auto"), 3, config).expect("a run").1;
    assert!(traces.iter().all(|trace| trace.text.len() < 30_200));
    assert!(traces[1].text.contains("mptcp:trace_cut"));
    let none = QlogConfig { connections: 0, ..config };
    let (_, traces) = simulate_traced(&experiment, &Variant::new("auto"), 3, none).expect("a run");
    assert_eq!(traces, []);
}
