//! Limit on warnings: each once a minute, however often a program tries again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The same is said again after this long.
const AGAIN: Duration = Duration::from_secs(60);
/// Different warnings that are remembered.
const REMEMBERED: usize = 64;

/// The warnings of the last minute.
#[derive(Debug, Default)]
pub(crate) struct WarningLimit {
    said: Mutex<BTreeMap<String, Instant>>,
}

impl WarningLimit {
    /// Whether this is to be said now; then it counts as said.
    pub(crate) fn admits(&self, text: &str) -> bool {
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| now < *at + AGAIN);
        if said.contains_key(text) || said.len() >= REMEMBERED {
            return false;
        }
        said.insert(text.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_is_admitted_once_a_minute_and_so_many_in_all() {
        let limit = WarningLimit::default();
        assert!(limit.admits("a") && limit.admits("b"));
        assert!(!limit.admits("a"));
        tokio::time::advance(AGAIN).await;
        assert!(limit.admits("a"));
        let admitted = (0..1_000).filter(|number| limit.admits(&number.to_string())).count();
        assert_eq!(admitted, REMEMBERED - 1);
    }
}
