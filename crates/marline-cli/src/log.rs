//! Log output on standard error. Standard output is reserved for invites, data and reports. The level is set by
//! `-v` and `-q`, or else by the configuration, which may change while the program runs.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use marline_proxy::relay::CONNECTIONS;
use tracing_subscriber::filter::{LevelFilter, dynamic_filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

use crate::log_limit::RepeatLimit;
use crate::times::time_of_day;

/// Log level.
#[derive(
    Copy,
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Errors that ended the program or a part of it.
    Error,
    /// Also warnings.
    Warn,
    /// Also starts and stops of services, and ends of connections.
    #[default]
    Info,
    /// Also each connection.
    Debug,
    /// Everything.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> LevelFilter {
        match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

/// Format of the log lines.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object per line: `timestamp`, `level`, and `fields` with `message` and the other fields.
    Json,
}

/// Handle for the level of the process's log. Not set if flags determine the level.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// True if the command line requests a more verbose log (`-v`).
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// True if the end of each connection is logged.
static LOGS_CONNECTIONS: AtomicBool = AtomicBool::new(false);

/// Options of the log.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LogArgs {
    /// More log output on standard error: -v debug, -vv trace.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Only warnings and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log format: text lines, or one JSON object per line.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

impl LogArgs {
    /// Returns the requested level.
    #[must_use]
    pub const fn level(&self) -> Option<LogLevel> {
        match (self.quiet, self.verbose) {
            (true, _) => Some(LogLevel::Warn),
            (false, 0) => None,
            (false, 1) => Some(LogLevel::Debug),
            (false, _) => Some(LogLevel::Trace),
        }
    }
}

/// Turns the log lines about closed connections on or off.
pub fn set_connection_logging(tell: bool) {
    LOGS_CONNECTIONS.store(tell, Ordering::Relaxed);
}

/// Destination of lines, which may refuse them (a full disk, or a closed pipe).
static SINK: Mutex<Sink<Output>> = Mutex::new(Sink::new(Output::Stderr));

/// Maximum number of bytes that a process writes into a log file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Number of log lines of this process that could not be written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of log lines of this process that could not be written (a full disk).
#[must_use]
pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Unbuffered destination of lines.
enum Output {
    Stderr,
    /// A file, and the number of bytes that may still be written.
    File(File, u64),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Stderr => io::stderr().write(bytes),
            Output::File(_, room) if *room < bytes.len() as u64 => {
                Err(io::ErrorKind::StorageFull.into())
            }
            Output::File(file, room) => {
                let written = file.write(bytes)?;
                *room -= written as u64;
                Ok(written)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Text of the notice about lines that could not be written; their number precedes it.
const LOST_LINES: &str = "log lines before this one could not be written";

/// Writes lines to a destination that may refuse them.
struct Sink<W> {
    to: W,
    format: LogFormat,
    /// Lost lines that were not reported yet.
    unreported: u64,
    /// True if the last line was cut off.
    is_cut_off: bool,
}

impl<W: Write> Sink<W> {
    const fn new(to: W) -> Self {
        Sink { to, format: LogFormat::Text, unreported: 0, is_cut_off: false }
    }

    /// Writes a line, preceded by a notice about lost ones. Returns true if it was written.
    fn line(&mut self, line: &[u8]) -> bool {
        if self.is_cut_off && !self.write_bytes(b"\n") {
            self.unreported += 1;
            return false;
        }
        if self.unreported > 0 {
            let notice = self.notice_line(self.unreported, LOST_LINES);
            if !self.write_bytes(notice.as_bytes()) {
                self.unreported += 1;
                return false;
            }
            self.unreported = 0;
        }
        let written = self.write_bytes(line);
        self.unreported += u64::from(!written);
        written
    }

    /// Writes how many lines like the next one were suppressed.
    fn log_suppressed_lines(&mut self, lines: u64) {
        let notice = self.notice_line(lines, "lines like the next one were suppressed");
        let _ = self.line(notice.as_bytes());
    }

    fn notice_line(&self, lines: u64, words: &str) -> String {
        let time = time_of_day();
        match self.format {
            LogFormat::Text => format!("{time}  WARN {lines} {words}\n"),
            LogFormat::Json => {
                let fields = format!("{{\"message\":\"{words}\",\"lines\":{lines}}}");
                format!("{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"fields\":{fields}}}\n")
            }
        }
    }

    fn write_bytes(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return false,
                Ok(count) => {
                    self.is_cut_off = bytes[count - 1] != b'\n';
                    bytes = &bytes[count..];
                }
            }
        }
        true
    }
}

/// Writer for a formatted line, which is written immediately.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !SINK.lock().unwrap_or_else(PoisonError::into_inner).line(line) {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the log. `flags` is the level from the command line, which then cannot change. `colors` is true to use
/// colors on a terminal.
pub fn start(flags: Option<LogLevel>, format: LogFormat, colors: bool) {
    VERBOSE.store(matches!(flags, Some(LogLevel::Debug | LogLevel::Trace)), Ordering::Relaxed);
    let (filter, handle) = reload::Layer::new(LevelFilter::from(flags.unwrap_or_default()));
    let lines = fmt::layer().with_writer(|| Line).with_target(false);
    SINK.lock().unwrap_or_else(PoisonError::into_inner).format = format;
    let registry = tracing_subscriber::registry().with(filter);
    // Evaluated for each line, because the configuration may change.
    let limit = RepeatLimit::default();
    let wanted = dynamic_filter_fn(move |line, _| {
        // The user has requested a line per connection, so these lines are not limited.
        if line.target() == CONNECTIONS {
            return LOGS_CONNECTIONS.load(Ordering::Relaxed);
        }
        let left_out = if line.is_event() { limit.try_acquire(line) } else { Some(0) };
        if let Some(left_out @ 1..) = left_out {
            SINK.lock().unwrap_or_else(PoisonError::into_inner).log_suppressed_lines(left_out);
        }
        left_out.is_some()
    });
    match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(colors && std::io::stderr().is_terminal());
            registry.with(lines.with_filter(wanted)).init();
        }
        LogFormat::Json => {
            registry.with(lines.json().with_span_list(false).with_filter(wanted)).init();
        }
    }
    if flags.is_none() {
        // A process has only one log.
        let _ = LEVEL.set(handle);
    }
}

/// Starts a log that is never written.
pub fn start_discarding() {
    tracing_subscriber::registry().with(LevelFilter::OFF).init();
}

/// Appends the log to this file from now on, up to 1 MB. A longer existing file is truncated. Only the user can
/// read the file. With `-v` the log stays on standard error.
///
/// # Errors
/// The file cannot be written.
pub fn continue_in(path: &Path) -> io::Result<()> {
    if VERBOSE.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let file = File::options().append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.len() > MAX_FILE_BYTES {
        file.set_len(0)?;
    }
    SINK.lock().unwrap_or_else(PoisonError::into_inner).to = Output::File(file, MAX_FILE_BYTES);
    Ok(())
}

/// Changes the level, unless flags determine it.
pub fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get() {
        // Fails if the log no longer exists.
        let _ = handle.reload(LevelFilter::from(level));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts at most `room` bytes.
    struct Disk {
        room: usize,
        has: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.has.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_continues_and_counts_missing_lines() {
        let mut sink = Sink::new(Disk { room: 8, has: Vec::new() });
        assert!(sink.line(b"first\n"));
        assert!(!sink.line(b"second\n") && !sink.line(b"third\n"));
        sink.to.room = 1_000;
        assert!(sink.line(b"fourth\n") && sink.line(b"fifth\n"));
        let text = String::from_utf8(sink.to.has).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["first", "se"]);
        assert!(
            lines[2].ends_with("WARN 2 log lines before this one could not be written"),
            "{text}"
        );
        assert_eq!(lines[3..], ["fourth", "fifth"]);
    }

    #[test]
    fn the_notice_in_a_log_of_json_is_json() {
        let mut sink = Sink::new(Disk { room: 0, has: Vec::new() });
        sink.format = LogFormat::Json;
        assert!(!sink.line(b"{}\n"));
        let json: serde_json::Value =
            serde_json::from_str(&sink.notice_line(1, LOST_LINES)).unwrap();
        assert_eq!(
            (json["fields"]["lines"].as_u64(), json["level"].as_str()),
            (Some(1), Some("WARN"))
        );
    }
}
