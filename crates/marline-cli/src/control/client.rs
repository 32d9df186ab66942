//! Client side of the control socket.

use std::path::Path;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::protocol::{self, Answer, Command, Connection, Event, Request, Response};

/// A connection to a running client or server.
#[derive(Debug)]
pub struct ControlClient {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next_id: u64,
}

impl ControlClient {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// No process listens there, or the socket belongs to another user.
    pub async fn connect(path: &Path) -> anyhow::Result<ControlClient> {
        let stream = UnixStream::connect(path)
            .await
            .with_context(|| format!("cannot reach a marline process at {}", path.display()))?;
        let (reader, writer) = stream.into_split();
        Ok(ControlClient { reader: BufReader::new(reader), writer, next_id: 1 })
    }

    /// Sends a command and waits for the answer.
    ///
    /// # Errors
    /// The other side refused (with its message) or disconnected.
    pub async fn request(&mut self, command: Command) -> anyhow::Result<Answer> {
        let id = self.next_id;
        self.next_id += 1;
        let mut line = serde_json::to_vec(&Request { id: Some(id), command })?;
        line.push(b'\n');
        self.writer.write_all(&line).await.context("the marline process closed the connection")?;
        let text = self.line().await?.context("the marline process closed the connection")?;
        let response: Response = serde_json::from_str(&text).context("invalid answer")?;
        match response {
            Response { error: Some(error), .. } => bail!(error),
            Response { ok: Some(answer), id: Some(same), .. } if same == id => Ok(answer),
            _ => bail!("unexpected answer: {text}"),
        }
    }

    /// Returns a snapshot of all connections.
    ///
    /// # Errors
    /// Same as [`Self::request`].
    pub async fn connections(&mut self) -> anyhow::Result<Vec<Connection>> {
        match self.request(Command::Connections).await? {
            Answer::Connections(all) => Ok(all),
            other => bail!("unexpected answer to the request for connections: {other:?}"),
        }
    }

    /// Returns a snapshot of the paths.
    ///
    /// # Errors
    /// Same as [`Self::request`].
    pub async fn paths(&mut self) -> anyhow::Result<Vec<protocol::Path>> {
        match self.request(Command::Paths).await? {
            Answer::Paths(paths) => Ok(paths),
            other => bail!("unexpected answer to the request for paths: {other:?}"),
        }
    }

    /// Returns a snapshot of the path health monitor's table.
    ///
    /// # Errors
    /// Same as [`Self::request`].
    pub async fn address_pairs(&mut self) -> anyhow::Result<Vec<protocol::AddressPair>> {
        match self.request(Command::AddressPairs).await? {
            Answer::AddressPairs(address_pairs) => Ok(address_pairs),
            other => bail!("unexpected answer to the request for address pairs: {other:?}"),
        }
    }

    /// Returns the next event after [`Command::Monitor`], or `None` when the process has ended.
    ///
    /// # Errors
    /// The line is not an event.
    pub async fn event(&mut self) -> anyhow::Result<Option<Event>> {
        let Some(text) = self.line().await? else { return Ok(None) };
        Ok(Some(serde_json::from_str(&text).context("invalid event")?))
    }

    async fn line(&mut self) -> anyhow::Result<Option<String>> {
        let mut text = String::new();
        let count = self.reader.read_line(&mut text).await?;
        Ok((count > 0).then_some(text))
    }
}
