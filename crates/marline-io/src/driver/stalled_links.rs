//! Watch over links: ends those whose peer acknowledges nothing.
//!
//! *Problem.* A network that is silent swallows what a link sends, and the kernel repeats it: a full segment a second,
//! on both sides, until TCP_USER_TIMEOUT. Where only large packets are lost, as the MTU of the path has become smaller
//! and no ICMP says so, it repeats them for ever.
//!
//! *How.* While something is sent on a link and nothing is read, the kernel is asked a few times a second how it is
//! getting on (`link_progress.rs`). A link without progress is reset. What it held leaves by other paths, and a client
//! dials again: a SYN of 60 bytes a second, which is answered within a second of the network's return. If it is
//! answered at once, segments were too large (`link_tasks.rs`).

use std::sync::{Arc, Weak};

use marline_time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::links::{LinkStream, Links, count};
use crate::sys::link::TcpInfo;

/// How often the kernel is asked.
const LOOK: Duration = Duration::from_millis(250);

/// Starts the watch over these links, unless it runs.
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

/// Ends links that are stalled. Whether others may be, later.
fn end_stalled(links: &Links) -> bool {
    let mut waiting = false;
    for link in links.unheard() {
        let LinkStream::Tcp(stream) = &link.stream else { continue };
        // What is sent from here on counts again.
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
