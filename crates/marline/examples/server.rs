//! Echo server: sends back what it receives, over all paths of the client.
//!
//! ```text
//! cargo run -p marline --example server -- 0.0.0.0:4500
//! ```

use marline::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:4500".to_owned());
    let server = Server::builder().listen(listen.parse()?).bind().await?;
    println!("listening on {}", server.local_addr());
    while let Some((stream, peer)) = server.accept().await {
        tokio::spawn(async move {
            let (mut reader, mut writer) = stream.into_split();
            let mut buf = vec![0; 16 * 1024];
            loop {
                match reader.read(&mut buf).await {
                    Ok(0) => break,
                    Ok(len) => {
                        if writer.write_all(&buf[..len]).await.is_err() {
                            break;
                        }
                    }
                    Err(error) => {
                        eprintln!("{peer}: {error}");
                        break;
                    }
                }
            }
        });
    }
    Ok(())
}
