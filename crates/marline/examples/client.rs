//! Client of the echo server: sends its input line by line, and prints when each line returns and over which paths.
//!
//! ```text
//! cargo run -p marline --example client -- SERVER:4500 [PATH ...]
//! ```
//!
//! A path is an interface or a local address, with `,backup` if it should carry only data that no other path can.
//! Without any path, all interfaces with a default route are used. Try to unplug a cable during the transfer.

use std::time::Instant;

use marline::Client;
use marline::paths::PathSpec;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let server = words.next().ok_or("usage: client SERVER:PORT [PATH ...]")?;
    let paths = words.map(|word| word.parse()).collect::<Result<Vec<PathSpec>, _>>()?;

    let client = Client::builder().paths(paths).bind().await?;
    let mut stream = client.connect(server).await?;
    println!("connected from {} to {}", stream.local_addr()?, stream.peer_addr());

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let sent_at = Instant::now();
        stream.write_all(line.as_bytes()).await?;
        let mut echo = vec![0; line.len()];
        stream.read_exact(&mut echo).await?;
        let subflows = stream.info().map_or(0, |info| info.subflows.len());
        let text = String::from_utf8_lossy(&echo);
        println!("{text} ({:?}, {subflows} subflows)", sent_at.elapsed());
    }
    stream.shutdown().await?;
    // Data is lost when its process ends: wait until the peer has received everything.
    drop(stream);
    client.drained(std::time::Duration::from_secs(5)).await;
    Ok(())
}
