//! Tests of reception by callers: in a runtime of one thread, a task that does not yield keeps the drivers' tasks
//! waiting.

use core::future::poll_fn;
use core::net::{IpAddr, Ipv4Addr};
use core::task::Poll;
use std::sync::Arc;

use marline_core::{ConnectionConfig, ConnectionInfo, Limits};
use tokio::io::ReadBuf;

use super::*;
use crate::driver::reception::BUSY_RUNTIME_CALLS;
use crate::driver::sockets::Kind;
use crate::driver::testing::{connecting_shard, shard, without_sockets};
use crate::driver::{AcceptQueue, ShardHandle, Stream};
use crate::links::UdpUse;
use crate::native::RawSockets;
use marline_testkit::need;

/// Connections that end at the same time: their last data fills several batches, yet fits into a socket's buffer even
/// if each connection sends its own datagram.
const CROWD_OF_STREAMS: usize = 100;
/// Last data of each connection.
const LAST: [u8; 24] = [2; 24];

/// Sleeps longer than a task may be late, but less than any timer of a connection.
fn sleep_until_late() {
    std::thread::sleep(core::time::Duration::from_millis(2));
}

/// Client and server with connections between them.
struct World {
    near: Vec<Stream>,
    far: Vec<Stream>,
    client: Arc<ShardHandle>,
    server: Arc<ShardHandle>,
}

impl World {
    async fn new(connections: usize) -> World {
        assert!(connections <= Limits::default().connections);
        let queue = AcceptQueue::new(connections);
        let config = Arc::new(ConnectionConfig::new(marline_algos::reference_policies()));
        let (server, at) = shard(Some((ConnectionConfig::clone(&config), Arc::clone(&queue))));
        let (client, _) = shard(None);
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..connections {
            let local = IpAddr::from(Ipv4Addr::LOCALHOST);
            let stream = client.connect(Arc::clone(&config), local, at).expect("started");
            let (connected, incoming) = tokio::join!(stream.connected(), queue.pop());
            connected.expect("established");
            near.push(stream);
            far.push(Stream::accepted(Arc::clone(&server), incoming.expect("open")));
        }
        // Wait until nothing is in transit.
        tokio::time::sleep(core::time::Duration::from_millis(300)).await;
        World { near, far, client, server }
    }
}

/// Wakes the task of a shard; it is not polled before the caller yields.
fn wake_task(shard: &ShardHandle) {
    // Without a waker, the task has already been woken.
    let driver = shard.lock().wakeups().task();
    if let Some(driver) = driver {
        driver.wake();
    }
}

/// Reads available data.
fn read_now(stream: &Stream, cx: &mut Context<'_>) -> Option<Vec<u8>> {
    let mut bytes = [0; 256];
    let mut buf = ReadBuf::new(&mut bytes);
    match stream.poll_read(cx, &mut buf) {
        Poll::Ready(read) => {
            read.expect("open");
            Some(buf.filled().to_vec())
        }
        Poll::Pending => None,
    }
}

fn write_now(stream: &Stream, cx: &mut Context<'_>, bytes: &[u8]) {
    assert!(matches!(stream.poll_write(cx, bytes), Poll::Ready(Ok(len)) if len == bytes.len()));
}

/// Runs a closure within one poll.
async fn run_in_one_poll(run: impl FnOnce(&mut Context<'_>)) {
    let mut run = Some(run);
    // Otherwise tokio would end the turn after some of the calls.
    tokio::task::unconstrained(poll_fn(|cx| {
        run.take().expect("polled once")(cx);
        Poll::Ready(())
    }))
    .await;
}

#[tokio::test]
async fn a_read_receives_datagrams_only_if_the_task_is_late() {
    let world = World::new(1).await;
    run_in_one_poll(|cx| {
        write_now(&world.near[0], cx, b"question");
        sleep_until_late();
        assert_eq!(read_now(&world.far[0], cx), None, "the task has not been woken");
        wake_task(&world.server);
        sleep_until_late();
        assert_eq!(read_now(&world.far[0], cx).as_deref(), Some(&b"question"[..]));
    })
    .await;
    // The task finds nothing to do, and continues to work.
    for round in 0..10_u8 {
        run_in_one_poll(|cx| write_now(&world.near[0], cx, &[round])).await;
        let read = poll_fn(|cx| read_now(&world.far[0], cx).map_or(Poll::Pending, Poll::Ready));
        assert_eq!(read.await, [round]);
    }
}

/// Blocks the thread for `for_ms` in a process that keeps running. The clock is read meanwhile, so that the time
/// does not count as a pause of the process.
fn compute(shard: &ShardHandle, for_ms: u64) {
    for _ in 0..for_ms / 20 {
        std::thread::sleep(core::time::Duration::from_millis(20));
        let _ = shard.clock().now();
    }
}

/// Timeouts and tail loss probes of a connection's subflows.
fn repeats(info: &ConnectionInfo) -> u64 {
    info.subflows.iter().map(|subflow| subflow.rtos + subflow.probes).sum()
}

#[tokio::test]
async fn an_answer_in_the_socket_prevents_a_timeout() {
    let world = World::new(1).await;
    run_in_one_poll(|cx| {
        write_now(&world.near[0], cx, b"question");
        wake_task(&world.server);
        sleep_until_late();
        assert!(read_now(&world.far[0], cx).is_some());
        write_now(&world.far[0], cx, b"answer");
        // All timers of the request have expired.
        wake_task(&world.client);
        compute(&world.client, 500);
        let overdue = world.client.clock().now();
        assert!(world.client.lock().wakeups().alarm_at().is_some_and(|at| at < overdue));
        assert_eq!(read_now(&world.near[0], cx).as_deref(), Some(&b"answer"[..]));
        let armed = world.client.lock().wakeups().alarm_at();
        assert!(armed.is_none_or(|at| at > overdue), "the caller has served the timers");
        assert_eq!(world.near[0].info().map(|info| repeats(&info)), Some(0));
    })
    .await;
}

#[tokio::test]
async fn an_answer_in_the_socket_shows_that_udp_works() {
    let queue = AcceptQueue::new(1);
    let config = Arc::new(ConnectionConfig::new(marline_algos::reference_policies()));
    let (server, at) = shard(Some((ConnectionConfig::clone(&config), Arc::clone(&queue))));
    let (client, _) = connecting_shard(UdpUse::Preferred);
    // Both tasks have run once.
    tokio::time::sleep(core::time::Duration::from_millis(20)).await;
    run_in_one_poll(|_| {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let _stream = client.connect(Arc::clone(&config), local, at).expect("started");
        let asked = |shard: &ShardHandle| shard.lock().routing().routes().next_timeout();
        assert!(asked(&client).is_some(), "a SYN expects an answer");
        wake_task(&server);
        sleep_until_late();
        server.drive_if_late();
        compute(&client, 600);
        let now = client.clock().now();
        client.with_endpoint(|_, _| ());
        assert!(asked(&client).is_some_and(|at| at < now), "overdue, but not yet evaluated");
        wake_task(&client);
        sleep_until_late();
        client.with_endpoint(|_, _| ());
        assert_eq!(asked(&client), None, "the answer was in the socket");
    })
    .await;
    assert!(client.routes_on_links().is_empty());
}

/// The data arrives regardless of how many tasks the runtime polls before the driver's.
#[tokio::test]
async fn data_of_many_streams_written_together_can_be_read() {
    let world = World::new(CROWD_OF_STREAMS).await;
    let (near, far) = (&world.near, &world.far);
    run_in_one_poll(|cx| {
        for (from, to, shard) in [(near, far, &world.server), (far, near, &world.client)] {
            from.iter().for_each(|stream| write_now(stream, cx, &LAST));
            // Send data that waits for the end of the turn.
            from[0].shard().with_endpoint(|_, _| ());
            wake_task(shard);
            sleep_until_late();
            let mut read: Vec<_> = to.iter().map(|stream| read_now(stream, cx)).collect();
            // On a busy machine, the first batches may have been acknowledgments.
            for (stream, read) in to.iter().zip(&mut read).filter(|(_, read)| read.is_none()) {
                *read = read_now(stream, cx);
            }
            assert!(read.iter().all(|read| read.as_deref() == Some(&LAST[..])));
        }
    })
    .await;
}

/// The runtime checks its sockets only after a number of tasks. Calls in between must not wait for that.
#[tokio::test]
async fn many_calls_receive_without_a_wakeup_of_the_task() {
    let world = World::new(1).await;
    run_in_one_poll(|cx| {
        write_now(&world.near[0], cx, b"question");
        sleep_until_late();
        let reads = (0..BUSY_RUNTIME_CALLS).map(|_| read_now(&world.far[0], cx));
        assert_eq!(reads.flatten().count(), 0);
        assert_eq!(read_now(&world.far[0], cx).as_deref(), Some(&b"question"[..]));
    })
    .await;
}

/// Returns the number of send-only sockets that are not bound to an interface.
fn spare(shard: &Shard) -> usize {
    let raw = |socket: &Sock| match &socket.kind {
        Kind::Raw(raw) => raw.spare(),
        _ => 0,
    };
    shard.lock().sockets().iter().map(raw).sum()
}

#[tokio::test]
async fn a_server_without_outgoing_connections_has_no_send_sockets() {
    if !need::root() {
        return;
    }
    let shard = without_sockets(CarrierKind::Raw, None);
    shard.use_raw(&RawSockets::open().unwrap()).unwrap();
    assert!(spare(&shard) > 0);
    shard.disable_connecting();
    assert_eq!(spare(&shard), 0);
}
