//! Tests of one direction of a relay.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use marline::memory::MemoryBudget;

use super::super::*;

/// A direction that waits for bytes has no buffer. One that waits for room has a buffer until the writer has room.
#[tokio::test]
async fn a_buffer_is_held_only_while_bytes_are_in_it() {
    let (mut source, mut reader) = duplex(1 << 20);
    let (mut writer, mut sink) = duplex(1_000);
    let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
    let mut cx = Context::from_waker(Waker::noop());
    let mut poll = |pump: &mut Pump| pump.poll(&mut cx, &mut reader, &mut writer, &memory, true);
    assert!(poll(&mut pump).is_pending() && !pump.holds_memory());
    source.write_all(&[1; 600]).await.unwrap();
    assert!(poll(&mut pump).is_pending() && !pump.holds_memory());
    source.write_all(&[2; 600]).await.unwrap();
    assert!(poll(&mut pump).is_pending() && pump.holds_memory());
    let mut got = vec![0; 1_200];
    sink.read_exact(&mut got[..1_000]).await.unwrap();
    assert!(poll(&mut pump).is_pending() && !pump.holds_memory());
    sink.read_exact(&mut got[1_000..]).await.unwrap();
    assert!(got[..600] == [1; 600] && got[600..] == [2; 600]);
}

/// When memory is short, little is read ahead and nothing else is held.
#[tokio::test]
async fn little_is_held_where_memory_is_short() {
    let budget = MemoryBudget::new(Some(0));
    let memory = budget.account(u64::MAX);
    let (mut source, mut reader) = duplex(1 << 20);
    let (mut writer, mut sink) = duplex(1_000);
    let mut pump = Pump::default();
    let mut cx = Context::from_waker(Waker::noop());
    source.write_all(&[1; 100_000]).await.unwrap();
    for held in [MIN_READ_BYTES - 1_000, MIN_READ_BYTES - 2_000] {
        assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, true).is_pending());
        assert_eq!(memory.used(), held as u64);
        sink.read_exact(&mut [0; 1_000]).await.unwrap();
    }
    budget.set_limit(None);
    let (mut got, mut part) = (2_000, [0; 1_000]);
    while got < 100_000 {
        let _ = pump.poll(&mut cx, &mut reader, &mut writer, &memory, true);
        got += sink.read(&mut part).await.unwrap();
    }
    let _ = pump.poll(&mut cx, &mut reader, &mut writer, &memory, true);
    assert!(!pump.holds_memory() && memory.used() == 0);
}

/// When memory is short, nothing is read for a writer that has no room or has not passed on its data.
#[tokio::test]
async fn nothing_is_read_for_a_writer_without_room_where_memory_is_short() {
    let budget = MemoryBudget::new(Some(0));
    let memory = budget.account(u64::MAX);
    let (mut source, mut reader) = duplex(1 << 20);
    let (writer, mut sink) = duplex(1_000);
    let mut writer = tokio::io::BufWriter::with_capacity(3_000, writer);
    let mut pump = Pump::default();
    let mut cx = Context::from_waker(Waker::noop());
    source.write_all(&[1; 2_000]).await.unwrap();
    assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, false).is_pending());
    assert!(pump.is_blocked() && !pump.holds_memory() && memory.used() == 0);
    for _ in 0..2 {
        assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, true).is_pending());
    }
    assert!(pump.is_blocked() && !pump.holds_memory() && memory.used() == 0);
    sink.read_exact(&mut [0; 1_000]).await.unwrap();
    assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, true).is_pending());
    assert!(!pump.is_blocked() && memory.used() == 0);
}

/// A reader that always has more and a writer that accepts everything do not occupy the thread: after a few
/// fillings another task gets its turn, and the direction wakes itself.
#[tokio::test]
async fn a_turn_ends_although_there_is_more() {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let (mut reader, mut taken) = (tokio::io::repeat(1), Vec::new());
    let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
    for turn in 1..4 {
        assert!(pump.poll(&mut cx, &mut reader, &mut taken, &memory, true).is_pending());
        assert_eq!(taken.len(), turn * FILLS_PER_TURN * BUFFER_LEN);
        assert_eq!(woken.0.load(Ordering::Relaxed), turn);
        assert!(!pump.holds_memory());
    }
}

/// Number of times a task was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// More data than the buffer holds, with a writer that accepts little: nothing is lost or duplicated, and the end comes
/// after the last byte.
#[tokio::test]
async fn bytes_come_in_order_through_a_narrow_writer() {
    let sent: Vec<u8> = (0..5 * BUFFER_LEN + 77).map(|at| (at % 251) as u8).collect();
    let (mut source, mut reader) = duplex(70_000);
    let (mut writer, mut sink) = duplex(333);
    let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
    let feed = async {
        source.write_all(&sent).await.unwrap();
        source.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let run = std::future::poll_fn(|cx| pump.poll(cx, &mut reader, &mut writer, &memory, true));
    let (_, ended, read) = tokio::join!(feed, run, sink.read_to_end(&mut got));
    ended.unwrap();
    read.unwrap();
    assert!(got == sent);
    assert!(!pump.holds_memory());
}
