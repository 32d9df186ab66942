use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::super::tests::both;
use super::super::{OPENING_LEN, ReceivedOpening, SessionId};
use super::*;
use crate::record::MAX_PLAINTEXT;

/// Two ends of a session's connection, over a pipe that takes `room` bytes.
async fn pair(room: usize) -> (SealedStream<DuplexStream>, SealedStream<DuplexStream>) {
    let (client, server) = both(SessionId::from_bytes([3; 16])).await;
    let (opening, keys) = client.open(&[5; 32], b"").unwrap();
    let (near, far) = duplex(room);
    let near = SealedStream::new(near, keys, Vec::new());
    let opening = ReceivedOpening::parse(opening[..OPENING_LEN].try_into().unwrap()).unwrap();
    let far = SealedStream::new(far, server.accept(&[5; 32], &opening).unwrap(), Vec::new());
    (near, far)
}

#[tokio::test]
async fn bytes_come_through_in_order_however_narrow_the_pipe() {
    let sent: Vec<u8> = (0..700_001).map(|at| (at % 251) as u8).collect();
    for room in [1, 19, 1_400, 1 << 20] {
        let sent = &sent[..if room == 1 { 3_000 } else { sent.len() }];
        let (mut near, mut far) = pair(room).await;
        let write = async {
            near.write_all(sent).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let (_, read) = tokio::join!(write, far.read_to_end(&mut got));
        read.unwrap();
        assert!(got == sent, "room {room}: {} of {}", got.len(), sent.len());
        assert!(far.incoming.buffer.is_none() && near.outgoing.is_empty(), "nothing is held");
    }
}

/// Messages after a renewal may arrive in one piece with the end of the previous request.
#[tokio::test]
async fn a_kept_stream_restarts_after_both_ends() {
    let (mut near, mut far) = pair(1 << 16).await;
    for round in 0..3 {
        near.keep();
        far.keep();
        assert!(!near.renew() && !far.renew(), "nothing has ended");
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        let mut got = Vec::new();
        near.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"answer", "round {round}");
        assert!(!near.renew(), "one direction has not ended");
        near.write_all(b"question").await.unwrap();
        near.shutdown().await.unwrap();
        assert!(near.renew() && !near.renew());
        near.write_all(b"and then").await.unwrap();
        near.flush().await.unwrap();
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"question", "round {round}");
        assert!(far.renew());
        let mut next = [0; 8];
        far.read_exact(&mut next).await.unwrap();
        assert_eq!(&next, b"and then");
    }
    drop(near);
    let error = far.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "no direction of this stream has ended");
}

#[tokio::test]
async fn reads_of_a_byte_lose_nothing() {
    let (mut near, mut far) = pair(1 << 16).await;
    near.write_all(b"hello").await.unwrap();
    near.write_all(b" there").await.unwrap();
    near.flush().await.unwrap();
    for expected in b"hello there" {
        assert_eq!(far.read_u8().await.unwrap(), *expected);
    }
}

#[tokio::test]
async fn an_unsealed_end_is_an_error() {
    let (mut near, mut far) = pair(1 << 16).await;
    near.write_all(b"half of it").await.unwrap();
    near.flush().await.unwrap();
    drop(near);
    let mut got = Vec::new();
    let error = far.read_to_end(&mut got).await.unwrap_err();
    assert_eq!((error.kind(), got.as_slice()), (io::ErrorKind::UnexpectedEof, &b"half of it"[..]));
}

#[tokio::test]
async fn an_ended_direction_stays_ended_and_the_other_continues() {
    let (mut near, mut far) = pair(1 << 16).await;
    near.shutdown().await.unwrap();
    assert_eq!(far.read(&mut [0; 9]).await.unwrap(), 0);
    assert_eq!(far.read(&mut [0; 9]).await.unwrap(), 0);
    assert!(near.write(b"more").await.is_err());
    far.write_all(b"still").await.unwrap();
    far.shutdown().await.unwrap();
    let mut got = Vec::new();
    near.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"still");
}

/// Returns the first record's bytes on the wire.
async fn record(text: &[u8]) -> (Vec<u8>, SealedStream<DuplexStream>, DuplexStream) {
    let (mut near, far) = pair(1 << 16).await;
    near.write_all(text).await.unwrap();
    near.flush().await.unwrap();
    let SealedStream { inner: mut wire, keys, .. } = far;
    let mut bytes = vec![0; crate::session::keys::record_len(text.len())];
    wire.read_exact(&mut bytes).await.unwrap();
    let (again, reader) = duplex(1 << 16);
    (bytes, SealedStream::new(reader, keys, Vec::new()), again)
}

#[tokio::test]
async fn damage_anywhere_in_a_record_is_an_error() {
    let length = record(b"text").await.0.len();
    for at in 0..length {
        let (mut bytes, mut far, mut wire) = record(b"text").await;
        bytes[at] ^= 0x10;
        // Followed by enough bytes that a larger length does not make the reader wait.
        bytes.resize(2 * MAX_PLAINTEXT, 0);
        wire.write_all(&bytes).await.unwrap();
        drop(wire);
        assert!(far.read(&mut [0; 64]).await.is_err(), "byte {at}");
    }
}

#[tokio::test]
async fn a_record_is_accepted_once() {
    let (bytes, mut far, mut wire) = record(b"text").await;
    wire.write_all(&bytes).await.unwrap();
    wire.write_all(&bytes).await.unwrap();
    let mut got = [0; 4];
    far.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"text");
    let error = far.read(&mut got).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// A stream below that accepts everything and records the length of each piece.
#[derive(Default)]
struct Pieces(Vec<usize>);

impl AsyncWrite for Pieces {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.push(bytes.len());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn the_records_of_a_long_write_go_to_the_stream_below_as_one() {
    let (client, _) = both(SessionId::from_bytes([3; 16])).await;
    let (_, keys) = client.open(&[5; 32], b"").unwrap();
    let mut near = SealedStream::new(Pieces::default(), keys, Vec::new());
    // Records grow.
    near.write_all(&[0; 1 << 19]).await.unwrap();
    near.flush().await.unwrap();
    near.inner.0.clear();
    let count = near.write(&[0; 59 * 1_024]).await.unwrap();
    assert_eq!(count, 59 * 1_024);
    assert_eq!(near.inner.0, [count + 4 * (LENGTH_LEN + TAG_LEN)]);
    near.inner.0.clear();
    // The memory of a write is bounded, however long it is.
    assert_eq!(near.write(&[0; 1 << 20]).await.unwrap(), 4 * MAX_PLAINTEXT);
    assert_eq!(near.inner.0, [4 * MAX_RECORD]);
}

#[tokio::test]
async fn a_long_read_takes_all_records_that_are_there() {
    let (mut near, mut far) = pair(1 << 21).await;
    near.write_all(&[7; 1 << 19]).await.unwrap();
    near.shutdown().await.unwrap();
    drop(near);
    let mut buffer = [0; 59 * 1_024];
    let mut read = Vec::new();
    loop {
        let count = far.read(&mut buffer).await.unwrap();
        assert!(buffer[..count].iter().all(|byte| *byte == 7));
        if count == 0 {
            break;
        }
        read.push(count);
    }
    assert_eq!(read.iter().sum::<usize>(), 1 << 19);
    // This includes the small records of the beginning. No read opens a record for which the buffer has no room.
    let full = read.iter().filter(|count| **count + MAX_PLAINTEXT > buffer.len()).count();
    assert!(full + 1 >= read.len(), "{read:?}");
}

/// Data that was opened before is not lost.
#[tokio::test]
async fn an_unsealed_end_comes_after_the_opened_data() {
    let (mut near, mut far) = pair(1 << 20).await;
    near.write_all(&[7; 40_000]).await.unwrap();
    near.flush().await.unwrap();
    drop(near);
    let mut buffer = [0; 59 * 1_024];
    assert_eq!(far.read(&mut buffer).await.unwrap(), 40_000);
    let error = far.read(&mut buffer).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

/// A reader that waits for the rest of a record keeps the received part in a whole buffer or, on request, in one of
/// exactly that length.
#[tokio::test]
async fn unused_room_behind_a_part_of_a_record_is_returned() {
    let (mut near, mut far) = pair(1 << 16).await;
    let sent: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
    let mut got = vec![0; 2 * MAX_PLAINTEXT];
    let mut read = 0;
    let write = async {
        near.write_all(&sent).await.unwrap();
        near.flush().await.unwrap();
    };
    let take = async {
        let (mut whole, mut trimmed) = (0, 0);
        while read < sent.len() {
            let count = far.read(&mut got).await.unwrap();
            assert!(got[..count] == sent[read..read + count]);
            read += count;
            whole = whole.max(far.buffered(false));
            let left = far.buffered(true);
            assert!(left < BUFFER_LEN as u64);
            trimmed = trimmed.max(left);
        }
        (whole, trimmed)
    };
    let ((), (whole, trimmed)) = tokio::join!(write, take);
    assert_eq!(whole, BUFFER_LEN as u64);
    assert!((1..=MAX_RECORD as u64).contains(&trimmed), "{trimmed}");
    assert_eq!(far.buffered(false), 0);
}
