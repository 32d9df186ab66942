//! Fair turns for the relays of different clients.
//!
//! A runtime polls ready tasks in the order in which they became ready. A client with thousands of streams may have
//! hundreds of ready tasks, and each message of another client would wait for all of them, on its way in and on its way
//! out. Therefore relays take turns by account, in rounds. In a round, each account has one turn, and its other relays
//! queue for the next round. This is round-robin scheduling (Nagle, RFC 970), with the relays' polls as packets. In its
//! turn, a relay may pass on 118 KiB in each direction. Unused turns are not saved.
//!
//! *Rounds.* A new round begins when all relays that were given a turn in the last one have taken it. By then, the
//! runtime has polled every task that was ready when that round began. While no relay queues, no round begins.
//!
//! *Cost.* None while there is one account. Otherwise a turn without a queue costs a lock that is rarely contended, and
//! a turn with a queue costs a second poll, which returns immediately.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The accounts that share a runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairTurns(Arc<SharedTurns>);

#[derive(Debug, Default)]
struct SharedTurns {
    /// Number of accounts so far.
    accounts: AtomicUsize,
    round: AtomicU64,
    /// Locked before any account's state.
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    /// Number of turns of this round that were given but not taken yet.
    given: u32,
    /// Accounts with relays that queue.
    accounts: VecDeque<AccountTurns>,
}

/// An account, with the accounts that share its runtime.
#[derive(Debug)]
struct Account {
    shared: Arc<SharedTurns>,
    used: Mutex<TurnUse>,
}

/// Use of turns by an account.
#[derive(Debug, Default)]
struct TurnUse {
    /// The round of its last turn.
    round: Option<u64>,
    /// Relays that wait for a turn, in order. Some may have ended.
    queue: VecDeque<Arc<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    shared: Arc<SharedTurns>,
    waker: Waker,
    /// True if the relay has a turn. Changed only while the queues are locked.
    is_given: AtomicBool,
    /// True if the relay ended without a turn. Changed only while the queues are locked, so that it cannot be given a
    /// turn meanwhile.
    is_over: AtomicBool,
}

impl FairTurns {
    /// Returns a new account.
    pub(crate) fn account(&self) -> AccountTurns {
        self.0.accounts.fetch_add(1, Ordering::Relaxed);
        AccountTurns(Arc::new(Account { shared: Arc::clone(&self.0), used: Mutex::default() }))
    }
}

/// Turns of one account's relays. Clones belong to the same account.
#[derive(Clone, Debug)]
pub(crate) struct AccountTurns(Arc<Account>);

/// A relay's next turn.
#[derive(Debug, Default)]
pub(super) struct Turn(Option<QueuedTurn>);

#[derive(Debug)]
struct QueuedTurn(Arc<Waiter>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turn {
    /// Ready when it is the relay's turn. Each call that returns ready takes one turn.
    pub(super) fn poll(&mut self, cx: &Context<'_>, turns: &AccountTurns) -> Poll<()> {
        match &self.0 {
            Some(waiting) if !waiting.0.is_given.load(Ordering::Acquire) => Poll::Pending,
            Some(_) => {
                // Dropping the waiter takes the turn.
                self.0 = None;
                Poll::Ready(())
            }
            None if turns.try_take() => Poll::Ready(()),
            None => {
                self.0 = Some(turns.queue(cx));
                Poll::Pending
            }
        }
    }
}

impl Drop for QueuedTurn {
    /// Records that the relay has taken its turn, or has ended.
    fn drop(&mut self) {
        self.0.shared.end_wait(&self.0);
    }
}

impl AccountTurns {
    /// Takes a turn of this round, if the account has one left and none of its relays is queued. Always succeeds if
    /// there is only one account.
    fn try_take(&self) -> bool {
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

    /// Appends a relay to the account's queue. If no relay has a turn now, this one gets a turn behind the tasks that
    /// are ready. When it takes that turn, the round is over.
    fn queue(&self, cx: &Context<'_>) -> QueuedTurn {
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
        QueuedTurn(waiter)
    }
}

impl TurnUse {
    /// Gives the turn of this round to the first queued relay. The queues must be locked.
    fn pass_turn(&mut self, round: u64) -> Option<Arc<Waiter>> {
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

impl SharedTurns {
    /// Ends the wait of a relay. After the last turn that was given, the next round begins.
    fn end_wait(&self, waiter: &Waiter) {
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
            given.extend(used.pass_turn(round));
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

    /// A relay with its waker.
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

        /// Returns true if the relay has a turn now.
        fn poll(&mut self) -> bool {
            self.woken.0.store(false, Ordering::Relaxed);
            self.turn.poll(&Context::from_waker(&self.waker), &self.account).is_ready()
        }

        fn is_woken(&self) -> bool {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    /// Polls ready relays in order, as a runtime does, starting with `ready`. A relay that had its turn is
    /// finished. Returns the relays in the order of their turns.
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
        let place = order.iter().position(|&at| at == 100).expect("it had a turn");
        assert!(place <= 2, "polled after {place} others");
        let others: Vec<_> = order.into_iter().filter(|&at| at < 100).collect();
        assert_eq!(others.len(), 100, "each of the others was polled");
        // Only the relay that ended the first round was moved behind the others of that round.
        assert!(others.is_sorted_by_key(|&at| at.max(2)), "{others:?}");
    }

    #[test]
    fn a_relay_without_competitors_never_pauses() {
        let turns = FairTurns::default();
        let account = turns.account();
        let mut relay = Relay::of(&account);
        assert!((0..100).all(|_| relay.poll()), "no other account competes");
        let _other = turns.account();
        for _ in 0..100 {
            assert!(relay.poll() || relay.is_woken() && relay.poll());
        }
    }

    #[test]
    fn relays_that_end_do_not_block_others() {
        let turns = FairTurns::default();
        let (account, _other) = (turns.account(), turns.account());
        let mut relays: Vec<_> = (0..10).map(|_| Relay::of(&account)).collect();
        let had: Vec<_> = relays.iter_mut().map(Relay::poll).collect();
        assert!(had[0] && had[1..].iter().all(|had| !had));
        // The second relay has the turn that ends the round, and never takes it. The next ones end before they have
        // a turn.
        assert!(relays[1].is_woken() && !relays[2].is_woken());
        relays.drain(2..5);
        relays.remove(1);
        assert!(relays[1].is_woken() && !relays[2].is_woken());
        // A relay ends with a turn.
        relays.remove(1);
        assert!(relays[1..5].iter_mut().all(|relay| relay.is_woken() && relay.poll()));
        let queues = lock(&account.0.shared.queues);
        assert_eq!((queues.given, queues.accounts.len()), (0, 0));
    }

    /// Another thread may give turns while a relay ends.
    #[test]
    fn a_turn_given_to_an_ending_relay_is_passed_on() {
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
