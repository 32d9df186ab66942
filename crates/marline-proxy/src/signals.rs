//! Signals of a long-running program: SIGTERM, SIGINT and SIGQUIT end it gracefully, SIGHUP reloads its
//! configuration, and all others are ignored.
//!
//! By default most signals end the process and all its connections, so that a mistake in a script (`kill -USR1`) or
//! a closed terminal would break all streams.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::sys;

/// Returns the signals to ignore.
fn ignored_signals() -> impl Iterator<Item = SignalKind> {
    let named = [
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
        SignalKind::alarm(),
        SignalKind::io(),
    ];
    named.into_iter().chain(sys::unnamed_signals())
}

/// Lets only SIGTERM, SIGINT and SIGQUIT end the process from now on. SIGHUP is ignored until [`Signals`] exists.
/// Starts no thread.
///
/// # Errors
/// The system refuses a handler.
pub fn ignore_other_signals() -> io::Result<()> {
    // The handlers outlive the runtime that installed them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let _stays = signal(SignalKind::hangup())?;
    for kind in ignored_signals() {
        let _stays = signal(kind)?;
    }
    Ok(())
}

/// Request by a signal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// End the program.
    End,
    /// Reload the configuration.
    Reload,
}

/// The handled signals.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Receives the signals from now on. Needs a runtime.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next handled signal. Cancel safe.
    pub async fn next(&mut self) -> SignalRequest {
        loop {
            let name = tokio::select! {
                _ = self.interrupt.recv() => return SignalRequest::End,
                _ = self.terminate.recv() => return SignalRequest::End,
                _ = self.quit.recv() => return SignalRequest::End,
                _ = self.hangup.recv() => return SignalRequest::Reload,
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            tracing::info!("{name} ignored (SIGHUP reloads, SIGTERM stops)");
        }
    }
}
