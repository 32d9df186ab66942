use super::*;
use crate::{MemoryBudget, MemoryKind};

fn source() -> ChunkSource {
    charged(&MemoryAccount::default())
}

fn charged(account: &MemoryAccount) -> ChunkSource {
    ChunkSource::new(account.clone(), MemoryKind::Receive)
}

#[test]
fn where_memory_is_short_the_window_ends_with_a_piece_and_has_room_for_a_segment() {
    let account = MemoryBudget::new(Some(0)).account(u64::MAX);
    let mut b = ReceiveBuffer::new(1 << 20, false, 4, charged(&account));
    assert_eq!(b.window(), PIECE);
    let piece = vec![1; PIECE as usize];
    for turn in 0..6 {
        assert_eq!(b.insert(Dsn(turn * PIECE), &piece).new, PIECE);
        assert_eq!((b.window(), b.memory()), (0, PIECE));
        let (n, opened) = b.read(&mut vec![0; 1_000]);
        assert_eq!((n, opened, b.window()), (1_000, false, 0));
        // The rest of the piece would not hold a segment.
        let (n, opened) = b.read(&mut vec![0; 2_000]);
        assert_eq!((n, opened, b.window()), (2_000, true, PIECE));
        let (n, opened) = b.read(&mut vec![0; 3_000]);
        assert_eq!((n, opened, b.window(), b.memory()), (1_096, false, PIECE, 0));
    }
    assert!(!b.is_memory_short());
}

#[test]
fn a_promised_window_is_kept_and_grows_no_further_until_there_is_memory() {
    let budget = MemoryBudget::new(None);
    let strangers = budget.account(CHUNK);
    let mut b = ReceiveBuffer::new(1 << 20, false, 4, charged(&strangers));
    assert_eq!(b.window(), CHUNK, "an unauthenticated peer's is small");
    let known = budget.account(u64::MAX);
    assert!(b.charge_to(&known), "the peer should get an update");
    assert_eq!(b.window(), INITIAL_WINDOW);
    budget.set_limit(Some(0));
    assert_eq!(b.insert(Dsn(0), &vec![1; 200_000]).new, 200_000);
    assert!(b.is_memory_short());
    b.read(&mut vec![0; 100_000]);
    b.refresh_edge();
    assert_eq!(b.edge(), Dsn(INITIAL_WINDOW), "no further");
    b.read(&mut vec![0; 100_000]);
    assert_eq!(b.insert(Dsn(200_000), &[1; 60_000]).new, 60_000, "up to the advertised window");
    budget.set_limit(None);
    b.refresh_edge();
    assert!(b.edge() > Dsn(400_000));
}

fn buffer() -> ReceiveBuffer {
    ReceiveBuffer::new(1 << 20, false, 4, source())
}

fn pattern(start: u64, len: usize) -> Vec<u8> {
    (start..start + len as u64).map(|i| (i % 253) as u8).collect()
}

fn read_all(buffer: &mut ReceiveBuffer) -> Vec<u8> {
    let mut out = vec![0; 1 << 20];
    let (n, _) = buffer.read(&mut out);
    out.truncate(n);
    out
}

#[test]
fn gaps_fill_in_any_order_and_bytes_are_kept_once() {
    let mut b = buffer();
    assert_eq!(b.insert(Dsn(200), &pattern(200, 100)).new, 100);
    assert_eq!(b.insert(Dsn(400), &pattern(400, 100)).new, 100);
    let over = b.insert(Dsn(150), &pattern(150, 300));
    assert_eq!((over.new, over.duplicate, over.advanced), (150, 150, false));
    assert_eq!(*b.ranges_beyond, [(150, 500)]);
    let first = b.insert(Dsn(0), &pattern(0, 160));
    assert_eq!((first.new, first.duplicate, first.advanced), (150, 10, true));
    assert_eq!(b.data_ack(), Dsn(500));
    assert_eq!(read_all(&mut b), pattern(0, 500));
    assert_eq!(b.insert(Dsn(0), &pattern(0, 600)).duplicate, 500);
    assert_eq!(read_all(&mut b), pattern(500, 100));
}

#[test]
fn ranges_are_bounded_but_the_head_is_always_taken() {
    let mut b = buffer();
    for i in 1..=6 {
        b.insert(Dsn(i * 100), &pattern(i * 100, 10));
    }
    assert_eq!(b.ranges_beyond.len(), 4);
    assert!(b.insert(Dsn(0), &pattern(0, 100)).advanced);
    assert_eq!(b.data_ack(), Dsn(110));
}

#[test]
fn nothing_beyond_the_advertised_edge_is_taken() {
    let mut b = ReceiveBuffer::new(1_000, false, 4, source());
    assert_eq!(b.insert(Dsn(0), &pattern(0, 1_500)).new, 1_000);
    assert_eq!((b.data_ack(), b.window()), (Dsn(1_000), 0));
    assert_eq!(read_all(&mut b), pattern(0, 1_000));
    assert_eq!(b.window(), 1_000);
}

#[test]
fn the_fin_is_acknowledged_only_in_order() {
    let mut b = buffer();
    assert!(b.set_fin(Dsn(10)));
    assert!(!b.set_fin(Dsn(11)));
    b.insert(Dsn(5), &pattern(5, 5));
    assert_eq!(b.data_ack(), Dsn(0));
    b.insert(Dsn(0), &pattern(0, 20));
    assert_eq!(b.data_ack(), Dsn(11));
    assert!(!b.at_end());
    assert_eq!(read_all(&mut b), pattern(0, 10));
    assert!(b.at_end());
}

#[test]
fn a_filled_window_doubles_while_the_application_keeps_up() {
    let mut b = ReceiveBuffer::new(4 << 20, false, 64, source());
    let before = b.window_size();
    let mut at = 0;
    for _ in 0..100 {
        b.insert(Dsn(at + 1_000), &pattern(at + 1_000, 200_000));
        b.insert(Dsn(at), &pattern(at, 1_000));
        at += 201_000;
        read_all(&mut b);
    }
    assert!(b.window_size() > before);
    let mut lazy = ReceiveBuffer::new(4 << 20, false, 64, source());
    for i in 0..256 {
        lazy.insert(Dsn(i * 1_024), &pattern(i * 1_024, 1_024));
    }
    assert_eq!((lazy.window_size(), lazy.window()), (before, 0));
}

#[test]
fn a_fixed_window_is_the_largest_from_the_start() {
    let fixed = ReceiveBuffer::new(700_000, true, 64, source());
    assert_eq!((fixed.window(), fixed.window_size()), (700_000, 700_000));
    let tuned = ReceiveBuffer::new(700_000, false, 64, source());
    assert_eq!(tuned.window(), INITIAL_WINDOW);
}
