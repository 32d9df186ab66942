//! Origin servers of the demo: an HTTP server with one file and an echo server, on loopback.

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

use super::content::Content;

/// Path of the file.
pub const FILE: &str = "/file";

/// Both servers. Dropping this ends both.
#[derive(Debug)]
pub struct OriginServers {
    /// The HTTP server.
    pub http: SocketAddr,
    /// The echo server.
    pub echo: SocketAddr,
    _tasks: JoinSet<()>,
}

/// A file and the rate at which the server sends it.
#[derive(Copy, Clone, Debug)]
pub struct File {
    /// Seed of the file's bytes.
    pub seed: u64,
    /// Length in bytes.
    pub length: u64,
    /// Rate limit in bytes per second; `None` for no limit. After a stall the server catches up without a limit, like
    /// a media server.
    pub pace: Option<u64>,
}

impl OriginServers {
    /// Starts both.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start(file: File) -> std::io::Result<OriginServers> {
        let http = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (http_address, echo_address) = (http.local_addr()?, echo.local_addr()?);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(http, move |stream| serve_http(stream, file)));
        tasks.spawn(accept(echo, serve_echo));
        Ok(OriginServers { http: http_address, echo: echo_address, _tasks: tasks })
    }
}

/// Serves each connection in a separate task. All tasks end with this one.
async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut serving = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Nagle's algorithm is useless on loopback, and a failure is harmless.
                let _ = stream.set_nodelay(true);
                serving.spawn(serve(stream));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        while serving.try_join_next().is_some() {}
    }
}

async fn serve_echo(mut stream: TcpStream) {
    let (mut reader, mut writer) = stream.split();
    // Ends when the client disconnects.
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}

async fn serve_http(stream: TcpStream, file: File) {
    let service = service_fn(move |request| answer(request, file));
    let http = hyper::server::conn::http1::Builder::new();
    // Ends when the client disconnects.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, file: File) -> Result<Response<PacedBody>, Infallible> {
    let (status, length) = match (request.method(), request.uri().path()) {
        (&Method::GET, FILE) => (StatusCode::OK, file.length),
        (_, FILE) => (StatusCode::METHOD_NOT_ALLOWED, 0),
        _ => (StatusCode::NOT_FOUND, 0),
    };
    let mut response = Response::new(PacedBody::new(File { length, ..file }));
    *response.status_mut() = status;
    Ok(response)
}

/// A body with limited rate.
struct PacedBody {
    content: Content,
    left: u64,
    sent: u64,
    pace: Option<u64>,
    started: Instant,
    sleep: Pin<Box<Sleep>>,
}

/// Size of a piece in bytes, without a rate limit.
const CHUNK: u64 = 64 << 10;

/// Interval between two pieces with a rate limit.
const PIECE_INTERVAL: Duration = Duration::from_millis(20);

impl PacedBody {
    fn new(file: File) -> Self {
        let started = Instant::now();
        PacedBody {
            content: Content::new(file.seed, file.length),
            left: file.length,
            sent: 0,
            pace: file.pace,
            started,
            sleep: Box::pin(tokio::time::sleep_until(started)),
        }
    }

    /// Returns the number of bytes that may be sent now. With a rate limit, all that are due by the time of the next
    /// piece.
    fn allowed(&self) -> u64 {
        let Some(pace) = self.pace else { return CHUNK };
        let elapsed = self.started.elapsed() + PIECE_INTERVAL;
        let due = (elapsed.as_secs_f64() * pace as f64) as u64;
        due.saturating_sub(self.sent).min(CHUNK)
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        loop {
            let allowed = self.allowed().min(self.left);
            if allowed > 0 {
                let bytes = self.content.next_bytes(allowed as usize);
                self.left -= allowed;
                self.sent += allowed;
                if self.pace.is_some() {
                    let next = Instant::now() + PIECE_INTERVAL;
                    self.sleep.as_mut().reset(next);
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
            }
            ready!(self.sleep.as_mut().poll(context));
            let next = Instant::now() + PIECE_INTERVAL;
            self.sleep.as_mut().reset(next);
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
