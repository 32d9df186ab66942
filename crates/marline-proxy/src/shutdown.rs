//! Graceful shutdown: nothing new is started, running work may finish, and what remains is aborted. Before that there
//! may be a time in which another process starts what is new, and running work goes on for as long as it likes.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::signals::{Signals, Told};

/// How far the end is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    HandedOver,
    Draining,
    Over,
}

/// Sender of the shutdown signal.
#[derive(Debug)]
pub struct Stopper {
    phase: watch::Sender<Phase>,
    /// When what runs after a handover has lasted long enough.
    limit: watch::Sender<Option<Instant>>,
}

/// Receiver of the shutdown signal.
#[derive(Clone, Debug)]
pub struct Stop {
    phase: watch::Receiver<Phase>,
}

impl Default for Stopper {
    fn default() -> Self {
        Stopper { phase: watch::Sender::new(Phase::Running), limit: watch::Sender::new(None) }
    }
}

impl Stopper {
    /// A receiver of the signal.
    #[must_use]
    pub fn listen(&self) -> Stop {
        Stop { phase: self.phase.subscribe() }
    }

    /// Another process starts what is new from now on. What runs may go on for `limit`, and is drained then.
    pub fn hand_over(&self, limit: Duration) {
        self.limit.send_replace(Instant::now().checked_add(limit));
        self.phase.send_if_modified(|phase| {
            let earlier = *phase < Phase::HandedOver;
            if earlier {
                *phase = Phase::HandedOver;
            }
            earlier
        });
    }

    /// The end has begun, or another process has what is new.
    #[must_use]
    pub fn is_over(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Resolves when what runs after a handover has lasted long enough.
    async fn outlived(&self) {
        let mut limit = self.limit.subscribe();
        let until = limit.wait_for(Option::is_some).await.ok().and_then(|until| *until);
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// Starts draining: nothing new is started.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Ends everything at once.
    pub fn end(&self) {
        self.phase.send_replace(Phase::Over);
    }

    /// Runs `work`. On the first signal to end, `work` gets the drain time of `running` to finish;
    /// on the second, it ends at once. `signals` are there before the program says that it is
    /// ready: one that came in between would be lost.
    ///
    /// # Errors
    /// What `work` gives.
    pub async fn run_until_signal(
        &self,
        mut signals: Signals,
        running: &mut dyn Reload,
        work: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        tokio::pin!(work);
        loop {
            let told = tokio::select! {
                result = &mut work => return result,
                told = told(&mut signals, running) => told,
                () = self.outlived() => {
                    tracing::warn!("connections have outlived the upgrade's limit");
                    Told::End
                }
            };
            match told {
                Told::Reload => running.reload(),
                Told::End => break,
            }
        }
        let patience = running.patience();
        let patience_s = patience.as_secs();
        tracing::info!(
            patience_s,
            "stopping; waiting for connections to finish (signal again to stop now)"
        );
        self.drain();
        let hurried = async { while signals.next().await != Told::End {} };
        tokio::select! {
            result = &mut work => return result,
            () = tokio::time::sleep(patience) => {}
            () = hurried => {}
        }
        tracing::info!("stopping; closing unfinished connections");
        self.end();
        work.await
    }
}

/// What a program is told next: by a signal, or by somebody else who asks it to read its configuration again.
pub async fn told(signals: &mut Signals, running: &mut dyn Reload) -> Told {
    tokio::select! {
        told = signals.next() => told,
        () = poll_fn(|cx| running.poll_asked(cx)) => Told::Reload,
    }
}

/// Reaction of a program to signals.
pub trait Reload {
    /// Ready when somebody else than a signal asks it to read its configuration again, which is done next.
    fn poll_asked(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Reads its configuration again.
    fn reload(&mut self);

    /// How long what runs may go on when the program is to end.
    fn patience(&self) -> Duration;
}

impl Stop {
    async fn reached(&self, phase: Phase) {
        // A stopper that is gone has stopped.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }

    /// Resolves when another process starts what is new, or nobody does.
    pub async fn handed_over(&self) {
        self.reached(Phase::HandedOver).await;
    }

    /// Resolves when draining begins.
    pub async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Resolves when everything must end.
    pub async fn over(&self) {
        self.reached(Phase::Over).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pending(future: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(Duration::from_millis(10), future).await.is_err()
    }

    #[tokio::test]
    async fn phases_come_in_order_and_reach_late_listeners() {
        let stopper = Stopper::default();
        let early = stopper.listen();
        assert!(pending(early.handed_over()).await);
        stopper.hand_over(Duration::from_secs(1));
        early.handed_over().await;
        assert!(pending(early.draining()).await);
        stopper.drain();
        early.draining().await;
        assert!(pending(early.over()).await);
        assert!(pending(stopper.listen().over()).await);
        stopper.end();
        stopper.listen().draining().await;
        early.over().await;
        stopper.hand_over(Duration::ZERO);
        early.over().await;
        drop(stopper);
        early.over().await;
    }
}
