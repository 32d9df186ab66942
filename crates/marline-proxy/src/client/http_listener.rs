//! HTTP on the SOCKS5 port: CONNECT, requests in absolute-form, the PAC file.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::open::{Open, OpenError};
use super::socks_listener::SocksListener;
use crate::http::answer::{Refusal, status_of};
use crate::http::exchange::Exchange;
use crate::http::pac;
use crate::http::request::{Forward, MAX_HEAD, Request, parse};
use crate::message::Failure;
use crate::prefixed_stream::PrefixedStream;
use crate::target::Target;
use crate::transport::Transport;

/// Time limit for the complete head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes in empty lines before a request.
const MAX_EMPTY_BYTES: usize = 64;
/// Time an application may take to read a response from the proxy, and the number of its bytes that are discarded
/// meanwhile. A reset would destroy the response.
const CLOSING_TIME: Duration = Duration::from_secs(5);
const MAX_DISCARDED_BYTES: u64 = 256 * 1_024;

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

impl<O: Open> SocksListener<O> {
    /// Reads the request of an application that speaks HTTP, and the bytes after its head. Returns `None` if the
    /// request is invalid and the application has been answered.
    pub(super) async fn http_request(socket: &mut TcpStream) -> Option<(Request, Vec<u8>)> {
        let refusal = match timeout(HEAD_TIMEOUT, read_head(socket)).await {
            Ok(Ok(Ok(read))) => return Some(read),
            Ok(Ok(Err(refusal))) => refusal,
            Ok(Err(error)) => {
                tracing::info!("cannot read HTTP request: {error}");
                return None;
            }
            Err(_) => {
                let text = format!("incomplete request after {} s", HEAD_TIMEOUT.as_secs());
                Refusal::new(408, text)
            }
        };
        refuse(socket, &refusal).await;
        None
    }

    /// Serves one application that has sent an HTTP request.
    pub(super) async fn http(&self, mut socket: TcpStream, request: Request, behind: Vec<u8>) {
        match request {
            Request::Connect(target) => self.connect(socket, target, behind).await,
            Request::Forward(mut forward) => match forward.take_content(&behind) {
                // Boxed, so that the future of a CONNECT is not as large.
                Ok(()) => Box::pin(self.forward(socket, forward)).await,
                Err(error) => {
                    refuse(&mut socket, &Refusal::bad_request(error.to_string())).await;
                }
            },
            Request::Own(asked) => {
                let Ok(local) = socket.local_addr() else { return };
                match pac::answer(&asked, local) {
                    Ok(answer) => send_answer(&mut socket, &answer).await,
                    Err(refusal) => refuse(&mut socket, &refusal).await,
                }
            }
        }
    }

    async fn connect(&self, mut socket: TcpStream, target: Target, behind: Vec<u8>) {
        match self.open(&target).await {
            None => socket.abort(),
            Some(Err(error)) => self.refuse_target(socket, &target, &error).await,
            Some(Ok(stream)) => {
                if socket.write_all(ESTABLISHED).await.is_err() {
                    return stream.abort();
                }
                // Bytes that the application sent without waiting belong to the target.
                self.relay_bytes(PrefixedStream::new(behind, socket), stream, &target).await;
            }
        }
    }

    async fn forward(&self, socket: TcpStream, forward: Forward) {
        let target = forward.target.clone();
        match self.open(&target).await {
            None => socket.abort(),
            Some(Err(error)) => self.refuse_target(socket, &target, &error).await,
            Some(Ok(stream)) => {
                self.relay_bytes(Exchange::new(socket, forward), stream, &target).await
            }
        }
    }

    /// Answers a request with the reason why its target is unreachable.
    pub(super) async fn answer_refusal(socket: &mut TcpStream, failure: &Failure) {
        let refusal = Refusal::new(status_of(failure.code), &failure.text);
        send_answer(socket, &refusal.to_bytes()).await;
    }

    async fn refuse_target(&self, mut socket: TcpStream, target: &Target, error: &OpenError) {
        tracing::warn!(%target, "{error}");
        let refusal = match error {
            OpenError::Refused(failure) => return Self::answer_refusal(&mut socket, failure).await,
            // The reason names the server and its paths, and a web page may be able to read the response.
            OpenError::Pin | OpenError::Server(_) => {
                Refusal::new(502, "the Marline server cannot be reached: see the client's log")
            }
        };
        send_answer(&mut socket, &refusal.to_bytes()).await;
    }
}

/// The first request and the bytes after its head, or the refusal.
type Read = Result<(Request, Vec<u8>), Refusal>;

async fn read_head(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<Read> {
    let mut bytes = Vec::with_capacity(1_024);
    let mut empty = 0;
    // Damaged heads are detected early, and a head that arrives byte by byte is not parsed each time.
    let mut try_at = 1;
    loop {
        let before = bytes.len();
        if socket.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let leading = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        bytes.drain(..leading);
        empty += leading;
        if empty > MAX_EMPTY_BYTES {
            return Ok(Err(Refusal::bad_request("empty lines instead of a request")));
        }
        if bytes.len() < try_at && !is_head_end(&bytes[before.saturating_sub(3).min(bytes.len())..])
        {
            continue;
        }
        match parse(&bytes) {
            Ok(None) => try_at = (bytes.len() * 2).min(MAX_HEAD),
            Ok(Some((request, head_len))) => return Ok(Ok((request, bytes.split_off(head_len)))),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

fn is_head_end(bytes: &[u8]) -> bool {
    let two = bytes.windows(2).any(|pair| pair == b"\n\n");
    two || bytes.windows(3).any(|three| three == b"\n\r\n")
}

async fn refuse(socket: &mut TcpStream, refusal: &Refusal) {
    tracing::info!("HTTP request refused: {refusal}");
    send_answer(socket, &refusal.to_bytes()).await;
}

/// Sends a response, and closes so that it can be read.
async fn send_answer(socket: &mut TcpStream, answer: &[u8]) {
    let said = async {
        socket.write_all(answer).await?;
        socket.shutdown().await?;
        tokio::io::copy(&mut (&mut *socket).take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await
    };
    // The application may have disconnected already.
    let _ = timeout(CLOSING_TIME, said).await;
}
