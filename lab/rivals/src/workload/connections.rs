//! Many connections that exchange one message and stay open. Event: `open NUMBER`, when all are open.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::event;
use crate::dial::Dial;
use crate::protocol::ECHO;

/// Opens the connections, several at a time.
pub async fn open(dial: &Dial, count: u64) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    while (streams.len() as u64) < count {
        let mut opening = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let dial = dial.clone();
            opening.spawn(async move {
                let mut stream = dial.stream().await?;
                stream.write_u8(ECHO).await?;
                stream.write_u32(1).await?;
                stream.write_u8(1).await?;
                stream.flush().await?;
                stream.read_u8().await?;
                anyhow::Ok(stream)
            });
        }
        while let Some(opened) = opening.join_next().await {
            streams.push(opened??);
        }
    }
    event("open", &[streams.len() as u64]);
    std::future::pending().await
}
