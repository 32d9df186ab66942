use super::Trigger::{
    BadChecksum, BareAck, FirstByteRepeated, InfiniteMapping, MpFail, MpFailAnswered,
    OptionsUnanswered, UnmappedData,
};
use super::Verdict::{
    Abort, FromFirstByte, FromUnackedData, ResetSubflow, ResetWithMpFail, SendMpFail, Unchanged,
};
use super::*;

/// Both directions are contiguous on the first subflow, which is the only one, and nothing is proven to either side.
const FRESH: StreamFacts = StreamFacts {
    initial: true,
    others: OtherSubflows::None,
    sent_whole: true,
    sent_tail: true,
    received_whole: true,
    received_tail: true,
    proven: false,
    proven_to_peer: false,
    has_no_data_ack: true,
};

const ALL: [Trigger; 8] = [
    UnmappedData,
    BareAck,
    FirstByteRepeated,
    OptionsUnanswered,
    BadChecksum,
    MpFail,
    MpFailAnswered,
    InfiniteMapping,
];

const fn first(reason: FallbackReason, announces: bool) -> Verdict {
    FromFirstByte { reason, announces }
}

fn verdicts(at: &StreamFacts) -> [Verdict; 8] {
    ALL.map(|trigger| judge(trigger, at))
}

#[test]
fn a_fresh_connection_falls_back_by_every_trigger_but_a_bad_checksum() {
    use FallbackReason as R;
    let expected = [
        first(R::FirstDataWithoutOption, true),
        first(R::FirstDataWithoutOption, true),
        first(R::FirstDataWithoutOption, false),
        first(R::OptionsUnanswered, false),
        SendMpFail,
        FromUnackedData(R::PeerFailed),
        FromUnackedData(R::ChecksumFailed),
        FromUnackedData(R::InfiniteMapping),
    ];
    assert_eq!(verdicts(&FRESH), expected);
}

#[test]
fn nothing_leads_to_plain_tcp_on_a_subflow_that_is_not_the_only_one() {
    let beside = StreamFacts { others: OtherSubflows::Usable, ..FRESH };
    let expected = [
        ResetSubflow,
        ResetSubflow,
        Unchanged,
        Unchanged,
        ResetWithMpFail,
        ResetSubflow,
        ResetSubflow,
        Unchanged,
    ];
    assert_eq!(verdicts(&beside), expected);
    let joined = StreamFacts { initial: false, ..FRESH };
    assert_eq!(verdicts(&joined)[..4], [ResetSubflow, ResetSubflow, Unchanged, Unchanged]);
    let closing = StreamFacts { others: OtherSubflows::Closing, ..FRESH };
    assert_eq!(verdicts(&closing)[..4], [ResetSubflow, ResetSubflow, Unchanged, Unchanged]);
    assert_eq!(verdicts(&closing)[4..], verdicts(&FRESH)[4..]);
    let opening = StreamFacts { others: OtherSubflows::Opening, ..FRESH };
    assert_eq!(judge(UnmappedData, &opening), ResetSubflow, "the other path may let options pass");
    assert_eq!(judge(BareAck, &opening), judge(BareAck, &FRESH));
    let answered = StreamFacts { others: OtherSubflows::Answered, ..FRESH };
    assert_eq!(judge(UnmappedData, &answered), ResetSubflow);
    assert_eq!(judge(BareAck, &answered), ResetSubflow, "the peer may continue on the join");
}

#[test]
fn a_peer_to_which_multipath_is_proven_would_not_follow() {
    let acknowledged = StreamFacts { proven_to_peer: true, has_no_data_ack: false, ..FRESH };
    assert_eq!(judge(UnmappedData, &acknowledged), ResetSubflow);
    let perhaps = StreamFacts { has_no_data_ack: true, ..acknowledged };
    assert_eq!(judge(UnmappedData, &perhaps), judge(UnmappedData, &FRESH), "it may be plain TCP");
    let proven = StreamFacts { proven: true, ..FRESH };
    assert_eq!(judge(UnmappedData, &proven), ResetSubflow);
    assert_eq!(judge(BareAck, &proven), Unchanged);
}

#[test]
fn a_gap_in_either_direction_forbids_plain_tcp() {
    let sent = StreamFacts { sent_whole: false, sent_tail: false, ..FRESH };
    let received = StreamFacts { received_whole: false, received_tail: false, ..FRESH };
    for (at, expected) in [
        (
            sent,
            [
                ResetSubflow,
                ResetSubflow,
                Unchanged,
                Unchanged,
                SendMpFail,
                ResetWithMpFail,
                ResetWithMpFail,
                Abort,
            ],
        ),
        (
            received,
            [
                ResetSubflow,
                ResetSubflow,
                Unchanged,
                Unchanged,
                ResetWithMpFail,
                FromUnackedData(FallbackReason::PeerFailed),
                FromUnackedData(FallbackReason::ChecksumFailed),
                Abort,
            ],
        ),
    ] {
        assert_eq!(verdicts(&at), expected, "{at:?}");
    }
}

#[test]
fn the_infinite_mapping_goes_with_the_first_data_behind_the_fallback() {
    let mut fallback = Fallback::default();
    assert!(!fallback.is_announced() && !fallback.is_before_fallback(Ssn(1)));
    let point = Point { ssn: Ssn(6), dsn: Dsn(5) };
    fallback.announce(super::InfiniteMapping { first: Ssn(11), point });
    assert!(
        fallback.is_announced()
            && fallback.is_before_fallback(Ssn(10))
            && !fallback.is_before_fallback(Ssn(11))
    );
    assert_eq!(fallback.point_at(Ssn(11)), Some(point));
    assert_eq!([10, 12].map(|at| fallback.point_at(Ssn(at))), [None, None]);
}

/// Timeouts a second apart after a fallback at position 1. If `heard`, a segment from the peer arrives half a second
/// after each.
fn after_timeouts(fallback: &mut Fallback, count: u64, una: Ssn, heard: bool) {
    for second in 1..=count {
        let heard_at =
            if heard { Instant::from_millis(second * 1_000 - 500) } else { Instant::ZERO };
        fallback.on_timeout(Instant::from_secs(second), una, heard_at);
    }
}

fn announced() -> Fallback {
    let mut fallback = Fallback::default();
    fallback.announce(super::InfiniteMapping { first: Ssn(1), point: Point::FIRST });
    fallback
}

#[test]
fn an_infinite_mapping_whose_repeats_are_answered_twice_without_progress_is_left_out() {
    let mut fallback = announced();
    after_timeouts(&mut fallback, 2, Ssn(1), true);
    assert!(!fallback.drops_options() && fallback.point_at(Ssn(1)).is_some());
    after_timeouts(&mut fallback, 3, Ssn(1), true);
    assert!(fallback.drops_options() && fallback.point_at(Ssn(1)).is_none());
    assert!(fallback.is_announced(), "the peer still gets MP_FAIL");
    let asks = |fallback: &mut Fallback| {
        fallback.on_timeout(Instant::from_secs(9), Ssn(1), Instant::from_secs(8))
    };
    assert!(asks(&mut announced()), "a repeat that never arrives is not answered");
    assert!(!asks(&mut fallback));
}

#[test]
fn an_infinite_mapping_stays_on_a_silent_path_and_beside_a_peer_that_still_sends_data_acks() {
    let mut silent = announced();
    after_timeouts(&mut silent, 20, Ssn(1), false);
    assert!(!silent.drops_options());
    let mut contradicted = announced();
    contradicted.record_peer_mode(true);
    after_timeouts(&mut contradicted, 20, Ssn(1), true);
    assert!(!contradicted.drops_options());
    let mut beyond = announced();
    after_timeouts(&mut beyond, 20, Ssn(2), true);
    assert!(!beyond.drops_options(), "the data that carried it has arrived");
}
