//! DNS queries over TCP (RFC 7766). They use the same service as queries over UDP, so that the same names are
//! blocked.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::query::Query;

/// Maximum number of concurrent queries of a connection. Further queries are not read until others are answered.
const MAX_CONCURRENT_QUERIES: usize = 16;
/// Idle time after which a connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for a program to accept an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Passes the queries of a connection to the service and writes the answers as they arrive, until the program has
/// closed its side and every query is answered.
pub(crate) async fn answer_queries<S: AsyncRead + AsyncWrite>(
    stream: S,
    service: mpsc::Sender<Query>,
) {
    let (mut from, mut to) = tokio::io::split(stream);
    let (answers, mut answered) = mpsc::channel(MAX_CONCURRENT_QUERIES);
    let read = async move {
        while let Ok(place) = answers.clone().reserve_owned().await
            && let Some(message) = next_message(&mut from).await
            && service.send(Query::on_connection(message, place)).await.is_ok()
        {}
        // The other half ends when all queries are answered.
        drop(answers);
    };
    let write = async move {
        while let Some(answer) = answered.recv().await {
            if !write_message(&mut to, &answer).await {
                return;
            }
        }
        let _ = timeout(WRITE_TIMEOUT, to.shutdown()).await;
    };
    tokio::pin!(read, write);
    tokio::select! {
        () = &mut write => return,
        () = &mut read => {}
    }
    write.await;
}

/// Reads the next message. Returns `None` at the end, on an error or after a timeout.
async fn next_message(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let read = async {
        let length = from.read_u16().await?;
        let mut message = vec![0; usize::from(length)];
        from.read_exact(&mut message).await?;
        std::io::Result::Ok(message)
    };
    timeout(IDLE_TIMEOUT, read).await.ok()?.ok()
}

/// Writes a message. Returns false if that fails.
async fn write_message(to: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> bool {
    // The length fits: an answer arrived over TCP, or is shorter than a datagram.
    let Ok(length) = u16::try_from(message.len()) else { return false };
    let write = async {
        to.write_all(&[&length.to_be_bytes()[..], message].concat()).await?;
        to.flush().await
    };
    matches!(timeout(WRITE_TIMEOUT, write).await, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(host: &str, kind: u16) -> Vec<u8> {
        marline_io::dns_query([1, 2], host, kind).unwrap()
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        [&(message.len() as u16).to_be_bytes()[..], message].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_queries_of_one_connection_are_all_answered() {
        let (mut program, gateway) = tokio::io::duplex(1 << 16);
        let (ask, mut asked) = mpsc::channel(4);
        let serving = tokio::spawn(answer_queries(gateway, ask));
        let (a, b) = (query("a.example", 1), query("b.example", 28));
        program.write_all(&[framed(&a), framed(&b)].concat()).await.unwrap();
        program.shutdown().await.unwrap();
        let (first, second) = (asked.recv().await.unwrap(), asked.recv().await.unwrap());
        assert_eq!((&first.message, &second.message), (&a, &b));
        // The second query is answered, the first one is lost.
        second.into_answer_slot().send(vec![7; 2_000]);
        drop(first);
        let mut answers = Vec::new();
        program.read_to_end(&mut answers).await.unwrap();
        assert_eq!(answers, framed(&[7; 2_000]), "the whole answer, then end of stream");
        serving.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_end_and_busy_ones_wait() {
        let (program, gateway) = tokio::io::duplex(1 << 16);
        let (ask, mut asked) = mpsc::channel(100);
        tokio::spawn(answer_queries(gateway, ask.clone()));
        let (mut read, mut write) = tokio::io::split(program);
        let query = framed(&query("a.example", 1));
        write.write_all(&query.repeat(3 * MAX_CONCURRENT_QUERIES)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(asked.len(), MAX_CONCURRENT_QUERIES);
        while asked.try_recv().is_ok() {}
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(asked.len(), MAX_CONCURRENT_QUERIES, "finished queries make room");
        asked.close();
        while asked.try_recv().is_ok() {}
        let mut rest = Vec::new();
        read.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
        let (mut program, gateway) = tokio::io::duplex(1 << 16);
        let idle = tokio::spawn(answer_queries(gateway, ask));
        assert_eq!(program.read(&mut [0]).await.unwrap(), 0);
        idle.await.unwrap();
    }
}
