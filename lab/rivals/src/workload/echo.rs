//! Echoes of 200 bytes at an interval, even if earlier ones are unanswered. Events: `sent NUMBER TIME`, `answer NUMBER
//! TIME`.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::event;
use crate::clock;
use crate::dial::Dial;
use crate::protocol::ECHO;

const BYTES: usize = 200;

fn message(number: u64) -> [u8; BYTES] {
    let mut message = [ECHO; BYTES];
    message[1..9].copy_from_slice(&number.to_be_bytes());
    message
}

fn report_answer(message: &[u8]) {
    let Some(number) = message.get(1..9).and_then(|bytes| bytes.try_into().ok()) else { return };
    event("answer", &[u64::from_be_bytes(number), clock::now()]);
}

/// Runs the echoes over a stream.
pub async fn over_stream(dial: &Dial, interval_ms: u64) -> anyhow::Result<()> {
    let mut stream = dial.stream().await?;
    stream.write_u8(ECHO).await?;
    stream.write_u32(BYTES as u32).await?;
    let (mut from, mut to) = tokio::io::split(stream);
    let reader = async {
        let mut message = [0; BYTES];
        loop {
            from.read_exact(&mut message).await?;
            report_answer(&message);
        }
    };
    let writer = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(interval_ms));
        for number in 0.. {
            ticks.tick().await;
            event("sent", &[number, clock::now()]);
            to.write_all(&message(number)).await?;
            to.flush().await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = reader => ended,
        ended = writer => ended,
    }
}

/// Runs the echoes over datagrams.
pub async fn over_datagrams(dial: &Dial, interval_ms: u64) -> anyhow::Result<()> {
    let socket = dial.datagrams().await?;
    let mut ticks = tokio::time::interval(Duration::from_millis(interval_ms));
    let (mut number, mut buffer) = (0, [0; 2_048]);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                event("sent", &[number, clock::now()]);
                // An echo that cannot be sent is lost.
                let _ = socket.send(&message(number)).await;
                number += 1;
            }
            received = socket.recv(&mut buffer) => match received {
                Ok(bytes) => report_answer(&buffer[..bytes]),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            },
        }
    }
}
