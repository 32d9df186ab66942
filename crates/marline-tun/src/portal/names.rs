//! DNS queries from a stream (DNS over TCP), sent over UDP as a portal's resolver expects.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

use super::{PortalOpener, PortalStream};
use crate::dns::message;

/// Time to wait for an answer, and number of attempts per query.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 3;
/// Maximum length of a DNS message, in bytes.
const MAX_MESSAGE_BYTES: usize = 65_535;
/// Buffer size in each direction, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Opens a stream to a resolver.
pub(super) fn open_dns_stream(way: PortalOpener, resolver: SocketAddr) -> PortalStream {
    let (ours, theirs) = duplex(BUFFER_BYTES);
    tokio::spawn(async move {
        if let Err(error) = answer_all(&way, resolver, ours).await {
            tracing::debug!(%resolver, "DNS failed: {error}");
        }
    });
    PortalStream::Names(theirs)
}

/// Answers queries one at a time until there are no more.
async fn answer_all(
    way: &PortalOpener,
    resolver: SocketAddr,
    mut stream: DuplexStream,
) -> io::Result<()> {
    loop {
        let mut len = [0; 2];
        match stream.read_exact(&mut len).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        let mut query = vec![0; usize::from(u16::from_be_bytes(len))];
        stream.read_exact(&mut query).await?;
        let answer = query_resolver(way, resolver, &query).await?;
        let len = u16::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        stream.write_all(&[&len.to_be_bytes()[..], &answer].concat()).await?;
    }
}

/// Sends a query over UDP, and over TCP if the answer is truncated.
pub(super) async fn query_resolver(
    way: &PortalOpener,
    resolver: SocketAddr,
    query: &[u8],
) -> io::Result<Vec<u8>> {
    let socket = way.datagrams(resolver).await?;
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    for _ in 0..ATTEMPTS {
        socket.send(query).await?;
        let answered = timeout(ANSWER_TIMEOUT, async {
            loop {
                let len = socket.recv(&mut buffer).await?;
                if message::is_answer(&buffer[..len]) && buffer.get(..2) == query.get(..2) {
                    return Ok::<usize, io::Error>(len);
                }
            }
        });
        if let Ok(len) = answered.await {
            buffer.truncate(len?);
            if message::is_truncated(&buffer)
                && let Ok(whole) = timeout(ANSWER_TIMEOUT, query_by_tcp(way, resolver, query)).await
            {
                return whole.or(Ok(buffer));
            }
            return Ok(buffer);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

async fn query_by_tcp(
    way: &PortalOpener,
    resolver: SocketAddr,
    query: &[u8],
) -> io::Result<Vec<u8>> {
    let mut stream = way.connect(resolver).await?;
    let len = u16::try_from(query.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&len.to_be_bytes()[..], query].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}
