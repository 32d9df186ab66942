//! Traces of a running program: a qlog of each connection, in a directory (`--qlog DIR`, docs/spec/qlog.md).
//!
//! All sizes are bounded: a file has at most [`Bounds::file_bytes`], and a program keeps its newest [`Bounds::files`].
//! A connection that was never established has no file, so that SYNs of unknown peers do not displace other files.
//! While the disk is full or the directory is missing, events are counted instead of written. Each trace continues with
//! that count, in whole records, as soon as it can be written. Connections are not affected.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use marline::advanced::{EventObserver, SharedEventObserver};
use marline::monitor::{ConnectionId, MonitorEvent, MonitorKind};
use marline_qlog::{Header, Trace, Vantage};

use crate::control::ConnectionNumbers;
use crate::times::time_of_day;

/// Size of a connection's buffered records that triggers a write, in bytes.
const GATHER_BYTES: usize = 16 << 10;
/// Longest time that a connection's records are buffered.
const GATHER_TIME: std::time::Duration = std::time::Duration::from_millis(500);
/// Interval between attempts after a failure to write.
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);
/// Time without a failure after which writing counts as restored.
const RECOVERY_TIME: std::time::Duration = std::time::Duration::from_secs(60);
/// Maximum number of connections traced concurrently.
const MAX_OPEN_TRACES: usize = 1_024;
/// Time after the end of a connection in which segments of it may still arrive.
const POST_END_PERIOD: std::time::Duration = std::time::Duration::from_secs(5);

/// Limits on traces.
#[derive(Copy, Clone, Debug)]
pub struct Bounds {
    /// Largest size of a file in bytes.
    pub file_bytes: u64,
    /// Number of files kept. Beyond it, the oldest are removed.
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
    /// Distinguishes the files of this run of the program from those of others.
    run: u64,
    bounds: Bounds,
    open: BTreeMap<ConnectionId, Open>,
    /// Files of this program, the oldest first.
    files: VecDeque<PathBuf>,
    started_count: u64,
    trouble: WriteFailure,
}

/// A failure to write traces.
#[derive(Debug, Default)]
struct WriteFailure {
    /// Time at which the failure was logged. `None` once it has ended.
    logged_at: Option<Instant>,
    last_at: Option<Instant>,
}

impl WriteFailure {
    fn on_failure(&mut self, directory: &Path, error: &io::Error) {
        let now = Instant::now();
        self.last_at = Some(now);
        if self.logged_at.is_none() {
            self.logged_at = Some(now);
            let directory = directory.display();
            tracing::warn!(%directory, %error, "cannot write traces: events will be missing");
        }
    }

    /// Returns true if the last failure was a moment ago, so that another attempt would waste time.
    fn is_recent(&self) -> bool {
        self.last_at.is_some_and(|at| at.elapsed() < RETRY_INTERVAL)
    }

    /// Handles a successful write. After a period without failures, logs once that writing works again.
    fn on_success(&mut self) {
        if self.logged_at.is_some() && self.last_at.is_some_and(|at| at.elapsed() >= RECOVERY_TIME)
        {
            *self = WriteFailure::default();
            tracing::info!("writing traces again: earlier events are missing");
        }
    }
}

/// Creates a directory for traces unless it exists.
///
/// # Errors
/// The directory cannot be created.
pub fn make_dir(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))
}

/// A connection that is being traced.
#[derive(Debug)]
struct Open {
    trace: Trace,
    /// First record of the file, with its line break.
    header: String,
    gathered: String,
    /// Number of events in `gathered`.
    events: u64,
    /// Earlier events that are in neither `gathered` nor the file.
    missed: u64,
    /// Size of the missed events' records, in bytes.
    unwritten_bytes: u64,
    /// Time of the last event.
    last_at: marline::time::Instant,
    written_at: Instant,
    /// `None` until the connection is established.
    file: Option<PathBuf>,
    ended_at: Option<Instant>,
}

impl Traces {
    /// Creates traces in a directory, for a program of this role, with these numbers of connections. The directory is
    /// created if necessary.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn in_dir(
        directory: &Path,
        role: &'static str,
        vantage: Vantage,
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
            started_count: 0,
            trouble: WriteFailure::default(),
        })
    }

    /// Returns an observer for a client or server.
    #[must_use]
    pub fn observer(self) -> SharedEventObserver {
        Arc::new(Mutex::new(self))
    }

    fn begin_trace(&mut self, event: &MonitorEvent) {
        let now = Instant::now();
        let over =
            |open: &Open| open.ended_at.is_some_and(|at| now.duration_since(at) > POST_END_PERIOD);
        let done: Vec<ConnectionId> =
            self.open.iter().filter(|(_, open)| over(open)).map(|(id, _)| *id).collect();
        done.into_iter().for_each(|id| self.close(id));
        if self.open.len() >= MAX_OPEN_TRACES {
            return;
        }
        let header = Header {
            title: format!("marline {}", self.role),
            vantage: self.vantage,
            connection: self.numbers.number_of(event.connection),
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
            unwritten_bytes: 0,
            last_at: event.at,
            written_at: now,
            file: None,
            ended_at: None,
        };
        self.open.insert(event.connection, open);
    }

    /// Creates the file name for an established connection.
    fn name(&mut self, id: ConnectionId) {
        let Some(open) = self.open.get_mut(&id).filter(|open| open.file.is_none()) else { return };
        self.started_count += 1;
        let name = format!("{}-{}-{:06}.sqlog", self.role, self.run, self.started_count);
        let file = self.directory.join(name);
        open.file = Some(file.clone());
        self.files.push_back(file);
        if self.files.len() > self.bounds.files
            && let Some(oldest) = self.files.pop_front()
        {
            self.open.retain(|_, open| open.file.as_ref() != Some(&oldest));
            // The file may have been moved away.
            let _ = fs::remove_file(oldest);
        }
    }

    fn write(&mut self, id: ConnectionId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        match open.write() {
            Ok(false) => {}
            Ok(true) => self.trouble.on_success(),
            Err(error) => self.trouble.on_failure(&self.directory, &error),
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.finish(id);
        self.open.remove(&id);
    }

    /// Finishes a trace.
    fn finish(&mut self, id: ConnectionId) {
        if let Some(open) = self.open.get_mut(&id) {
            open.record_missed();
        }
        self.write(id);
    }
}

impl Open {
    /// Buffers the records of an event. While nothing can be written, events beyond a small buffer are only
    /// counted.
    fn buffer_event(&mut self, event: &MonitorEvent, in_trouble: bool) {
        self.last_at = event.at;
        if in_trouble && (self.missed > 0 || self.gathered.len() >= GATHER_BYTES) {
            self.drop_buffered_records();
            self.missed += 1;
            return;
        }
        if self.trace.is_cut() && self.missed == 0 {
            return;
        }
        self.record_missed();
        self.trace.event(event, &mut self.gathered);
        self.events += 1;
    }

    /// Drops the buffered records and counts their events as missing.
    fn drop_buffered_records(&mut self) {
        self.missed += std::mem::take(&mut self.events);
        self.unwritten_bytes += self.gathered.len() as u64;
        self.gathered.clear();
    }

    /// Records how many events are missing, before the records buffered next.
    fn record_missed(&mut self) {
        if self.missed > 0 && self.gathered.is_empty() {
            let bytes = std::mem::take(&mut self.unwritten_bytes);
            self.trace.record_missed(self.last_at, self.missed, bytes, &mut self.gathered);
        }
    }

    /// Writes the buffered records, if there is a file. Returns true if there were any. Records that cannot be written
    /// are dropped.
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
            Err(_) => self.drop_buffered_records(),
        }
        written.map(|()| true)
    }

    /// Returns true if it is time to write.
    fn is_due(&self) -> bool {
        self.gathered.len() >= GATHER_BYTES || self.written_at.elapsed() >= GATHER_TIME
    }
}

/// Appends whole records to a file, after the header if the file is empty. On failure, the file is left unchanged.
///
/// The file is opened each time, so that thousands of connections do not hold thousands of files open.
fn append(path: &Path, header: &str, records: &str) -> io::Result<()> {
    let mut file: File = OpenOptions::new().append(true).create(true).open(path)?;
    let before = file.metadata()?.len();
    let first = if before == 0 { header } else { "" };
    let written =
        file.write_all(first.as_bytes()).and_then(|()| file.write_all(records.as_bytes()));
    if written.is_err() {
        // A partial record would make later ones unreadable, and an empty file is not a valid trace.
        let undone = if before == 0 { fs::remove_file(path) } else { file.set_len(before) };
        undone?;
    }
    written
}

impl EventObserver for Traces {
    fn event(&mut self, event: &MonitorEvent) {
        let id = event.connection;
        if matches!(event.kind, MonitorKind::Created(_)) {
            self.begin_trace(event);
        }
        let in_trouble = self.trouble.is_recent();
        let Some(open) = self.open.get_mut(&id) else { return };
        open.buffer_event(event, in_trouble);
        // Rare events are written immediately, for a user who watches the file.
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
            // Records of a connection that is not established are dropped beyond this size.
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

    use marline::monitor::{CloseReason, FourTuple, Traffic};
    use marline::policy::{DataRange, Dsn, SubflowId};
    use marline_qlog::read;

    use super::*;

    fn at_ms(ms: u64) -> marline::time::Instant {
        marline::time::Instant::from_nanos(ms * 1_000_000)
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
        Traces::in_dir(directory, "client", Vantage::Client, numbers, bounds).expect("traces")
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).expect("a directory");
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    #[test]
    fn trace_files_are_bounded_in_number_and_size_and_stay_valid() {
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
        // Connections that never end are bounded as well.
        for connection in 5_000..10_000 {
            traces.event(&event(connection, 1, MonitorKind::Created(ends())));
        }
        assert_eq!(traces.open.len(), MAX_OPEN_TRACES);
        drop(traces);
        assert_eq!(files(directory.path()), Vec::<PathBuf>::new());
    }

    /// Returns the number of events in a trace, the number that it reports as missing, and whether it is complete.
    fn counted(file: &Path) -> (usize, u64, bool) {
        let recording = read(&fs::read_to_string(file).expect("a file")).expect("a trace");
        let (missed, told): (Vec<_>, Vec<_>) =
            recording.records.iter().partition(|record| record.name == "events_missed");
        let missed = missed.iter().map(|record| record.number("count").expect("a count")).sum();
        (told.len(), missed, !recording.is_cut_off)
    }

    #[test]
    fn unwritten_records_are_counted_and_the_trace_continues() {
        let directory = tempfile::tempdir().expect("a directory");
        let (within, away) = (directory.path().join("traces"), directory.path().join("away"));
        let mut traces = in_dir(&within, Bounds::default());
        traces.event(&event(1, 1, MonitorKind::Created(ends())));
        traces.event(&event(1, 2, MonitorKind::Established(ends())));
        fs::rename(&within, &away).expect("the file exists");
        // The first event is not written, and the others are not even buffered.
        let agreed = || MonitorKind::Fallback(marline::monitor::FallbackReason::SynWithoutOption);
        traces.event(&event(1, 3, agreed()));
        (4..1_004).for_each(|ms| traces.event(&data(1, ms)));
        // A connection that starts in the meantime gets its header when it can be written.
        traces.event(&event(2, 1, MonitorKind::Created(ends())));
        traces.event(&event(2, 2, MonitorKind::Established(ends())));
        fs::rename(&away, &within).expect("the file exists");
        std::thread::sleep(RETRY_INTERVAL);
        traces.event(&event(1, 2_000, agreed()));
        traces.event(&data(1, 2_001));
        traces.event(&event(2, 2_002, MonitorKind::Closed(CloseReason::Finished)));
        drop(traces);
        let files = files(&within);
        assert_eq!(counted(&files[0]), (4, 1_001, true));
        assert_eq!(counted(&files[1]), (3, 0, true));
    }
}
