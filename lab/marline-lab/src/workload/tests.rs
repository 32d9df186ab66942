use super::*;

const EVEN: Gap = Gap { least_ms: 20.0, most_ms: 30.0 };

async fn both(workload: Workload, streams: usize) -> (Log, Log) {
    let pairs = (0..streams).map(|_| tokio::io::duplex(4_096));
    let (near, far): (Vec<_>, Vec<_>) =
        pairs.map(|(near, far)| (Box::new(near) as Stream, Box::new(far) as Stream)).unzip();
    let run = Run { start_ns: now_ns(), seed: 7, patience: Duration::from_secs(15) };
    let (client, server) = tokio::join!(workload.client(near, run), workload.server(far, run));
    (client.unwrap(), server.unwrap())
}

#[tokio::test]
async fn requests_go_on_all_streams_and_are_answered() {
    let workload = Workload::Ask { request_bytes: 200, answer_bytes: 1_000, gap: EVEN, count: 5 };
    let (client, server) = both(workload, 2).await;
    assert_eq!((client.sent.len(), client.received.len()), (10, 10));
    assert_eq!(server, Log::default());
    for sent in &client.sent {
        let same = |mark: &&Mark| (mark.stream, mark.index) == (sent.stream, sent.index);
        let back = client.received.iter().find(same).expect("an answer");
        assert!(back.at_ns >= sent.at_ns);
    }
}

#[tokio::test]
async fn bursts_begin_at_their_times() {
    let workload = Workload::Bursts { bytes: 100_000, gap: EVEN, count: 4 };
    let (client, server) = both(workload, 1).await;
    assert_eq!((server.sent.len(), client.received.len()), (4, 4));
    let times = workload.times_ns(7);
    for (sent, planned) in server.sent.iter().zip(&times) {
        let gap = sent.at_ns - server.sent[0].at_ns;
        assert!(gap + 2_000_000 >= planned - times[0]);
    }
}

#[tokio::test]
async fn an_exchange_ends_when_both_ends_have_everything() {
    let workload = Workload::Exchange { bytes: 300_000 };
    let (client, server) = both(workload, 1).await;
    for log in [&client, &server] {
        assert_eq!((log.sent.len(), log.received.len()), (1, 1));
    }
    let (near, far) = tokio::io::duplex(4_096);
    let run = Run { start_ns: now_ns(), seed: 7, patience: Duration::from_millis(50) };
    let deaf = workload.client(vec![Box::new(near)], run).await.expect("patience is no error");
    assert_eq!((deaf.sent.len(), deaf.received.len()), (1, 0));
    drop(far);
}

#[tokio::test]
async fn blocks_flow_until_their_time_is_over() {
    let workload = Workload::Blocks { bytes: 8_192, lasts_ms: 60 };
    let (client, server) = both(workload, 1).await;
    assert!(!client.received.is_empty());
    assert!(server.sent.len() >= client.received.len());
}

#[tokio::test]
async fn bursts_of_random_sizes_are_matched_by_index() {
    let workload =
        Workload::RandomBursts { least_bytes: 1_000, most_bytes: 50_000, gap: EVEN, count: 6 };
    let Sizes::Each(sizes) = workload.sizes(7) else { panic!("sizes of their own") };
    assert!(sizes.iter().all(|bytes| (1_000..=50_000).contains(bytes)), "{sizes:?}");
    assert!(sizes.windows(2).any(|pair| pair[0] != pair[1]));
    assert_ne!(workload.sizes(7), workload.sizes(8));
    let (client, server) = both(workload, 1).await;
    assert_eq!((server.sent.len(), client.received.len()), (6, 6));
    for (sent, read) in server.sent.iter().zip(&client.received) {
        assert!(read.at_ns >= sent.at_ns && sent.index == read.index);
    }
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
    let plan = DIALOGUE.dialogue(7).expect("a dialogue");
    assert_eq!(plan, DIALOGUE.dialogue(7).expect("the same"));
    assert_ne!(plan, DIALOGUE.dialogue(8).expect("another"));
    for (_, pieces) in &plan.requests {
        assert_eq!(pieces.iter().sum::<u32>(), 2_500);
        let (_, whole) = pieces.split_last().expect("pieces");
        assert!(whole.iter().all(|bytes| (85..=500).contains(bytes)), "{pieces:?}");
    }
}

#[tokio::test]
async fn a_dialogue_that_is_answered_leaves_nothing_out() {
    let (client, server) = both(DIALOGUE, 1).await;
    assert_eq!((client.sent.len(), client.received.len(), client.skipped), (14, 14, 0));
    assert_eq!(server, Log::default());
}

#[tokio::test]
async fn a_dialogue_without_answers_skips_requests() {
    let (near, far) = tokio::io::duplex(65_536);
    let run = Run { start_ns: now_ns(), seed: 7, patience: Duration::from_secs(15) };
    let deaf = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        DIALOGUE.server(vec![Box::new(far)], run).await
    };
    let (client, _) = tokio::join!(DIALOGUE.client(vec![Box::new(near)], run), deaf);
    let client = client.expect("a log");
    // Four are open when the fifth is due.
    assert!((2..=9).contains(&client.skipped), "{}", client.skipped);
    assert_eq!(client.sent.len() + client.skipped as usize, 14);
    assert_eq!(client.received.len(), client.sent.len());
    assert!(client.sent[4].at_ns - client.sent[3].at_ns > 60_000_000);
}
