//! Framing of a link: a preamble in each direction, then frames, each with a length prefix of two bytes.

use crate::carrier::{LARGEST_DATAGRAM, SHORT_HEADER};

/// First bytes from both ends: name and version of the framing. No other protocol starts with them, so a server
/// immediately recognizes foreign clients, and a client recognizes when the network answers instead of the server.
pub(crate) const PREAMBLE: [u8; 8] = *b"Marline\x01";
/// Size of the length prefix.
const LENGTH: usize = 2;
/// Minimum length of a frame: its type and an id.
const MIN_FRAME: usize = SHORT_HEADER;
/// Maximum length of a frame: that of a datagram.
const MAX_FRAME: usize = LARGEST_DATAGRAM as usize;

/// Data that a Marline peer does not send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ForeignData {
    /// Data that begins like an HTTP response or an HTML page.
    Http,
    /// TLS record.
    Tls,
    /// Other data.
    Other,
    /// Frame with an invalid length, after a valid preamble.
    Length(usize),
}

impl ForeignData {
    fn classify(first: &[u8]) -> ForeignData {
        const TLS_ALERT: u8 = 0x15;
        const TLS_HANDSHAKE: u8 = 0x16;
        match first {
            [b'<', ..] => ForeignData::Http,
            _ if first.starts_with(b"HTTP") => ForeignData::Http,
            [TLS_ALERT | TLS_HANDSHAKE, 3, ..] => ForeignData::Tls,
            _ => ForeignData::Other,
        }
    }

    /// Explains to the user what the data shows about the network.
    pub(crate) const fn meaning(self) -> &'static str {
        match self {
            ForeignData::Http => {
                "received a web page instead of the server's answer; this network may require a login"
            }
            ForeignData::Tls => {
                "received TLS instead of the server's answer; this network intercepts connections"
            }
            ForeignData::Other => "the answer is not from a Marline server",
            ForeignData::Length(_) => "the peer sent an invalid frame",
        }
    }
}

/// Encoded frames: bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct FramedBytes {
    pub(crate) bytes: Vec<u8>,
}

/// Appends each frame of a batch with its length. `stride` 0 means a single frame.
pub(crate) fn enclose(out: &mut FramedBytes, stride: usize, batch: &[u8]) {
    let stride = if stride == 0 { batch.len().max(1) } else { stride };
    for frame in batch.chunks(stride) {
        debug_assert!((MIN_FRAME..=MAX_FRAME).contains(&frame.len()), "{} bytes", frame.len());
        out.bytes.extend_from_slice(&(frame.len() as u16).to_be_bytes());
        out.bytes.extend_from_slice(frame);
    }
}

impl FramedBytes {
    /// Returns the end of the frame that a cut after `sent` bytes would split, or `sent` if it splits none.
    pub(crate) fn cut_frame_end(&self, sent: usize) -> usize {
        let mut at = 0;
        while at < sent {
            let Some(length) = self.bytes.get(at..at + LENGTH) else { break };
            at += LENGTH + usize::from(u16::from_be_bytes([length[0], length[1]]));
        }
        at.min(self.bytes.len())
    }
}

/// Splits a stream into frames. It stores at most a partial frame.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    /// True once the preamble has arrived.
    preamble_received: bool,
    /// Partial frame.
    rest: Vec<u8>,
}

impl FrameDecoder {
    /// Creates a decoder for a stream whose preamble has already been read.
    pub(crate) fn after_preamble() -> Self {
        FrameDecoder { preamble_received: true, ..FrameDecoder::default() }
    }

    /// Returns true once the preamble has arrived.
    pub(crate) const fn has_preamble(&self) -> bool {
        self.preamble_received
    }

    /// Moves the stored bytes to the front of `buffer` and returns their number.
    pub(crate) fn restore(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.rest.len();
        buffer[..len].copy_from_slice(&self.rest);
        self.rest.clear();
        len
    }

    /// Passes each complete frame in `bytes` to `take` and stores the rest. `bytes` begins with the data from
    /// [`restore`](Self::restore).
    pub(crate) fn unpack<'a>(
        &mut self,
        mut bytes: &'a [u8],
        mut take: impl FnMut(&'a [u8]),
    ) -> Result<(), ForeignData> {
        if !self.preamble_received {
            let common = bytes.len().min(PREAMBLE.len());
            if bytes[..common] != PREAMBLE[..common] {
                return Err(ForeignData::classify(bytes));
            }
            if common < PREAMBLE.len() {
                self.rest.extend_from_slice(bytes);
                return Ok(());
            }
            self.preamble_received = true;
            bytes = &bytes[PREAMBLE.len()..];
        }
        while let Some((length, behind)) = bytes.split_first_chunk::<LENGTH>() {
            let length = usize::from(u16::from_be_bytes(*length));
            if !(MIN_FRAME..=MAX_FRAME).contains(&length) {
                return Err(ForeignData::Length(length));
            }
            let Some((frame, behind)) = behind.split_at_checked(length) else { break };
            take(frame);
            bytes = behind;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a stream in pieces, like the reader of a link.
    fn read(stream: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, ForeignData> {
        let mut unpacker = FrameDecoder::default();
        let mut frames = Vec::new();
        let mut buffer = vec![0; MAX_FRAME + LENGTH + piece];
        for piece in stream.chunks(piece) {
            let kept = unpacker.restore(&mut buffer);
            buffer[kept..kept + piece.len()].copy_from_slice(piece);
            unpacker.unpack(&buffer[..kept + piece.len()], |frame| frames.push(frame.to_vec()))?;
            assert!(
                unpacker.rest.len() < LENGTH + MAX_FRAME,
                "the decoder keeps less than a frame"
            );
        }
        Ok(frames)
    }

    fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut out = FramedBytes::default();
        frames.iter().for_each(|frame| enclose(&mut out, 0, frame));
        [&PREAMBLE[..], &out.bytes].concat()
    }

    #[test]
    fn frames_are_unchanged_for_any_split_of_the_stream() {
        let frames: Vec<Vec<u8>> =
            [MIN_FRAME, 25, 700, MAX_FRAME].map(|len| vec![len as u8; len]).to_vec();
        let stream = stream(&frames);
        for piece in [1, 2, 3, 7, 8, 9, 100, stream.len()] {
            assert_eq!(read(&stream, piece).as_ref(), Ok(&frames), "pieces of {piece}");
        }
        for len in 0..stream.len() {
            let whole = read(&stream[..len], len.max(1)).unwrap();
            assert!(frames.starts_with(&whole), "a truncated frame is not delivered");
        }
    }

    #[test]
    fn a_batch_becomes_a_frame_for_each_datagram() {
        let mut out = FramedBytes::default();
        enclose(&mut out, 100, &[7; 250]);
        let bytes = [&PREAMBLE[..], &out.bytes].concat();
        let lengths: Vec<usize> = read(&bytes, 64).unwrap().iter().map(Vec::len).collect();
        assert_eq!(lengths, [100, 100, 50]);
    }

    #[test]
    fn impossible_lengths_end_the_link() {
        for length in [0, 1, MIN_FRAME - 1, MAX_FRAME + 1, 0xffff] {
            let mut bytes = PREAMBLE.to_vec();
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
            bytes.extend_from_slice(&[0; 64]);
            assert_eq!(read(&bytes, 32), Err(ForeignData::Length(length)));
        }
    }

    #[test]
    fn foreign_peers_are_recognized_by_their_first_bytes() {
        let login = b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n";
        assert_eq!(read(login, 64), Err(ForeignData::Http));
        assert_eq!(read(b"<html>", 64), Err(ForeignData::Http));
        assert_eq!(read(b"GET / HTTP/1.1\r\n", 64), Err(ForeignData::Other));
        assert_eq!(read(&[0x16, 3, 1, 0, 200, 1], 64), Err(ForeignData::Tls));
        assert_eq!(read(b"SSH-2.0-OpenSSH_9\r\n", 64), Err(ForeignData::Other));
        assert_eq!(read(b"Marline\x02", 64), Err(ForeignData::Other), "another version");
        assert_eq!(read(b"M", 1), Ok(vec![]), "too few bytes to decide");
    }

    #[test]
    fn the_end_of_a_cut_frame_is_found() {
        let mut out = FramedBytes::default();
        enclose(&mut out, 100, &[7; 250]);
        assert_eq!(out.cut_frame_end(0), 0);
        assert_eq!(out.cut_frame_end(1), 102);
        assert_eq!(out.cut_frame_end(102), 102);
        assert_eq!(out.cut_frame_end(103), 204);
        assert_eq!(out.cut_frame_end(205), out.bytes.len());
    }
}
