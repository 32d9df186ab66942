//! Choice between resuming a session and a full TLS handshake, with a limit on simultaneous handshakes.
//!
//! A server limits unauthenticated clients but not clients with a session. Therefore the first request performs the TLS
//! handshake, and all others wait for the session that results from it. If the handshake takes long (it may be on a
//! failed path), a few more are tried. The session is renewed by one such handshake before it ends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::session::{LIFETIME, Session, SessionId};

/// Maximum number of concurrent handshakes. A server admits 16 per source, and other clients may share our address.
const MAX_HANDSHAKES: usize = 8;
/// Delay before the next handshake starts while the first one may still yield a session.
const HANDSHAKE_HEDGE_DELAY: Duration = Duration::from_secs(1);

/// Means of authentication for a request.
#[derive(Debug)]
pub(super) enum Authentication {
    /// A session.
    Session(Arc<Session>),
    /// Permission to make a TLS handshake.
    NewClient(HandshakeTurn),
}

#[derive(Debug)]
struct CurrentSession {
    session: Arc<Session>,
    renew_at: Instant,
    ends_at: Instant,
}

#[derive(Debug, Default)]
struct State {
    current: Option<CurrentSession>,
    /// True while a renewal of the session is in progress.
    renewing: bool,
    handshakes: usize,
    last_handshake_start: Option<Instant>,
}

/// State shared by all requests.
#[derive(Debug, Default)]
pub(super) struct Admission {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

/// A running handshake. Dropping it lets the next one start.
#[derive(Debug)]
pub(super) struct HandshakeTurn {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for HandshakeTurn {
    fn drop(&mut self) {
        lock(&self.state).handshakes -= 1;
        self.changed.notify_one();
    }
}

impl State {
    /// Returns the current session.
    fn session(&mut self, now: Instant) -> Option<Arc<Session>> {
        if self.current.as_ref().is_some_and(|current| current.ends_at <= now) {
            self.current = None;
        }
        self.current.as_ref().map(|current| Arc::clone(&current.session))
    }

    /// Returns the time at which the next handshake may start, or `None` if it must wait for a running one to end.
    fn next_turn(&self, now: Instant, alone: bool) -> Option<Instant> {
        match (self.handshakes, self.last_handshake_start) {
            (0, _) | (_, None) => Some(now),
            (shaking, _) if shaking >= MAX_HANDSHAKES => None,
            (_, Some(_)) if alone => Some(now),
            (_, Some(begun)) => Some(begun + HANDSHAKE_HEDGE_DELAY),
        }
    }
}

impl Admission {
    fn start_handshake(&self, state: &mut State, now: Instant) -> HandshakeTurn {
        state.handshakes += 1;
        state.last_handshake_start = Some(now);
        HandshakeTurn { state: Arc::clone(&self.state), changed: Arc::clone(&self.changed) }
    }

    /// Waits for a session, or for permission to make a handshake. `alone` is true if the connection cannot use a
    /// session and needs a handshake.
    async fn wait_until_admitted(&self, alone: bool) -> Authentication {
        loop {
            let changed = self.changed.notified();
            let next = {
                let now = Instant::now();
                let mut state = lock(&self.state);
                if !alone && let Some(session) = state.session(now) {
                    return Authentication::Session(session);
                }
                let next = state.next_turn(now, alone);
                if next.is_some_and(|at| at <= now) {
                    return Authentication::NewClient(self.start_handshake(&mut state, now));
                }
                next
            };
            let turn = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = turn => {}
            }
        }
    }

    /// Waits for a session, or for permission to make a handshake.
    pub(super) async fn wait_for_admission(&self) -> Authentication {
        self.wait_until_admitted(false).await
    }

    /// Waits for permission to make a handshake, for a connection that cannot use a session.
    pub(super) async fn enter_without_session(&self) -> HandshakeTurn {
        loop {
            if let Authentication::NewClient(turn) = self.wait_until_admitted(true).await {
                return turn;
            }
        }
    }

    /// Returns permission to make a handshake, if available now.
    pub(super) fn try_enter(&self) -> Option<HandshakeTurn> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let free = state.next_turn(now, false).is_some_and(|at| at <= now);
        (free && state.session(now).is_none()).then(|| self.start_handshake(&mut state, now))
    }

    /// Stores a session from a handshake. The server keeps it for `lifetime`.
    pub(super) fn store_session(&self, session: Arc<Session>, lifetime: Duration) {
        let now = Instant::now();
        let lifetime = lifetime.min(LIFETIME);
        let mut state = lock(&self.state);
        // The session must end earlier here than at the server, and a renewal may take a while.
        let (renew_at, ends_at) = (now + lifetime * 3 / 4, now + lifetime * 19 / 20);
        state.current = Some(CurrentSession { session, renew_at, ends_at });
        state.renewing = false;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Removes a session that is unknown to the server.
    pub(super) fn forget_session(&self, id: SessionId) {
        let mut state = lock(&self.state);
        if state.current.as_ref().is_some_and(|current| current.session.id() == id) {
            state.current = None;
        }
    }

    /// Returns true if the session is due for renewal and no other caller has started it.
    pub(super) fn should_renew(&self) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let due = state.current.as_ref().is_some_and(|current| current.renew_at <= now);
        due && !std::mem::replace(&mut state.renewing, true)
    }

    /// Records a failed renewal. The next request may try again.
    pub(super) fn on_renewal_failed(&self) {
        lock(&self.state).renewing = false;
    }

    /// Returns the addresses of the server that knows the session.
    pub(super) fn own_addresses(&self) -> Vec<SocketAddr> {
        let session = lock(&self.state).session(Instant::now());
        session.map(|session| session.own_addresses().to_vec()).unwrap_or_default()
    }

    /// Ends the session in this client. Its secret is dropped with the last connection that is being opened.
    pub(super) fn close(&self) {
        lock(&self.state).current = None;
    }
}
