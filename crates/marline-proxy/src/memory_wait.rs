//! A new stream's wait for memory.
//!
//! Streams that exist go on however little memory is left (`marline_core`'s `memory.rs`), each with a floor of its own.
//! So there must not be too many of them: one that is new waits until its account has room again.

use std::time::Duration;

use marline::MemoryAccount;
use tokio::time::sleep;

/// Time between two looks, at first and at most.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Resolves when there is room for another stream.
pub(crate) async fn wait_for_memory(account: &MemoryAccount) {
    if account.has_room() {
        return;
    }
    account.note_wait();
    let (mut pause, longest) = LOOKS;
    while !account.has_room() {
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use marline::{MemoryBudget, MemoryKind};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_new_stream_waits_until_there_is_room() {
        let budget = MemoryBudget::new(Some(1_000_000));
        let account = budget.account(u64::MAX);
        let held = account.charge(MemoryKind::Send, 900_000);
        let long = Duration::from_secs(100);
        assert!(timeout(long, wait_for_memory(&account)).await.is_err());
        let (waited, ()) = tokio::join!(timeout(long, wait_for_memory(&account)), async {
            sleep(Duration::from_secs(3)).await;
            drop(held);
        });
        waited.expect("room");
        assert_eq!(account.waits(), 2);
    }
}
