//! Tests of wake-ups: busy polling, and which writes wait, for how long, and are sent together.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::AtomicUsize;
use core::task::Poll;
use std::collections::BTreeSet;

use marline_core::ConnectionConfig;
use tokio::io::ReadBuf;

use super::*;
use crate::driver::testing::{Target, shard};
use crate::driver::{AcceptQueue, ShardHandle, Stream};

const CONNECTIONS: usize = 8;

fn id(number: u64) -> ConnectionId {
    ConnectionId(number)
}

fn micros(at: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(at)
}

/// Creates turns with a driver waker that counts its calls.
fn turns() -> (Turns, Arc<Count>) {
    let count = Arc::new(Count::default());
    let mut turns = Turns::new();
    turns.set_driver(&Waker::from(Arc::clone(&count)));
    (turns, count)
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_lone_connection_never_waits() {
    let (mut turns, _) = turns();
    for at in 0..1_000 {
        assert!(!turns.on_write(micros(at), id(1), 100));
        turns.on_sent();
    }
}

#[test]
fn only_short_writes_soon_after_others_wait() {
    let (mut turns, _) = turns();
    assert!(!turns.on_write(micros(0), id(1), 100), "no other connection has written");
    assert!(!turns.on_write(micros(60), id(2), 100), "the other write was too long ago");
    assert!(
        !turns.on_write(micros(70), id(1), MAX_DELAYED_WRITE_BYTES + 1),
        "the write is too long"
    );
    assert!(turns.on_write(micros(80), id(2), 100));
    assert!(
        !turns.on_write(micros(81), id(2), MAX_DELAYED_WRITE_BYTES + 1),
        "a long write sends all waiting ones"
    );
    assert!(turns.on_write(micros(82), id(2), 100));
    assert!(turns.on_write(micros(83), id(3), 100));
    turns.on_sent();
    assert!(turns.on_write(micros(9_000), id(1), 100), "the last turn had several writes");
    turns.on_sent();
    assert!(!turns.on_write(micros(9_100), id(1), 100), "the wait was useless");
    turns.on_sent();
    assert!(!turns.on_write(micros(9_101), id(2), 100), "now two pairs are required");
    assert!(turns.on_write(micros(9_102), id(1), 100));
    assert!(turns.on_write(micros(9_103), id(2), 100));
    turns.on_sent();
    assert!(!turns.on_write(micros(9_200), id(1), 100), "two writes do not justify waiting");
}

#[test]
fn repeated_useless_waits_become_rarer() {
    let (mut turns, _) = turns();
    let mut waited = 0;
    for at in 0..4_096 {
        // Two connections alternate, each in a separate turn of the runtime.
        waited += usize::from(turns.on_write(micros(at * 30), id(at % 2), 100));
        turns.on_sent();
    }
    assert!((60..90).contains(&waited), "{waited} of 4,096");
}

#[test]
fn at_most_one_batch_of_writes_waits() {
    let (mut turns, _) = turns();
    assert!(!turns.on_write(micros(0), id(0), 100));
    let waited = (1..1_000).take_while(|at| turns.on_write(micros(1), id(*at), 100)).count();
    assert_eq!(waited, MAX_DELAYED_WRITES as usize);
}

#[test]
fn a_turn_ends_with_the_runtime_or_after_its_maximum_time() {
    let (mut turns, count) = turns();
    turns.on_write(micros(0), id(1), 100);
    assert!(!turns.defers_writes(micros(0)), "no write waits");
    assert!(turns.on_write(micros(10), id(2), 100));
    let end = turns.end.clone().expect("set");
    end.has_ended.store(false, Ordering::Relaxed);
    assert!(turns.defers_writes(micros(209)) && !turns.defers_writes(micros(210)));
    assert!(!turns.on_write(micros(210), id(1), 100), "it sends the waiting write");
    Waker::from(end).wake();
    assert!(!turns.defers_writes(micros(20)));
    assert_eq!(
        count.0.load(Ordering::Relaxed),
        2,
        "the driver is woken, as it was immediately without a runtime"
    );
}

/// Outside a runtime, a turn has no end to wait for.
#[test]
fn a_thread_outside_a_runtime_wakes_the_driver_immediately() {
    let (turns, count) = turns();
    wake_at_end_of_turn(turns.end.as_ref().expect("set"));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
}

/// Connections between a client and a server, with relays between their sockets: datagrams of one send call arrive
/// as one message.
struct World {
    near: Vec<Stream>,
    far: Vec<Stream>,
    largest: Arc<AtomicUsize>,
    _shards: [Arc<ShardHandle>; 2],
}

impl World {
    async fn new() -> World {
        let queue = AcceptQueue::new(CONNECTIONS);
        let config = Arc::new(ConnectionConfig::new(marline_algos::reference_policies()));
        let (server, at) = shard(Some((ConnectionConfig::clone(&config), Arc::clone(&queue))));
        let (client, _) = shard(None);
        let (relay, largest) = (Target::new(), Arc::new(AtomicUsize::new(0)));
        let between = relay.address();
        tokio::spawn(pass_on(relay, at, Arc::clone(&largest)));
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let stream = client.connect(Arc::clone(&config), local, between);
            let stream = stream.expect("started");
            let (connected, incoming) = tokio::join!(stream.connected(), queue.pop());
            connected.expect("established");
            let incoming = incoming.expect("open");
            near.push(stream);
            far.push(Stream::accepted(Arc::clone(&server), incoming));
        }
        World { near, far, largest, _shards: [client, server] }
    }

    /// Writes a message on each connection, all in one turn unless the runtime needs its thread for other work.
    async fn write(&self, message: &[u8]) {
        for stream in &self.near {
            let written = core::future::poll_fn(|cx| stream.poll_write(cx, message)).await;
            assert_eq!(written.expect("open"), message.len());
        }
    }

    /// Reads `len` bytes from each connection.
    async fn read(&self, len: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for stream in &self.far {
            let mut bytes = vec![0; len];
            let mut buf = ReadBuf::new(&mut bytes);
            while buf.remaining() > 0 {
                let read = core::future::poll_fn(|cx| stream.poll_read(cx, &mut buf));
                read.await.expect("open");
            }
            all.push(bytes);
        }
        all
    }
}

/// Relays messages between a client and a server, and records the largest number of flows in one.
async fn pass_on(relay: Target, server: SocketAddr, largest: Arc<AtomicUsize>) {
    let mut client = server;
    loop {
        let (from, stride, bytes) = relay.receive().await;
        let frames = bytes.chunks(stride.max(1));
        let flows: BTreeSet<&[u8]> = frames.clone().filter_map(|frame| frame.get(1..9)).collect();
        largest.fetch_max(flows.len(), Ordering::Relaxed);
        if from != server {
            client = from;
        }
        let to = if from == server { client } else { server };
        for frame in frames {
            relay.send(to, frame).await;
        }
    }
}

#[tokio::test]
async fn writes_of_one_runtime_turn_are_sent_in_one_call_in_order() {
    let world = World::new().await;
    world.largest.store(0, Ordering::Relaxed);
    let rounds: Vec<Vec<u8>> = (0..50).map(|round| vec![round; 100]).collect();
    for round in &rounds {
        world.write(round).await;
        assert!(world.read(100).await.iter().all(|read| read == round));
    }
    let largest = world.largest.load(Ordering::Relaxed);
    assert_eq!(largest, CONNECTIONS, "after the first round, one call sends all");

    // A reader does not make writes wait.
    for round in &rounds {
        world.write(round).await;
    }
    for read in world.read(rounds.len() * 100).await {
        assert!(read == rounds.concat());
    }
}

/// The runtime cannot detect the end of the turn while its task computes.
#[tokio::test]
async fn waiting_writes_leave_with_the_next_write_of_a_busy_task() {
    let world = World::new().await;
    let (last, others) = world.near.split_last().expect("some writes wait");
    let waiting = || last.shard().lock().wakeups().turns().waiting;
    let mut waited = 0;
    for _ in 0..20 {
        core::future::poll_fn(|cx| {
            for stream in others {
                assert!(stream.poll_write(cx, &[2; 100]).is_ready());
            }
            waited = waited.max(waiting());
            std::thread::sleep(core::time::Duration::from_millis(1));
            assert!(last.poll_write(cx, &[2; 100]).is_ready());
            // On a busy machine, another event may have sent the waiting writes, so that this one begins the next turn.
            assert!(waiting() <= 1, "{} wait", waiting());
            Poll::Ready(())
        })
        .await;
        assert!(world.read(100).await.iter().all(|read| *read == [2; 100]));
    }
    assert!(waited > 1);
}

const US: fn(u64) -> Instant = Instant::from_micros;

#[test]
fn busy_polling_continues_briefly_after_an_exchange() {
    let mut polls = BusyPoll::new(Duration::from_micros(50));
    assert!(!polls.is_on(US(100)));
    assert!(polls.on_exchange(US(100)) && !polls.on_exchange(US(130)));
    assert!(polls.is_on(US(179)) && !polls.is_on(US(180)));
    assert!(polls.on_exchange(US(180)), "polling starts again");
}

#[test]
fn busy_polling_is_off_by_default_and_bounded() {
    let mut polls = BusyPoll::new(Duration::ZERO);
    assert!(!polls.on_exchange(US(100)) && !polls.is_on(US(100)));
    let mut polls = BusyPoll::new(Duration::from_secs(9));
    assert!(polls.on_exchange(US(0)) && !polls.is_on(US(10_000)));
}
