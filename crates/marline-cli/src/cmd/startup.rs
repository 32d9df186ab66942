//! Startup of a command while there is no network or the server does not answer, as at boot: the command waits.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{anyhow, bail};
use marline::Client;
use marline::paths::PathStatus;
use marline_proxy::client::open::OpenError;
use marline_proxy::client::trouble::Trouble;
use tokio::time::{Instant, sleep, timeout};

use super::client_network::CurrentTunnel;
use crate::service;

/// Time without an answer after which the attempt is repeated.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum delay between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// Interval between checks for paths while waiting for one.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the service manager is notified that startup takes longer. Each notification extends the time
/// limit by twice this time.
const START_EXTENSION_PERIOD: Duration = Duration::from_secs(60);

/// Waits until there is a path and the server has answered over it. A service waits without a limit.
///
/// # Errors
/// Waiting cannot help: the server's key differs from the invite's, or the server refuses this client. At a terminal,
/// also: the server does not answer.
pub(super) async fn wait_for_server(client: &Client, way: &CurrentTunnel) -> anyhow::Result<()> {
    let mut pause = Duration::from_secs(1);
    let mut said = None;
    loop {
        wait_for_path(client.clone()).await;
        service::extend_start(2 * START_EXTENSION_PERIOD);
        let why = match check_admission(way).await {
            Ok(()) => {
                service::status("");
                return Ok(());
            }
            Err(StartFailure::Permanent(error)) => return Err(error),
            Err(StartFailure::Temporary(error)) => error,
        };
        if !is_any_up(&client.paths()) {
            continue;
        }
        if is_at_terminal() {
            bail!("{why:#}");
        }
        let text = format!("waiting for the server: {why:#}");
        service::status(&text);
        if said.as_ref() != Some(&text) {
            tracing::warn!("{text}");
            said = Some(text);
        }
        pause_until_change(client, pause).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

/// Reason why the server was not reached.
enum StartFailure {
    /// A later attempt may succeed.
    Temporary(anyhow::Error),
    Permanent(anyhow::Error),
}

/// Checks that the server accepts this client.
async fn check_admission(way: &CurrentTunnel) -> Result<(), StartFailure> {
    match timeout(ATTEMPT_TIMEOUT, way.now().check()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let Trouble { kind, text } = Trouble::from(&error);
            let failed = anyhow!("{text} ({})", kind.advice());
            Err(match error {
                OpenError::Pin => StartFailure::Permanent(failed),
                OpenError::Refused(_) if kind.is_rejection() => StartFailure::Permanent(failed),
                // The server is overloaded or unreachable, or a network's login page answers instead.
                OpenError::Refused(_) | OpenError::Server(_) => {
                    StartFailure::Temporary(anyhow!("{text}"))
                }
            })
        }
        Err(_) => {
            let seconds = ATTEMPT_TIMEOUT.as_secs();
            Err(StartFailure::Temporary(anyhow!("no answer from the server within {seconds} s")))
        }
    }
}

/// Waits until a path can be used. If there is none now, this is reported to the log and the service manager. A
/// command that already serves runs this concurrently.
pub(super) async fn wait_for_path(client: Client) {
    let paths = client.paths();
    if is_any_up(&paths) {
        return;
    }
    let text = format!("waiting for a network: {}", path_problems(&paths));
    tracing::warn!("{text}");
    service::status(&text);
    let mut extended: Option<Instant> = None;
    loop {
        if extended.is_none_or(|at| at.elapsed() > START_EXTENSION_PERIOD) {
            service::extend_start(2 * START_EXTENSION_PERIOD);
            extended = Some(Instant::now());
        }
        sleep(CHECK_INTERVAL).await;
        let paths = client.paths();
        let names: Vec<String> =
            paths.iter().filter(|path| path.up).map(|path| path.spec.short_name()).collect();
        if !names.is_empty() {
            tracing::info!("network available: {}", names.join(", "));
            service::status("");
            return;
        }
    }
}

fn is_any_up(paths: &[PathStatus]) -> bool {
    paths.iter().any(|path| path.up)
}

/// Describes the fault of each path.
fn path_problems(paths: &[PathStatus]) -> String {
    if paths.is_empty() {
        return "no interface has an address and a default route".to_owned();
    }
    let word = |path: &PathStatus| {
        let why = path.cause.as_deref().unwrap_or("interface down");
        format!("{}: {why}", path.spec.short_name())
    };
    paths.iter().map(word).collect::<Vec<_>>().join("; ")
}

/// Waits for `pause`, or until the set of usable paths changes.
async fn pause_until_change(client: &Client, pause: Duration) {
    let usable = || -> Vec<_> {
        let paths = client.paths().into_iter().filter(|path| path.up);
        paths.map(|path| (path.spec.short_name(), path.addresses)).collect()
    };
    let (before, until) = (usable(), Instant::now() + pause);
    while Instant::now() < until && usable() == before {
        sleep(CHECK_INTERVAL).await;
    }
}

/// Returns true if a user sees the output and can repeat the command.
fn is_at_terminal() -> bool {
    std::io::stderr().is_terminal() && !service::is_managed()
}
