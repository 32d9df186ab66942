use marline_testkit::views::{Stream, backup, drain, full, unreachable, view};

use super::*;

#[test]
fn a_message_is_on_both_paths_at_once() {
    let mut stream = Stream::new(200);
    let sent = drain(&mut RedundantIdle::default(), &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent, [(0, 0, 200), (1, 0, 200)]);
}

#[test]
fn new_data_goes_before_copies() {
    let (mut stream, mut scheduler) = (Stream::new(5_000), RedundantIdle::default());
    // Sending ends because of the peer's window, not because of a lack of data.
    stream.window = 3_000;
    let both = [view(0, 20), view(1, 90)];
    let sent = drain(&mut scheduler, &mut stream, &both);
    assert!(sent.iter().map(|(_, start, end)| end - start).sum::<u64>() == 3_000, "{sent:?}");
    stream.window = 10_000;
    let sent = drain(&mut scheduler, &mut stream, &both);
    let copies = [(1, 0, 1000), (1, 1000, 2000), (1, 2000, 3000), (1, 3000, 4000), (1, 4000, 5000)];
    assert_eq!(sent[..2], [(0, 3000, 4000), (0, 4000, 5000)], "new data first");
    assert_eq!(sent[2..], copies, "then the oldest first");
}

#[test]
fn data_acknowledged_meanwhile_is_not_repeated() {
    let (mut stream, mut scheduler) = (Stream::new(3_000), RedundantIdle::default());
    drain(&mut scheduler, &mut stream, &[view(0, 20), full(view(1, 90))]);
    stream.ack(2_500);
    let sent = drain(&mut scheduler, &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent, [(1, 2500, 3000)]);
}

#[test]
fn backups_and_silent_ones_carry_no_copies() {
    for other in [backup(view(1, 30)), unreachable(view(1, 30), 5)] {
        let mut stream = Stream::new(1_000);
        let sent = drain(&mut RedundantIdle::default(), &mut stream, &[view(0, 20), other]);
        assert_eq!(sent, [(0, 0, 1000)]);
    }
}
