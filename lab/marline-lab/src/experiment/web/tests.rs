use std::collections::BTreeMap;

use marline_time::Duration;

use super::{OBJECT_COUNT, objects};
use crate::experiment::{Experiment, Variant, simulate};
use crate::runs::Record;
use crate::workload::page::page_bytes;
use crate::workload::{Gap, Workload};

fn pages(links: &[(&str, &str)]) -> (Experiment, crate::experiment::Outcome) {
    let gap = Gap { least_ms: 6_000.0, most_ms: 6_000.0 };
    let experiment = Experiment::over(links, Workload::Web { gap, count: 3 });
    let outcome = simulate(&experiment, &Variant::new("default"), 5).expect("run");
    assert_eq!(outcome.incomplete, None);
    assert_eq!(outcome, simulate(&experiment, &Variant::new("default"), 5).expect("run"));
    (experiment, outcome)
}

#[test]
fn objects_are_requested_when_they_have_been_found() {
    let (experiment, outcome) = pages(&[("wifi", "rate=20M,delay=20ms")]);
    let flow = outcome.first();
    let by_index = |marks: &[crate::workload::Mark]| -> BTreeMap<u32, u64> {
        marks.iter().map(|mark| (mark.index, mark.at_ns)).collect()
    };
    let (sent, read) = (by_index(&flow.client.sent), by_index(&flow.client.received));
    assert_eq!((sent.len(), read.len()), (3 * OBJECT_COUNT as usize, 3 * OBJECT_COUNT as usize));
    for page in 0..3 {
        for (number, object) in (0..).zip(objects(flow.seed, page)).skip(1) {
            let (index, found_in) =
                (page * OBJECT_COUNT + number, page * OBJECT_COUNT + object.found_in as u32);
            let found = read[&found_in] + object.delay.as_nanos() as u64;
            assert!(sent[&index] >= found, "{index}");
        }
    }
    // SYN, TLS and the request take a round trip each.
    let record = Record::from_outcome(&experiment, &outcome).expect("a record");
    let first_ms = record.measures.of("first_ms").expect("a measure");
    assert!((120.0..180.0).contains(&first_ms), "{first_ms}");
    for (message, least_ms) in record.messages.iter().zip(&record.least_ms) {
        assert!(message.latency_ms > first_ms.max(*least_ms), "{message:?} {least_ms}");
        assert_eq!(message.bytes, page_bytes(flow.seed, message.index));
    }
}

#[test]
fn a_page_opens_connections_to_its_hosts_and_closes_them() {
    let links = [("wifi", "rate=20M,delay=10ms"), ("lte", "rate=10M,delay=40ms")];
    let gap = Gap { least_ms: 5_000.0, most_ms: 5_000.0 };
    let experiment = Experiment::over(&links, Workload::Web { gap, count: 2 });
    let variant = Variant::new("default");
    let mut paths = crate::experiment::stage(&experiment, &variant, 5).expect("staged");
    paths.world.run_until(crate::experiment::START + Duration::from_secs(20));
    let hosts: usize = (0..2)
        .map(|page| {
            let all: std::collections::BTreeSet<usize> =
                objects(5, page).iter().map(|object| object.host).collect();
            all.len()
        })
        .sum();
    for node in [paths.client, paths.server] {
        let host = paths.world.node(node);
        let ended = |report: &&marline_sim::Report| {
            report.eof_at.is_some() && report.shutdown_at.is_some() && report.wrong_at.is_none()
        };
        assert_eq!((host.reports().count(), host.reports().filter(ended).count()), (hosts, hosts));
    }
}
