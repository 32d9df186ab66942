//! Tests of waiting connections.

use tokio::io::{DuplexStream, duplex};
use tokio::task::yield_now;

use super::*;

const MAX_LIFETIME: Duration = Duration::from_secs(100);

fn pool_with(count: usize) -> (Pool<DuplexStream>, Vec<DuplexStream>) {
    let pool = Pool::new(count);
    let far = (0..count).map(|_| {
        let (near, far) = duplex(64);
        pool.add(near, MAX_LIFETIME);
        far
    });
    let far = far.collect();
    (pool, far)
}

#[tokio::test(start_paused = true)]
async fn a_pooled_connection_is_taken_once() {
    let (pool, mut far) = pool_with(2);
    assert_eq!(pool.missing_count(), 0);
    let mut stream = pool.take().await.unwrap();
    assert_eq!(pool.missing_count(), 1);
    stream.write_all(b"x").await.unwrap();
    assert_eq!(far[1].read_u8().await.unwrap(), b'x', "the youngest first");
    assert!(pool.take().await.is_some());
    assert!(pool.take().await.is_none());
    assert_eq!(pool.missing_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn dead_and_talking_pooled_connections_are_dropped() {
    let (pool, mut far) = pool_with(3);
    far.remove(2);
    far[1].write_all(b"unasked").await.unwrap();
    pool.changed().await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(pool.missing_count(), 2);
    assert!(pool.take().await.is_some());
    assert!(pool.take().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn expired_pooled_connections_are_closed_cleanly() {
    let (pool, mut far) = pool_with(1);
    sleep(MAX_LIFETIME + Duration::from_secs(1)).await;
    assert_eq!(pool.missing_count(), 1);
    assert!(pool.take().await.is_none());
    assert_eq!(far[0].read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cleared_pool_closes_its_connections() {
    let (pool, mut far) = pool_with(2);
    pool.clear();
    yield_now().await;
    for stream in &mut far {
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    assert_eq!(pool.missing_count(), 2);
}

fn put(used: &UsedConnections<DuplexStream>) -> DuplexStream {
    let (near, far) = duplex(64);
    used.add(near);
    far
}

#[tokio::test(start_paused = true)]
async fn the_last_used_is_taken_first_and_the_dead_never() {
    let used = UsedConnections::default();
    let (mut first, dead, mut last) = (put(&used), put(&used), put(&used));
    drop(dead);
    for far in [&mut last, &mut first] {
        let (mut near, _) = used.take().unwrap();
        near.write_all(b"x").await.unwrap();
        assert_eq!(far.read_u8().await.unwrap(), b'x');
    }
    assert!(used.take().is_none());
}

#[tokio::test(start_paused = true)]
async fn used_connections_wait_for_seconds_and_close_cleanly() {
    let used = UsedConnections::default();
    let mut old = put(&used);
    sleep(Duration::from_secs(3)).await;
    let _young = put(&used);
    sleep(Duration::from_secs(3)).await;
    assert_eq!((used.count(), old.read(&mut [0]).await.unwrap()), (1, 0));
    sleep(Duration::from_secs(3)).await;
    assert_eq!(used.count(), 0);
    // The task that checked for expired connections has ended, and is started again.
    let mut late = put(&used);
    assert_eq!(late.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_makes_room_and_a_closed_store_takes_none() {
    let used = UsedConnections::default();
    let mut far: Vec<_> = (0..=MAX_WAITING).map(|_| put(&used)).collect();
    assert_eq!((used.count(), far[0].read(&mut [0]).await.unwrap()), (MAX_WAITING, 0));
    used.close();
    let mut refused = put(&used);
    assert_eq!((used.count(), refused.read(&mut [0]).await.unwrap()), (0, 0));
}
