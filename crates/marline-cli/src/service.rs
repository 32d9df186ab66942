//! Messages to the service manager (sd_notify): ready, reloading, stopping, alive, what the program waits for.
//!
//! Without one (`NOTIFY_SOCKET` is not set) they go nowhere.

use std::time::Duration;

use sd_notify::NotifyState;

/// The manager waits for a sign of life that long (`WatchdogSec=`), in microseconds. Beside it systemd says for which
/// process; that is not heeded, since one that takes another's place inherits it.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Signs of life within that time, so that one may be late.
const SIGNS: u32 = 3;

/// Where the manager hears, if there is one.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Whether a service manager wants to hear.
pub fn is_managed() -> bool {
    std::env::var_os(NOTIFY_SOCKET).is_some()
}

/// What it does now, in words, as `systemctl status` shows it; empty: nothing in particular.
pub fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// The start takes longer: the next word on it comes within this time.
pub fn extend_start(time: Duration) {
    tell(&[NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))]);
}

/// Whoever comes now is served.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is read again; [`ready`] says that it is done.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("no monotonic clock: {error}"),
    }
}

/// The end has begun.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Gives signs of life for as long as it is polled, if the manager wants any. Each comes after a question that only
/// what is alive answers: a runtime that does not turn, or a driver that holds its lock for ever, gives none.
pub async fn give_signs_of_life(ask: impl Fn()) {
    let Some(limit) = watchdog(std::env::var(WATCHDOG).ok().as_deref()) else { return };
    let mut due = tokio::time::interval(limit / SIGNS);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        ask();
        tell(&[NotifyState::Watchdog]);
    }
}

/// Another process is the service's main one from now on.
pub fn replaced_by(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

fn watchdog(usec: Option<&str>) -> Option<Duration> {
    let limit = Duration::from_micros(usec?.parse().ok()?);
    (limit >= Duration::from_millis(u64::from(SIGNS))).then_some(limit)
}

fn tell(what: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::debug!("cannot notify the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_heeded_where_its_time_makes_sense() {
        assert_eq!(watchdog(Some("60000000")), Some(Duration::from_secs(60)));
        for none in [None, Some(""), Some("0"), Some("2000"), Some("soon"), Some("-1")] {
            assert_eq!(watchdog(none), None, "{none:?}");
        }
    }
}
