use super::*;

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = SeedTree::new(seed).stream("payload");
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn the_first_datagram_of_a_lane_can_have_any_size() {
    for policy in ["auto", "min-rtt", "one-path", "duplicate"] {
        for bytes in [0, 200, 1_130, 1_131, 1_316, 1_472, 2_000, 4_096, 8_192, 8_704] {
            let [mut a, mut b] = lanes(policy);
            let payload = pattern(bytes, bytes as u64);
            a.send(at(0), FLOW, &payload).unwrap();
            let sent = frames(&mut a, at(0));
            // The paths are not yet known, so their frames are small.
            assert!(sent.iter().all(|(_, frame)| frame.len() <= 1_172), "{policy} {bytes}");
            hand_over(&mut b, at(10), &sent);
            assert_eq!(datagrams(&mut b), [(7, payload)], "{policy} {bytes}");
        }
    }
}

#[test]
fn each_path_gets_frames_of_its_own_mtu() {
    // WiFi passes packets of 1,200 bytes, and LTE passes packets of 1,430 bytes.
    let passes = |_, path, bytes: usize| bytes <= if path == A { 1_172 } else { 1_402 };
    for policy in ["auto", "min-rtt", "one-path", "duplicate"] {
        let [mut a, mut b] = lanes(policy);
        let (mut sent, mut arrived) = (0, 0);
        exchange_over(
            [&mut a, &mut b],
            0..4_000,
            |ms, a, b| {
                if ms % 10 == 0 && ms < 3_900 {
                    let bytes = [200, 1_200, 1_316, 8_192][ms as usize / 10 % 4];
                    sent += u32::from(a.send(at(ms), FLOW, &pattern(bytes, ms)).is_ok());
                }
                arrived += datagrams(b).len() as u32;
            },
            passes,
        );
        assert_eq!(arrived, sent, "{policy}");
        let known: Vec<u16> = a.paths(at(4_000)).map(|path| path.frame_bytes).collect();
        assert_eq!(known, [1_172, 1_392], "{policy}");
        assert!(a.stats().cut_datagrams > 0 && b.stats().malformed == 0, "{policy}");
    }
}

#[test]
fn a_path_that_becomes_narrower_leaves_no_gap_of_a_second() {
    for policy in ["auto", "min-rtt", "one-path"] {
        for one in [true, false] {
            let [mut a, mut b] = lanes(policy);
            if one {
                a.remove_path(B, at(0));
                b.remove_path(B, at(0));
            }
            let (mut last_ms, mut longest_ms) = (0, 0);
            exchange_over(
                [&mut a, &mut b],
                0..6_000,
                |ms, a, b| {
                    if ms % 20 == 0 {
                        a.send(at(ms), FLOW, &[7; 1_316]).unwrap();
                    }
                    if !datagrams(b).is_empty() {
                        longest_ms = longest_ms.max(ms - last_ms);
                        last_ms = ms;
                    }
                },
                |ms, path, bytes| bytes <= if ms < 2_000 || path == B { 1_472 } else { 1_172 },
            );
            longest_ms = longest_ms.max(6_000 - last_ms);
            assert!(longest_ms <= 250, "{policy}, one path {one}: {longest_ms} ms");
        }
    }
}

#[test]
fn a_frame_that_left_whole_follows_in_pieces_where_the_other_path_is_narrower() {
    let [mut a, mut b] = lanes_with_known_paths("auto");
    a.set_path_mtu(B, 1_200, at(200));
    exchange(&mut a, &mut b, 200, 400);
    // Datagrams on A no longer arrive; B delivers them, in pieces, before their deadlines.
    let (mut sent, mut arrived) = (0, 0);
    exchange_over(
        [&mut a, &mut b],
        400..2_000,
        |ms, a, b| {
            if ms % 20 == 0 && ms < 1_800 {
                sent += u32::from(a.send(at(ms), FLOW, &pattern(1_316, ms)).is_ok());
            }
            arrived += datagrams(b).len() as u32;
        },
        |ms, path, _| ms < 1_000 || path == B,
    );
    assert!(arrived >= sent - 1, "{arrived} of {sent}");
    assert!(b.stats().assembled_datagrams > 0);
}

#[test]
fn a_lost_piece_drops_only_its_datagram() {
    let [mut a, mut b] = lanes("one-path");
    let mut arrived = Vec::new();
    for number in 0..50u64 {
        a.send(at(number), FlowId(number), &pattern(3_000, number)).unwrap();
        let mut sent = frames(&mut a, at(number));
        assert!(sent.len() >= 3);
        if number % 5 == 0 {
            sent.remove(1);
        }
        sent.reverse();
        hand_over(&mut b, at(number), &sent);
        arrived.extend(datagrams(&mut b));
        // Any sender may send the datagram again.
        hand_over(&mut b, at(number), &sent);
        let acks = frames(&mut b, at(number));
        hand_over(&mut a, at(number), &acks);
    }
    assert_eq!(datagrams(&mut b), []);
    let expected = (0..50).filter(|number| number % 5 != 0);
    let expected: Vec<_> = expected.map(|number| (number, pattern(3_000, number))).collect();
    assert_eq!(arrived, expected);
    b.handle_timeout(at(5_000));
    assert_eq!(b.stats().dropped_pieces, 10);
}
