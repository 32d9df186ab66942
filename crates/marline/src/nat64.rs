//! Watcher of IPv6-only networks, which discovers the NAT64 prefix of each.
//!
//! Routers advertise the prefix (RFC 8781), or the network's resolver knows it (RFC 7050). The resolver is not queried
//! if a router has advertised a prefix (RFC 8781, 5.1). A resolver is queried when its interface appears and when its
//! answer has expired, and repeatedly if there was no answer. While every path has IPv4, there are no queries.

mod advertised;

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_io::{LocalEnd, Pref64, Pref64Listener, Prefix64, PrefixAnswer, discover_nat64};
use tokio::sync::Notify;

use advertised::AdvertisedPrefixes;

/// Time after which a network without NAT64 is queried again, unless it changes earlier.
const NAT64_RECHECK_INTERVAL: Duration = Duration::from_secs(600);
/// First delay after a missing answer; it doubles up to the maximum.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// State of a network. The local address and interface show whether it is still the same network.
#[derive(Clone, Debug)]
struct NetworkState {
    end: LocalEnd,
    /// Prefix according to its resolver.
    prefix: Option<Prefix64>,
    /// True once there was an answer or a timeout.
    settled: bool,
    due: Instant,
    missing_answers: u32,
}

#[derive(Debug, Default)]
struct State {
    networks: BTreeMap<u32, NetworkState>,
    advertised: AdvertisedPrefixes,
}

/// Discovery of NAT64 prefixes, and its results.
#[derive(Debug, Default)]
pub(crate) struct PrefixWatch {
    state: Mutex<State>,
    changed: Notify,
    answered: Notify,
}

impl PrefixWatch {
    /// Sets the networks that are currently IPv6-only.
    pub(crate) fn set_networks(&self, ends: Vec<LocalEnd>) {
        let now = Instant::now();
        let mut state = self.lock();
        let State { networks, advertised } = &mut *state;
        let before = networks.len();
        networks.retain(|_, known| ends.contains(&known.end));
        let mut changed = networks.len() != before;
        for end in ends {
            let index = end.interface.1;
            networks.entry(index).or_insert_with(|| {
                changed = true;
                advertised.set_address(&end, now);
                NetworkState { end, prefix: None, settled: false, due: now, missing_answers: 0 }
            });
        }
        drop(state);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Returns true if the result for a network is pending.
    pub(crate) fn is_lookup_pending(&self) -> bool {
        self.lock().networks.values().any(|known| !known.settled)
    }

    /// Waits until the result for every network is known.
    pub(crate) async fn wait_until_known(&self) {
        loop {
            let news = self.answered.notified();
            if !self.is_lookup_pending() {
                return;
            }
            news.await;
        }
    }

    /// Listens to routers, queries resolvers that are due, and passes each result to `report`, until the future is
    /// dropped.
    pub(crate) async fn run(self: Arc<Self>, report: impl FnMut(&LocalEnd, Option<Prefix64>)) {
        let (mut listening, mut asking) = (pin!(self.listen()), pin!(self.query_prefixes(report)));
        let mut deaf = false;
        poll_fn(|cx| {
            deaf = deaf || listening.as_mut().poll(cx).is_ready();
            asking.as_mut().poll(cx)
        })
        .await;
    }

    /// Receives router advertisements. If this is not possible, resolvers are still used.
    async fn listen(&self) {
        let mut listener = match Pref64Listener::start() {
            Ok(listener) => listener,
            Err(error) => {
                return tracing::debug!(%error, "cannot receive router advertisements; using resolvers only");
            }
        };
        loop {
            match listener.next_options().await {
                Ok(prefixes) => {
                    for (interface, said) in prefixes {
                        self.on_advertised(interface, said);
                    }
                }
                Err(error) => {
                    return tracing::warn!(%error, "no longer receiving router advertisements; using resolvers only");
                }
            }
        }
    }

    async fn query_prefixes(&self, mut report: impl FnMut(&LocalEnd, Option<Prefix64>)) {
        loop {
            let now = Instant::now();
            let due: Option<(LocalEnd, Instant)> = {
                let state = self.lock();
                let first = state.networks.values().min_by_key(|known| known.due);
                first.map(|known| (known.end.clone(), known.due))
            };
            match due {
                Some((end, at)) if at <= now => {
                    let found = match self.router_prefix(&end, now) {
                        Some(prefix) => Some(Some(prefix)),
                        None => {
                            let asked = run_unless(self.changed.notified(), discover_nat64(&end));
                            // A router may have advertised a prefix, so check again which networks are due.
                            let Some(answer) = asked.await else { continue };
                            self.on_answer(&end, answer.unwrap_or(PrefixAnswer::Silence))
                        }
                    };
                    if let Some(prefix) = found {
                        report(&end, prefix);
                    }
                    self.answered.notify_waiters();
                }
                Some((_, at)) => {
                    let _ = tokio::time::timeout(at - now, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Records a router advertisement; its network is checked next.
    fn on_advertised(&self, interface: u32, said: Pref64) {
        let now = Instant::now();
        let mut state = self.lock();
        let before = state.advertised.prefix_for(interface, now);
        state.advertised.record(interface, said, now);
        let changed = before != state.advertised.prefix_for(interface, now);
        if let Some(known) = state.networks.get_mut(&interface).filter(|_| changed) {
            known.due = now;
            self.changed.notify_one();
        }
    }

    /// Returns the valid prefix that a router of this network has advertised, and schedules the next check for the end
    /// of its lifetime.
    fn router_prefix(&self, end: &LocalEnd, now: Instant) -> Option<Prefix64> {
        let mut state = self.lock();
        let State { networks, advertised } = &mut *state;
        let (prefix, until) = advertised.prefix_for(end.interface.1, now)?;
        let known = networks.get_mut(&end.interface.1).filter(|known| known.end == *end)?;
        // An earlier answer from the resolver had lower priority and will be outdated when the advertisement expires.
        (known.prefix, known.settled, known.missing_answers, known.due) = (None, true, 0, until);
        Some(prefix)
    }

    /// Records a resolver's answer. Returns the prefix of the network to report, or `None` if the network has changed
    /// in the meantime.
    fn on_answer(&self, end: &LocalEnd, answer: PrefixAnswer) -> Option<Option<Prefix64>> {
        let now = Instant::now();
        let mut state = self.lock();
        let known = state.networks.get_mut(&end.interface.1).filter(|known| known.end == *end)?;
        known.settled = true;
        match answer {
            PrefixAnswer::Prefix { prefix, ttl_s } => {
                known.prefix = Some(prefix);
                known.missing_answers = 0;
                known.due = now + Duration::from_secs(u64::from(ttl_s));
            }
            PrefixAnswer::None => {
                known.prefix = None;
                known.missing_answers = 0;
                known.due = now + NAT64_RECHECK_INTERVAL;
            }
            // A missing answer does not revoke an earlier one.
            PrefixAnswer::Silence => {
                known.due = now + (RETRY * (1 << known.missing_answers.min(5))).min(RETRY_MAX);
                known.missing_answers = known.missing_answers.saturating_add(1);
            }
        }
        Some(known.prefix)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` and returns its result, or `None` if `news` completes first. (tokio's macros would add two crates to
/// the library.)
async fn run_unless<T>(news: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let (mut news, mut work) = (pin!(news), pin!(work));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => news.as_mut().poll(cx).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(address: &str, index: u32) -> LocalEnd {
        LocalEnd {
            interface: ("wwan0".to_owned(), index),
            ..LocalEnd::from_tun("", address.parse().unwrap())
        }
    }

    fn time_until_due(watch: &PrefixWatch) -> Duration {
        watch.lock().networks[&7].due.saturating_duration_since(Instant::now())
    }

    #[test]
    fn a_prefix_ends_with_its_network_or_an_answer_but_not_with_silence() {
        let (watch, here) = (PrefixWatch::default(), end("2001:db8::2", 7));
        assert!(!watch.is_lookup_pending());
        watch.set_networks(vec![here.clone()]);
        assert!(watch.is_lookup_pending());
        let prefix = Prefix64::WELL_KNOWN;
        let found = PrefixAnswer::Prefix { prefix, ttl_s: 300 };
        assert_eq!(watch.on_answer(&here, found), Some(Some(prefix)));
        assert!(!watch.is_lookup_pending());
        assert!(time_until_due(&watch) > Duration::from_secs(299));
        assert_eq!(watch.on_answer(&here, PrefixAnswer::Silence), Some(Some(prefix)));
        assert!(time_until_due(&watch) <= RETRY);
        for _ in 0..40 {
            watch.on_answer(&here, PrefixAnswer::Silence);
        }
        assert!(time_until_due(&watch) <= RETRY_MAX);
        assert_eq!(watch.on_answer(&here, PrefixAnswer::None), Some(None));
        let moved = end("2001:db8:1::2", 7);
        watch.set_networks(vec![moved]);
        assert!(watch.is_lookup_pending(), "another network on this interface");
        assert_eq!(watch.on_answer(&here, found), None, "a late answer from the previous network");
        watch.set_networks(Vec::new());
        assert!(!watch.is_lookup_pending());
    }

    #[test]
    fn an_advertised_prefix_outranks_the_resolver_while_valid() {
        let (watch, here) = (PrefixWatch::default(), end("2001:db8::2", 7));
        let (asked, advertised) = (Prefix64::WELL_KNOWN, "2001:db8:64::/96".parse().unwrap());
        let found = PrefixAnswer::Prefix { prefix: asked, ttl_s: 300 };
        watch.set_networks(vec![here.clone()]);
        assert_eq!(watch.on_answer(&here, found), Some(Some(asked)));
        watch.on_advertised(8, Pref64 { prefix: advertised, lifetime_s: 80 });
        assert!(time_until_due(&watch) > Duration::from_secs(299), "another interface");
        watch.on_advertised(7, Pref64 { prefix: advertised, lifetime_s: 80 });
        assert_eq!(time_until_due(&watch), Duration::ZERO);
        assert_eq!(watch.router_prefix(&here, Instant::now()), Some(advertised));
        let lifetime = time_until_due(&watch);
        assert!(lifetime > Duration::from_secs(79) && lifetime <= Duration::from_secs(80));
        // The prefix is revoked, and a resolver without an answer provides none.
        watch.on_advertised(7, Pref64 { prefix: advertised, lifetime_s: 0 });
        assert_eq!(time_until_due(&watch), Duration::ZERO);
        assert_eq!(watch.router_prefix(&here, Instant::now()), None);
        assert_eq!(watch.on_answer(&here, PrefixAnswer::Silence), Some(None));
    }

    #[test]
    fn an_early_advertised_prefix_is_kept_for_its_network() {
        let (watch, here) = (PrefixWatch::default(), end("2001:db8::2", 7));
        let prefix = Prefix64::WELL_KNOWN;
        watch.on_advertised(7, Pref64 { prefix, lifetime_s: 80 });
        watch.set_networks(vec![here.clone()]);
        assert!(watch.is_lookup_pending());
        assert_eq!(watch.router_prefix(&here, Instant::now()), Some(prefix));
        assert!(!watch.is_lookup_pending());
        let other = end("2001:db8::3", 7);
        assert_eq!(
            watch.router_prefix(&other, Instant::now()),
            None,
            "by then, the interface has another address"
        );
    }
}
