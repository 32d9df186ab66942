//! Exchange between the two applications, written once for all kinds of streams.
//!
//! The server sends the first byte, because a kernel client does not join before it has received data from its
//! peer. The client then waits for the joins, so that the subflows exist before data is sent.

use std::io;
use std::time::Duration;

use marline_lab::scenario::Side;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::cell::Workload;
use crate::content::{Content, ReceivedData, receive, send};

/// The server's first byte.
const GREETING: u8 = b'M';
/// Time for joins: three round trips of the slow path.
const JOIN_WAIT: Duration = Duration::from_millis(200);
/// Maximum number of concurrent messages.
const MAX_CONCURRENT_MESSAGES: usize = 64;
/// Maximum message length in bytes, slightly less than a segment.
const MAX_MESSAGE_LEN: u64 = 1_400;

/// A connection that can be aborted.
pub(crate) trait Pipe: AsyncRead + AsyncWrite + Unpin + Send {
    /// Ends the connection immediately, for both sides.
    fn abort(self);
    /// Reason for a fallback to plain TCP. `None` if there was no fallback, or if it is unknown.
    fn fallback(&self) -> Option<String>;
}

/// Plan of an exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    /// Length of a stream in bytes.
    pub(crate) bytes: u64,
    /// Number of messages, if the workload has any.
    pub(crate) messages: u32,
    /// Pause of a slow reader.
    pub(crate) pause: Duration,
    /// Minimum time between the starts of the client's two connections.
    pub(crate) interval: Duration,
    pub(crate) seed: u64,
}

/// Result of a connection at one end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The received stream, if one was expected.
    pub(crate) received: Option<ReceivedData>,
    /// Number of messages that were echoed correctly.
    pub(crate) echoed: u32,
    /// Write error.
    pub(crate) send_error: Option<String>,
    /// Any other error.
    pub(crate) error: Option<String>,
    pub(crate) fallback: Option<String>,
    /// True if this end aborted the connection.
    pub(crate) aborted: bool,
}

impl Plan {
    /// Number of successive connections. Asymmetric workloads run once in each direction.
    pub(crate) const fn connections(&self) -> usize {
        match self.workload {
            Workload::HalfClose | Workload::Abort | Workload::SlowReader => 2,
            _ => 1,
        }
    }

    /// The content that `from` sends.
    const fn content(&self, from: Side, connection: usize) -> Content {
        let side = match from {
            Side::Client => 1,
            Side::Server => 2,
        };
        Content::new(self.seed ^ (side << 32) ^ ((connection as u64) << 40))
    }

    /// Hash of the data that `side` has to receive.
    pub(crate) fn sha256(&self, side: Side, connection: usize, bytes: u64) -> String {
        let from = if side == Side::Client { Side::Server } else { Side::Client };
        self.content(from, connection).sha256(bytes)
    }

    /// Bytes sent by each side, the client's first.
    pub(crate) const fn streams(&self, connection: usize) -> (u64, u64) {
        let bytes = self.bytes;
        match (self.workload, connection) {
            (Workload::Up, _) => (bytes, 0),
            (Workload::Down, _) => (0, bytes),
            (Workload::Abort | Workload::SlowReader, 0) => (bytes, 0),
            (Workload::Abort | Workload::SlowReader, _) => (0, bytes),
            (Workload::Messages, _) => (0, 0),
            (Workload::Both | Workload::HalfClose, _) => (bytes, bytes),
        }
    }

    /// The side that aborts, finishes its half first, or reads slowly.
    const fn leading_side(connection: usize) -> Side {
        if connection == 0 { Side::Client } else { Side::Server }
    }
}

/// Runs one connection at one end.
pub(crate) async fn run(
    mut pipe: impl Pipe,
    side: Side,
    plan: &Plan,
    connection: usize,
) -> Outcome {
    if let Err(error) = greet(&mut pipe, side).await {
        let (error, fallback) =
            (Some(format!("cannot exchange the first byte: {error}")), pipe.fallback());
        return Outcome { error, fallback, ..Outcome::default() };
    }
    let mut outcome = match plan.workload {
        Workload::Messages => messages(&mut pipe, side, plan).await,
        Workload::Abort if Plan::leading_side(connection) == side => {
            return abort(pipe, side, plan, connection).await;
        }
        _ => streams(&mut pipe, side, plan, connection).await,
    };
    outcome.fallback = pipe.fallback();
    outcome
}

async fn greet(pipe: &mut impl Pipe, side: Side) -> io::Result<()> {
    match side {
        Side::Server => {
            pipe.write_all(&[GREETING]).await?;
            pipe.flush().await
        }
        Side::Client => {
            let mut byte = [0];
            pipe.read_exact(&mut byte).await?;
            if byte != [GREETING] {
                return Err(io::Error::other(format!("unexpected first byte {byte:?}")));
            }
            tokio::time::sleep(JOIN_WAIT).await;
            Ok(())
        }
    }
}

/// Sends half of the announced data and aborts.
async fn abort(mut pipe: impl Pipe, side: Side, plan: &Plan, connection: usize) -> Outcome {
    let content = plan.content(side, connection);
    let sent = send(&mut pipe, content, plan.bytes / 2).await;
    let mut outcome = Outcome { aborted: true, fallback: pipe.fallback(), ..Outcome::default() };
    outcome.send_error = sent.err().map(|error| error.kind().to_string());
    pipe.abort();
    outcome
}

/// Transfers a stream in each direction: sequentially for half closes, otherwise concurrently.
async fn streams(pipe: &mut impl Pipe, side: Side, plan: &Plan, connection: usize) -> Outcome {
    let (from_client, from_server) = plan.streams(connection);
    let (out, other) = match side {
        Side::Client => (from_client, Side::Server),
        Side::Server => (from_server, Side::Client),
    };
    let (mine, theirs) = (plan.content(side, connection), plan.content(other, connection));
    let goes_first = Plan::leading_side(connection) == side;
    let slow = plan.workload == Workload::SlowReader && !goes_first;
    let (mut reader, mut writer) = tokio::io::split(pipe);
    let read = async {
        if slow {
            tokio::time::sleep(plan.pause).await;
        }
        receive(&mut reader, theirs).await
    };
    let write = async {
        send(&mut writer, mine, out).await?;
        writer.shutdown().await
    };
    // The kernel accepts no further subflows after it has received the end of its peer's data. Therefore a side
    // without data stays silent until the other has finished.
    let waits = out == 0 || plan.workload == Workload::HalfClose && !goes_first;
    let (received, sent) = if waits {
        let received = read.await;
        (received, write.await)
    } else {
        tokio::join!(read, write)
    };
    let send_error = sent.err().map(|error| error.kind().to_string());
    Outcome { received: Some(received), send_error, ..Outcome::default() }
}

/// Exchanges length-prefixed messages, each of which is echoed.
async fn messages(pipe: &mut impl Pipe, side: Side, plan: &Plan) -> Outcome {
    let (mut reader, mut writer) = tokio::io::split(pipe);
    let result: io::Result<u32> = match side {
        Side::Server => {
            async {
                let copied = tokio::io::copy(&mut reader, &mut writer).await;
                let ended = writer.shutdown().await;
                copied.and(ended).map(|()| 0)
            }
            .await
        }
        Side::Client => {
            async {
                let window = tokio::sync::Semaphore::new(MAX_CONCURRENT_MESSAGES);
                let write = async {
                    for number in 0..plan.messages {
                        // The reader releases the permit.
                        if let Ok(place) = window.acquire().await {
                            place.forget();
                        }
                        writer.write_all(&message(plan.seed, number)).await?;
                    }
                    writer.shutdown().await
                };
                let read = async {
                    let mut echoed = 0;
                    for number in 0..plan.messages {
                        let wanted = message(plan.seed, number);
                        let mut got = vec![0; wanted.len()];
                        reader.read_exact(&mut got).await?;
                        if got != wanted {
                            return Err(io::Error::other(format!(
                                "the echo of message {number} differs"
                            )));
                        }
                        echoed += 1;
                        window.add_permits(1);
                    }
                    match reader.read(&mut [0]).await? {
                        0 => Ok(echoed),
                        _ => Err(io::Error::other("received more data than was sent")),
                    }
                };
                let (echoed, ()) = tokio::try_join!(read, write)?;
                Ok(echoed)
            }
            .await
        }
    };
    match result {
        Ok(echoed) => Outcome { echoed, ..Outcome::default() },
        Err(error) => Outcome { error: Some(error.to_string()), ..Outcome::default() },
    }
}

/// Creates a message whose length and content depend on its number.
fn message(seed: u64, number: u32) -> Vec<u8> {
    let mixed = (seed ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let len = 1 + mixed % MAX_MESSAGE_LEN;
    let mut bytes = (len as u16).to_be_bytes().to_vec();
    bytes.extend((0..len).map(|at| (mixed.wrapping_add(at * at)) as u8));
    bytes
}
