//! Graceful shutdown: no new work is started, running work may finish, and the rest is aborted. During an upgrade
//! this is preceded by a phase in which another process accepts new work while running work continues.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::signals::{SignalRequest, Signals};

/// Phase of the shutdown.
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
    /// Time at which the work left after a handover is drained.
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
    /// Returns a receiver of the signal.
    #[must_use]
    pub fn listen(&self) -> Stop {
        Stop { phase: self.phase.subscribe() }
    }

    /// Lets another process accept new work from now on. Running work may continue for `limit` and is then drained.
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

    /// Returns true if the shutdown has begun or another process accepts new work.
    #[must_use]
    pub fn is_over(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Resolves when the time limit after a handover has passed.
    async fn wait_for_limit(&self) {
        let mut limit = self.limit.subscribe();
        let until = limit.wait_for(Option::is_some).await.ok().and_then(|until| *until);
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// Starts draining: no new work is started.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Ends everything immediately.
    pub fn end(&self) {
        self.phase.send_replace(Phase::Over);
    }

    /// Runs `work`. On the first signal to stop, `work` gets the drain time of `running` to finish. On the second, it
    /// is stopped immediately. `signals` must exist before the program reports that it is ready, so that no signal is
    /// lost.
    ///
    /// # Errors
    /// `work` fails.
    pub async fn run_until_signal(
        &self,
        mut signals: Signals,
        running: &mut dyn Reload,
        work: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        tokio::pin!(work);
        loop {
            let request = tokio::select! {
                result = &mut work => return result,
                request = next_request(&mut signals, running) => request,
                () = self.wait_for_limit() => {
                    tracing::warn!("time limit after the upgrade reached; closing the remaining connections");
                    SignalRequest::End
                }
            };
            match request {
                SignalRequest::Reload => running.reload(),
                SignalRequest::End => break,
            }
        }
        let patience = running.patience();
        let patience_s = patience.as_secs();
        tracing::info!(
            patience_s,
            "stopping; waiting for connections to finish (signal again to stop now)"
        );
        self.drain();
        let hurried = async { while signals.next().await != SignalRequest::End {} };
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

/// Returns the next request to the program: a signal, or another request to reload the configuration.
pub async fn next_request(signals: &mut Signals, running: &mut dyn Reload) -> SignalRequest {
    tokio::select! {
        told = signals.next() => told,
        () = poll_fn(|cx| running.poll_reload_request(cx)) => SignalRequest::Reload,
    }
}

/// Reaction of a program to signals.
pub trait Reload {
    /// Ready when a source other than a signal requests a reload, which then follows.
    fn poll_reload_request(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Reloads the configuration.
    fn reload(&mut self);

    /// Returns the time that running work gets to finish at shutdown.
    fn patience(&self) -> Duration;
}

impl Stop {
    async fn wait_for_phase(&self, phase: Phase) {
        // A stopper that was dropped counts as stopped.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }

    /// Resolves when another process accepts new work, or draining begins.
    pub async fn handed_over(&self) {
        self.wait_for_phase(Phase::HandedOver).await;
    }

    /// Resolves when draining begins.
    pub async fn draining(&self) {
        self.wait_for_phase(Phase::Draining).await;
    }

    /// Resolves when everything must end.
    pub async fn wait_for_end(&self) {
        self.wait_for_phase(Phase::Over).await;
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
        assert!(pending(early.wait_for_end()).await);
        assert!(pending(stopper.listen().wait_for_end()).await);
        stopper.end();
        stopper.listen().draining().await;
        early.wait_for_end().await;
        stopper.hand_over(Duration::ZERO);
        early.wait_for_end().await;
        drop(stopper);
        early.wait_for_end().await;
    }
}
