//! Direct connections to the target over all paths: to any server that speaks Multipath TCP, and by fallback to any
//! that speaks TCP.
//!
//! Names are resolved by this machine's resolver. The addresses are tried over all paths, a stagger apart (RFC
//! 8305), until the first handshake completes. The application's data is not encrypted in addition.
//!
//! If Fast Open is enabled for the target's port and the target has given a cookie, the first bytes of an
//! application that is already connected (through a forward or a router) are sent with the SYN
//! (docs/decisions/opening.md).

use std::time::Duration;

use marline::monitor::CloseReason;
use marline::{Client, ConnectError};
use tokio::time::timeout;

use super::early_bytes::EarlyBytes;
use super::open::{Open, OpenError};
use crate::deadlines::Deadlines;
use crate::message::{ErrorCode, Failure};
use crate::outgoing::resolve;
use crate::target::Target;

/// Time after which a target that has not answered on any path counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait for the first bytes of an application that may be sent with the SYN: a round trip to devices in a
/// home, and less than the round trip that is saved.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_millis(10);

/// Direct connections without a Marline server.
#[derive(Debug)]
pub struct Direct {
    client: Client,
    deadlines: Deadlines,
}

impl Direct {
    /// Connects with `client`, whose carrier must be a native one, with these latency requirements of applications.
    #[must_use]
    pub fn new(client: Client, deadlines: Deadlines) -> Direct {
        Direct { client, deadlines }
    }
}

impl Open for Direct {
    type Stream = marline::Stream;

    async fn open(&self, target: &Target) -> Result<marline::Stream, OpenError> {
        self.open_behind(target, None).await
    }

    async fn open_behind(
        &self,
        target: &Target,
        ahead: Option<&mut EarlyBytes<'_>>,
    ) -> Result<marline::Stream, OpenError> {
        let addresses = resolve(target).await.map_err(OpenError::Refused)?;
        let first: &[u8] = match ahead {
            Some(ahead) if self.client.fast_open_room(&addresses).is_some() => {
                ahead.read_first_bytes(FIRST_BYTES_TIMEOUT).await
            }
            _ => &[],
        };
        let connect = timeout(CONNECT_TIMEOUT, self.client.connect_with(&addresses[..], first));
        let failed = |error: ConnectError| OpenError::Refused(failure(target, error));
        let stream = match connect.await {
            Ok(connected) => connected.map_err(failed)?,
            Err(_) => {
                let text = format!("{target}: no answer within {} s", CONNECT_TIMEOUT.as_secs());
                let failure = Failure::new(ErrorCode::DestinationUnreachable, text);
                return Err(OpenError::Refused(failure));
            }
        };
        // The deadline is permanent, because every target has its own connection.
        self.deadlines.apply_to(&stream, target.port);
        tracing::debug!(%target, address = %stream.peer_addr(), "connected");
        // Names of targets are not logged by default.
        match stream.fallback() {
            None => tracing::info!("connected over Multipath TCP"),
            Some(why) => tracing::info!("connected over plain TCP ({why})"),
        }
        Ok(stream)
    }
}

fn failure(target: &Target, error: ConnectError) -> Failure {
    let code = match &error {
        ConnectError::Closed(CloseReason::Refused) => ErrorCode::ConnectionReset,
        ConnectError::NoRoute { .. } | ConnectError::NoPath { .. } => ErrorCode::NetworkFailure,
        ConnectError::Start(_) => ErrorCode::ResourceExceeded,
        _ => ErrorCode::DestinationUnreachable,
    };
    Failure::new(code, format!("{target}: {:#}", anyhow::Error::new(error)))
}

#[cfg(test)]
mod tests {
    use marline::error::Attempt;

    use super::*;

    #[test]
    fn failures_have_the_codes_that_applications_understand() {
        let target: Target = "example.org:80".parse().unwrap();
        let refused = failure(&target, ConnectError::Closed(CloseReason::Refused));
        assert_eq!(refused.code, ErrorCode::ConnectionReset);
        assert!(
            refused.text.contains("example.org:80: connection ended: refused"),
            "{}",
            refused.text
        );
        assert_eq!(
            failure(&target, ConnectError::NoPath { reasons: Vec::new() }).code,
            ErrorCode::NetworkFailure
        );
        let server = "192.0.2.1:80".parse().unwrap();
        let attempts = vec![Attempt::new("wlan0".to_owned(), server, "no answer".to_owned())];
        let silent = failure(&target, ConnectError::Unreachable { attempts });
        assert_eq!(silent.code, ErrorCode::DestinationUnreachable);
        assert!(silent.text.contains("wlan0"), "{}", silent.text);
    }
}
