//! Makes new streams wait until memory is available.
//!
//! Existing streams continue however little memory is left (`marline_core`'s `memory.rs`), each with a guaranteed
//! minimum. Therefore their number must be bounded: a new stream waits until its account has room, behind those
//! that arrived before it.

use marline::memory::{MemoryAccount, MemoryCharge, MemoryKind};

/// Bytes charged for a stream while it is being opened. It is roughly the guaranteed minimum, which is charged for the
/// stream's buffers afterwards.
const OPENING_BYTES: u64 = 20 * 1_024;

/// Resolves when there is room for another stream. The returned charge is held until the stream is open.
pub(crate) async fn wait_for_memory(account: &MemoryAccount) -> MemoryCharge {
    if !account.has_room() {
        tracing::warn!("memory budget used up: new streams wait until memory is freed");
    }
    account.wait_for_room(MemoryKind::Connection, OPENING_BYTES).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use marline::memory::MemoryBudget;
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_new_stream_waits_until_there_is_room() {
        let budget = MemoryBudget::new(Some(1_000_000));
        let account = budget.account(u64::MAX);
        let held = account.charge(MemoryKind::Send, 950_000);
        let long = Duration::from_secs(100);
        assert!(timeout(long, wait_for_memory(&account)).await.is_err());
        let (waited, ()) = tokio::join!(timeout(long, wait_for_memory(&account)), async {
            sleep(Duration::from_secs(3)).await;
            drop(held);
        });
        let room = waited.expect("room");
        assert_eq!((account.wait_count(), account.used()), (2, OPENING_BYTES));
        drop(room);
    }
}
