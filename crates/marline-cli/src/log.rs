//! Log output on standard error; standard output is reserved for invites, data and reports. The
//! level is that of `-v` and `-q`, or else that of the configuration, which may change while the
//! program runs.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use marline_proxy::relay::CONNECTIONS;
use tracing_subscriber::filter::{LevelFilter, dynamic_filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

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
    /// Also starts and ends.
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

/// How the log is written.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object per line: `timestamp`, `level`, and `fields` with `message` and what else is told.
    Json,
}

/// The level of the process's log; not set where flags have the last word.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Whether connections that end have lines.
static TELLS_CONNECTIONS: AtomicBool = AtomicBool::new(false);

/// Gives connections that end a line each from now on, or none.
pub fn tell_connections(tell: bool) {
    TELLS_CONNECTIONS.store(tell, Ordering::Relaxed);
}

/// Where lines go: they may find no room there (a full disk), or nobody who reads.
static SINK: Mutex<Sink<Stderr>> = Mutex::new(Sink::new(Stderr));

/// Lines of this process' log that could not be written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines of this process' log that could not be written (a full disk).
#[must_use]
pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Standard error without a buffer.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines into a writer that takes them or not.
struct Sink<W> {
    to: W,
    format: LogFormat,
    /// Lines that were lost and not told of.
    untold: u64,
    /// The last line was cut off.
    torn: bool,
}

impl<W: Write> Sink<W> {
    const fn new(to: W) -> Self {
        Sink { to, format: LogFormat::Text, untold: 0, torn: false }
    }

    /// Writes a line, and before it how many others were lost. Whether it was written.
    fn line(&mut self, line: &[u8]) -> bool {
        if self.torn && !self.put(b"\n") {
            self.untold += 1;
            return false;
        }
        if self.untold > 0 {
            let notice = self.notice();
            if !self.put(notice.as_bytes()) {
                self.untold += 1;
                return false;
            }
            self.untold = 0;
        }
        let written = self.put(line);
        self.untold += u64::from(!written);
        written
    }

    fn notice(&self) -> String {
        let (lines, time) = (self.untold, time_of_day());
        let words = "lines of this log could not be written before";
        match self.format {
            LogFormat::Text => format!("{time}  WARN {lines} {words}\n"),
            LogFormat::Json => {
                let fields = format!("{{\"message\":\"{words}\",\"lines\":{lines}}}");
                format!("{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"fields\":{fields}}}\n")
            }
        }
    }

    fn put(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return false,
                Ok(count) => {
                    self.torn = bytes[count - 1] != b'\n';
                    bytes = &bytes[count..];
                }
            }
        }
        true
    }
}

/// A line of the log on its way: whoever formats it writes it at once.
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

/// Starts the log. `flags` is what the command line says of its level: it then stays so.
pub fn start(flags: Option<LogLevel>, format: LogFormat) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(flags.unwrap_or_default()));
    let lines = fmt::layer().with_writer(|| Line).with_target(false);
    SINK.lock().unwrap_or_else(PoisonError::into_inner).format = format;
    let registry = tracing_subscriber::registry().with(filter);
    // Asked anew each time: the configuration may change.
    let wanted = dynamic_filter_fn(|line, _| {
        line.target() != CONNECTIONS || TELLS_CONNECTIONS.load(Ordering::Relaxed)
    });
    match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal());
            registry.with(lines.with_filter(wanted)).init();
        }
        LogFormat::Json => {
            registry.with(lines.json().with_span_list(false).with_filter(wanted)).init();
        }
    }
    if flags.is_none() {
        // A process has one log.
        let _ = LEVEL.set(handle);
    }
}

/// Changes the level, unless flags have the last word.
pub fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get() {
        // It fails for a log that is gone.
        let _ = handle.reload(LevelFilter::from(level));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, and then none.
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
    fn a_log_goes_on_when_there_is_room_and_says_how_much_is_missing() {
        let mut sink = Sink::new(Disk { room: 8, has: Vec::new() });
        assert!(sink.line(b"first\n"));
        assert!(!sink.line(b"second\n") && !sink.line(b"third\n"));
        sink.to.room = 1_000;
        assert!(sink.line(b"fourth\n") && sink.line(b"fifth\n"));
        let text = String::from_utf8(sink.to.has).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["first", "se"]);
        assert!(
            lines[2].ends_with("WARN 2 lines of this log could not be written before"),
            "{text}"
        );
        assert_eq!(lines[3..], ["fourth", "fifth"]);
    }

    #[test]
    fn the_notice_in_a_log_of_json_is_json() {
        let mut sink = Sink::new(Disk { room: 0, has: Vec::new() });
        sink.format = LogFormat::Json;
        assert!(!sink.line(b"{}\n"));
        let json: serde_json::Value = serde_json::from_str(&sink.notice()).unwrap();
        assert_eq!(
            (json["fields"]["lines"].as_u64(), json["level"].as_str()),
            (Some(1), Some("WARN"))
        );
    }
}
