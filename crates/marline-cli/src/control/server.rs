//! Server side of the control socket.

use crate::memory;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline::monitor::MonitorEvent;
use marline::paths::PathEvent;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::JoinHandle;

use super::path_names::PathNames;
use super::protocol::{Answer, Clients, Command, Event, Hello, Request, Response};
use super::{Handle, socket_path, views};

/// Maximum number of concurrent control connections.
const MAX_PEERS: usize = 32;

/// Longest request line in bytes.
const MAX_LINE: u64 = 4_096;

/// A control socket that is being served. Dropping it ends the service and removes the file.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    copy: OwnedFd,
    task: JoinHandle<()>,
}

impl ControlServer {
    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Duplicates the descriptor of the listening socket.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.copy.try_clone()
    }

    /// Stops accepting requests, because another process now serves the socket.
    pub fn stop_accepting(&mut self) {
        self.task.abort();
        self.path = PathBuf::new();
    }

    /// Frees the path for another process's socket, so that a tool that searches for a process finds the other one.
    /// Requests are still accepted, at this path with the suffix `.older`.
    pub fn rename_socket_aside(&mut self) {
        let mut name = self.path.clone().into_os_string();
        name.push(".older");
        let aside = PathBuf::from(name);
        match std::fs::rename(&self.path, &aside) {
            Ok(()) => self.path = aside,
            Err(error) => {
                tracing::debug!(%error, "cannot rename the control socket")
            }
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.task.abort();
        if self.path.as_os_str().is_empty() {
            return;
        }
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves `handle` at `path` until the result is dropped.
///
/// # Errors
/// Another process already serves there, or the socket cannot be created.
pub fn serve(path: &Path, handle: Arc<dyn Handle>) -> io::Result<ControlServer> {
    serve_at(path, listen(path)?, handle)
}

/// Serves `handle` on a listening socket that another process created at `path`.
///
/// # Errors
/// The descriptor is not a listening Unix socket.
pub fn serve_inherited(
    path: &Path,
    listening: OwnedFd,
    handle: Arc<dyn Handle>,
) -> io::Result<ControlServer> {
    let listener = std::os::unix::net::UnixListener::from(listening);
    listener.set_nonblocking(true)?;
    serve_at(path, UnixListener::from_std(listener)?, handle)
}

fn serve_at(
    path: &Path,
    listener: UnixListener,
    handle: Arc<dyn Handle>,
) -> io::Result<ControlServer> {
    let copy = listener.as_fd().try_clone_to_owned()?;
    let task = tokio::spawn(accept(listener, handle));
    Ok(ControlServer { path: path.to_path_buf(), copy, task })
}

/// Returns a listening socket at `path` for this user only. Peers still have to be checked with [`is_allowed`].
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        socket_path::prepare(directory)?;
    }
    let listener = bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Binds the socket, replacing one that a dead process left behind.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match std::os::unix::net::UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                _ => Err(error),
            }
        }
        result => result,
    }
}

async fn accept(listener: UnixListener, handle: Arc<dyn Handle>) {
    let places = Arc::new(Semaphore::new(MAX_PEERS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) if is_allowed(&stream) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    // A peer that disconnects in the middle of a line is not an error.
                    let _ = serve_connection(stream, &*handle).await;
                    drop(place);
                });
            }
            Ok(_) => {}
            // The process is out of descriptors: wait until some are free.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    }
}

/// Returns true if the peer is the same user or root. The file's mode also ensures this, but is set only after the
/// file exists.
pub fn is_allowed(stream: &UnixStream) -> bool {
    let ours = rustix::process::getuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == ours || peer.uid() == 0)
}

async fn serve_connection(stream: UnixStream, handle: &dyn Handle) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(line) = read_line(&mut reader).await? {
        let mut told = None;
        let (response, monitor) = match serde_json::from_slice::<Request>(&line) {
            Ok(Request { id, command: Command::Upgrade { program, patience_s } }) => {
                let result = match handle.upgrade(program, patience_s) {
                    Some(pending) => pending.outcome().await,
                    None => {
                        Err("only `marline server` and `marline serve` can be upgraded".to_owned())
                    }
                };
                let result = result.map(|(upgraded, acknowledge)| {
                    told = Some(acknowledge);
                    Answer::Upgraded(upgraded)
                });
                (respond(id, result), None)
            }
            Ok(Request { id, command: Command::Reload }) => {
                let result = match handle.reload() {
                    Some(pending) => pending.outcome().await,
                    None => Err("this process cannot reload its options".to_owned()),
                };
                (respond(id, result.map(Answer::Reloaded)), None)
            }
            Ok(request) => {
                // Subscribed before the answer is written, so that no later event is missed.
                let events = match request.command {
                    Command::Monitor { decisions } => Some(Events::subscribe(handle, decisions)),
                    _ => None,
                };
                (answer(request, handle), events)
            }
            Err(error) => (refusal(None, format!("invalid request: {error}")), None),
        };
        write_line(&mut writer, &response).await?;
        // A process that is about to stop waits until the answer is sent.
        drop(told);
        if let Some(events) = monitor {
            return forward(events, handle, reader, writer).await;
        }
    }
    Ok(())
}

/// Returns a line without its end, or `None` at the end of the stream. A line above the limit is an error, because its
/// rest could not be distinguished from a new request.
async fn read_line(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let count = reader.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if (count as u64) < MAX_LINE => Ok(None),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "request line too long")),
    }
}

async fn write_line<T: serde::Serialize>(writer: &mut OwnedWriteHalf, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

fn answer(request: Request, handle: &dyn Handle) -> Response {
    let id = request.id;
    let result = match request.command {
        Command::Hello => Ok(Answer::Hello(Hello {
            role: handle.role().to_owned(),
            version: crate::VERSION.to_owned(),
            pid: std::process::id(),
            path_health: handle.address_pairs().is_some(),
            trouble: handle.last_trouble(),
            mode: handle.mode().map(|mode| mode.name().to_owned()),
            repairs_sent: handle.repairs().0,
            bytes_repaired: handle.repairs().1,
            memory: memory::budget().usage().into(),
        })),
        Command::Connections => Ok(Answer::Connections(handle.connections())),
        Command::Paths => Ok(Answer::Paths(handle.paths())),
        Command::AddressPairs => {
            Ok(Answer::AddressPairs(handle.address_pairs().unwrap_or_default()))
        }
        Command::Clients => Ok(Answer::Clients(Clients::from(&handle.service()))),
        Command::Targets => handle.targets().map(Answer::Targets).ok_or_else(|| {
            "a server does not reveal the targets of its clients: query the client".to_owned()
        }),
        Command::Monitor { decisions: _ } => Ok(Answer::Monitoring),
        Command::SetScheduler { scheduler, connection } => {
            handle.set_scheduler(connection, &scheduler).map(Answer::Changed)
        }
        Command::SetPath { path, change } => handle.set_path(&path, change).map(|()| Answer::Done),
        // These commands take time, so the caller handles them.
        Command::Upgrade { .. } | Command::Reload => {
            Err("internal error: unexpected request".to_owned())
        }
    };
    respond(id, result)
}

fn respond(id: Option<u64>, result: Result<Answer, String>) -> Response {
    match result {
        Ok(answer) => Response { id, ok: Some(answer), error: None },
        Err(error) => refusal(id, error),
    }
}

fn refusal(id: Option<u64>, error: String) -> Response {
    Response { id, ok: None, error: Some(error) }
}

/// Events of connections, of paths, and decisions of schedulers.
struct Events {
    events: broadcast::Receiver<MonitorEvent>,
    path_events: Option<broadcast::Receiver<PathEvent>>,
    decisions: Option<broadcast::Receiver<MonitorEvent>>,
}

impl Events {
    fn subscribe(handle: &dyn Handle, decisions: bool) -> Self {
        Events {
            events: handle.events(),
            path_events: handle.path_events(),
            decisions: if decisions { handle.decisions() } else { None },
        }
    }
}

/// Returns the next event. Pends forever if there is no receiver.
async fn next<T: Clone>(
    events: &mut Option<broadcast::Receiver<T>>,
) -> Result<T, broadcast::error::RecvError> {
    match events {
        Some(events) => events.recv().await,
        None => std::future::pending().await,
    }
}

/// Sends events until the peer closes or the process ends.
async fn forward(
    mut all: Events,
    handle: &dyn Handle,
    mut reader: BufReader<OwnedReadHalf>,
    mut writer: OwnedWriteHalf,
) -> io::Result<()> {
    let mut ignored = [0u8; 256];
    let mut names = PathNames::default();
    loop {
        // Decisions come last: they may always be pending, and the other events determine the path of a subflow.
        let event = tokio::select! {
            biased;
            read = reader.read(&mut ignored) => match read? {
                0 => return Ok(()),
                _ => continue,
            },
            event = all.events.recv() => event.map(|event| {
                let number = handle.number(event.connection);
                names.on_event(number, &event);
                Event::from_monitor_event(&event, number)
            }),
            event = next(&mut all.path_events) => event.map(|event| Event::from(&event)),
            event = next(&mut all.decisions) => event.map(|event| decision_event(&event, &mut names, handle)),
        };
        let event = match event {
            Ok(event) => event,
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                Event { event: "LAGGED".into(), missed: Some(missed), ..Event::default() }
            }
        };
        write_line(&mut writer, &event).await?;
    }
}

/// Returns a decision as text.
fn decision_event(event: &MonitorEvent, names: &mut PathNames, handle: &dyn Handle) -> Event {
    let (number, names) = (handle.number(event.connection), RefCell::new(names));
    let name = |id| names.borrow_mut().name(number, id, handle);
    views::decision(event, number, &name)
        .unwrap_or_else(|| Event::from_monitor_event(event, number))
}
