//! Custom scheduler, registered and chosen by name.
//!
//! The scheduler sends on the subflow with the most room in its congestion window. A client uses it with two loopback
//! addresses, which are two paths, and prints how much each carried.
//!
//! ```text
//! cargo run -p marline --example policy
//! ```

use marline::algos::schedulers::classes;
use marline::algos::{NamedScheduler, Registry};
use marline::policy::{Decision, Reinjection, Scheduler, SchedulerContext};
use marline::{Client, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BYTES: u64 = 4 << 20;

/// Scheduler that prefers the subflow with the most room. One value is created per connection.
#[derive(Debug)]
struct LargestRoom;

impl Scheduler for LargestRoom {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        // The best class: regular subflows before backups, healthy ones before others.
        let Some(class) = classes::best_class(cx.subflows) else { return Decision::Wait };
        let ready = classes::members(cx.subflows, class).filter(|view| view.is_ready());
        match ready.max_by_key(|view| view.cwnd.saturating_sub(view.bytes_in_flight)) {
            // The core limits the range to one segment and asks again.
            Some(view) if !cx.unsent.is_empty() => {
                Decision::Send { subflow: view.id, range: cx.unsent }
            }
            _ => Decision::Wait,
        }
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        // Data from a troubled subflow is sent where the built-in schedulers would send it.
        classes::reinject(item, cx)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().listen("127.0.0.1:0".parse()?).bind().await?;
    let address = server.local_addr();
    let receiving = tokio::spawn(async move {
        let (mut stream, _peer) = server.accept().await.expect("the server is never closed");
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    });

    let mut registry = Registry::default();
    registry.register_scheduler(NamedScheduler::new("most-room", || Box::new(LargestRoom)))?;
    let client = Client::builder()
        .registry(registry)
        .scheduler("most-room")?
        .path("127.0.0.1".parse()?)
        .path("127.0.0.2".parse()?)
        .bind()
        .await?;
    let mut stream = client.connect(address).await?;
    stream.write_all(&vec![7; BYTES as usize]).await?;
    stream.shutdown().await?;
    // At the end of the server's stream, the server has read everything.
    stream.read_to_end(&mut Vec::new()).await?;
    for info in stream.info().iter().flat_map(|info| info.subflows.iter().chain(&info.gone)) {
        println!("{} -> {}: {} bytes", info.path.local, info.path.remote, info.bytes_sent);
    }
    drop(stream);
    let received = receiving.await??;
    assert_eq!(received, BYTES);
    Ok(())
}
