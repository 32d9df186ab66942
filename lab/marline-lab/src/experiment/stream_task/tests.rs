use marline_time::{Duration, Instant};

use super::{StopCondition, client, now, server};
use crate::experiment::plan::{End, flows};
use crate::experiment::{Flow, Load};
use crate::workload::{Gap, Log, Sizes, Stream, Workload};

const EVEN: Gap = Gap { least_ms: 20.0, most_ms: 30.0 };
const SEED: u64 = 7;
const PATIENCE: Duration = Duration::from_secs(15);

fn ends(loads: &[Load], start: Instant) -> ([End; 2], crate::experiment::Flows) {
    let group: Vec<u16> = (0..loads.len() as u16).collect();
    let flows = flows(loads, start, SEED);
    (End::both_ends(loads, &group, start, SEED, &flows), flows)
}

fn until(loads: &[Load], start: Instant, patience: Duration) -> StopCondition {
    let group: Vec<u16> = (0..loads.len() as u16).collect();
    let lasts = loads.iter().map(|load| load.ends(SEED)).max().expect("a workload");
    StopCondition {
        floods: End::bulk_end(loads, &group, start),
        deadline: start + lasts + patience,
    }
}

/// Runs workloads on one connection; the server begins to read after this time.
async fn both(loads: &[Load], deaf: Duration) -> Vec<Flow> {
    let (near, far) = tokio::io::duplex(65_536);
    let start = now();
    let ([near_end, far_end], flows) = ends(loads, start);
    let stop = until(loads, start, PATIENCE);
    let serving = async {
        tokio::time::sleep(deaf).await;
        server(Box::new(far) as Stream, far_end, stop).await;
    };
    let (asked, ()) = tokio::join!(client(Box::new(near), near_end, stop), serving);
    asked.expect("a log");
    flows.take()
}

async fn one(workload: Workload) -> Flow {
    both(&[Load::new(workload)], Duration::ZERO).await.remove(0)
}

#[tokio::test]
async fn requests_are_answered() {
    let workload = Workload::Ask { request_bytes: 200, answer_bytes: 1_000, gap: EVEN, count: 5 };
    let flow = one(workload).await;
    assert_eq!((flow.messages(&workload).len(), flow.count_missing(&workload)), (5, 0));
    assert_eq!(flow.server, Log::default());
}

#[tokio::test]
async fn bursts_begin_at_their_times() {
    let workload =
        Workload::RandomBursts { least_bytes: 5, most_bytes: 50_000, gap: EVEN, count: 6 };
    let flow = one(workload).await;
    let messages = flow.messages(&workload);
    let Sizes::Each(sizes) = workload.sizes(SEED) else { panic!("different sizes") };
    assert!(messages.iter().map(|message| message.bytes).eq(sizes));
    for (message, planned) in messages.iter().zip(workload.times_ns(SEED)) {
        assert!(message.sent_ms >= planned as f64 / 1e6 && message.latency_ms >= 0.0);
    }
}

#[tokio::test]
async fn an_exchange_ends_when_both_ends_have_everything() {
    let workload = Workload::Exchange { bytes: 300_000 };
    let flow = one(workload).await;
    for log in [&flow.client, &flow.server] {
        assert_eq!((log.sent.len(), log.received.len()), (1, 1));
    }
    let (near, far) = tokio::io::duplex(4_096);
    let (loads, start) = ([Load::new(workload)], now());
    let ([end, _], flows) = ends(&loads, start);
    let stop = until(&loads, start, Duration::from_millis(50));
    client(Box::new(near), end, stop).await.expect("reaching the deadline is not an error");
    let deaf = flows.take().remove(0);
    assert_eq!((deaf.client.sent.len(), deaf.client.received.len()), (1, 0));
    drop(far);
}

#[tokio::test]
async fn streams_flow_until_their_time_is_over() {
    for workload in [
        Workload::Blocks { bytes: 8_192, lasts_ms: 60 },
        Workload::Upload { bytes: 8_192, lasts_ms: 60 },
    ] {
        let flow = one(workload).await;
        assert!(flow.messages(&workload).len() > 10, "{flow:?}");
    }
}

#[tokio::test]
async fn workloads_of_a_connection_take_turns() {
    let echo = Workload::Ask { request_bytes: 200, answer_bytes: 200, gap: EVEN, count: 5 };
    let bulk = Workload::Blocks { bytes: 8_192, lasts_ms: 60 };
    let flows = both(&[Load::new(echo), Load::new(bulk)], Duration::ZERO).await;
    assert_eq!(flows[0].messages(&echo).len(), 5);
    assert!(flows[1].messages(&bulk).len() > 10);
}

const DIALOGUE: Workload = Workload::Dialogue {
    request_bytes: 2_500,
    answer_bytes: 750,
    pieces: (85, 500),
    unanswered_bytes: 3 * 2_500,
    gap: EVEN,
    count: 14,
};

#[test]
fn a_request_is_cut_into_pieces_of_random_length() {
    let requests = DIALOGUE.pieces(SEED);
    assert_eq!(requests, DIALOGUE.pieces(SEED));
    assert_ne!(requests, DIALOGUE.pieces(8));
    for (_, pieces) in &requests {
        assert_eq!(pieces.iter().sum::<u32>(), 2_500);
        let (_, whole) = pieces.split_last().expect("pieces");
        assert!(whole.iter().all(|bytes| (85..=500).contains(bytes)), "{pieces:?}");
    }
}

#[tokio::test]
async fn a_dialogue_that_is_answered_leaves_nothing_out() {
    let flow = one(DIALOGUE).await;
    assert_eq!((flow.messages(&DIALOGUE).len(), flow.client.skipped), (14, 0));
    assert_eq!(flow.server, Log::default());
}

#[tokio::test]
async fn a_dialogue_without_answers_skips_requests() {
    let deaf = Duration::from_millis(200);
    let Log { sent, received, skipped } = both(&[Load::new(DIALOGUE)], deaf).await.remove(0).client;
    // Four are open when the fifth is due.
    assert!((2..=9).contains(&skipped), "{skipped}");
    assert_eq!(sent.len() + skipped as usize, 14);
    assert_eq!(received.len(), sent.len());
    assert!(sent[4].at_ns - sent[3].at_ns > 60_000_000);
}
