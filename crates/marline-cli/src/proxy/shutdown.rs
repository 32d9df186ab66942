//! An orderly end: first nothing new is begun, then what runs may finish, then it is cut off.

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How far the end is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Draining,
    Over,
}

/// Tells everybody when to stop.
#[derive(Debug)]
pub struct Stopper {
    phase: watch::Sender<Phase>,
}

/// Learns when to stop.
#[derive(Clone, Debug)]
pub struct Stop {
    phase: watch::Receiver<Phase>,
}

impl Default for Stopper {
    fn default() -> Self {
        Stopper { phase: watch::Sender::new(Phase::Running) }
    }
}

impl Stopper {
    /// For those who must learn of it.
    #[must_use]
    pub fn listen(&self) -> Stop {
        Stop { phase: self.phase.subscribe() }
    }

    /// Begin nothing new.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// End at once.
    pub fn end(&self) {
        self.phase.send_replace(Phase::Over);
    }

    /// Runs `work`; on SIGINT or SIGTERM gives it `patience` to finish what it has begun. A second
    /// signal ends it at once.
    ///
    /// # Errors
    /// What `work` gives, or signals cannot be received.
    pub async fn run_until_signal(
        &self,
        patience: Duration,
        work: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::pin!(work);
        tokio::select! {
            result = &mut work => return result,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        let patience_s = patience.as_secs();
        tracing::info!(patience_s, "stopping: running connections may finish (again: stop now)");
        self.drain();
        tokio::select! {
            result = &mut work => return result,
            () = tokio::time::sleep(patience) => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        self.end();
        work.await
    }
}

impl Stop {
    async fn reached(&self, phase: Phase) {
        // A stopper that is gone has stopped.
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }

    /// Resolves when nothing new is to be begun.
    pub async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Resolves when everything is to end.
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
        assert!(pending(early.draining()).await);
        stopper.drain();
        early.draining().await;
        assert!(pending(early.over()).await);
        assert!(pending(stopper.listen().over()).await);
        stopper.end();
        stopper.listen().draining().await;
        early.over().await;
        drop(stopper);
        early.over().await;
    }
}
