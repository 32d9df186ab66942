//! Tasks that follow a client's networks and servers while it exists.

use std::sync::{Arc, Weak};

use marline_io::{Interfaces, LocalEnd, Prefix64, Watcher};
use tokio::task::AbortHandle;

use super::{CHECK_INTERVAL, Inner, lock};

impl Inner {
    /// Updates the NAT64 discovery with the networks that are currently IPv6-only.
    pub(super) fn follow_prefixes(&self) {
        let ends = lock(&self.paths).nat64_lookup_ends();
        self.prefixes.set_networks(ends);
    }

    fn on_prefix(&self, end: &LocalEnd, prefix: Option<Prefix64>) {
        let mut paths = lock(&self.paths);
        if !paths.set_prefix(&self.shard, end.interface.1, prefix) {
            return;
        }
        let name = &end.interface.0;
        match prefix {
            Some(prefix) => {
                tracing::info!(
                    "{name}: IPv6 only; IPv4 servers are reached through NAT64 prefix {prefix}"
                );
            }
            None => tracing::info!("{name}: IPv6 only, and the network no longer provides NAT64"),
        }
    }

    /// Checks all paths and reports changes. Returns true if another check is due soon.
    fn check_paths(&self) -> bool {
        // If the process was suspended, answers may be waiting in the sockets; process them first.
        self.shard.catch_up();
        let (now, contacts) = self.shard.contacts();
        let paths = lock(&self.paths).known_contacts(&contacts);
        let mut watcher = lock(&self.watcher);
        for event in watcher.check_paths(now, &paths) {
            match event.fault {
                Some(_) => tracing::warn!("{event}"),
                None => tracing::info!("{event}"),
            }
            // Having no subscriber is not an error.
            let _ = self.path_events.send(event);
        }
        for notice in watcher.take_notices() {
            tracing::warn!("{notice}");
        }
        watcher.is_recheck_due(now, &paths)
    }
}

/// Starts the tasks that follow the machine's networks. They end with these handles or with the client.
pub(super) fn start_watch_tasks(inner: &Arc<Inner>) -> Vec<AbortHandle> {
    inner.follow_prefixes();
    let (prefixes, client) = (Arc::clone(&inner.prefixes), Arc::downgrade(inner));
    let tell = move |end: &LocalEnd, prefix| {
        if let Some(inner) = client.upgrade() {
            inner.on_prefix(end, prefix);
        }
    };
    let mut tasks = vec![
        tokio::spawn(watch_health(Arc::downgrade(inner))).abort_handle(),
        tokio::spawn(prefixes.run(tell)).abort_handle(),
    ];
    match Watcher::start() {
        Ok(watcher) => {
            tasks.push(
                tokio::spawn(watch_interfaces(Arc::downgrade(inner), watcher)).abort_handle(),
            );
        }
        Err(error) => {
            tracing::warn!(%error, "cannot monitor interfaces: paths will not be updated")
        }
    }
    tasks
}

/// Checks the paths whenever contacts change, for as long as the client exists.
async fn watch_health(client: Weak<Inner>) {
    loop {
        let Some(inner) = client.upgrade() else { return };
        // Request the notification first, so that changes during the check trigger it.
        let news = inner.shard.await_contacts();
        let unsettled = inner.check_paths();
        drop(inner);
        if !unsettled {
            news.notified().await;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Follows interface changes for as long as the client exists.
async fn watch_interfaces(client: Weak<Inner>, mut watcher: Watcher) {
    // An interface may have appeared after the paths were looked up and before the watcher started.
    let mut interfaces = Interfaces::now();
    loop {
        match interfaces {
            Ok(interfaces) => {
                let Some(inner) = client.upgrade() else { return };
                inner.routes.clear();
                lock(&inner.paths).update(&inner.shard, &interfaces);
                inner.follow_prefixes();
            }
            Err(error) => {
                tracing::warn!(%error, "interface monitoring failed: paths will not be updated");
                return;
            }
        }
        interfaces = watcher.changed().await;
    }
}
