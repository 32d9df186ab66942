//! One request and its response, as a stream: bytes read from it go to the target, bytes written to it come from the
//! target.
//!
//! Reading yields the rewritten head and all of the content. Data that the application sends after the request is
//! discarded, because the connection carries only one request (RFC 9112 section 9.6). The end of the application's
//! stream is passed on. The head of the response is held back until it is complete, and rewritten. After that, bytes
//! are passed on unchanged until the target's end.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::answer::Refusal;
use super::body::Body;
use super::request::Forward;
use super::response::rewrite;
use crate::transport::{PeerState, Transport};

/// Maximum number of bytes discarded after the request. A reset would destroy the response.
const MAX_DISCARDED_BYTES: usize = 256 * 1_024;
/// Time that the application gets to close after its response has ended, because a reset would destroy the response.
const LINGER: Duration = Duration::from_secs(5);

/// State of the response.
#[derive(Debug)]
enum Answer {
    /// The head is incomplete. Holds the bytes so far.
    Head(Vec<u8>),
    /// Bytes are passed on unchanged.
    Passing,
    /// The response is invalid, and the application receives an error.
    Bad,
}

/// An application's connection while it carries one request.
#[derive(Debug)]
pub struct Exchange<S> {
    socket: S,
    /// Bytes for the target that precede the unread content.
    ahead: Vec<u8>,
    delivered: usize,
    body: Body,
    interim_responses: usize,
    is_old: bool,
    answer: Answer,
    /// Bytes for the application that precede further writes.
    unwritten: Vec<u8>,
    written: usize,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<S> Exchange<S> {
    /// Starts the exchange with `request`.
    #[must_use]
    pub fn new(socket: S, request: Forward) -> Exchange<S> {
        let Forward { head, body, is_old, .. } = request;
        Exchange {
            socket,
            ahead: head,
            delivered: 0,
            body,
            interim_responses: 0,
            is_old,
            answer: Answer::Head(Vec::new()),
            unwritten: Vec::new(),
            written: 0,
            linger: None,
        }
    }

    /// Handles bytes of the response.
    fn on_answer_bytes(&mut self, bytes: &[u8]) {
        let Answer::Head(head) = &mut self.answer else { return };
        head.extend_from_slice(bytes);
        loop {
            match rewrite(head, self.is_old) {
                Ok(None) => return,
                Ok(Some(rewritten)) => {
                    self.unwritten.extend_from_slice(&rewritten.bytes);
                    head.drain(..rewritten.len);
                    if !rewritten.is_interim {
                        self.unwritten.append(head);
                        self.answer = Answer::Passing;
                        return;
                    }
                }
                Err(error) => return self.fail(&error.to_string()),
            }
        }
    }

    /// Answers the application with an error because the target's response is invalid.
    fn fail(&mut self, why: &str) {
        tracing::info!("{why}");
        self.answer = Answer::Bad;
        let refusal = Refusal::new(502, why);
        self.unwritten.extend_from_slice(&refusal.to_bytes());
    }
}

fn invalid_data_error(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<S: AsyncWrite + Unpin> Exchange<S> {
    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.unwritten.len() {
            let rest = &self.unwritten[self.written..];
            match ready!(Pin::new(&mut self.socket).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        (self.unwritten, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// After an invalid response: sends the error to the application and fails the exchange.
    fn poll_bad(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unwritten(cx))?;
        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "invalid HTTP response from the target",
        )))
    }
}

impl<S: AsyncRead + Unpin> Exchange<S> {
    /// Reads and discards data up to the application's end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut room = [0; 2_048];
        loop {
            let mut buf = ReadBuf::new(&mut room);
            if Pin::new(&mut self.socket).poll_read(cx, &mut buf)?.is_pending() {
                break;
            }
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.interim_responses += buf.filled().len();
            if self.interim_responses > MAX_DISCARDED_BYTES {
                let text = "the application keeps sending data after its request";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
            }
        }
        match &mut self.linger {
            Some(linger) => linger.as_mut().poll(cx).map(Ok),
            None => Poll::Pending,
        }
    }
}

impl<S: Transport> Transport for Exchange<S> {
    fn abort(self) {
        // A reset could arrive before the application has read the error.
        if !matches!(self.answer, Answer::Bad) || !self.unwritten.is_empty() {
            self.socket.abort();
        }
    }

    fn peer_state(&self) -> PeerState {
        self.socket.peer_state()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.socket()
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.socket.poll_room(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Exchange<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let rest = &this.ahead[this.delivered..];
        if !rest.is_empty() {
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            this.delivered += count;
            if this.delivered == this.ahead.len() {
                (this.ahead, this.delivered) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        if this.body.is_complete() {
            return this.poll_end(cx);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        if read.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        let count = this.body.parse_bytes(read).map_err(invalid_data_error)?;
        this.interim_responses += read.len() - count;
        buf.set_filled(before + count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Exchange<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.answer {
            Answer::Passing => {
                ready!(this.poll_unwritten(cx))?;
                Pin::new(&mut this.socket).poll_write(cx, bytes)
            }
            Answer::Head(_) => {
                ready!(this.poll_unwritten(cx))?;
                this.on_answer_bytes(bytes);
                // Bytes that cannot be sent now follow with the next write, flush or end.
                let _ = this.poll_unwritten(cx)?;
                Poll::Ready(Ok(bytes.len()))
            }
            Answer::Bad => this.poll_bad(cx).map_ok(|()| 0),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if matches!(this.answer, Answer::Bad) {
            return this.poll_bad(cx);
        }
        ready!(this.poll_unwritten(cx))?;
        Pin::new(&mut this.socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Answer::Head(_) = this.answer {
            this.fail("incomplete HTTP response from the target: the connection ended");
        }
        ready!(this.poll_unwritten(cx))?;
        ready!(Pin::new(&mut this.socket).poll_shutdown(cx))?;
        let mut linger = Box::pin(sleep(LINGER));
        // Polled once so that the timer wakes the task that waits for the application's end.
        let _ = linger.as_mut().poll(cx);
        this.linger = Some(linger);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::super::request::{Request, parse};
    use super::*;
    use crate::relay::{Traffic, relay};

    const GET: &str = "GET http://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n";
    const POST: &str = "POST http://a.example/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";

    struct Ends {
        application: DuplexStream,
        target: DuplexStream,
        relayed: tokio::task::JoinHandle<io::Result<DuplexStream>>,
    }

    /// Returns a relay between an application that has sent `head` and `behind`, and a target.
    fn exchange(head: &str, behind: &[u8]) -> Ends {
        let Some((Request::Forward(mut forward), _)) = parse(head.as_bytes()).unwrap() else {
            panic!("a request to pass on");
        };
        let (application, socket) = duplex(1 << 20);
        let (target, remote) = duplex(1 << 20);
        forward.take_content(behind).unwrap();
        let local = Exchange::new(socket, forward);
        let relayed = tokio::spawn(async move {
            relay(local, remote, &Traffic::default(), std::future::pending()).await
        });
        Ends { application, target, relayed }
    }

    async fn head_of(stream: &mut DuplexStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    #[tokio::test]
    async fn content_and_answer_pass_in_opposite_directions() {
        let mut ends = exchange(POST, b"a");
        assert!(
            head_of(&mut ends.target).await.starts_with("POST / HTTP/1.1\r\nHost: a.example\r\n")
        );
        ends.application.write_all(b"bcGET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut content = [0; 3];
        ends.target.read_exact(&mut content).await.unwrap();
        assert_eq!(&content, b"abc");
        let answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nKeep-Alive: 1\r\n\r\nbytes";
        for piece in answer.chunks(7) {
            ends.target.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(head_of(&mut ends.application).await, "HTTP/1.1 100 Continue\r\n\r\n");
        let expected = "HTTP/1.1 200 OK\r\nVia: 1.1 marline\r\nConnection: close\r\n\r\n";
        assert_eq!(head_of(&mut ends.application).await, expected);
        ends.target.write_all(b" more").await.unwrap();
        ends.target.shutdown().await.unwrap();
        let mut rest = String::new();
        ends.application.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "bytes more");
        // Data after the request is not passed on. The end is.
        ends.application.shutdown().await.unwrap();
        let mut behind = Vec::new();
        ends.target.read_to_end(&mut behind).await.unwrap();
        assert!(behind.is_empty());
        ends.relayed.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_application_that_stays_open_is_not_waited_for() {
        let mut ends = exchange(GET, b"");
        head_of(&mut ends.target).await;
        ends.target.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        ends.target.shutdown().await.unwrap();
        assert_eq!(ends.target.read(&mut [0]).await.unwrap(), 0);
        ends.relayed.await.unwrap().unwrap();
        let mut answer = String::new();
        ends.application.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn an_invalid_answer_becomes_a_readable_502() {
        for said in [&b"SSH-2.0-OpenSSH_9.9\r\n"[..], b"HTTP/1.1 200", b""] {
            let mut ends = exchange(GET, b"");
            head_of(&mut ends.target).await;
            ends.target.write_all(said).await.unwrap();
            ends.target.shutdown().await.unwrap();
            let mut answer = String::new();
            ends.application.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
            assert!(answer.contains("HTTP response"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_request_that_breaks_off_or_is_malformed_breaks_the_exchange() {
        let mut ends = exchange(POST, b"a");
        ends.application.shutdown().await.unwrap();
        assert_eq!(ends.relayed.await.unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);

        let chunked = POST.replace("Content-Length: 3", "Transfer-Encoding: chunked");
        let mut ends = exchange(&chunked, b"3\r\nab");
        ends.application.write_all(b"cd\r\n").await.unwrap();
        assert_eq!(ends.relayed.await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn an_application_that_keeps_sending_is_cut_off() {
        let mut ends = exchange(GET, b"");
        let flood = vec![b'x'; MAX_DISCARDED_BYTES + 1];
        ends.application.write_all(&flood).await.unwrap();
        assert_eq!(ends.relayed.await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
