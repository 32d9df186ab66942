//! Exchange of path health between the processes of a machine: each has a Unix socket in one directory, and sends what
//! its path health monitor found to all others there ([`PathHealthMonitor::verdicts`]).
//!
//! Nobody is in charge, so nothing has to be started first, and who is killed leaves nothing but a file that the next
//! sender removes. A message holds all verdicts of its sender, so one that is lost is made good by the next; they are
//! repeated while there are any, and forgotten when no repetition comes.
//!
//! Only the user that the directory belongs to may look into it: whoever can write there can have every path avoided.
//! Processes in other network namespaces, or with another transport (a network that drops UDP is not dead for TCP), are
//! apart: their sockets have other names.

mod message;

use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Context, Poll};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use marline_core::{AddressPairVerdict, PathHealthMonitor};
use marline_policy::AddressPair;
use marline_time::{Duration, Instant};
use tokio::io::ReadBuf;
use tokio::net::UnixDatagram;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::clock::Clock;
use crate::driver::{Shard, ShardHandle};
use message::{MAX_LINES, Message};

/// Time between two messages about verdicts that stay.
const REPEAT: Duration = Duration::from_millis(500);
/// A process that has not repeated its verdicts for so long has none.
const FORGET: Duration = Duration::from_secs(2);
/// Processes whose verdicts are kept, and to which something is sent.
const MAX_PROCESSES: usize = 64;
/// Bytes of the longest message.
const MAX_MESSAGE: usize = 64 << 10;

/// Number of the next exchange of this process, for its socket's name.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A process' part in an exchange, until it is dropped.
#[derive(Debug)]
pub struct HealthExchange {
    place: Arc<Place>,
    task: AbortHandle,
}

impl HealthExchange {
    /// Exchanges what this monitor finds with all processes that use the same directory and transport (`udp`, `tcp`,
    /// `native`), and wakes these shards, which must use it, when others change a verdict. Creates the directory if
    /// there is none, for its user alone. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// The system's; others than the user may write to the directory; or the monitor takes part in an exchange already.
    pub fn join(
        directory: &Path,
        transport: &str,
        monitor: &PathHealthMonitor,
        shards: &[Arc<ShardHandle>],
    ) -> io::Result<HealthExchange> {
        prepare(directory)?;
        let (place, receiver) = Place::new(directory, transport)?;
        let place = Arc::new(place);
        let news = Arc::new(Notify::new());
        let observer = Arc::clone(&news);
        if !monitor.observe(Box::new(move || observer.notify_one())) {
            let _ = fs::remove_file(&place.own);
            return Err(io::Error::other("this path health monitor is shared already"));
        }
        let exchange = Exchange {
            place: Arc::clone(&place),
            receiver,
            news,
            monitor: monitor.clone(),
            shards: shards.iter().map(|handle| handle.downgrade()).collect(),
            clock: Clock::start(),
            told: Vec::new(),
            repeat_at: None,
            others: BTreeMap::new(),
            seen: monitor.changes(),
        };
        let task = tokio::spawn(exchange.run()).abort_handle();
        Ok(HealthExchange { place, task })
    }
}

impl Drop for HealthExchange {
    fn drop(&mut self) {
        self.task.abort();
        // Others need not wait until they forget.
        self.place.send(&Message::Verdicts(Vec::new()), &Clock::start());
        let _ = fs::remove_file(&self.place.own);
    }
}

/// Makes sure that the directory is there, and nobody else's.
fn prepare(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let found = fs::metadata(directory)?;
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user || found.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the directory must belong to the user that runs this and be closed to others (mode 0700)",
        ));
    }
    Ok(())
}

/// A socket in the directory, and the way to the others.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
    /// What names of the sockets of this exchange begin with.
    group: String,
    own: PathBuf,
    /// For sending, which never waits: readiness is of one's own socket, and says nothing of another's queue.
    sender: net::UnixDatagram,
}

impl Place {
    fn new(directory: &Path, transport: &str) -> io::Result<(Self, UnixDatagram)> {
        let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
        let group = format!("{namespace}-{transport}-");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = directory.join(format!("{group}{}-{number}", std::process::id()));
        // Left by a process that had our number before.
        match fs::remove_file(&own) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let sender = net::UnixDatagram::bind(&own)?;
        sender.set_nonblocking(true)?;
        let receiver = UnixDatagram::from_std(sender.try_clone()?)?;
        Ok((Place { directory: directory.to_owned(), group, own, sender }, receiver))
    }

    /// The sockets of the others.
    fn others(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let others = paths.filter(|path| *path != self.own && self.is_of_group(path));
        others.take(MAX_PROCESSES).collect()
    }

    fn is_of_group(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&self.group))
    }

    /// Sends to all others; who is slow misses it.
    fn send(&self, message: &Message, clock: &Clock) {
        let others = self.others();
        if others.is_empty() {
            return;
        }
        let text = message.text(clock);
        for other in others {
            match self.sender.send_to(text.as_bytes(), &other) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    // Its process is gone, and could not remove it.
                    let _ = fs::remove_file(&other);
                }
                Err(error) => {
                    tracing::debug!(%error, "path health was not told to another process")
                }
                Ok(_) => {}
            }
        }
    }
}

/// What another process holds.
#[derive(Debug)]
struct Held {
    verdicts: Vec<AddressPairVerdict>,
    until: Instant,
}

/// The task's own state.
struct Exchange {
    place: Arc<Place>,
    receiver: UnixDatagram,
    news: Arc<Notify>,
    monitor: PathHealthMonitor,
    shards: Vec<Weak<Shard>>,
    clock: Clock,
    /// The verdicts that others were told last.
    told: Vec<AddressPairVerdict>,
    /// When they are told again.
    repeat_at: Option<Instant>,
    others: BTreeMap<PathBuf, Held>,
    /// Changes of verdicts that the shards know.
    seen: u64,
}

impl Exchange {
    async fn run(mut self) {
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            let now = self.clock.now();
            let due = self.repeat_at.into_iter().chain(self.others.values().map(|held| held.until));
            let wait = due.min().map(|at| at.since(now));
            match next(&self.receiver, &self.news, wait, &mut buffer).await {
                Next::Message(length, sender) => self.on_message(&buffer[..length], sender),
                Next::News => self.tell(),
                Next::Time => self.on_time(),
            }
            self.wake_shards();
        }
    }

    /// Tells others what is new here.
    fn tell(&mut self) {
        let now = self.clock.now();
        let statistics = self.monitor.take_statistics();
        for part in statistics.chunks(MAX_LINES) {
            self.place.send(&Message::Statistics(part.to_vec()), &self.clock);
        }
        let mut verdicts = self.monitor.verdicts();
        verdicts.truncate(MAX_LINES);
        if verdicts != self.told {
            self.told = verdicts;
            self.tell_verdicts(now);
        }
    }

    fn tell_verdicts(&mut self, now: Instant) {
        self.place.send(&Message::Verdicts(self.told.clone()), &self.clock);
        self.repeat_at = (!self.told.is_empty()).then(|| now + REPEAT);
    }

    fn on_time(&mut self) {
        let now = self.clock.now();
        if self.repeat_at.is_some_and(|at| at <= now) {
            self.tell_verdicts(now);
        }
        let silent: Vec<PathBuf> = self
            .others
            .iter()
            .filter(|(_, held)| held.until <= now)
            .map(|(sender, _)| sender.clone())
            .collect();
        for sender in silent {
            self.hold(now, sender, Vec::new());
        }
    }

    fn on_message(&mut self, text: &[u8], sender: Option<PathBuf>) {
        let Some(sender) = sender.filter(|sender| self.place.is_of_group(sender)) else { return };
        let now = self.clock.now();
        match Message::read(text, &self.clock) {
            None => tracing::debug!("another process said of path health what cannot be read"),
            Some(Message::Statistics(parts)) => {
                for (address_pair, part) in parts {
                    self.monitor.add_statistics(now, address_pair, &part);
                }
            }
            Some(Message::Verdicts(verdicts)) => self.hold(now, sender, verdicts),
        }
    }

    /// Another process holds these verdicts now, and none of those that it held before.
    fn hold(&mut self, now: Instant, sender: PathBuf, verdicts: Vec<AddressPairVerdict>) {
        if self.others.len() >= MAX_PROCESSES && !self.others.contains_key(&sender) {
            return;
        }
        for verdict in &verdicts {
            self.monitor.adopt(now, verdict);
        }
        let before = if verdicts.is_empty() {
            self.others.remove(&sender)
        } else {
            self.others.insert(sender, Held { verdicts, until: now + FORGET })
        };
        let held: BTreeSet<AddressPair> = self
            .others
            .values()
            .flat_map(|held| held.verdicts.iter().map(|verdict| verdict.address_pair))
            .collect();
        for verdict in before.into_iter().flat_map(|before| before.verdicts) {
            if !held.contains(&verdict.address_pair) {
                self.monitor.withdraw(&verdict.address_pair);
            }
        }
    }

    /// Connections learn of verdicts when their shard does something, so it is made to.
    fn wake_shards(&mut self) {
        let changes = self.monitor.changes();
        if core::mem::replace(&mut self.seen, changes) != changes {
            for shard in self.shards.iter().filter_map(Weak::upgrade) {
                shard.see_path_health();
            }
        }
    }
}

/// What the task waits for.
enum Next {
    /// A message of so many bytes.
    Message(usize, Option<PathBuf>),
    /// The monitor was told something.
    News,
    /// Something is due.
    Time,
}

async fn next(
    socket: &UnixDatagram,
    news: &Notify,
    wait: Option<Duration>,
    buffer: &mut [u8],
) -> Next {
    let mut notified = pin!(news.notified());
    let mut sleep = pin!(tokio::time::sleep(wait.unwrap_or(Duration::MAX)));
    poll_fn(|cx| {
        if let Poll::Ready(received) = receive(socket, cx, buffer) {
            return Poll::Ready(received);
        }
        if notified.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Next::News);
        }
        Pin::as_mut(&mut sleep).poll(cx).map(|()| Next::Time)
    })
    .await
}

fn receive(socket: &UnixDatagram, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Next> {
    let mut buffer = ReadBuf::new(buffer);
    socket.poll_recv_from(cx, &mut buffer).map(|received| {
        let sender = received.ok().and_then(|from| from.as_pathname().map(Path::to_owned));
        Next::Message(buffer.filled().len(), sender)
    })
}

#[cfg(test)]
mod tests;
