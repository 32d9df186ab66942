//! One stream that is always full. Events: `bytes TOTAL TIME`, the bytes received so far, every 100 ms.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::event;
use crate::clock;
use crate::dial::Dial;
use crate::protocol::{DOWN, UP};

/// Receives a stream from the server.
pub async fn down(dial: &Dial) -> anyhow::Result<()> {
    let mut stream = dial.stream().await?;
    stream.write_u8(DOWN).await?;
    stream.flush().await?;
    let mut buffer = vec![0; 65_536];
    let (mut total, mut ticks) = (0, tokio::time::interval(Duration::from_millis(100)));
    loop {
        tokio::select! {
            read = stream.read(&mut buffer) => total += read? as u64,
            _ = ticks.tick() => event("bytes", &[total, clock::now()]),
        }
    }
}

/// Sends a stream to the server, which reports the received bytes.
pub async fn up(dial: &Dial) -> anyhow::Result<()> {
    let mut stream = dial.stream().await?;
    stream.write_u8(UP).await?;
    let (mut from, mut to) = tokio::io::split(stream);
    let reader = async {
        loop {
            event("bytes", &[from.read_u64().await?, clock::now()]);
        }
    };
    let writer = async {
        loop {
            to.write_all(&[7; 65_536]).await?;
        }
    };
    tokio::select! {
        ended = reader => ended,
        ended = writer => ended,
    }
}
