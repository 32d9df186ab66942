//! Test content that both ends generate. Received bytes are compared immediately, so partial data can also be checked.

use std::fmt::Write as _;
use std::io;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Number of bytes generated and written in one step.
const CHUNK: usize = 64 << 10;

/// An infinite, position-dependent stream of bytes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Content {
    seed: u64,
}

impl Content {
    pub(crate) const fn new(seed: u64) -> Self {
        Content { seed }
    }

    /// Hash of the first `bytes` bytes.
    pub(crate) fn sha256(self, bytes: u64) -> String {
        let (mut chunk, mut hash, mut offset) = (vec![0; CHUNK], Sha256::new(), 0);
        while offset < bytes {
            let len = CHUNK.min(usize::try_from(bytes - offset).unwrap_or(CHUNK));
            self.fill(offset, &mut chunk[..len]);
            hash.update(&chunk[..len]);
            offset += len as u64;
        }
        hexadecimal(hash)
    }

    /// Writes the content from `offset`, a multiple of 8 (SplitMix64 over the word's number).
    fn fill(self, offset: u64, bytes: &mut [u8]) {
        for (number, word) in (offset / 8..).zip(bytes.chunks_mut(8)) {
            let mut z = self.seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let made = (z ^ (z >> 31)).to_le_bytes();
            word.copy_from_slice(&made[..word.len()]);
        }
    }
}

/// Data received by one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReceivedData {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// True if every byte was the expected one.
    pub(crate) matches: bool,
    pub(crate) end: End,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// The peer ended its stream.
    Eof,
    /// Reading failed with this error.
    Error(String),
}

/// Writes `bytes` bytes of the content.
pub(crate) async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    content: Content,
    bytes: u64,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    while offset < bytes {
        let len = CHUNK.min(usize::try_from(bytes - offset).unwrap_or(CHUNK));
        content.fill(offset, &mut chunk[..len]);
        to.write_all(&chunk[..len]).await?;
        offset += len as u64;
    }
    to.flush().await
}

/// Reads to the end or to an error, and compares the bytes.
pub(crate) async fn receive(from: &mut (impl AsyncRead + Unpin), content: Content) -> ReceivedData {
    let (mut got, mut filled) = (vec![0; CHUNK], 0);
    let mut comparison = Comparison::with(content);
    let end = loop {
        match from.read(&mut got[filled..]).await {
            Ok(0) => break End::Eof,
            Ok(len) => filled += len,
            Err(error) => break End::Error(error.kind().to_string()),
        }
        if filled == CHUNK {
            comparison.take(&got);
            filled = 0;
        }
    };
    comparison.take(&got[..filled]);
    let Comparison { bytes, hash, matches, .. } = comparison;
    ReceivedData { bytes, sha256: hexadecimal(hash), matches, end }
}

fn hexadecimal(hash: Sha256) -> String {
    let mut text = String::new();
    for byte in hash.finalize() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Comparison of received bytes with the content.
struct Comparison {
    content: Content,
    wanted: Vec<u8>,
    /// Number of bytes compared.
    bytes: u64,
    matches: bool,
    hash: Sha256,
}

impl Comparison {
    fn with(content: Content) -> Self {
        Comparison { content, wanted: Vec::new(), bytes: 0, matches: true, hash: Sha256::new() }
    }

    fn take(&mut self, got: &[u8]) {
        self.wanted.resize(got.len(), 0);
        self.content.fill(self.bytes, &mut self.wanted);
        self.matches &= got == self.wanted;
        self.hash.update(got);
        self.bytes += got.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_receiver_accepts_exactly_the_content_sent() {
        for bytes in [0, 1, 65_535, 65_536, 200_001] {
            let mut sent = Vec::new();
            send(&mut sent, Content::new(7), bytes).await.expect("a vector");
            assert_eq!(sent.len() as u64, bytes);
            let good = receive(&mut sent.as_slice(), Content::new(7)).await;
            assert!(good.matches && good.bytes == bytes && good.end == End::Eof);
            assert_eq!(good.sha256, Content::new(7).sha256(bytes));
            if bytes > 0 {
                let other = receive(&mut sent.as_slice(), Content::new(8)).await;
                assert!(!other.matches && other.sha256 == good.sha256);
                let last = sent.len() - 1;
                sent[last] ^= 1;
                assert!(!receive(&mut sent.as_slice(), Content::new(7)).await.matches);
            }
        }
    }
}
