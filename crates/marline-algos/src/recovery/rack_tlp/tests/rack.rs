use super::*;

/// Sends one segment per millisecond, then waits for the rest of the round trip.
fn spaced(sender: &mut Sender, segments: u64) {
    for _ in 0..segments {
        sender.send(1);
        sender.wait(1);
    }
    sender.wait(100 - segments);
}

#[test]
fn a_hole_is_lost_a_quarter_rtt_after_a_later_segment_arrived() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 3);
    let (lost, _) = s.ack(1, &[2]);
    assert!(lost.is_empty(), "reordering may still explain it");
    // Segment 2 was sent 1 ms after segment 1 and took 99 ms: 1 is due at 99 + 25 ms.
    assert_eq!(s.timeout_in(), Some(ms(99 + 25 - 100)));
    assert_eq!(s.fire(), (vec![1], TimeoutAction::None));
    assert_eq!(s.recovery.next_timeout(), None);
}

#[test]
fn reordering_within_the_window_marks_nothing() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 3);
    assert!(s.ack(1, &[2]).0.is_empty());
    s.wait(5);
    assert!(s.ack(3, &[]).0.is_empty());
    s.wait(1);
    assert!(s.ack(4, &[]).0.is_empty());
    assert_eq!(s.recovery.next_timeout(), None);
}

#[test]
fn the_third_sack_ends_patience_unless_reordering_was_seen() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 5);
    assert!(s.ack(1, &[2]).0.is_empty());
    assert!(s.ack(1, &[3]).0.is_empty());
    assert_eq!(s.ack(1, &[4]).0, vec![1]);

    let mut reordering = rfc_sender(100);
    spaced(&mut reordering, 8);
    reordering.ack(1, &[3]);
    reordering.ack(1, &[2]);
    assert!(reordering.ack(1, &[4, 5]).0.is_empty(), "2 arrived after 3, so 1 may also be late");
    assert!(reordering.timeout_in().is_some());
}

#[test]
fn small_segments_count_as_segments() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 5);
    s.ack(1, &[2, 3, 4]);
    assert_eq!(s.board.segments_sacked(), 3);
    assert_eq!(s.board.bytes_lost(), SEGMENT);
}

#[test]
fn a_lost_retransmission_is_found_by_time() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 5);
    assert_eq!(s.ack(1, &[2, 3, 4]).0, vec![1]);
    s.enter(Phase::Recovery);
    s.resend(1, SentKind::Retransmission);
    s.wait(1);
    s.send(1); // segment 6, sent after the retransmission
    s.wait(100);
    assert_eq!(s.ack(1, &[5, 6]).0, vec![1], "6 arrived, but the earlier retransmission did not");
}

#[test]
fn an_ack_of_the_original_does_not_update_rack() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 4);
    s.ack(1, &[2, 3, 4]);
    s.enter(Phase::Recovery);
    s.resend(1, SentKind::Retransmission);
    let resent_at = s.now;
    s.send(3);
    s.wait(10);
    // 10 ms after the retransmission is faster than the path allows, so the original was delivered.
    let (lost, _) = s.ack(5, &[]);
    assert!(lost.is_empty());
    assert_eq!(s.recovery.rack.newest_delivered.map(|n| n.0 < resent_at), Some(true));
    // With timestamps, time alone would not be sufficient.
    let mut t = rfc_sender(100);
    spaced(&mut t, 4);
    t.ack(1, &[2, 3, 4]);
    t.enter(Phase::Recovery);
    t.resend(1, SentKind::Retransmission);
    let resent_at = t.now;
    t.wait(150);
    t.ack_with(5, &[], |ack| ack.echoed_sent_at = Some(resent_at - ms(90)));
    assert_eq!(t.recovery.rack.newest_delivered.map(|n| n.0 < resent_at), Some(true));
}

#[test]
fn dsack_widens_the_window_once_per_round_and_sixteen_clean_recoveries_narrow_it() {
    let mut s = rfc_sender(100);
    s.recovery.rack.reordering_seen = true;
    let window = |s: &mut Sender| s.with(|r, cx| r.rack.reordering_window(cx));
    assert_eq!(window(&mut s), ms(25));
    spaced(&mut s, 4);
    let dsack = |ack: &mut AckSummary<'_>| ack.dsack = Some((seq(1), seq(2)));
    s.ack_with(2, &[], dsack);
    assert_eq!(window(&mut s), ms(50));
    s.ack_with(3, &[], dsack);
    assert_eq!(window(&mut s), ms(50), "the same round trip");
    s.ack_with(5, &[], dsack);
    assert_eq!(window(&mut s), ms(75));
    for _ in 0..4 {
        spaced(&mut s, 1);
        let next = (s.snd_nxt - 1) / SEGMENT + 1;
        s.ack_with(next, &[], dsack);
    }
    assert_eq!(window(&mut s), ms(100), "never more than the smoothed RTT");
    for _ in 0..15 {
        s.enter(Phase::Recovery);
        s.enter(Phase::Open);
    }
    assert_eq!(window(&mut s), ms(100));
    s.enter(Phase::Recovery);
    s.enter(Phase::Open);
    assert_eq!(window(&mut s), ms(25));
}

#[test]
fn a_timeout_marks_the_first_and_the_overdue_only() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 1);
    s.ack(2, &[]);
    s.send(2);
    s.wait(200);
    s.send(2);
    let mut lost = Vec::new();
    s.with(|r, cx| r.on_rto(cx, &mut lost));
    assert_eq!(numbers(&lost), vec![2, 3], "4 and 5 were just sent");
}

#[test]
fn without_loss_the_order_of_transmission_stays_as_short_as_the_board() {
    let mut s = rfc_sender(100);
    s.send(100);
    for una in 2..2_000 {
        s.wait(1);
        assert!(s.ack(una, &[]).0.is_empty());
        s.send(1);
        assert_eq!(s.recovery.rack.order.len(), s.board.len());
    }
}

#[test]
fn marks_taken_back_are_judged_again() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 5);
    assert_eq!(s.ack(1, &[2, 3, 4]).0, vec![1]);
    s.enter(Phase::Recovery);
    s.board.unmark_lost(0);
    s.enter(Phase::Open);
    assert_eq!(s.ack(1, &[5]).0, vec![1]);
}

#[test]
fn a_segment_split_since_is_judged_in_both_parts() {
    let mut s = rfc_sender(100);
    spaced(&mut s, 5);
    s.board.split(0, Ssn(400));
    let mut lost = Vec::new();
    for segment in [2, 3, 4] {
        let index = s.board.index_of(seq(segment)).unwrap();
        s.board.mark_sacked(index);
    }
    let delivered = [DeliveredSegment {
        start: seq(4),
        end: seq(5),
        sent_at: s.board.get(4).unwrap().sent_at,
        retransmitted: false,
        by_sack: true,
    }];
    let summary = AckSummary {
        prior_una: Ssn(1),
        una: Ssn(1),
        delivered: &delivered,
        dsack: None,
        echoed_sent_at: None,
        has_sack: true,
        duplicate: true,
    };
    s.with(|r, cx| r.on_ack(&summary, cx, &mut lost));
    assert_eq!(lost, vec![Ssn(1), Ssn(400)]);
}
