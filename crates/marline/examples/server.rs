//! Echo server: sends back what it receives, over all paths of the client.
//!
//! ```text
//! cargo run -p marline --example server -- 0.0.0.0:4500
//! ```

use marline::{Server, Stream};
use tokio::io::AsyncWriteExt;

async fn echo(stream: Stream) -> std::io::Result<u64> {
    let (mut reader, mut writer) = stream.into_split();
    let bytes = tokio::io::copy(&mut reader, &mut writer).await?;
    writer.shutdown().await?;
    Ok(bytes)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:4500".to_owned());
    let server = Server::builder().listen(listen.parse()?).bind().await?;
    println!("listening on {}", server.local_addr());
    while let Some((stream, peer)) = server.accept().await {
        tokio::spawn(async move {
            match echo(stream).await {
                Ok(bytes) => println!("{peer}: {bytes} bytes"),
                Err(error) => println!("{peer}: {error}"),
            }
        });
    }
    Ok(())
}
