use super::*;

fn segment(start: u64, len: u64) -> SentSegment {
    SentSegment {
        start: Ssn(start),
        end: Ssn(start + len),
        dsn: Dsn(start - 1),
        mapping_start: Ssn(start),
        mapping_len: len as u16,
        mapping_checksum: 0,
        fin: false,
        push: false,
        repair: false,
        sent_at: Instant::ZERO,
        first_sent_at: Instant::ZERO,
        transmissions: 1,
        sacked: false,
        lost: false,
        rate: RateStamp::default(),
    }
}

fn board() -> Scoreboard {
    let mut board = Scoreboard::default();
    for i in 0..4 {
        board.push(segment(1 + i * 100, 100));
    }
    board
}

#[test]
fn counts_follow_every_change_of_state() {
    let mut board = board();
    assert_eq!(board.bytes_in_flight(), 400);
    assert_eq!(board.mark_sacked(2), 100);
    assert_eq!(board.mark_sacked(2), 0);
    assert_eq!(board.mark_lost(2), 0);
    assert_eq!(board.mark_lost(0), 100);
    assert_eq!(
        (board.bytes_in_flight(), board.bytes_sacked(), board.bytes_lost()),
        (200, 100, 100)
    );
    board.mark_retransmitted(0, Instant::from_secs(1), RateStamp::default());
    assert_eq!((board.bytes_in_flight(), board.bytes_lost()), (300, 0));
    board.renege(2);
    assert_eq!((board.bytes_sacked(), board.bytes_lost()), (0, 100));
    while board.pop_acked(Ssn(401)).is_some() {}
    assert_eq!((board.bytes_in_flight(), board.bytes_sacked(), board.bytes_lost()), (0, 0, 0));
    assert!(board.is_empty());
}

#[test]
fn a_partial_ack_cuts_the_segment_and_moves_its_dsn() {
    let mut board = board();
    assert_eq!(board.pop_acked(Ssn(151)).map(|s| s.len()), Some(100));
    let part = board.pop_acked(Ssn(151)).unwrap();
    assert_eq!((part.start, part.end), (Ssn(101), Ssn(151)));
    assert!(board.pop_acked(Ssn(151)).is_none());
    let front = board.front().unwrap();
    assert_eq!((front.start, front.dsn), (Ssn(151), Dsn(150)));
    assert_eq!(board.bytes_in_flight(), 250);
}

#[test]
fn splitting_keeps_bytes_and_finds_both_halves() {
    let mut board = board();
    board.split(1, Ssn(140));
    assert_eq!(board.index_of(Ssn(139)), Some(1));
    assert_eq!(board.index_of(Ssn(140)), Some(2));
    assert_eq!(board.get(2).unwrap().dsn, Dsn(139));
    assert_eq!(board.bytes_in_flight(), 400);
    assert_eq!(board.index_of(Ssn(401)), None);
}

#[test]
fn sacked_segments_are_counted_through_cuts_and_reneging() {
    let mut board = board();
    board.mark_sacked(1);
    board.mark_sacked(2);
    assert_eq!(board.segments_sacked(), 2);
    board.split(2, Ssn(240));
    assert_eq!(board.segments_sacked(), 3);
    board.renege(3);
    assert_eq!(board.segments_sacked(), 2);
    while board.pop_acked(Ssn(151)).is_some() {}
    assert_eq!((board.segments_sacked(), board.bytes_sacked()), (2, 89));
    while board.pop_acked(Ssn(401)).is_some() {}
    assert_eq!(board.segments_sacked(), 0);
}
