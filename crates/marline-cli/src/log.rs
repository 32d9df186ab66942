//! Log output on standard error; standard output is reserved for invites, data and reports. The
//! level is that of `-v` and `-q`, or else that of the configuration, which may change while the
//! program runs.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use marline_proxy::relay::CONNECTIONS;
use tracing_subscriber::filter::{LevelFilter, dynamic_filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

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

/// Starts the log. `flags` is what the command line says of its level: it then stays so.
pub fn start(flags: Option<LogLevel>, format: LogFormat) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(flags.unwrap_or_default()));
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
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
