//! Upgrade of a running server: the program, as it is on disk now, takes the place of this process, whose connections
//! go on here (docs/operate/upgrade.md, docs/decisions/upgrades-and-shards.md).
//!
//! The new process is a child with one end of a channel for its standard input. It gets the sockets and the seed of
//! resets there, reads its configuration as at any start, opens what it needs, and says that it is ready; until then
//! nothing has changed, and whatever goes wrong is told to who asked. Then this process stops to receive, and the
//! other one begins.

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
use marline::advanced::succession::{Channel, Estate, Heir};
use marline::{Server, ServerBuilder};
use marline_proxy::shutdown::Stopper;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::control::protocol::Upgraded;
use crate::service;

/// In the environment of a process whose standard input is a channel to its predecessor.
const SUCCESSOR: &str = "MARLINE_SUCCESSOR";
/// A successor that is not ready within this time is ended, unless somebody said otherwise.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a successor is looked at that has not said anything.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Who asked has read the answer within this time.
const ANSWER: Duration = Duration::from_secs(2);

/// Where a successor that has not begun says why it cannot.
static PREDECESSOR: Mutex<Option<Channel>> = Mutex::new(None);

fn predecessor() -> std::sync::MutexGuard<'static, Option<Channel>> {
    PREDECESSOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the process that waits for this one, if one does, that it waits for nothing.
pub(crate) fn tell_predecessor(why: &str) {
    if let Some(channel) = predecessor().take() {
        Heir::give_up(&channel, why);
    }
}

/// A process that is to take another one's place.
#[derive(Debug)]
pub(crate) struct Successor {
    heir: Heir,
    predecessor: u8,
    /// Listening sockets of the program's own.
    pub(crate) further: Vec<(String, OwnedFd)>,
}

/// Opens the channel to the process that this one is to follow, if there is one, so that it hears whatever goes
/// wrong. To be called before anything can.
///
/// # Errors
/// There is no channel.
pub(crate) fn find_predecessor() -> anyhow::Result<()> {
    if std::env::var_os(SUCCESSOR).is_none() {
        return Ok(());
    }
    let end = io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
    // Nobody else may take it for a file.
    let nothing = std::fs::File::open("/dev/null").context("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing).context("/dev/null")?;
    *predecessor() = Some(Channel::of(end));
    Ok(())
}

impl Successor {
    /// What this process was started with, if it was started as a successor: gives `network` the sockets. To be
    /// called before the network is opened.
    ///
    /// # Errors
    /// The predecessor does not speak as it should.
    pub(crate) fn arrive(network: &mut ServerBuilder) -> anyhow::Result<Option<Successor>> {
        let Some(channel) = predecessor().as_ref().map(Channel::duplicate).transpose()? else {
            return Ok(None);
        };
        let (heir, estate) =
            Heir::take(channel).context("cannot take over from another process")?;
        let predecessor = estate.predecessor;
        let further = network.inherit(estate);
        Ok(Some(Successor { heir, predecessor, further }))
    }

    /// Everything is open: takes the predecessor's place.
    pub(crate) fn begin(self, server: &Server) -> anyhow::Result<()> {
        server.begin(self.heir, self.predecessor, crate::VERSION)?;
        predecessor().take();
        Ok(())
    }
}

/// Takes the predecessor's place, if there is one; a service manager that started this process itself hears that it is
/// ready.
pub(crate) fn begin(successor: Option<Successor>, server: &Server) -> anyhow::Result<()> {
    match successor {
        Some(successor) => successor.begin(server),
        None => {
            service::ready();
            Ok(())
        }
    }
}

/// An upgrade that was asked for.
#[derive(Debug)]
struct Request {
    program: Option<String>,
    patience: Duration,
    answer: oneshot::Sender<Result<Told, String>>,
}

type Told = (Upgraded, oneshot::Sender<()>);

/// Where upgrades are asked for.
#[derive(Clone, Debug)]
pub struct UpgradeSender(mpsc::Sender<Request>);

/// Where they are done, one after the other.
#[derive(Debug)]
pub(crate) struct Upgrades(mpsc::Receiver<Request>);

/// The two.
pub(crate) fn upgrades() -> (UpgradeSender, Upgrades) {
    // One that waits is enough to say that there is one.
    let (ask, asked) = mpsc::channel(1);
    (UpgradeSender(ask), Upgrades(asked))
}

/// An upgrade that may take a while.
#[derive(Debug)]
pub struct PendingUpgrade(Result<oneshot::Receiver<Result<Told, String>>, String>);

impl UpgradeSender {
    /// Asks for one.
    #[must_use]
    pub fn ask(&self, program: Option<String>, patience_s: Option<u64>) -> PendingUpgrade {
        let (answer, answered) = oneshot::channel();
        let patience = patience_s.map_or(PATIENCE, Duration::from_secs);
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
    /// What came of it, and what is to be dropped once that has been passed on.
    ///
    /// # Errors
    /// Why the process is as it was.
    pub async fn outcome(self) -> Result<(Upgraded, oneshot::Sender<()>), String> {
        self.0?.await.unwrap_or_else(|_| Err("the process is stopping".to_owned()))
    }
}

/// What an upgrade does to the process besides its network.
pub(crate) trait Aside {
    /// Listening sockets for the successor.
    fn copies(&self) -> io::Result<Vec<(String, OwnedFd)>>;

    /// They are the successor's.
    fn leave(&self);
}

impl Upgrades {
    /// Sees to upgrades until one succeeds, and then rests. Connections go on for `limit` after that.
    pub(crate) async fn serve(
        mut self,
        server: &Server,
        stopper: &Stopper,
        aside: &dyn Aside,
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
                    let text = marline_proxy::secret::hide(&text);
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
            aside.leave();
            let (acknowledge, acknowledged) = oneshot::channel();
            let upgraded = Upgraded { version, pid, connections };
            if request.answer.send(Ok((upgraded, acknowledge))).is_ok() {
                let _ = tokio::time::timeout(ANSWER, acknowledged).await;
            }
            stopper.hand_over(limit.get());
            marline_proxy::memory_trim::retire();
            break;
        }
        self.0.close();
        std::future::pending().await
    }
}

/// Starts a successor and lets it begin. Gives its version and its number.
async fn replace(
    server: &Server,
    aside: &dyn Aside,
    program: Option<String>,
    patience: Duration,
) -> anyhow::Result<(String, u32)> {
    let mut estate = server.estate()?;
    estate.further.extend(aside.copies().context("cannot copy listening sockets")?);
    let (channel, other_end) = Channel::pair().context("cannot create a channel")?;
    let program = program.map_or_else(own_program, |program| Ok(PathBuf::from(program)))?;
    let mut child = start(&program, other_end)
        .with_context(|| format!("cannot start {}", program.display()))?;
    let ready = wait_until_ready(estate, &channel, &mut child, patience).await;
    let begun = ready.and_then(|version| {
        let pid = child.id().context("the new process exited")?;
        server.hand_over(channel)?;
        Ok((version, pid))
    });
    match begun {
        Ok((version, pid)) => {
            tell_service_manager(pid);
            Ok((version, pid))
        }
        Err(error) => {
            // It may have ended by itself.
            let _ = child.start_kill();
            let _ = child.wait().await;
            Err(error.context(format!("{} cannot take over", program.display())))
        }
    }
}

/// The path by which this process was started: what is there now may be another file. Of a process that was started by
/// its bare name, the path of the file that runs.
fn own_program() -> anyhow::Result<PathBuf> {
    match std::env::args_os().next() {
        Some(name) if name.to_string_lossy().contains('/') => Ok(PathBuf::from(name)),
        _ => {
            let runs = std::env::current_exe();
            Ok(at_its_place(&runs.context("cannot find the path of this program: set --program")?))
        }
    }
}

/// The kernel marks the path of a file that has another in its place now, as after an upgrade of a package.
fn at_its_place(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    PathBuf::from(OsStr::from_bytes(bytes.strip_suffix(b" (deleted)").unwrap_or(bytes)))
}

fn start(program: &Path, other_end: Channel) -> io::Result<Child> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut command = Command::new(program);
    command.args(arguments).env(SUCCESSOR, "1").stdin(Stdio::from(other_end.into_fd()));
    // With it goes our copy of the other end.
    command.spawn()
}

/// Gives a successor what it needs, and waits until it is ready. Gives its version.
async fn wait_until_ready(
    estate: Estate,
    channel: &Channel,
    child: &mut Child,
    patience: Duration,
) -> anyhow::Result<String> {
    let giving = channel.duplicate()?;
    // Ends with the child, if not before.
    let given = tokio::task::spawn_blocking(move || estate.give(&giving));
    let until = Instant::now() + patience;
    loop {
        // First: what it said before it ended is worth more than how it ended.
        match channel.heard() {
            Ok(Ok(version)) => {
                given.await.context("cannot pass on the sockets")??;
                return Ok(version);
            }
            Ok(Err(why)) => bail!("{why}"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                let status = tokio::time::timeout(ANSWER, child.wait()).await;
                match status {
                    Ok(Ok(status)) => bail!("the new process exited before it was ready: {status}"),
                    _ => bail!("no valid answer from the new process: {error}"),
                }
            }
        }
        if Instant::now() >= until {
            bail!("the new process did not become ready within {} s", patience.as_secs());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The service manager follows the successor from now on, and would take the end of this process for the service's.
fn tell_service_manager(pid: u32) {
    service::replaced_by(pid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_looked_for_at_its_place() {
        for (runs, place) in [
            ("/usr/bin/marline (deleted)", "/usr/bin/marline"),
            ("/usr/bin/marline", "/usr/bin/marline"),
            ("/srv/a (deleted) b", "/srv/a (deleted) b"),
        ] {
            assert_eq!(at_its_place(Path::new(runs)), Path::new(place));
        }
    }
}
