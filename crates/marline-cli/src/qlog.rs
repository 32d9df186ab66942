//! Traces of a running program: a qlog of each connection, in a directory (`--qlog DIR`, docs/spec/qlog.md).
//!
//! Everything has a bound: a file has [`Bounds::file_bytes`], a program keeps its newest [`Bounds::files`]. A
//! connection that was never established has no file, so that strangers' SYNs do not push others out. While the disk is
//! full, or the directory is gone, events are counted instead of written; each trace goes on with their number as soon
//! as it can be written, with whole records. Connections go on as if nothing had been asked for.

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

use crate::control::ConnectionNumbers;
use crate::times::time_of_day;

/// Bytes of a connection that are gathered before they are written.
const GATHER_BYTES: usize = 16 << 10;
/// Longest time that they wait while more come.
const GATHER_TIME: std::time::Duration = std::time::Duration::from_millis(500);
/// Between two attempts to write where it cannot be written.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);
/// Written for so long without failing, it is over.
const CALM: std::time::Duration = std::time::Duration::from_secs(60);
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
    numbers: ConnectionNumbers,
    /// Distinguishes the files of one run of the program from those of another.
    run: u64,
    bounds: Bounds,
    open: BTreeMap<ConnectionId, Open>,
    /// Files of this program, the oldest first.
    files: VecDeque<PathBuf>,
    begun: u64,
    trouble: Trouble,
}

/// What keeps traces from being written.
#[derive(Debug, Default)]
struct Trouble {
    /// When it was told, if it is not over.
    told_at: Option<Instant>,
    last_at: Option<Instant>,
}

impl Trouble {
    fn is_there(&mut self, directory: &Path, error: &io::Error) {
        let now = Instant::now();
        self.last_at = Some(now);
        if self.told_at.is_none() {
            self.told_at = Some(now);
            let directory = directory.display();
            tracing::warn!(%directory, %error, "cannot write traces: events will be missing");
        }
    }

    /// It was so a moment ago: another attempt would only cost time.
    fn is_recent(&self) -> bool {
        self.last_at.is_some_and(|at| at.elapsed() < RETRY)
    }

    /// Something was written. Where there is room for a little now and then, nobody is told each time.
    fn is_over(&mut self) {
        if self.told_at.is_some() && self.last_at.is_some_and(|at| at.elapsed() >= CALM) {
            *self = Trouble::default();
            tracing::info!("writing traces again: earlier events are missing");
        }
    }
}

/// Makes a directory for traces, unless it is there.
///
/// # Errors
/// It cannot be created.
pub fn make_dir(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))
}

/// A connection that is traced.
#[derive(Debug)]
struct Open {
    trace: Trace,
    /// The file's first record.
    header: String,
    gathered: String,
    /// Events in that.
    events: u64,
    /// Events of before that are neither there nor in the file.
    missed: u64,
    /// Bytes of records of theirs.
    unkept_bytes: u64,
    /// When the last event was.
    last_at: marline::Instant,
    written_at: Instant,
    /// `None` until it is established.
    file: Option<PathBuf>,
    ended_at: Option<Instant>,
}

impl Traces {
    /// Traces of a program of this role in a directory, which is created if necessary. Connections have these numbers.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn in_dir(
        directory: &Path,
        (role, vantage): (&'static str, Vantage),
        numbers: ConnectionNumbers,
        bounds: Bounds,
    ) -> anyhow::Result<Traces> {
        make_dir(directory)?;
        let run = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Ok(Traces {
            directory: directory.to_owned(),
            role,
            vantage,
            numbers,
            run: run as u64,
            bounds,
            open: BTreeMap::new(),
            files: VecDeque::new(),
            begun: 0,
            trouble: Trouble::default(),
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
            connection: self.numbers.of(event.connection),
            wall_clock: Some(time_of_day()),
        };
        let mut first = String::new();
        let trace = Trace::begin(&header, event.at, self.bounds.file_bytes, &mut first);
        let open = Open {
            trace,
            header: first,
            gathered: String::new(),
            events: 0,
            missed: 0,
            unkept_bytes: 0,
            last_at: event.at,
            written_at: now,
            file: None,
            ended_at: None,
        };
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
        match open.write() {
            Ok(false) => {}
            Ok(true) => self.trouble.is_over(),
            Err(error) => self.trouble.is_there(&self.directory, &error),
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.finish(id);
        self.open.remove(&id);
    }

    /// Nothing more will come.
    fn finish(&mut self, id: ConnectionId) {
        if let Some(open) = self.open.get_mut(&id) {
            open.tell_missed();
        }
        self.write(id);
    }
}

impl Open {
    /// Gathers the records of an event; while nothing can be written, more than a little is only counted.
    fn gather(&mut self, event: &MonitorEvent, in_trouble: bool) {
        self.last_at = event.at;
        if in_trouble && (self.missed > 0 || self.gathered.len() >= GATHER_BYTES) {
            self.leave_out();
            self.missed += 1;
            return;
        }
        if self.trace.is_cut() && self.missed == 0 {
            return;
        }
        self.tell_missed();
        self.trace.event(event, &mut self.gathered);
        self.events += 1;
    }

    /// What was gathered will not be in the trace.
    fn leave_out(&mut self) {
        self.missed += std::mem::take(&mut self.events);
        self.unkept_bytes += self.gathered.len() as u64;
        self.gathered.clear();
    }

    /// Says how many are missing, in front of what is gathered now.
    fn tell_missed(&mut self) {
        if self.missed > 0 && self.gathered.is_empty() {
            let bytes = std::mem::take(&mut self.unkept_bytes);
            self.trace.note_missed(self.last_at, self.missed, bytes, &mut self.gathered);
        }
    }

    /// Writes what was gathered, if it has a file; whether that was anything. What cannot be written is left out.
    fn write(&mut self) -> io::Result<bool> {
        let Some(path) = &self.file else { return Ok(false) };
        if self.gathered.is_empty() {
            return Ok(false);
        }
        let written = append(path, &self.header, &self.gathered);
        self.written_at = Instant::now();
        match &written {
            Ok(()) => {
                (self.missed, self.events) = (0, 0);
                self.gathered.clear();
            }
            Err(_) => self.leave_out(),
        }
        written.map(|()| true)
    }

    /// It is time to write.
    fn is_due(&self) -> bool {
        self.gathered.len() >= GATHER_BYTES || self.written_at.elapsed() >= GATHER_TIME
    }
}

/// Appends whole records to a file, behind the header if it has nothing yet, or leaves it as it is.
///
/// It is opened each time: thousands of connections must not hold thousands of files.
fn append(path: &Path, header: &str, records: &str) -> io::Result<()> {
    let mut file: File = OpenOptions::new().append(true).create(true).open(path)?;
    let before = file.metadata()?.len();
    let first = if before == 0 { header } else { "" };
    let written =
        file.write_all(first.as_bytes()).and_then(|()| file.write_all(records.as_bytes()));
    if written.is_err() {
        // A torn record would make what follows unreadable, and an empty file is no trace.
        let undone = if before == 0 { fs::remove_file(path) } else { file.set_len(before) };
        undone?;
    }
    written
}

impl EventObserver for Traces {
    fn event(&mut self, event: &MonitorEvent) {
        let id = event.connection;
        if matches!(event.kind, MonitorKind::Created(_)) {
            self.begin(event);
        }
        let in_trouble = self.trouble.is_recent();
        let Some(open) = self.open.get_mut(&id) else { return };
        open.gather(event, in_trouble);
        // What happens seldom is there at once, for whoever looks on.
        let seldom =
            !matches!(event.kind, MonitorKind::Traffic { .. } | MonitorKind::Decided { .. });
        let due = !in_trouble && (seldom || open.is_due());
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
}

impl Drop for Traces {
    fn drop(&mut self) {
        let ids: Vec<ConnectionId> = self.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.finish(id));
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

    fn in_dir(directory: &Path, bounds: Bounds) -> Traces {
        let numbers = ConnectionNumbers::default();
        Traces::in_dir(directory, ("client", Vantage::Client), numbers, bounds).expect("traces")
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
        let mut traces = in_dir(directory.path(), bounds);
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
        let mut traces = in_dir(directory.path(), bounds);
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

    /// Numbers of events in a trace and of those that it says are missing, and whether it is whole.
    fn counted(file: &Path) -> (usize, u64, bool) {
        let recording = read(&fs::read_to_string(file).expect("a file")).expect("a trace");
        let (missed, told): (Vec<_>, Vec<_>) =
            recording.records.iter().partition(|record| record.name == "events_missed");
        let missed = missed.iter().map(|record| record.number("count").expect("a count")).sum();
        (told.len(), missed, !recording.torn)
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_the_trace_goes_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let (within, away) = (directory.path().join("traces"), directory.path().join("away"));
        let mut traces = in_dir(&within, Bounds::default());
        traces.event(&event(1, 1, MonitorKind::Created(ends())));
        traces.event(&event(1, 2, MonitorKind::Established(ends())));
        fs::rename(&within, &away).expect("it is there");
        // The first is not written, the others are not even gathered.
        let agreed = || MonitorKind::Fallback(marline::FallbackReason::SynWithoutOption);
        traces.event(&event(1, 3, agreed()));
        (4..1_004).for_each(|ms| traces.event(&data(1, ms)));
        // One that begins meanwhile has its header when it can be written.
        traces.event(&event(2, 1, MonitorKind::Created(ends())));
        traces.event(&event(2, 2, MonitorKind::Established(ends())));
        fs::rename(&away, &within).expect("it is there");
        std::thread::sleep(RETRY);
        traces.event(&event(1, 2_000, agreed()));
        traces.event(&data(1, 2_001));
        traces.event(&event(2, 2_002, MonitorKind::Closed(CloseReason::Finished)));
        drop(traces);
        let files = files(&within);
        assert_eq!(counted(&files[0]), (4, 1_001, true));
        assert_eq!(counted(&files[1]), (3, 0, true));
    }
}
