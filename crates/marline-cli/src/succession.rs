//! Upgrade of a running server: a process of the current program on disk replaces this one, whose connections
//! continue here (docs/operate/upgrade.md, docs/decisions/upgrades-and-shards.md).
//!
//! The new process is a child with one end of a channel as its standard input. It receives the sockets and the seed of
//! resets there, reads its configuration as at any other start, opens its own resources, and reports that it is ready.
//! Until then nothing has changed, and any failure is reported to the requester. Then this process stops receiving, and
//! the new one starts.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use marline::advanced::succession::{Channel, HandoverState, PendingSuccessor};
use marline::{Server, ServerBuilder};
use marline_proxy::shutdown::Stopper;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::control::protocol::Upgraded;
use crate::service;

/// Environment variable of a process whose standard input is a channel to its predecessor.
const SUCCESSOR: &str = "MARLINE_SUCCESSOR";
/// Default time after which a successor that is not ready is ended.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between checks of a successor that has not reported yet.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Time limit for the requester to read the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Channel on which a successor that has not started reports a failure.
static PREDECESSOR: Mutex<Option<Channel>> = Mutex::new(None);

fn predecessor() -> std::sync::MutexGuard<'static, Option<Channel>> {
    PREDECESSOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports to a waiting predecessor that this process will not take over.
pub(crate) fn report_to_predecessor(why: &str) {
    if let Some(channel) = predecessor().take() {
        PendingSuccessor::report_failure(&channel, why);
    }
}

/// A process that replaces another one.
#[derive(Debug)]
pub(crate) struct Successor {
    successor: PendingSuccessor,
    predecessor: u8,
    /// Inherited listening sockets for the control socket, metrics and dashboard.
    pub(crate) further: Vec<(String, OwnedFd)>,
}

/// Opens the channel to the predecessor, if there is one, so that failures can be reported on it. To be called
/// first.
///
/// # Errors
/// There is no channel.
pub(crate) fn find_predecessor() -> anyhow::Result<()> {
    if std::env::var_os(SUCCESSOR).is_none() {
        return Ok(());
    }
    let end =
        io::stdin().as_fd().try_clone_to_owned().context("cannot duplicate standard input")?;
    // Standard input must not be mistaken for a file.
    let nothing = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&nothing).context("cannot redirect standard input")?;
    *predecessor() = Some(Channel::from_fd(end));
    Ok(())
}

impl Successor {
    /// Returns the state passed by the predecessor, if there is one. `network` gets the sockets. To be called before
    /// the network is opened.
    ///
    /// # Errors
    /// The predecessor violates the protocol.
    pub(crate) fn receive_handover(
        network: &mut ServerBuilder,
    ) -> anyhow::Result<Option<Successor>> {
        let Some(channel) = predecessor().as_ref().map(Channel::duplicate).transpose()? else {
            return Ok(None);
        };
        let (successor, handover) =
            PendingSuccessor::receive(channel).context("cannot take over from another process")?;
        let predecessor = handover.predecessor;
        let further = network.inherit(handover);
        Ok(Some(Successor { successor, predecessor, further }))
    }

    /// Takes over from the predecessor. Everything must be open.
    pub(crate) fn take_over(self, server: &Server) -> anyhow::Result<()> {
        server.start_receiving(self.successor, self.predecessor, crate::VERSION)?;
        predecessor().take();
        Ok(())
    }
}

/// Takes over from the predecessor, if there is one. Without one, reports to the service manager that this process
/// is ready.
pub(crate) fn begin(successor: Option<Successor>, server: &Server) -> anyhow::Result<()> {
    match successor {
        Some(successor) => successor.take_over(server),
        None => {
            service::notify_ready();
            Ok(())
        }
    }
}

/// A requested upgrade.
#[derive(Debug)]
struct Request {
    program: Option<String>,
    patience: Duration,
    answer: oneshot::Sender<Result<UpgradeReply, String>>,
}

type UpgradeReply = (Upgraded, oneshot::Sender<()>);

/// Sender of upgrade requests.
#[derive(Clone, Debug)]
pub struct UpgradeSender(mpsc::Sender<Request>);

/// Receiver of upgrade requests, which are handled one after the other.
#[derive(Debug)]
pub(crate) struct Upgrades(mpsc::Receiver<Request>);

/// Returns the two ends of a channel for upgrade requests.
pub(crate) fn upgrades() -> (UpgradeSender, Upgrades) {
    // One waiting request is enough.
    let (ask, asked) = mpsc::channel(1);
    (UpgradeSender(ask), Upgrades(asked))
}

/// A requested upgrade, which may take a while.
#[derive(Debug)]
pub struct PendingUpgrade(Result<oneshot::Receiver<Result<UpgradeReply, String>>, String>);

impl UpgradeSender {
    /// Requests an upgrade.
    #[must_use]
    pub fn request(&self, program: Option<String>, patience_s: Option<u64>) -> PendingUpgrade {
        let (answer, answered) = oneshot::channel();
        let patience = patience_s.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let request = Request { program, patience, answer };
        PendingUpgrade(match self.0.try_send(request) {
            Ok(()) => Ok(answered),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err("an upgrade is already in progress".to_owned())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                Err("this process was already replaced".to_owned())
            }
        })
    }
}

impl PendingUpgrade {
    /// Returns the result of the upgrade, and a sender to drop once the requester has the result.
    ///
    /// # Errors
    /// The reason for the failure. The process is unchanged.
    pub async fn outcome(self) -> Result<(Upgraded, oneshot::Sender<()>), String> {
        self.0?.await.unwrap_or_else(|_| Err("the process is stopping".to_owned()))
    }
}

/// Resources of a process, in addition to its network, that an upgrade affects.
pub(crate) trait UpgradeResources {
    /// Returns the listening sockets for the successor.
    fn copies(&self) -> io::Result<Vec<(String, OwnedFd)>>;

    /// Releases the sockets, which the successor now serves.
    fn release_sockets(&self);
}

impl Upgrades {
    /// Handles upgrades until one succeeds, and then waits. Connections continue for `limit` after that.
    pub(crate) async fn serve(
        mut self,
        server: &Server,
        stopper: &Stopper,
        aside: &dyn UpgradeResources,
        limit: &Cell<Duration>,
    ) {
        while let Some(request) = self.0.recv().await {
            if stopper.is_over() {
                let _ = request.answer.send(Err("the process is stopping".to_owned()));
                continue;
            }
            let begun = replace(server, aside, request.program, request.patience).await;
            let (version, pid) = match begun {
                Ok(begun) => begun,
                Err(error) => {
                    let text = format!("{error:#}");
                    let text = marline_proxy::secret::hide_invites(&text);
                    tracing::error!("upgrade failed; this process continues: {text}");
                    let _ = request.answer.send(Err(text));
                    continue;
                }
            };
            let connections = server.connections().len() as u64;
            tracing::info!(
                pid,
                version,
                connections,
                "upgraded; existing connections stay in this process until they end"
            );
            aside.release_sockets();
            let (acknowledge, acknowledged) = oneshot::channel();
            let upgraded = Upgraded { version, pid, connections };
            if request.answer.send(Ok((upgraded, acknowledge))).is_ok() {
                let _ = tokio::time::timeout(ANSWER_TIMEOUT, acknowledged).await;
            }
            stopper.hand_over(limit.get());
            marline_proxy::memory_trim::mark_retired();
            break;
        }
        self.0.close();
        std::future::pending().await
    }
}

/// Starts a successor and lets it take over. Returns its version and process id.
async fn replace(
    server: &Server,
    aside: &dyn UpgradeResources,
    program: Option<String>,
    patience: Duration,
) -> anyhow::Result<(String, u32)> {
    let mut handover = server.handover_state()?;
    handover.further.extend(aside.copies().context("cannot copy listening sockets")?);
    let (channel, other_end) = Channel::pair().context("cannot create a channel")?;
    let program = program.map_or_else(program_path, |program| Ok(PathBuf::from(program)))?;
    let mut child = start(&program, other_end)
        .with_context(|| format!("cannot start {}", program.display()))?;
    let ready = wait_until_ready(handover, &channel, &mut child, patience).await;
    let begun = ready.and_then(|version| {
        let pid = child.id().context("the new process exited")?;
        server.hand_over(channel)?;
        Ok((version, pid))
    });
    match begun {
        Ok((version, pid)) => {
            notify_service_manager(pid);
            Ok((version, pid))
        }
        Err(error) => {
            // The process may have ended by itself.
            let _ = child.start_kill();
            let _ = child.wait().await;
            Err(error.context(format!("{} cannot take over", program.display())))
        }
    }
}

/// Returns the path with which this process was started. The file may have been replaced since then. For a process
/// that was started by its bare name, the path of the running file.
fn program_path() -> anyhow::Result<PathBuf> {
    match std::env::args_os().next() {
        Some(name) if name.to_string_lossy().contains('/') => Ok(PathBuf::from(name)),
        _ => {
            let runs = std::env::current_exe();
            Ok(strip_deleted_mark(
                &runs.context("cannot find the path of this program: set --program")?,
            ))
        }
    }
}

/// Removes the mark that the kernel appends to the path of a replaced file, as after an upgrade of a package.
fn strip_deleted_mark(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    PathBuf::from(OsStr::from_bytes(bytes.strip_suffix(b" (deleted)").unwrap_or(bytes)))
}

fn start(program: &Path, other_end: Channel) -> io::Result<Child> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = Command::new(program);
    command.args(arguments).env(SUCCESSOR, "1").stdin(Stdio::from(other_end.into_fd()));
    // Dropping the command closes our descriptor of the other end.
    command.spawn()
}

/// Passes the state to a successor, and waits until it is ready. Returns its version.
async fn wait_until_ready(
    handover: HandoverState,
    channel: &Channel,
    child: &mut Child,
    patience: Duration,
) -> anyhow::Result<String> {
    let giving = channel.duplicate()?;
    // This read ends with the child at the latest.
    let given = tokio::task::spawn_blocking(move || handover.send_to(&giving));
    let until = Instant::now() + patience;
    loop {
        // Checked first: a message from the child is more informative than its exit status.
        match channel.receive_report() {
            Ok(Ok(version)) => {
                given.await.context("cannot pass on the sockets")??;
                return Ok(version);
            }
            Ok(Err(why)) => bail!("{why}"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                let status = tokio::time::timeout(ANSWER_TIMEOUT, child.wait()).await;
                match status {
                    Ok(Ok(status)) => bail!("the new process exited before it was ready: {status}"),
                    _ => bail!("no valid answer from the new process: {error}"),
                }
            }
        }
        if Instant::now() >= until {
            bail!("the new process did not become ready within {} s", patience.as_secs());
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Reports the successor to the service manager. Otherwise the end of this process would count as the end of the
/// service.
fn notify_service_manager(pid: u32) {
    service::report_main_process(pid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_program_is_found_at_its_path() {
        for (runs, place) in [
            ("/usr/bin/marline (deleted)", "/usr/bin/marline"),
            ("/usr/bin/marline", "/usr/bin/marline"),
            ("/srv/a (deleted) b", "/srv/a (deleted) b"),
        ] {
            assert_eq!(strip_deleted_mark(Path::new(runs)), Path::new(place));
        }
    }
}
