//! Tests of a process short of memory: limits on its connections, and their progress.

use std::time::Duration;

use marline_core::{ConnectionId, MemoryAccount, MemoryBudget};
use marline_testkit::fixtures::{listening, path, serve, served};
use marline_testkit::{Peer, Script, Seg};

/// Size in bytes of a chunk of a buffer.
const CHUNK: u64 = 16 * 1_024;
const SEGMENT: [u8; 1_400] = [7; 1_400];

/// A connection of an account whose budget can be taken away, and the account.
fn charged() -> (Script, Peer, ConnectionId, MemoryBudget, MemoryAccount) {
    let budget = MemoryBudget::new(None);
    let account = budget.account(u64::MAX);
    let (mut script, peer, id) = served(listening(), 21);
    script.run(|e, now| e.charge_memory_to(now, id, &account));
    (script, peer, id, budget, account)
}

/// The peer's data, this many segments beyond the next one.
fn data(peer: &Peer, ahead: u32) -> Seg {
    let ssn = peer.next.offset_from(peer.iss) + ahead * 1_400;
    let dsn = peer.next_dsn + u64::from(ahead) * 1_400;
    let seg = Seg::ack().data_ack(peer.expected_dsn).mapping(dsn, ssn, 1_400).payload(&SEGMENT);
    peer.stamp(seg).at(peer.next.add(ahead * 1_400))
}

/// Sends the next `count` segments in order.
fn send(script: &mut Script, peer: &mut Peer, count: u32) {
    for _ in 0..count {
        peer.inject(script, data(peer, 0));
        (peer.next, peer.next_dsn) = (peer.next.add(1_400), peer.next_dsn + 1_400);
    }
}

/// Rewinds by the last `count` segments, which will be sent again.
fn rewind(peer: &mut Peer, count: u32) {
    peer.next = peer.next.add(0_u32.wrapping_sub(count * 1_400));
    peer.next_dsn -= u64::from(count) * 1_400;
}

#[test]
fn unread_data_is_dropped_unacknowledged_when_memory_is_short() {
    let (mut script, mut peer, id, budget, account) = charged();
    send(&mut script, &mut peer, 30);
    assert_eq!(account.used() / CHUNK, 3, "chunks of 42,000 bytes");
    budget.set_limit(Some(0));
    let _ = script.take_sent();
    send(&mut script, &mut peer, 100);
    let refused = script.endpoint.counters().segments_without_memory;
    assert_eq!(refused, 100, "within the window advertised earlier");
    assert_eq!(account.used() / CHUNK, 3);
    // Each is answered by an ACK that acknowledges none of it: the path is alive.
    let sent = script.take_sent();
    let end = peer.next.add(0_u32.wrapping_sub(100 * 1_400));
    assert!(!sent.is_empty() && sent.iter().all(|s| s.seg.header.ack == end), "{sent:#?}");
    // Acknowledged data is available, and the rest comes again, within the window.
    assert_eq!(script.read_all(id).len(), 30 * 1_400);
    rewind(&mut peer, 100);
    let mut read = 0;
    for _ in 0..20 {
        send(&mut script, &mut peer, 5);
        read += script.read_all(id).len();
    }
    assert_eq!(read, 100 * 1_400);
    assert_eq!(script.endpoint.counters().segments_without_memory, refused);
}

#[test]
fn a_hole_is_filled_although_memory_is_short() {
    let (mut script, mut peer, id, budget, account) = charged();
    // On one subflow, in order except for the stream's beginning, which another subflow carries.
    let mut other = Peer::new(path(1, 2, 40_000), 0);
    other.join(&mut script, &peer, 2);
    script.advance(Duration::from_millis(20));
    let (next_dsn, next) = (peer.next_dsn, other.next);
    other.next_dsn = next_dsn + 1_400;
    send(&mut script, &mut other, 60);
    assert!(account.used() / CHUNK >= 5, "chunks of 84,000 bytes");
    budget.set_limit(Some(0));
    // More of that is refused; the missing bytes are accepted.
    let held = account.used();
    send(&mut script, &mut other, 60);
    let refused = script.endpoint.counters().segments_without_memory;
    assert!((10..=60).contains(&refused), "{refused}");
    assert!(account.used() <= held + 4 * CHUNK, "{} where {held} were held", account.used());
    assert_eq!(script.read_all(id), b"");
    send(&mut script, &mut peer, 1);
    let read = script.read_all(id).len() as u64;
    assert!(read >= 61 * 1_400, "{read}");
    assert!(other.next != next);
}

#[test]
fn a_stranger_makes_no_connection_hold_more_than_a_chunk_or_two() {
    let budget = MemoryBudget::new(None);
    let strangers = budget.account(CHUNK);
    let mut script = Script::new(listening(), 5);
    script.endpoint.set_memory_account(strangers.clone());
    let mut peer = Peer::new(path(0, 2, 40_000), 7);
    let id = serve(&mut script, &mut peer);
    // All segments that a window of any size would allow, in order and out of order.
    for ahead in (0..2_000).filter(|n| n % 50 != 11) {
        peer.inject(&mut script, data(&peer, ahead));
        let _ = script.take_sent();
    }
    let held = script.endpoint.info(id).map_or(0, |info| info.buffered);
    assert!(held <= 5 * CHUNK, "{held} bytes are held, {} charged", strangers.used());
    assert!(strangers.used() <= 3 * CHUNK, "{}", strangers.used());
    drop(script);
    assert_eq!(strangers.used(), 0);
}
