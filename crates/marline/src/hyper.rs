//! Connector for hyper-util's HTTP client.
//!
//! The connector connects over all paths to the host and port of a URI, where a Marline server listens. With the
//! feature `tls`, [`Connector::tls`] encrypts the connections.
//!
//! ```no_run
//! use hyper_util::client::legacy::Client;
//! use hyper_util::rt::TokioExecutor;
//!
//! # async fn run(body: http_body_util::Empty<&'static [u8]>) -> Result<(), Box<dyn std::error::Error>> {
//! let paths = marline::Client::builder().bind().await?;
//! let http = Client::builder(TokioExecutor::new()).build(marline::hyper::Connector::new(paths));
//! # let request: http::Request<http_body_util::Empty<&'static [u8]>> = http::Request::new(body);
//! # http.request(request).await?;
//! # Ok(())
//! # }
//! ```

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Client, Stream};

/// Connector for `hyper_util::client::legacy::Client` and other users of a `tower` service of URIs.
#[derive(Clone, Debug)]
pub struct Connector {
    client: Client,
    #[cfg(feature = "tls")]
    tls: Option<crate::tls::Connector>,
}

impl Connector {
    /// Connects with `client`, in plaintext.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Connector {
            client,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Connects with `client`, and encrypts with `tls`. URIs still begin with `http://`: the pinned key identifies the
    /// server, not the host in the URI.
    #[cfg(feature = "tls")]
    #[must_use]
    pub const fn tls(client: Client, tls: crate::tls::Connector) -> Self {
        Connector { client, tls: Some(tls) }
    }

    async fn connect(self, uri: Uri) -> io::Result<TokioIo<HttpStream>> {
        if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
            let what =
                format!("{uri}: only http:// is supported; `Connector::tls` adds encryption");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let Some(host) = uri.host() else {
            let what = format!("{uri}: the host is missing");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        // In a URI, an IPv6 address is in brackets.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let server = (host, uri.port_u16().unwrap_or(80));
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let stream = tls.connect(&self.client, server).await?;
            return Ok(TokioIo::new(HttpStream::Tls(Box::new(stream))));
        }
        Ok(TokioIo::new(HttpStream::Plain(self.client.connect(server).await?)))
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<HttpStream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        Connecting { inner: Box::pin(self.clone().connect(uri)) }
    }
}

/// Future that resolves to a connection.
#[must_use = "futures do nothing unless polled"]
pub struct Connecting {
    inner: Pin<Box<dyn Future<Output = io::Result<TokioIo<HttpStream>>> + Send>>,
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connecting")
    }
}

impl Future for Connecting {
    type Output = io::Result<TokioIo<HttpStream>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.as_mut().poll(cx)
    }
}

/// Stream for HTTP, plain or encrypted.
#[derive(Debug)]
#[non_exhaustive]
pub enum HttpStream {
    /// Plaintext stream.
    Plain(Stream),
    /// Encrypted stream.
    #[cfg(feature = "tls")]
    Tls(Box<crate::tls::TlsStream>),
}

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            HttpStream::Plain($stream) => $call,
            #[cfg(feature = "tls")]
            HttpStream::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for HttpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for HttpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
