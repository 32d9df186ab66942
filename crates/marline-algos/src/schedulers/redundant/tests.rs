use marline_testkit::views::{
    Stream, backup, drain, full, gone, paced, range, set, unreachable, view,
};
use marline_time::Instant;

use super::*;

fn bytes_on(sent: &[(u8, u64, u64)], id: u8) -> u64 {
    sent.iter().filter(|(on, ..)| *on == id).map(|(_, start, end)| end - start).sum()
}

#[test]
fn on_one_path_each_byte_goes_once() {
    let mut stream = Stream::new(10_500);
    let sent = drain(&mut Redundant::default(), &mut stream, &[view(0, 20)]);
    assert_eq!(sent.len(), 11);
    assert_eq!(bytes_on(&sent, 0), 10_500);
}

#[test]
fn on_two_paths_each_byte_goes_on_both_the_tail_too() {
    let mut stream = Stream::new(10_500);
    let sent = drain(&mut Redundant::default(), &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!((bytes_on(&sent, 0), bytes_on(&sent, 1)), (10_500, 10_500));
    assert!(stream.mappings.iter().all(|m| m.carried_by == set(&[0, 1])));
    assert!(sent.contains(&(0, 10_000, 10_500)) && sent.contains(&(1, 10_000, 10_500)));
}

#[test]
fn a_small_message_is_on_both_paths_at_once() {
    let mut stream = Stream::new(200);
    let sent = drain(&mut Redundant::default(), &mut stream, &[view(0, 20), view(1, 90)]);
    assert_eq!(sent, [(0, 0, 200), (1, 0, 200)]);
}

#[test]
fn a_slow_path_skips_acknowledged_data() {
    let (mut stream, mut scheduler) = (Stream::new(20_000), Redundant::default());
    let (fast, slow) = (view(0, 20), view(1, 90));
    // The slow subflow takes two segments, then is full; the fast one continues.
    for _ in 0..2 {
        let (subflow, range) =
            scheduler.next_send(&stream.context(&[slow])).data().expect("there is data to send");
        stream.apply(subflow, range);
    }
    drain(&mut scheduler, &mut stream, &[fast, full(slow)]);
    stream.ack(15_000);
    let sent = drain(&mut scheduler, &mut stream, &[full(fast), slow]);
    assert_eq!(sent.first(), Some(&(1, 15_000, 16_000)), "the oldest unacknowledged data");
    assert_eq!(bytes_on(&sent, 1), 5_000);
}

#[test]
fn any_path_with_room_sends_new_data() {
    let (mut stream, mut scheduler) = (Stream::new(3_000), Redundant::default());
    let sent = drain(&mut scheduler, &mut stream, &[full(view(0, 20)), view(1, 90)]);
    assert_eq!(bytes_on(&sent, 1), 3_000);
    let sent = drain(&mut scheduler, &mut stream, &[view(0, 20), full(view(1, 90))]);
    assert_eq!(sent, [(0, 0, 1_000), (0, 1_000, 2_000), (0, 2_000, 3_000)]);
}

#[test]
fn backups_carry_no_copies_and_new_data_only_in_need() {
    let mut stream = Stream::new(5_000);
    let mut scheduler = Redundant::default();
    let (wifi, lte) = (view(0, 20), backup(view(1, 50)));
    let sent = drain(&mut scheduler, &mut stream, &[wifi, lte]);
    assert_eq!(bytes_on(&sent, 1), 0);
    // If WiFi is full, its data waits. If WiFi is gone, the backup takes new data, but not data already sent.
    stream.written = 8_000;
    assert!(drain(&mut scheduler, &mut stream, &[full(wifi), lte]).is_empty());
    let sent = drain(&mut scheduler, &mut stream, &[gone(wifi), lte]);
    assert_eq!(sent, [(1, 5_000, 6_000), (1, 6_000, 7_000), (1, 7_000, 8_000)]);
}

#[test]
fn silent_ones_get_no_copies_unless_all_are_silent() {
    let mut stream = Stream::new(2_000);
    let (wifi, lte) = (unreachable(view(0, 20), 5), view(1, 50));
    let sent = drain(&mut Redundant::default(), &mut stream, &[wifi, lte]);
    assert_eq!((bytes_on(&sent, 0), bytes_on(&sent, 1)), (0, 2_000));
    let mut stream = Stream::new(2_000);
    let sent = drain(&mut Redundant::default(), &mut stream, &[wifi, unreachable(lte, 9)]);
    assert_eq!((bytes_on(&sent, 0), bytes_on(&sent, 1)), (2_000, 2_000));
}

#[test]
fn a_new_subflow_in_an_old_slot_starts_at_the_oldest_data() {
    let (mut stream, mut scheduler) = (Stream::new(5_000), Redundant::default());
    drain(&mut scheduler, &mut stream, &[view(0, 20), view(1, 50)]);
    let all = [view(0, 20), view(1, 50)];
    for mapping in &mut stream.mappings {
        mapping.carried_by.remove(SubflowId(1));
    }
    let mut out = Vec::new();
    for event in
        [SchedulerEvent::SubflowDown(SubflowId(1)), SchedulerEvent::SubflowUp(SubflowId(1))]
    {
        scheduler.on_event(event, &stream.context(&all), &mut out);
    }
    let sent = drain(&mut scheduler, &mut stream, &all);
    assert_eq!(bytes_on(&sent, 1), 5_000);
}

#[test]
fn a_pacer_is_awaited_only_if_its_subflow_has_data_to_send() {
    let mut stream = Stream::new(1_000);
    let mut scheduler = Redundant::default();
    drain(&mut scheduler, &mut stream, &[view(0, 20), full(view(1, 50))]);
    let all = [view(0, 20), paced(view(1, 50), 4)];
    let until = Decision::WaitUntil(Instant::from_millis(4));
    assert_eq!(scheduler.next_send(&stream.context(&all)), until);
    stream.apply(SubflowId(1), range(0, 1_000));
    assert_eq!(scheduler.next_send(&stream.context(&all)), Decision::Wait);
}
