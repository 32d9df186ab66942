//! Test of `--qlog` in real programs: a download over WiFi and LTE, during which WiFi fails. The traces of both
//! ends must contain the gap, the rescued data and its arrival. Needs root.

use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marline_lab::scenario::Side;
use marline_qlog::{CarriedBytes, Course, Recording, TransmissionKind, Vantage, read};

use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};

const WIFI: &str = "rate=20M,delay=10ms,queue=50ms";
const LTE: &str = "rate=20M,delay=30ms,queue=50ms";

const BYTES: usize = 8_000_000;

/// Sends the bytes to any client that connects.
#[test]
fn source() {
    if two_uplinks::plays(source) {
        two_uplinks::pour(BYTES);
    }
}

/// Receives the bytes: reports when half of them, and when all of them have arrived.
#[test]
fn sink() {
    if !two_uplinks::plays(sink) {
        return;
    }
    let mut stream = TcpStream::connect("127.0.0.1:9000").expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if count < BYTES / 2 && count + n >= BYTES / 2 {
            println!("half");
        }
        count += n;
    }
    println!("sum {count}");
}

/// Returns the matching trace in this directory, as soon as there is one.
fn trace(directory: &Path, fits: impl Fn(&Recording) -> bool) -> (PathBuf, Recording) {
    let begun = Instant::now();
    let mut why = String::new();
    while begun.elapsed() < PATIENCE {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).expect("a trace");
            match read(&text) {
                Ok(recording) if fits(&recording) => return (entry.path(), recording),
                Ok(recording) => why = format!("{} records, none fits", recording.records.len()),
                // A half-written record is not an error. Any other problem is.
                Err(error) => panic!("{}: {error}", entry.path().display()),
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("no such trace in {}: {why}", directory.display());
}

/// Returns the subflows on which the byte with this sequence number was received in order.
fn came_on(recording: &Recording, dsn: u64) -> Vec<u64> {
    let came = recording.records.iter().filter(|record| record.name == "data_received");
    let holds = |record: &&marline_qlog::Record| {
        let first = record.number("dsn").unwrap_or_default();
        (first..first + record.number("length").unwrap_or_default()).contains(&dsn)
    };
    came.filter(holds).filter_map(|record| record.number("subflow")).collect()
}

/// Returns the slot of the subflow over the interface with this address at the client, once it exists.
fn slot(recording: &Recording, address: &str) -> Option<u64> {
    let of = |record: &&marline_qlog::Record| {
        let ends = [record.word("local"), record.word("remote")];
        record.name == "subflow_created"
            && ends.into_iter().flatten().any(|end| end.starts_with(address))
    };
    recording.records.iter().find(of)?.number("subflow")
}

#[test]
fn both_ends_trace_the_gap_of_a_dead_path_and_the_rescued_data() {
    let _others = support::among_others();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let mut hosts = TwoUplinks::set(&two_uplinks::wifi_and_lte(WIFI, LTE), "qlog", dir.path());
    hear(&hosts.role(Side::Server, "", source), "ready");
    // This scheduler leaves reinjection to the retransmission timer, so that there is a gap.
    hosts.marline_server("udp --scheduler linux --qlog at-server");
    let client = "marline client --invite-file invite --path wifi --path lte -L 9000:127.0.0.1:8080 \
                  --warm 0 --scheduler linux --qlog at-client";
    hear(&hosts.program(Side::Client, client), "listening on");
    let sink = hosts.role(Side::Client, "", sink);
    hear(&sink, "half");
    hosts.net.command("wifi", "down").expect("WiFi dies");
    assert_eq!(hear(&sink, "sum "), format!("sum {BYTES}"));

    let sent = |recording: &Recording| {
        let course = Course::from_recording(recording);
        let acked = course.acked.last().is_some_and(|(_, dsn)| *dsn >= BYTES as u64);
        acked && course.bytes(TransmissionKind::Reinjection) > 0
    };
    let (file, server) = trace(&dir.path().join("at-server"), sent);
    // A busy machine also causes gaps, which end on WiFi. This one ends on LTE.
    let rescued_by_lte = |recording: &Recording| {
        let hole = |record: &marline_qlog::Record| {
            record.name == "delivery_hole" && record.word("direction") == Some("received")
        };
        let mut holes = recording.records.iter().filter(|record| hole(record));
        holes.any(|hole| hole.number("subflow") == slot(recording, "10.0.2.2"))
    };
    let (_, client) = trace(&dir.path().join("at-client"), rescued_by_lte);
    assert_eq!((server.vantage, client.vantage), (Vantage::Server, Vantage::Client));

    let (course, wifi) =
        (Course::from_recording(&server), slot(&server, "10.0.1.2").expect("WiFi's"));
    let rescued: Vec<&CarriedBytes> = course
        .carried
        .iter()
        .filter(|carried| carried.manner == TransmissionKind::Reinjection)
        .collect();
    // All of it is sent over LTE. The first part was on WiFi when it failed, and arrived at the client over LTE.
    assert!(rescued.iter().all(|carried| carried.subflow != wifi));
    let first = rescued[0];
    let before = course.carried.iter().find(|carried| {
        carried.manner == TransmissionKind::New
            && (carried.dsn..carried.dsn + carried.bytes).contains(&first.dsn)
    });
    assert_eq!(before.map(|carried| carried.subflow), Some(wifi));
    let lte = slot(&client, "10.0.2.2").expect("LTE's");
    assert!(came_on(&client, first.dsn).contains(&lte), "{first:?}");
    // The trace contains no secrets.
    let text = std::fs::read_to_string(&file).expect("the trace");
    assert!(!text.contains("key") && !text.contains("token") && !text.contains("hmac"));

    let trace = file.display().to_string();
    let by_lab = |words: &[&str]| {
        let output = support::marline_lab(dir.path(), words).output().expect("the lab's program");
        let (said, complaint) = support::texts(&output);
        assert!(output.status.success(), "{words:?}: {complaint}");
        said
    };
    let said = by_lab(&["plot", &trace, "--out", "x.svg"]);
    assert!(said.contains("B reinjection"), "{said}");
    let drawn = std::fs::read_to_string(dir.path().join("x.svg")).expect("a drawing");
    assert!(drawn.contains("10.0.1.2") && drawn.contains("\nreinjection\n"), "{}", drawn.len());
    // The report contains the same drawing.
    let said = by_lab(&["report", "--out", "none", "--page", "page.html", "--trace", &trace]);
    assert!(said.contains("page.html: 0 of "), "{said}");
    let page = std::fs::read_to_string(dir.path().join("page.html")).expect("the page");
    assert!(page.contains("10.0.1.2") && page.contains("\nreinjection\n"), "{}", page.len());
}

/// `--qlog` on a full disk: logged once, and the connection is not affected.
#[test]
fn a_full_disk_ends_no_connection() {
    let _others = support::among_others();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let mut hosts = TwoUplinks::set(&two_uplinks::wifi_and_lte(WIFI, LTE), "qlog-full", dir.path());
    hear(&hosts.role(Side::Server, "", source), "ready");
    hosts.marline_server("udp");
    let client = "unshare --mount bash -euc 'mkdir small; mount -t tmpfs -o size=64k none small; exec marline \
                  client --invite-file invite --path wifi --path lte -L 9000:127.0.0.1:8080 --warm 0 --qlog small'";
    let client = hosts.program(Side::Client, client);
    hear(&client, "listening on");
    let sink = hosts.role(Side::Client, "", sink);
    hear(&client, "cannot write traces");
    assert_eq!(hear(&sink, "sum "), format!("sum {BYTES}"));
    let again: Vec<String> = client.try_iter().filter(|line| line.contains("traces")).collect();
    assert_eq!(again, Vec::<String>::new());
}
