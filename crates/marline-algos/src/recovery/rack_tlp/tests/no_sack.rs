use super::*;

fn sender(segments: u64) -> Sender {
    let mut s = rfc_sender(100);
    s.sack = false;
    s.send(segments);
    s.wait(100);
    s
}

#[test]
fn the_third_duplicate_marks_the_first_segment() {
    let mut s = sender(6);
    assert!(s.ack(1, &[]).0.is_empty());
    assert!(s.ack(1, &[]).0.is_empty());
    assert!(
        s.ack_with(1, &[], |ack| ack.duplicate = false).0.is_empty(),
        "a duplicate that carried data"
    );
    assert_eq!(s.ack(1, &[]).0, vec![1]);
    assert_eq!(s.recovery.next_timeout(), None, "no probes without SACK");
}

#[test]
fn a_partial_ack_uncovers_the_next_hole_once() {
    let mut s = sender(6);
    (0..3).for_each(|_| {
        s.ack(1, &[]);
    });
    s.enter(Phase::Recovery);
    s.resend(1, SentKind::Retransmission);
    s.wait(100);
    assert_eq!(s.ack(4, &[]).0, vec![4]);
    s.resend(4, SentKind::Retransmission);
    assert!(s.ack(4, &[]).0.is_empty());
    assert!(s.ack(4, &[]).0.is_empty());
    assert!(s.ack(4, &[]).0.is_empty(), "already repaired");
}
