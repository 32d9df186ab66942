//! Watcher of networks that have only IPv6: below which prefix each of them reaches IPv4 addresses (NAT64).
//!
//! A network is asked when its interface appears, when its answer has expired, and, if nobody answered, again and
//! again. Nothing is asked as long as every path has IPv4.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_io::{LocalEnd, Prefix64, PrefixAnswer, discover_nat64};
use tokio::sync::Notify;

/// A network that does not translate is asked again after this, or when it has changed.
const NONE_FOR: Duration = Duration::from_secs(600);
/// After silence; doubles up to the other.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What is known of a network: its local address and interface tell whether it is still the same.
#[derive(Clone, Debug)]
struct Known {
    end: LocalEnd,
    prefix: Option<Prefix64>,
    /// It has said so, or nobody answered.
    settled: bool,
    due: Instant,
    silences: u32,
}

/// Who is asked, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct PrefixWatch {
    networks: Mutex<BTreeMap<u32, Known>>,
    changed: Notify,
    answered: Notify,
}

impl PrefixWatch {
    /// These networks have only IPv6, from now on.
    pub(crate) fn follow(&self, ends: Vec<LocalEnd>) {
        let now = Instant::now();
        let mut networks = self.lock();
        let stays = |known: &Known| ends.contains(&known.end);
        let before = networks.len();
        networks.retain(|_, known| stays(known));
        let mut changed = networks.len() != before;
        for end in ends {
            let index = end.interface.1;
            networks.entry(index).or_insert_with(|| {
                changed = true;
                Known { end, prefix: None, settled: false, due: now, silences: 0 }
            });
        }
        drop(networks);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Whether a network has yet to say what it does.
    pub(crate) fn is_asking(&self) -> bool {
        self.lock().values().any(|known| !known.settled)
    }

    /// Waits until every network has answered, or not.
    pub(crate) async fn settled(&self) {
        loop {
            let news = self.answered.notified();
            if !self.is_asking() {
                return;
            }
            news.await;
        }
    }

    /// Asks whoever is due, and `tell`s what each network does, until the future is dropped.
    pub(crate) async fn run(self: Arc<Self>, mut tell: impl FnMut(&LocalEnd, Option<Prefix64>)) {
        loop {
            let now = Instant::now();
            let due: Option<(LocalEnd, Instant)> = {
                let networks = self.lock();
                let first = networks.values().min_by_key(|known| known.due);
                first.map(|known| (known.end.clone(), known.due))
            };
            match due {
                Some((end, at)) if at <= now => {
                    let answer = discover_nat64(&end).await.unwrap_or(PrefixAnswer::Silence);
                    if let Some(prefix) = self.on_answer(&end, answer) {
                        tell(&end, prefix);
                    }
                    self.answered.notify_waiters();
                }
                Some((_, at)) => {
                    tokio::select! {
                        () = tokio::time::sleep(at - now) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Takes an answer; what is to be told of the network. `None`: it is another by now.
    fn on_answer(&self, end: &LocalEnd, answer: PrefixAnswer) -> Option<Option<Prefix64>> {
        let now = Instant::now();
        let mut networks = self.lock();
        let known = networks.get_mut(&end.interface.1).filter(|known| known.end == *end)?;
        known.settled = true;
        match answer {
            PrefixAnswer::Prefix { prefix, ttl_s } => {
                known.prefix = Some(prefix);
                known.silences = 0;
                known.due = now + Duration::from_secs(u64::from(ttl_s));
            }
            PrefixAnswer::None => {
                known.prefix = None;
                known.silences = 0;
                known.due = now + NONE_FOR;
            }
            // A resolver that is silent now takes nothing back.
            PrefixAnswer::Silence => {
                known.due = now + (RETRY * (1 << known.silences.min(5))).min(RETRY_MAX);
                known.silences = known.silences.saturating_add(1);
            }
        }
        Some(known.prefix)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Known>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(address: &str, index: u32) -> LocalEnd {
        LocalEnd {
            interface: ("wwan0".to_owned(), index),
            ..LocalEnd::behind("", address.parse().unwrap())
        }
    }

    fn due_in(watch: &PrefixWatch) -> Duration {
        watch.lock()[&7].due.saturating_duration_since(Instant::now())
    }

    #[test]
    fn a_prefix_outlives_silence_and_ends_with_the_network_or_its_word() {
        let (watch, here) = (PrefixWatch::default(), end("2001:db8::2", 7));
        assert!(!watch.is_asking());
        watch.follow(vec![here.clone()]);
        assert!(watch.is_asking());
        let prefix = Prefix64::WELL_KNOWN;
        let found = PrefixAnswer::Prefix { prefix, ttl_s: 300 };
        assert_eq!(watch.on_answer(&here, found), Some(Some(prefix)));
        assert!(!watch.is_asking());
        assert!(due_in(&watch) > Duration::from_secs(299));
        assert_eq!(watch.on_answer(&here, PrefixAnswer::Silence), Some(Some(prefix)));
        assert!(due_in(&watch) <= RETRY);
        for _ in 0..40 {
            watch.on_answer(&here, PrefixAnswer::Silence);
        }
        assert!(due_in(&watch) <= RETRY_MAX);
        assert_eq!(watch.on_answer(&here, PrefixAnswer::None), Some(None));
        let moved = end("2001:db8:1::2", 7);
        watch.follow(vec![moved]);
        assert!(watch.is_asking(), "another network by the same interface");
        assert_eq!(watch.on_answer(&here, found), None, "the old one's answer came late");
        watch.follow(Vec::new());
        assert!(!watch.is_asking());
    }
}
