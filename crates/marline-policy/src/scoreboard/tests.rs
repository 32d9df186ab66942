use super::*;

fn segment(start: u64, len: u64) -> SentSegment {
    SentSegment {
        start: Ssn(start),
        end: Ssn(start + len),
        dsn: Dsn(start - 1),
        layout: RunLayout::SINGLE,
        mapping_start: Ssn(start),
        mapping_len: len as u16,
        mapping_checksum: 0,
        fin: false,
        push: false,
        repair: false,
        untimed: false,
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

/// A run of ten segments; the first, fifth and ninth carry the mapping.
fn run() -> SentSegment {
    let layout = RunLayout { mapped: 80, plain: 100, group: 4 };
    let len = layout.len_of(10);
    assert_eq!(len, 3 * 80 + 7 * 100);
    SentSegment { layout, mapping_len: len as u16, ..segment(1, len) }
}

#[test]
fn a_run_knows_where_its_segments_end() {
    let run = run();
    assert_eq!(run.segments(), 10);
    let mut at = run.start;
    let mut ends = Vec::new();
    while at < run.end {
        assert_eq!((run.segment_start(at), run.segment_start(at.plus(7))), (at, at));
        at = run.segment_end(at);
        ends.push(at.0 - 1);
    }
    assert_eq!(ends, [80, 180, 280, 380, 460, 560, 660, 760, 840, 940]);
    assert_eq!(run.last_segment_start(), Ssn(841));
    let within = |from, to| run.segments_within(Ssn(from), Ssn(to));
    assert_eq!(within(81, 181), (Ssn(81), Ssn(181)));
    assert_eq!(within(80, 182), (Ssn(81), Ssn(181)));
    assert_eq!(within(100, 150), (Ssn(181), Ssn(181)), "no segment lies within");
    assert_eq!(within(0, 2_000), (run.start, run.end));
    let with_fin = SentSegment { fin: true, end: run.end.plus(1), ..run };
    assert_eq!(with_fin.segments(), 10);
    assert_eq!(with_fin.segment_end(Ssn(900)), with_fin.end);
    assert_eq!(with_fin.last_segment_start(), Ssn(841));
}

#[test]
fn segments_are_counted_however_a_run_is_cut() {
    let mut board = Scoreboard::default();
    board.push(run());
    assert_eq!((board.len(), board.segments()), (1, 10));
    board.split(0, Ssn(81));
    board.split(1, Ssn(281));
    assert_eq!((board.len(), board.segments()), (3, 10));
    board.mark_sacked(1);
    assert_eq!((board.segments_sacked(), board.bytes_sacked()), (2, 200));
    // A partly acknowledged segment still counts as one.
    assert_eq!(board.pop_acked(Ssn(41)).map(|part| part.len()), Some(40));
    assert_eq!(board.segments(), 10);
    assert_eq!(board.pop_acked(Ssn(231)).map(|part| part.segments()), Some(1));
    assert_eq!(board.pop_acked(Ssn(231)).map(|part| part.len()), Some(150));
    assert_eq!((board.segments(), board.segments_sacked()), (8, 1));
    while board.pop_acked(Ssn(941)).is_some() {}
    assert_eq!((board.segments(), board.segments_sacked()), (0, 0));
}

#[test]
fn a_run_may_have_its_mapping_in_each_segment() {
    let layout = RunLayout { mapped: 80, plain: 80, group: 1 };
    let len = layout.len_of(20);
    assert_eq!(
        (len, layout.segments_within(len), layout.segments_within(len - 1)),
        (1_600, 20, 19)
    );
    assert!((0..20).all(|number| layout.is_mapped(number)));
    let run = SentSegment { layout, mapping_len: len as u16, ..segment(1, len) };
    assert_eq!(run.segments(), 20);
    let whole = run.segments_within(Ssn(100), Ssn(400));
    assert_eq!(whole, (Ssn(161), Ssn(321)));
}
