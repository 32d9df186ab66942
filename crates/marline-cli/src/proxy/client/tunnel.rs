//! The client's way to a target: a warm connection if there is one, else a fresh one.
//!
//! Fresh: multipath handshake, TLS, and then Hello and Connect in one go, so that the answer is there
//! three round trips after the start. Warm: one.

use std::future::Future;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::open::{Open, OpenError};
use super::pool::Pool;
use crate::proxy::message::{Message, VERSION};
use crate::proxy::secret::Secret;
use crate::proxy::target::Target;
use crate::proxy::tls::{self, ClientStream};
use crate::proxy::transport::Transport;

/// Opens the streams below TLS.
pub trait Connect: Send + Sync + 'static {
    /// What it opens.
    type Stream: Transport;

    /// Opens one to the server.
    fn connect(&self) -> impl Future<Output = anyhow::Result<Self::Stream>> + Send;
}

/// How long to wait for what.
#[derive(Copy, Clone, Debug)]
pub struct Patience {
    /// For the stream below TLS.
    pub connect: Duration,
    /// For TLS and the server's Welcome.
    pub handshake: Duration,
    /// For a warm connection's `Working`; it costs one round trip and no work.
    pub warm: Duration,
    /// For the target; the server gives up before.
    pub target: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect: Duration::from_secs(30),
            handshake: Duration::from_secs(20),
            warm: Duration::from_secs(3),
            target: Duration::from_secs(45),
        }
    }
}

impl OpenError {
    fn from_io(what: &str, error: io::Error) -> OpenError {
        if tls::is_pin_mismatch(&error) {
            return OpenError::Pin;
        }
        OpenError::Server(anyhow::Error::new(error).context(what.to_owned()))
    }

    fn late(what: &str, patience: Duration) -> OpenError {
        let patience_s = patience.as_secs();
        OpenError::Server(anyhow::anyhow!("{what}: no answer within {patience_s} s"))
    }
}

/// One server, as its invite describes it.
pub struct Tunnel<C: Connect> {
    connect: C,
    tls: TlsConnector,
    token: Secret,
    patience: Patience,
    pool: Pool<ClientStream<C::Stream>>,
}

impl<C: Connect> Tunnel<C> {
    /// A tunnel to the server with this key, as this client, with `warm` connections in waiting.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(
        connect: C,
        pin: [u8; 32],
        token: Secret,
        patience: Patience,
        warm: usize,
    ) -> anyhow::Result<Arc<Tunnel<C>>> {
        let tls = tls::connector(pin)?;
        let tunnel = Arc::new(Tunnel { connect, tls, token, patience, pool: Pool::new(warm) });
        if warm > 0 {
            tokio::spawn(keep_warm(Arc::downgrade(&tunnel)));
        }
        Ok(tunnel)
    }

    /// Lets the waiting connections go; no others take their place.
    pub fn close(&self) {
        self.pool.close();
    }

    async fn on_warm(
        &self,
        mut stream: ClientStream<C::Stream>,
        target: &Target,
    ) -> Result<ClientStream<C::Stream>, OpenError> {
        let ask = async {
            send(&mut stream, &[Message::Connect(target.clone())]).await?;
            self.expect(&mut stream, self.patience.warm, working).await
        };
        let asked = timeout(self.patience.warm, ask).await;
        if let Err(error) =
            asked.unwrap_or_else(|_| Err(OpenError::late("a warm connection", self.patience.warm)))
        {
            stream.abort();
            return Err(error);
        }
        self.connected(stream).await
    }

    async fn connected(
        &self,
        mut stream: ClientStream<C::Stream>,
    ) -> Result<ClientStream<C::Stream>, OpenError> {
        let connected = |message: &Message| matches!(message, Message::Connected).then_some(());
        self.expect(&mut stream, self.patience.target, connected).await?;
        Ok(stream)
    }

    /// An authenticated connection. Without a target the server's Welcome was read and only that;
    /// with one the request is on its way too.
    async fn fresh(
        &self,
        target: Option<&Target>,
    ) -> Result<(ClientStream<C::Stream>, Duration), OpenError> {
        let stream = timeout(self.patience.connect, self.connect.connect())
            .await
            .map_err(|_| OpenError::late("connecting to the server", self.patience.connect))?
            .map_err(OpenError::Server)?;
        let handshake = async {
            let handshake = self.tls.connect(tls::server_name(), stream).await;
            let stream = handshake.map_err(|e| OpenError::from_io("TLS with the server", e))?;
            let mut stream = ClientStream::new(stream);
            // The pin is verified: now, and only now, the token.
            let hello = Message::Hello { version: VERSION, token: self.token.clone() };
            let request = target.map(|target| Message::Connect(target.clone()));
            let messages: Vec<Message> = [Some(hello), request].into_iter().flatten().collect();
            send(&mut stream, &messages).await?;
            let welcome = |message: &Message| match message {
                Message::Welcome { idle_limit_s } => Some(*idle_limit_s),
                _ => None,
            };
            let limit_s = self.expect(&mut stream, self.patience.handshake, welcome).await?;
            Ok((stream, Duration::from_secs(limit_s.into())))
        };
        timeout(self.patience.handshake, handshake)
            .await
            .map_err(|_| OpenError::late("TLS with the server", self.patience.handshake))?
    }

    /// Reads one message, which must be the one that `pick` takes.
    async fn expect<T>(
        &self,
        stream: &mut ClientStream<C::Stream>,
        patience: Duration,
        pick: impl Fn(&Message) -> Option<T>,
    ) -> Result<T, OpenError> {
        let read = timeout(patience, Message::read(stream)).await;
        match read.map_err(|_| OpenError::late("the server", patience))? {
            Ok(Message::Failed(failure)) => Err(OpenError::Refused(failure)),
            Ok(message) => pick(&message).ok_or_else(|| {
                OpenError::Server(anyhow::anyhow!("the server said {message} out of turn"))
            }),
            Err(error) => Err(OpenError::from_io("the server ended the connection", error)),
        }
    }
}

impl<C: Connect> Open for Tunnel<C> {
    type Stream = ClientStream<C::Stream>;

    async fn open(&self, target: &Target) -> Result<Self::Stream, OpenError> {
        if let Some(stream) = self.pool.take().await {
            match self.on_warm(stream, target).await {
                Err(OpenError::Server(error)) => {
                    tracing::debug!("a warm connection was dead ({error:#}): a fresh one");
                    self.pool.clear();
                }
                result => return result,
            }
        }
        let (mut stream, _) = self.fresh(Some(target)).await?;
        self.expect(&mut stream, self.patience.handshake, working).await?;
        self.connected(stream).await
    }
}

fn working(message: &Message) -> Option<()> {
    matches!(message, Message::Working).then_some(())
}

async fn send<T: Transport>(
    stream: &mut ClientStream<T>,
    messages: &[Message],
) -> Result<(), OpenError> {
    let mut bytes = Vec::with_capacity(128);
    for message in messages {
        message.encode(&mut bytes);
    }
    let written = async {
        stream.write_all(&bytes).await?;
        stream.flush().await
    };
    written.await.map_err(|error| OpenError::from_io("sending to the server", error))
}

/// Fills the pool until the tunnel is gone.
async fn keep_warm<C: Connect>(tunnel: Weak<Tunnel<C>>) {
    const FIRST_PAUSE: Duration = Duration::from_secs(1);
    const LONGEST_PAUSE: Duration = Duration::from_secs(60);
    /// `changed` cannot be awaited for ever: the tunnel must be able to end.
    const LOOK_EVERY: Duration = Duration::from_secs(5);
    let mut pause = FIRST_PAUSE;
    while let Some(tunnel) = tunnel.upgrade() {
        if tunnel.pool.wanted() == 0 {
            let _ = timeout(LOOK_EVERY, tunnel.pool.changed()).await;
            continue;
        }
        match tunnel.fresh(None).await {
            Ok((stream, limit)) => {
                if pause > FIRST_PAUSE {
                    tracing::info!("the server answers again");
                }
                // Ours must be the earlier end: the server's could meet a request on its way.
                tunnel.pool.put(stream, limit * 4 / 5);
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                drop(tunnel);
                // Once per outage for people; repeats are for those who look closer.
                match pause == FIRST_PAUSE {
                    true => tracing::warn!("{error}"),
                    false => tracing::debug!("still: {error}"),
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
