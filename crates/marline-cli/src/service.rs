//! Messages to the service manager (sd_notify): readiness, reload, end, watchdog, and a status text.
//!
//! Without a service manager (`NOTIFY_SOCKET` is not set) they are dropped.

use std::time::Duration;

use sd_notify::NotifyState;

/// Environment variable with the manager's watchdog timeout (`WatchdogSec=`), in microseconds. systemd's variable with
/// the process id is ignored, because a successor inherits it.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Number of keepalives per watchdog timeout, so that one may be late.
const KEEPALIVES_PER_TIMEOUT: u32 = 3;

/// Environment variable with the path of the manager's socket. Not set without a manager.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Returns true if there is a service manager.
pub fn is_managed() -> bool {
    std::env::var_os(NOTIFY_SOCKET).is_some()
}

/// Sets the status text in `systemctl status`. An empty text means no particular status.
pub fn status(text: &str) {
    send_states(&[NotifyState::Status(text)]);
}

/// Extends the service manager's startup timeout (EXTEND_TIMEOUT_USEC): the next extension must follow within `time`.
pub fn extend_start(time: Duration) {
    send_states(&[NotifyState::ExtendTimeoutUsec(
        u32::try_from(time.as_micros()).unwrap_or(u32::MAX),
    )]);
}

/// Reports that the service is ready.
pub fn notify_ready() {
    send_states(&[NotifyState::Ready]);
}

/// Reports that a reload has started. [`notify_ready`] reports its end.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send_states(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("no monotonic clock: {error}"),
    }
}

/// Reports that the service is stopping.
pub fn notify_stopping() {
    send_states(&[NotifyState::Stopping]);
}

/// Sends watchdog keepalives until dropped, if the manager wants any. Each follows a call of `ask`, which returns only
/// while the program is alive: a blocked runtime, or a driver that holds its lock forever, sends none.
pub async fn send_watchdog_keepalives(ask: impl Fn()) {
    let Some(limit) = watchdog(std::env::var(WATCHDOG).ok().as_deref()) else { return };
    let mut due = tokio::time::interval(limit / KEEPALIVES_PER_TIMEOUT);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        ask();
        send_states(&[NotifyState::Watchdog]);
    }
}

/// Reports another process as the main process of the service.
pub fn report_main_process(pid: u32) {
    send_states(&[NotifyState::MainPid(pid)]);
}

fn watchdog(usec: Option<&str>) -> Option<Duration> {
    let limit = Duration::from_micros(usec?.parse().ok()?);
    (limit >= Duration::from_millis(u64::from(KEEPALIVES_PER_TIMEOUT))).then_some(limit)
}

fn send_states(what: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::debug!("cannot notify the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_with_a_valid_timeout_is_used() {
        assert_eq!(watchdog(Some("60000000")), Some(Duration::from_secs(60)));
        for none in [None, Some(""), Some("0"), Some("2000"), Some("soon"), Some("-1")] {
            assert_eq!(watchdog(none), None, "{none:?}");
        }
    }
}
