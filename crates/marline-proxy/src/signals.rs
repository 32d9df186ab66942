//! Signals of a long-running program: SIGTERM, SIGINT and SIGQUIT end it gracefully, SIGHUP reloads
//! its configuration, and no other one ends it.
//!
//! The default action of most signals is to end the process with all its connections; so a mistake
//! in a script (`kill -USR1`), or a closed terminal, would break all streams.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that mean nothing here: by number where they have no name in `SignalKind`.
fn meaningless() -> Vec<SignalKind> {
    let mut kinds = vec![
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
        SignalKind::alarm(),
        SignalKind::io(),
    ];
    #[cfg(target_os = "linux")]
    {
        // SIGVTALRM, SIGPROF, SIGPWR, and those of real-time programs.
        kinds.extend([26, 27, 30].map(SignalKind::from_raw));
        kinds.extend((34..=64).map(SignalKind::from_raw));
    }
    kinds
}

/// From now on only SIGTERM, SIGINT and SIGQUIT end the process; SIGHUP does nothing before
/// [`Signals`] are there. Starts no thread.
///
/// # Errors
/// The system refuses.
pub fn survive() -> io::Result<()> {
    // The handlers stay when the runtime that they were installed by is gone.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let _stays = signal(SignalKind::hangup())?;
    for kind in meaningless() {
        let _stays = signal(kind)?;
    }
    Ok(())
}

/// Request by a signal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Told {
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
    /// Receives them from now on. Needs a runtime.
    ///
    /// # Errors
    /// The system refuses.
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
    pub async fn next(&mut self) -> Told {
        loop {
            let name = tokio::select! {
                _ = self.interrupt.recv() => return Told::End,
                _ = self.terminate.recv() => return Told::End,
                _ = self.quit.recv() => return Told::End,
                _ = self.hangup.recv() => return Told::Reload,
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            tracing::info!("{name} ignored (SIGHUP reloads, SIGTERM stops)");
        }
    }
}
