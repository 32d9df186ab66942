//! Requests to read the configuration again that come by the control socket, and what is answered.
//!
//! A signal asks for the same, and is answered in the log.

use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use crate::control::protocol::Reloaded;

type Answer = Result<Reloaded, String>;

/// Where reloads are asked for.
#[derive(Clone, Debug)]
pub struct ReloadSender(mpsc::Sender<oneshot::Sender<Answer>>);

/// Where they are done, one after the other.
#[derive(Debug)]
pub(crate) struct Reloads(mpsc::Receiver<oneshot::Sender<Answer>>);

/// Who waits for the answer to one.
pub(crate) type Asker = oneshot::Sender<Answer>;

/// The two ends.
pub(crate) fn reloads() -> (ReloadSender, Reloads) {
    // One that waits is enough to say that there is one.
    let (ask, asked) = mpsc::channel(1);
    (ReloadSender(ask), Reloads(asked))
}

/// A reload that was asked for.
#[derive(Debug)]
pub struct PendingReload(Result<oneshot::Receiver<Answer>, String>);

impl ReloadSender {
    /// Asks for one.
    #[must_use]
    pub fn ask(&self) -> PendingReload {
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
    /// What came of it.
    ///
    /// # Errors
    /// What is wrong with the configuration, and where: all of the old one is in force.
    pub async fn outcome(self) -> Answer {
        self.0?.await.unwrap_or_else(|_| Err("the process is stopping".to_owned()))
    }
}

impl Reloads {
    /// The next one who asks.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Asker> {
        match self.0.poll_recv(cx) {
            Poll::Ready(Some(asker)) => Poll::Ready(asker),
            // Nobody can ask any more.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
