//! Exchange workload: both ends write the same amount at the same time, and each reads the data of the other. The
//! server confirms receipt with a last byte, for which the client waits.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use super::{CHUNK, Log, Mark, Run, Stream, now_ns, until};

/// The server's confirmation.
const DONE: u8 = b'D';

/// Runs the client. Messages that have not arrived when the patience is over are not in the log.
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

/// Runs the server, until the client closes.
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
        // The client has everything, however it closes.
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

/// Reads exactly this amount: the next byte is not part of it.
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
