use super::*;
use crate::MemoryBudget;

fn new_chunks() -> Chunks {
    Chunks::new(ChunkSource::new(MemoryAccount::default(), MemoryKind::Send))
}

#[test]
fn chunks_are_charged_for_as_long_as_they_are_held() {
    let budget = MemoryBudget::new(Some(100 * CHUNK));
    let (strangers, known) = (budget.account(CHUNK), budget.account(u64::MAX));
    let mut chunks = Chunks::new(ChunkSource::new(strangers.clone(), MemoryKind::Receive));
    chunks.write(0, &pattern(0, 40_000));
    assert_eq!((strangers.used(), known.used()), (3 * CHUNK, 0));
    chunks.charge_to(&known);
    chunks.charge_to(&known);
    assert_eq!((strangers.used(), known.used()), (0, 3 * CHUNK));
    chunks.release(CHUNK);
    assert_eq!(known.used(), 2 * CHUNK);
    drop(chunks);
    assert_eq!((known.used(), budget.usage().used), (0, 0));
}

fn pattern(start: u64, len: usize) -> Vec<u8> {
    (start..start + len as u64).map(|i| (i % 251) as u8).collect()
}

#[test]
fn bytes_come_back_across_chunk_edges() {
    let mut chunks = new_chunks();
    chunks.write(0, &pattern(0, 40_000));
    let mut out = vec![0; 30_000];
    assert!(chunks.read(5_000, &mut out));
    assert_eq!(out, pattern(5_000, 30_000));
    assert!(!chunks.read(60_000, &mut out));
}

#[test]
fn a_pinned_chunk_outlives_its_neighbors() {
    let mut chunks = new_chunks();
    chunks.write(0, &pattern(0, 5 * CHUNK as usize));
    chunks.pin(CHUNK, CHUNK + 10);
    chunks.release(4 * CHUNK);
    assert_eq!(chunks.memory(), 2 * CHUNK);
    let mut out = vec![0; 10];
    assert!(chunks.read(CHUNK, &mut out));
    assert_eq!(out, pattern(CHUNK, 10));
    chunks.unpin(CHUNK, CHUNK + 10);
    assert_eq!((chunks.memory(), chunks.slots.len()), (CHUNK, 1));
    chunks.release(5 * CHUNK);
    chunks.shrink();
    assert_eq!(chunks.memory(), 0);
}

#[test]
fn lasting_bytes_are_referred_to_where_they_fill_a_chunk() {
    static OTHER: [u8; CHUNK as usize] = [9; CHUNK as usize];
    static BYTES: [u8; 3 * CHUNK as usize] = [7; 3 * CHUNK as usize];
    let mut chunks = new_chunks();
    // In pieces, of which only the first fills a whole chunk with the following bytes.
    chunks.refer_to(0, &BYTES, 10_000);
    chunks.refer_to(10_000, &BYTES[10_000..20_000], 10_000);
    assert_eq!(chunks.memory(), CHUNK, "the second piece ends within a chunk");
    chunks.refer_to(20_000, &BYTES[20_000..], BYTES.len() - 20_000);
    assert_eq!(chunks.memory(), CHUNK);
    let mut out = vec![0; BYTES.len()];
    assert!(chunks.read(0, &mut out));
    assert_eq!(out, BYTES);
    // First with equal bytes at another address, then with different bytes.
    let mut chunks = new_chunks();
    chunks.refer_to(0, &BYTES, 100);
    chunks.refer_to(100, &BYTES[..100], 100);
    assert_eq!(chunks.memory(), 0);
    chunks.refer_to(200, &OTHER, 100);
    assert_eq!(chunks.memory(), CHUNK);
    chunks.write(300, &pattern(300, 100));
    let mut out = vec![0; 400];
    assert!(chunks.read(0, &mut out));
    let expected = [vec![7; 200], vec![9; 100], pattern(300, 100)].concat();
    assert_eq!(out, expected);
    chunks.pin(0, 400);
    chunks.release(400);
    assert!(chunks.read(0, &mut out));
    chunks.unpin(0, 400);
    chunks.shrink();
    assert!(!chunks.read(0, &mut out));
}

#[test]
fn a_lent_chunk_is_written_to_as_a_copy() {
    static BYTES: [u8; CHUNK as usize] = [7; CHUNK as usize];
    let mut chunks = new_chunks();
    chunks.refer_to(0, &BYTES, 100);
    chunks.pin(0, 100);
    chunks.write(100, &[8; 100]);
    let mut out = vec![0; 200];
    assert!(chunks.read(0, &mut out));
    assert_eq!(out, [[7; 100], [8; 100]].concat());
    chunks.release(CHUNK);
    assert!(chunks.read(0, &mut out[..100]), "the pin holds for the copy");
    chunks.unpin(0, 100);
    assert_eq!((chunks.memory(), chunks.slots.len()), (0, 0));
}

#[test]
fn where_memory_is_short_a_chunk_begins_as_a_piece() {
    let budget = MemoryBudget::new(Some(0));
    let account = budget.account(u64::MAX);
    let mut chunks = Chunks::new(ChunkSource::new(account.clone(), MemoryKind::Send));
    let start = CHUNK + PIECE;
    chunks.write(start + 100, &pattern(start + 100, 1_000));
    assert_eq!((chunks.memory(), account.used()), (PIECE, PIECE));
    assert_eq!(chunks.end_of_held_memory(start + 1_100), start + PIECE);
    assert_eq!(chunks.end_of_held_memory(start - 1), start - 1);
    let mut out = vec![0; 1_000];
    assert!(chunks.read(start + 100, &mut out) && out == pattern(start + 100, 1_000));
    assert!(!chunks.read(start - 500, &mut out) && !chunks.read(start + PIECE - 1, &mut out));
    // The rest of the piece, and beyond: a whole chunk holds all of it.
    chunks.pin(start + 100, start + 1_100);
    chunks.write(start + 1_100, &pattern(start + 1_100, PIECE as usize));
    assert_eq!((chunks.memory(), account.used()), (CHUNK, CHUNK));
    assert_eq!(chunks.end_of_held_memory(start), 2 * CHUNK);
    let mut out = vec![0; 1_000 + PIECE as usize];
    assert!(chunks.read(start + 100, &mut out));
    assert_eq!(out, pattern(start + 100, out.len()));
    chunks.unpin(start + 100, start + 1_100);
    chunks.release(2 * CHUNK);
    assert_eq!(account.used(), 0);
}

#[test]
fn a_piece_goes_once_it_is_released_and_not_pinned() {
    let account = MemoryBudget::new(Some(0)).account(u64::MAX);
    let mut chunks = Chunks::new(ChunkSource::new(account.clone(), MemoryKind::Send));
    for piece in 0..6 {
        let start = piece * PIECE;
        chunks.write(start, &pattern(start, PIECE as usize));
        assert_eq!(account.used(), PIECE);
        chunks.pin(start, start + 10);
        chunks.release(start + PIECE);
        assert_eq!(account.used(), PIECE, "it is pinned");
        chunks.unpin(start, start + 10);
        assert_eq!(account.used(), 0);
    }
}

#[test]
fn a_drained_stream_starts_again_where_it_stopped() {
    let mut chunks = new_chunks();
    chunks.write(0, &pattern(0, 100));
    chunks.release(100);
    chunks.shrink();
    chunks.write(100, &pattern(100, 100));
    let mut out = vec![0; 100];
    assert!(chunks.read(100, &mut out));
    assert_eq!(out, pattern(100, 100));
}
