//! Complaints to people: each once in a while, however often a program tries again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The same is said again after this long.
const AGAIN: Duration = Duration::from_secs(60);
/// Different ones that are remembered.
const REMEMBERED: usize = 64;

/// What was said lately.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    said: Mutex<BTreeMap<String, Instant>>,
}

impl Complaints {
    /// Whether this is to be said now; then it counts as said.
    pub(crate) fn is_news(&self, text: &str) -> bool {
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
    async fn the_same_is_said_once_a_minute_and_not_too_much_at_all() {
        let complaints = Complaints::default();
        assert!(complaints.is_news("a") && complaints.is_news("b"));
        assert!(!complaints.is_news("a"));
        tokio::time::advance(AGAIN).await;
        assert!(complaints.is_news("a"));
        let news = (0..1_000).filter(|number| complaints.is_news(&number.to_string())).count();
        assert_eq!(news, REMEMBERED - 1);
    }
}
