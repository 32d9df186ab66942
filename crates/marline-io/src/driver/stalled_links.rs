//! Watch over links, which closes those whose peer does not acknowledge.
//!
//! *Problem.* A failed network loses everything that a link sends, and the kernel retransmits it: a full segment per
//! second, on both sides, until TCP_USER_TIMEOUT. If only large packets are lost, because the path MTU has decreased
//! without an ICMP error, the kernel retransmits them forever.
//!
//! *Solution.* While data was sent on a link and nothing is read, the kernel's statistics are checked a few times
//! per second (`link_progress.rs`). A link without progress is reset. The data in it is sent on other paths, and a
//! client connects again: with one SYN of 60 bytes per second, which is answered within a second after the network
//! recovers. If it is answered at once, segments were too large (`link_tasks.rs`).

use std::sync::{Arc, Weak};

use marline_time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::links::{LinkStream, Links, count};
use crate::edge::tcp::TcpInfo;

/// Interval of the checks.
const LOOK: Duration = Duration::from_millis(250);

/// Starts the watch over these links, unless it already runs.
pub(super) fn start(links: &Arc<Links>) {
    links.watcher.get_or_init(|| {
        tokio::spawn(watch(Arc::downgrade(links), Arc::clone(&links.watch))).abort_handle()
    });
}

async fn watch(links: Weak<Links>, sent: Arc<Notify>) {
    loop {
        sent.notified().await;
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(links) = links.upgrade() else { return };
            if !end_stalled(&links) {
                break;
            }
        }
    }
}

/// Closes stalled links. Returns true if others may become stalled.
fn end_stalled(links: &Links) -> bool {
    let mut waiting = false;
    for link in links.unheard() {
        let LinkStream::Tcp(stream) = &link.stream else { continue };
        // Data sent from here on counts again.
        link.progress.on_read();
        let Ok(info) = TcpInfo::of(stream) else { continue };
        if link.progress.is_stalled(Instant::now(), &info) {
            count(&links.counters.silent);
            link.abort();
        } else if info.unacknowledged > 0 {
            link.progress.on_sent();
            waiting = true;
        }
    }
    waiting
}
