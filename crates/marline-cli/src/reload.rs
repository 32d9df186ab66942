//! Reload requests from the control socket, and their answers.
//!
//! A reload by a signal has the same effect, and its result is only logged.

use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use crate::control::protocol::Reloaded;

type Answer = Result<Reloaded, String>;

/// Sender of reload requests.
#[derive(Clone, Debug)]
pub struct ReloadSender(mpsc::Sender<oneshot::Sender<Answer>>);

/// Receiver of reload requests, which are handled one after the other.
#[derive(Debug)]
pub(crate) struct Reloads(mpsc::Receiver<oneshot::Sender<Answer>>);

/// Sender for the answer to one request.
pub(crate) type ReplySender = oneshot::Sender<Answer>;

/// Returns the two ends of a channel for reload requests.
pub(crate) fn reloads() -> (ReloadSender, Reloads) {
    // One waiting request is enough.
    let (ask, asked) = mpsc::channel(1);
    (ReloadSender(ask), Reloads(asked))
}

/// A requested reload.
#[derive(Debug)]
pub struct PendingReload(Result<oneshot::Receiver<Answer>, String>);

impl ReloadSender {
    /// Requests a reload.
    #[must_use]
    pub fn request(&self) -> PendingReload {
        let (answer, answered) = oneshot::channel();
        PendingReload(match self.0.try_send(answer) {
            Ok(()) => Ok(answered),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err("a reload is already in progress".to_owned())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err("the process is stopping".to_owned()),
        })
    }
}

impl PendingReload {
    /// Returns the result of the reload.
    ///
    /// # Errors
    /// The error in the configuration and its location. The old configuration remains in force.
    pub async fn outcome(self) -> Answer {
        self.0?.await.unwrap_or_else(|_| Err("the process is stopping".to_owned()))
    }
}

impl Reloads {
    /// Returns the next request.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<ReplySender> {
        match self.0.poll_recv(cx) {
            Poll::Ready(Some(asker)) => Poll::Ready(asker),
            // All senders were dropped.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
