//! Fair turns for the relays of different clients.
//!
//! A runtime polls the tasks that are ready in the order in which they became so. A client with thousands of streams
//! may have hundreds of tasks ready, and each message of another client would wait for all of them, on its way in and
//! on its way out. So relays take turns by account, in rounds: in a round, each account has one turn, and its other
//! relays queue for the next round. That is round-robin scheduling (Nagle, RFC 970), with the relays' polls as packets.
//! A relay's turn may pass on 118 KiB in each direction. A turn that an account does not use is not kept for it.
//!
//! *Rounds.* A new round begins when all relays that were given a turn in the last one have taken it. By then, the
//! runtime has polled every task that was ready when that round began. While nobody queues, no round begins.
//!
//! *Cost.* None while there is one account. Else a turn without a queue is a lock that hardly anybody else holds, and
//! one with a queue is a second poll, which returns at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The accounts that share a runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairTurns(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Accounts so far.
    accounts: AtomicUsize,
    round: AtomicU64,
    /// Locked before any account.
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    /// Turns that were given in this round and not taken yet.
    given: u32,
    /// Accounts with relays that queue.
    accounts: VecDeque<AccountTurns>,
}

/// An account and those that it shares a runtime with.
#[derive(Debug)]
struct Account {
    shared: Arc<Shared>,
    used: Mutex<Used>,
}

/// What an account has used.
#[derive(Debug, Default)]
struct Used {
    /// The round of its last turn.
    round: Option<u64>,
    /// Relays that wait for a turn, in their order. Some may have ended.
    queue: VecDeque<Arc<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    shared: Arc<Shared>,
    waker: Waker,
    /// It has a turn. Set while the queues are locked.
    is_given: AtomicBool,
    /// Its relay ended without one. Set while the queues are locked, so that no turn is given to it meanwhile.
    is_over: AtomicBool,
}

impl FairTurns {
    /// A new account.
    pub(crate) fn account(&self) -> AccountTurns {
        self.0.accounts.fetch_add(1, Ordering::Relaxed);
        AccountTurns(Arc::new(Account { shared: Arc::clone(&self.0), used: Mutex::default() }))
    }
}

/// The turns of one account's relays. Clones are the same account.
#[derive(Clone, Debug)]
pub(crate) struct AccountTurns(Arc<Account>);

/// A relay's next turn.
#[derive(Debug, Default)]
pub(super) struct Turn(Option<Waiting>);

#[derive(Debug)]
struct Waiting(Arc<Waiter>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turn {
    /// Ready when it is the relay's turn. Each call that returns so takes one.
    pub(super) fn poll(&mut self, cx: &Context<'_>, turns: &AccountTurns) -> Poll<()> {
        match &self.0 {
            Some(waiting) if !waiting.0.is_given.load(Ordering::Acquire) => Poll::Pending,
            Some(_) => {
                // Dropping it takes the turn.
                self.0 = None;
                Poll::Ready(())
            }
            None if turns.take() => Poll::Ready(()),
            None => {
                self.0 = Some(turns.queue(cx));
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    /// A turn that was given is taken, or the relay ended.
    fn drop(&mut self) {
        self.0.shared.on_over(&self.0);
    }
}

impl AccountTurns {
    /// Takes a turn of this round, if the account has one left and no relay queues for it. An account alone always has.
    fn take(&self) -> bool {
        let Account { shared, used } = &*self.0;
        if shared.accounts.load(Ordering::Relaxed) == 1 {
            return true;
        }
        let (mut used, round) = (lock(used), Some(shared.round.load(Ordering::Acquire)));
        if used.round == round || !used.queue.is_empty() {
            return false;
        }
        used.round = round;
        true
    }

    /// Enters a relay at the end of the account's queue. If nobody has a turn now, it gets one behind the tasks that
    /// are ready: when it takes it, the round is over.
    fn queue(&self, cx: &Context<'_>) -> Waiting {
        let shared = &self.0.shared;
        let mut queues = lock(&shared.queues);
        let is_given = queues.given == 0;
        let waiter = Arc::new(Waiter {
            shared: Arc::clone(shared),
            waker: cx.waker().clone(),
            is_given: is_given.into(),
            is_over: false.into(),
        });
        if is_given {
            queues.given = 1;
            drop(queues);
            waiter.waker.wake_by_ref();
        } else {
            let mut used = lock(&self.0.used);
            if used.queue.is_empty() {
                queues.accounts.push_back(self.clone());
            }
            used.queue.push_back(Arc::clone(&waiter));
        }
        Waiting(waiter)
    }
}

impl Used {
    /// Gives the turn of this round to the first that queues. To be called while the queues are locked.
    fn give(&mut self, round: u64) -> Option<Arc<Waiter>> {
        while let Some(waiter) = self.queue.pop_front() {
            if !waiter.is_over.load(Ordering::Acquire) {
                self.round = Some(round);
                waiter.is_given.store(true, Ordering::Release);
                return Some(waiter);
            }
        }
        None
    }
}

impl Shared {
    /// A relay no longer waits. After the last turn that was given, the next round begins.
    fn on_over(&self, waiter: &Waiter) {
        let mut queues = lock(&self.queues);
        if !waiter.is_given.load(Ordering::Acquire) {
            waiter.is_over.store(true, Ordering::Release);
            return;
        }
        queues.given = queues.given.saturating_sub(1);
        if queues.given > 0 {
            return;
        }
        let round = self.round.fetch_add(1, Ordering::AcqRel) + 1;
        let mut given = Vec::new();
        queues.accounts.retain(|account| {
            let mut used = lock(&account.0.used);
            given.extend(used.give(round));
            !used.queue.is_empty()
        });
        queues.given = given.len() as u32;
        drop(queues);
        given.iter().for_each(|waiter| waiter.waker.wake_by_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// A relay with its wake-ups.
    struct Relay {
        account: AccountTurns,
        turn: Turn,
        waker: Waker,
        woken: Arc<Woken>,
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    impl Relay {
        fn of(account: &AccountTurns) -> Relay {
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            Relay { account: account.clone(), turn: Turn::default(), waker, woken }
        }

        /// Whether it has a turn now.
        fn poll(&mut self) -> bool {
            self.woken.0.store(false, Ordering::Relaxed);
            self.turn.poll(&Context::from_waker(&self.waker), &self.account).is_ready()
        }

        fn is_woken(&self) -> bool {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    /// Polls what is ready in its order, as a runtime does, `ready` at the start. A relay with a turn is done. Returns
    /// the relays in the order of their turns.
    fn run(relays: &mut [Relay], mut ready: VecDeque<usize>) -> Vec<usize> {
        let mut turns = Vec::new();
        while let Some(at) = ready.pop_front() {
            let had = relays.iter().map(Relay::is_woken).collect::<Vec<_>>();
            if relays[at].poll() {
                turns.push(at);
            }
            let woken = |&other: &usize| relays[other].is_woken() && (other == at || !had[other]);
            ready.extend((0..relays.len()).filter(woken));
        }
        turns
    }

    #[test]
    fn a_client_with_one_stream_does_not_wait_for_all_streams_of_another() {
        let turns = FairTurns::default();
        let (heavy, light) = (turns.account(), turns.account());
        let mut relays: Vec<_> = (0..100).map(|_| Relay::of(&heavy)).collect();
        relays.push(Relay::of(&light));
        let order = run(&mut relays, (0..=100).collect());
        let place = order.iter().position(|&at| at == 100).expect("it had its turn");
        assert!(place <= 2, "behind {place} others");
        let others: Vec<_> = order.into_iter().filter(|&at| at < 100).collect();
        assert_eq!(others.len(), 100, "each of the others had its turn");
        // Only the one that ended the first round went behind those that came in it.
        assert!(others.is_sorted_by_key(|&at| at.max(2)), "{others:?}");
    }

    #[test]
    fn a_relay_that_nobody_waits_for_goes_on_without_a_pause() {
        let turns = FairTurns::default();
        let account = turns.account();
        let mut relay = Relay::of(&account);
        assert!((0..100).all(|_| relay.poll()), "there is no other account");
        let _other = turns.account();
        for _ in 0..100 {
            assert!(relay.poll() || relay.is_woken() && relay.poll());
        }
    }

    #[test]
    fn relays_that_end_while_they_wait_or_with_a_turn_stop_nobody() {
        let turns = FairTurns::default();
        let (account, _other) = (turns.account(), turns.account());
        let mut relays: Vec<_> = (0..10).map(|_| Relay::of(&account)).collect();
        let had: Vec<_> = relays.iter_mut().map(Relay::poll).collect();
        assert!(had[0] && had[1..].iter().all(|had| !had));
        // The second one has the turn that ends the round, and never takes it. The next ones are gone before theirs.
        assert!(relays[1].is_woken() && !relays[2].is_woken());
        relays.drain(2..5);
        relays.remove(1);
        assert!(relays[1].is_woken() && !relays[2].is_woken());
        // One is gone with a turn.
        relays.remove(1);
        assert!(relays[1..5].iter_mut().all(|relay| relay.is_woken() && relay.poll()));
        let queues = lock(&account.0.shared.queues);
        assert_eq!((queues.given, queues.accounts.len()), (0, 0));
    }

    /// Another thread may give turns while a relay ends.
    #[test]
    fn a_relay_that_is_given_a_turn_while_it_ends_stops_nobody() {
        let turns = FairTurns::default();
        let (account, _other) = (turns.account(), turns.account());
        let mut relays: Vec<_> = (0..4).map(|_| Relay::of(&account)).collect();
        assert_eq!(relays.iter_mut().filter_map(|relay| relay.poll().then_some(())).count(), 1);
        let ending = relays[2].turn.0.as_ref().map(|waiting| Arc::clone(&waiting.0));
        relays.remove(2);
        assert!(relays[1].poll() && relays[2].is_woken() && relays[2].poll());
        drop(ending);
    }
}
