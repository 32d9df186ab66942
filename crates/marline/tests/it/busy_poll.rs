//! Test of busy polling on loopback: exchanges work with it, and idle time costs nothing.

use std::time::Duration;

use super::support::*;
use marline::{Client, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns the CPU time of this thread so far.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer refers to a live timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[tokio::test]
async fn busy_polling_lasts_while_messages_go_back_and_forth() {
    const LONG: Duration = Duration::from_millis(5);
    let mut server = Server::builder();
    server.listen("127.0.0.1:0".parse().unwrap()).busy_poll(LONG);
    let server = server.bind().await.unwrap();
    let mut client = Client::builder();
    client.path("127.0.0.1".parse().unwrap()).busy_poll(LONG);
    let client = client.bind().await.unwrap();
    within(async {
        let mut ours = client.connect(server.local_addr()).await.unwrap();
        ours.write_all(b"first").await.unwrap();
        let (mut theirs, _) = server.accept().await.unwrap();
        theirs.read_exact(&mut [0; 5]).await.unwrap();
        // Polling continues for some time after each exchange, so the processor is busy while the test waits.
        let mut waited = Duration::ZERO;
        for round in 0..200u8 {
            ours.write_all(&[round; 100]).await.unwrap();
            let mut got = [0; 100];
            theirs.read_exact(&mut got).await.unwrap();
            theirs.write_all(&got).await.unwrap();
            let mut back = [0; 100];
            ours.read_exact(&mut back).await.unwrap();
            assert_eq!(back, [round; 100]);
            if round % 10 == 0 {
                let before = cpu();
                tokio::time::sleep(LONG / 2).await;
                waited += cpu() - before;
            }
        }
        assert!(waited > LONG, "it sleeps immediately: {waited:?} of 50 ms");
        tokio::time::sleep(LONG * 4).await;
        // If both ends polled all the time, a second of silence would cost a second of CPU time.
        let before = cpu();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(cpu() - before < Duration::from_millis(300), "it never sleeps");
    })
    .await;
}
