//! Requests on a recently used connection, followed by the application's first bytes.

use tokio::io::split;

use super::answers::expect_working;
use super::early_bytes::EarlyBytes;
use super::open::OpenError;
use super::patience::Timeouts;
use super::tunnel::{Connect, Tunnel, send};
use crate::channel::Channel;
use crate::message::Message;
use crate::transport::Transport;

impl<C: Connect> Tunnel<C> {
    /// Sends the request on a connection that was active just now, followed by the application's first bytes.
    pub(super) async fn request_on_used_connection(
        &self,
        mut stream: Channel<C::Stream>,
        request: &Message,
        ahead: &mut EarlyBytes<'_>,
    ) -> Result<Channel<C::Stream>, OpenError> {
        let mut has_begun = false;
        let asked = {
            let (mut reader, mut writer) = split(&mut stream);
            let (reader, writer) = (&mut reader, &mut writer);
            let asking = async {
                let Timeouts { warm, target, .. } = self.patience;
                let broken = |error| OpenError::from_io("cannot send to the server", error);
                let late = || OpenError::timed_out("a used connection", warm);
                send(writer, &request.to_bytes()).await?;
                let heard = self.expect_message(reader, target, expect_working);
                ahead.send_until(writer, warm, heard).await.map_err(broken)?.ok_or_else(late)??;
                has_begun = true;
                let connected = self.connected(reader);
                let heard = ahead.send_until(writer, target, connected).await;
                heard.map_err(broken)?.ok_or_else(late)?
            };
            asking.await
        };
        let Err(error) = asked else { return Ok(stream) };
        ahead.on_break(!has_begun && stream.has_ended());
        stream.abort();
        Err(error)
    }
}
