//! Exchange workload: both ends write the same amount at the same time, and each reads what the
//! other writes. The server confirms with a last byte that it has everything; until then the client
//! must stay.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use super::{CHUNK, Log, Mark, Run, Stream, now_ns, until};

/// What the server says last.
const DONE: u8 = b'D';

/// The client's part. What has not come when patience is over is not in the log.
///
/// # Errors
/// The stream failed.
pub(super) async fn client(stream: Stream, bytes: u32, run: Run) -> io::Result<Log> {
    let mut log = Log::default();
    let (mut reader, mut writer) = split(stream);
    until(run.start_ns).await;
    let Log { sent, received, .. } = &mut log;
    let exchange = async {
        tokio::try_join!(write(&mut writer, bytes, sent), read(&mut reader, bytes, received))?;
        reader.read_exact(&mut [0]).await
    };
    timeout(left(run), exchange).await.unwrap_or(Ok(0))?;
    Ok(log)
}

/// The server's part, until the client goes.
///
/// # Errors
/// The stream failed.
pub(super) async fn server(stream: Stream, bytes: u32, run: Run) -> io::Result<Log> {
    let mut log = Log::default();
    let (mut reader, mut writer) = split(stream);
    until(run.start_ns).await;
    let Log { sent, received, .. } = &mut log;
    let exchange = async {
        tokio::try_join!(write(&mut writer, bytes, sent), read(&mut reader, bytes, received))?;
        writer.write_all(&[DONE]).await?;
        writer.flush().await?;
        // However the client goes, it has everything.
        let _ = reader.read(&mut [0]).await;
        Ok::<_, io::Error>(())
    };
    timeout(left(run), exchange).await.unwrap_or(Ok(()))?;
    Ok(log)
}

fn left(run: Run) -> Duration {
    let deadline_ns = run.start_ns + run.patience.as_nanos() as u64;
    Duration::from_nanos(deadline_ns.saturating_sub(now_ns()))
}

async fn write(writer: &mut WriteHalf<Stream>, bytes: u32, sent: &mut Vec<Mark>) -> io::Result<()> {
    let content = vec![0x5a; CHUNK.min(bytes as usize)];
    sent.push(Mark { stream: 0, index: 0, at_ns: now_ns() });
    let mut left = bytes as usize;
    while left > 0 {
        left -= writer.write(&content[..left.min(CHUNK)]).await?;
    }
    writer.flush().await
}

/// Not a byte beyond: what follows is no part of it.
async fn read(
    reader: &mut ReadHalf<Stream>,
    bytes: u32,
    received: &mut Vec<Mark>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut left = bytes as usize;
    while left > 0 {
        let read = reader.read(&mut buffer[..left.min(CHUNK)]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= read;
    }
    received.push(Mark { stream: 0, index: 0, at_ns: now_ns() });
    Ok(())
}
