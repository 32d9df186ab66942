//! Traces of a running program: a qlog of each connection, in a directory (`--qlog DIR`, docs/spec/qlog.md).
//!
//! Everything has a bound: a file has [`Bounds::file_bytes`], a program keeps its newest [`Bounds::files`]. A
//! connection that was never established has no file, so that strangers' SYNs do not push others out. Where the disk is
//! full, or the directory is gone, that is said once and nothing more is written: connections go on as if nothing had
//! been asked for.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use marline::advanced::{EventObserver, SharedEventObserver};
use marline::{ConnectionId, MonitorEvent, MonitorKind};
use marline_qlog::{Header, Trace, Vantage};

use crate::times::time_of_day;

/// Bytes of a connection that are gathered before they are written.
const GATHER_BYTES: usize = 16 << 10;
/// Longest time that they wait while more come.
const GATHER_TIME: std::time::Duration = std::time::Duration::from_millis(500);
/// Connections that are traced at once.
const MOST_OPEN: usize = 1_024;
/// A connection that is over may still have segments for so long.
const AFTERMATH: std::time::Duration = std::time::Duration::from_secs(5);

/// What traces may take.
#[derive(Copy, Clone, Debug)]
pub struct Bounds {
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Files that are kept; the oldest of those before go.
    pub files: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { file_bytes: 64 << 20, files: 256 }
    }
}

/// The traces of a program.
#[derive(Debug)]
pub struct Traces {
    directory: PathBuf,
    role: &'static str,
    vantage: Vantage,
    /// Distinguishes the files of one run of the program from those of another.
    run: u64,
    bounds: Bounds,
    open: BTreeMap<ConnectionId, Open>,
    /// Files of this program, the oldest first.
    files: VecDeque<PathBuf>,
    begun: u64,
    failed: bool,
}

/// A connection that is traced.
#[derive(Debug)]
struct Open {
    trace: Trace,
    gathered: String,
    written_at: Instant,
    /// `None` until it is established.
    file: Option<PathBuf>,
    ended_at: Option<Instant>,
}

impl Traces {
    /// Traces of a program of this role in a directory, which is created if necessary.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn in_dir(
        directory: &Path,
        role: &'static str,
        vantage: Vantage,
        bounds: Bounds,
    ) -> anyhow::Result<Traces> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
        let run = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Ok(Traces {
            directory: directory.to_owned(),
            role,
            vantage,
            run: run as u64,
            bounds,
            open: BTreeMap::new(),
            files: VecDeque::new(),
            begun: 0,
            failed: false,
        })
    }

    /// As an observer for a client or server.
    #[must_use]
    pub fn observer(self) -> SharedEventObserver {
        Arc::new(Mutex::new(self))
    }

    fn begin(&mut self, event: &MonitorEvent) {
        let now = Instant::now();
        let over = |open: &Open| open.ended_at.is_some_and(|at| now.duration_since(at) > AFTERMATH);
        let done: Vec<ConnectionId> =
            self.open.iter().filter(|(_, open)| over(open)).map(|(id, _)| *id).collect();
        done.into_iter().for_each(|id| self.close(id));
        if self.open.len() >= MOST_OPEN {
            return;
        }
        let header = Header {
            title: format!("marline {}", self.role),
            vantage: self.vantage,
            connection: event.connection.0,
            wall_clock: Some(time_of_day()),
        };
        let mut gathered = String::new();
        let trace = Trace::begin(&header, event.at, self.bounds.file_bytes, &mut gathered);
        let open = Open { trace, gathered, written_at: now, file: None, ended_at: None };
        self.open.insert(event.connection, open);
    }

    /// It is established: a file is worth its place.
    fn name(&mut self, id: ConnectionId) {
        let Some(open) = self.open.get_mut(&id).filter(|open| open.file.is_none()) else { return };
        self.begun += 1;
        let name = format!("{}-{}-{:06}.sqlog", self.role, self.run, self.begun);
        let file = self.directory.join(name);
        open.file = Some(file.clone());
        self.files.push_back(file);
        if self.files.len() > self.bounds.files
            && let Some(oldest) = self.files.pop_front()
        {
            self.open.retain(|_, open| open.file.as_ref() != Some(&oldest));
            // Somebody may have moved it away.
            let _ = fs::remove_file(oldest);
        }
    }

    fn write(&mut self, id: ConnectionId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if let Err(error) = open.write() {
            let directory = self.directory.display();
            tracing::warn!(%directory, %error, "cannot write traces; none are written from now on");
            self.failed = true;
            self.open.clear();
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.write(id);
        self.open.remove(&id);
    }
}

impl Open {
    /// Writes what was gathered, if it has a file.
    fn write(&mut self) -> io::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        if self.gathered.is_empty() {
            return Ok(());
        }
        // Opened each time: thousands of connections must not hold thousands of files.
        let mut file: File = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(self.gathered.as_bytes())?;
        self.gathered.clear();
        self.written_at = Instant::now();
        Ok(())
    }

    /// It is time to write.
    fn is_due(&self) -> bool {
        self.gathered.len() >= GATHER_BYTES || self.written_at.elapsed() >= GATHER_TIME
    }
}

impl EventObserver for Traces {
    fn event(&mut self, event: &MonitorEvent) {
        if self.failed {
            return;
        }
        let id = event.connection;
        if matches!(event.kind, MonitorKind::Created(_)) {
            self.begin(event);
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        open.trace.event(event, &mut open.gathered);
        // What happens seldom is there at once, for whoever looks on.
        let seldom =
            !matches!(event.kind, MonitorKind::Traffic { .. } | MonitorKind::Decided { .. });
        let due = seldom || open.is_due();
        match event.kind {
            MonitorKind::Established(_) | MonitorKind::Fallback(_) => self.name(id),
            MonitorKind::Closed(_) if open.file.is_none() => {
                self.open.remove(&id);
                return;
            }
            MonitorKind::Closed(_) => open.ended_at = Some(Instant::now()),
            // Nothing is kept of what was never established beyond this.
            _ if open.file.is_none() && open.gathered.len() > GATHER_BYTES => {
                self.open.remove(&id);
                return;
            }
            _ => {}
        }
        if due {
            self.write(id);
        }
    }

    fn is_open(&self) -> bool {
        !self.failed
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        let ids: Vec<ConnectionId> = self.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.write(id));
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use marline::policy::{DataRange, Dsn, SubflowId};
    use marline::{CloseReason, FourTuple, Traffic};
    use marline_qlog::read;

    use super::*;

    fn at_ms(ms: u64) -> marline::Instant {
        marline::Instant::from_nanos(ms * 1_000_000)
    }

    fn event(connection: u64, ms: u64, kind: MonitorKind) -> MonitorEvent {
        MonitorEvent { at: at_ms(ms), connection: ConnectionId(connection), kind }
    }

    fn ends() -> FourTuple {
        let end: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        FourTuple { local: end, remote: end }
    }

    fn data(connection: u64, ms: u64) -> MonitorEvent {
        let data = DataRange::new(Dsn(0), Dsn(100));
        let what = Traffic::DataReceived { on: SubflowId(0), data, duplicate_bytes: 0 };
        event(connection, ms, MonitorKind::Traffic { what: Box::new(what), missed: 0 })
    }

    fn run(traces: &mut Traces, connection: u64, events: u64) {
        traces.event(&event(connection, 1, MonitorKind::Created(ends())));
        traces.event(&event(connection, 2, MonitorKind::Established(ends())));
        (3..3 + events).for_each(|ms| traces.event(&data(connection, ms)));
        let closed = MonitorKind::Closed(CloseReason::Finished);
        traces.event(&event(connection, 3 + events, closed));
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).expect("a directory");
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    #[test]
    fn files_and_their_sizes_have_bounds_and_what_is_kept_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let bounds = Bounds { file_bytes: 20_000, files: 3 };
        let mut traces =
            Traces::in_dir(directory.path(), "client", Vantage::Client, bounds).expect("traces");
        (0..10).for_each(|connection| run(&mut traces, connection, 1_000));
        drop(traces);
        let files = files(directory.path());
        assert_eq!(files.len(), 3);
        for (file, last) in files.iter().zip([8, 9, 10]) {
            assert!(file.display().to_string().ends_with(&format!("-{last:06}.sqlog")), "{file:?}");
            let text = fs::read_to_string(file).expect("a file");
            assert!((19_000..20_200).contains(&text.len()), "{}", text.len());
            let recording = read(&text).expect("a trace");
            assert_eq!(recording.records.last().expect("records").name, "trace_cut");
        }
    }

    #[test]
    fn a_connection_that_was_never_established_has_no_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let bounds = Bounds::default();
        let mut traces =
            Traces::in_dir(directory.path(), "server", Vantage::Server, bounds).expect("traces");
        for connection in 0..5_000 {
            traces.event(&event(connection, 1, MonitorKind::Created(ends())));
            traces.event(&data(connection, 2));
            traces.event(&event(connection, 3, MonitorKind::Closed(CloseReason::TimedOut)));
        }
        assert!(traces.open.is_empty());
        // Nor do those that never end take more than their share.
        for connection in 5_000..10_000 {
            traces.event(&event(connection, 1, MonitorKind::Created(ends())));
        }
        assert_eq!(traces.open.len(), MOST_OPEN);
        drop(traces);
        assert_eq!(files(directory.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_directory_that_is_gone_ends_tracing_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let within = directory.path().join("traces");
        let mut traces =
            Traces::in_dir(&within, "client", Vantage::Client, Bounds::default()).expect("traces");
        run(&mut traces, 1, 10);
        assert!(traces.is_open());
        fs::remove_dir_all(&within).expect("it was there");
        run(&mut traces, 2, 10);
        assert!(!traces.is_open() && traces.open.is_empty());
        traces.event(&data(2, 99));
    }
}
