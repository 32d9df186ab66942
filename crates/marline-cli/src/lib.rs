//! The `marline` program: one file per subcommand in [`cmd`], and the modules they share.

#![forbid(unsafe_code)]

pub mod cmd;
pub mod config;
pub mod control;
pub mod dashboard;
pub mod demo;
pub mod doctor;
pub mod invite_places;
pub mod log;
mod log_limit;
pub mod memory;
pub mod metrics_http;
mod mobile_data;
pub mod native;
pub mod path_health_table;
pub mod path_quotas;
pub mod path_summary;
pub mod path_table;
pub mod qlog;
pub mod qr;
pub mod radio_signal;
#[cfg(test)]
mod reference;
pub mod reload;
pub mod service;
pub mod service_counts;
pub mod state_file;
mod succession;
mod sudo_caller;
pub mod times;

use std::pin::Pin;
use std::process::ExitCode;

pub use marline_algos::Registry;

use anyhow::Context;
use clap::{Parser, Subcommand};
use marline::advanced::KeptCapabilities;
use marline_proxy::secret::hide_invites;
use marline_proxy::signals;

use crate::log::LogArgs;

/// Clap's exit status for an invalid command line.
const USAGE_ERROR: u8 = 2;

/// Version, with the commit if the build knows it.
pub const VERSION: &str = env!("MARLINE_VERSION");

/// Multipath TCP in user space: application connections over several paths at once.
#[derive(Debug, Parser)]
#[command(name = "marline", version = VERSION, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Store an invite, so that all other commands find it.
    Join(cmd::join::Args),
    /// Run the client: local SOCKS5 and HTTP ports and forwards, carried over several paths.
    Client(Box<cmd::client::Args>),
    /// Run the server for clients: manage keys and invites, connect to targets.
    Server(Box<cmd::server::Args>),
    /// Run a front for a TCP service, reachable by Multipath TCP and plain TCP clients.
    Serve(Box<cmd::serve::Args>),
    /// Run a program, without root, with all its traffic through the server.
    Run(Box<cmd::run::Args>),
    /// Send the whole machine's traffic through the server, as root, until stopped.
    Up(Box<cmd::up::Args>),
    /// Stop `marline up` and remove its rules and kill switch, also after a crash.
    Down(cmd::down::Args),
    /// Open the login page of a network, in one program that bypasses the tunnel until logged in.
    Portal(Box<cmd::portal::Args>),
    /// Connect standard input and output to HOST PORT through the server (ssh's ProxyCommand).
    Connect(cmd::connect::Args),
    /// Print the effective configuration of file and flags, or its errors.
    CheckConfig(cmd::check_config::Args),
    /// Moved to `marline-lab link`.
    #[command(hide = true, disable_help_flag = true)]
    Link(cmd::moved_commands::Args),
    /// Moved to `marline-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Lab(cmd::moved_commands::Args),
    /// Run a demonstration: two emulated links, one of which fails. Needs no root.
    Demo(Box<cmd::demo::Args>),
    /// Check which features work on this machine, and what is missing.
    Doctor(cmd::doctor::Args),
    /// Show connections and their paths live.
    Monitor(cmd::monitor::Args),
    /// Show which paths work, and what a running process does.
    Status(cmd::status::Args),
    /// List the paths of a running client, or change one while connections use it.
    Path(cmd::path::Args),
    /// Change the scheduler of running connections.
    Scheduler(cmd::scheduler::Args),
    /// Reload the configuration of a running process.
    Reload(cmd::reload::Args),
    /// Replace a running server or front by the program now on disk; connections continue.
    Upgrade(cmd::upgrade::Args),
    /// List the policies that can be chosen by name, with their parameters.
    Policies(cmd::policies::Args),
    /// Generate shell completions.
    Completions(cmd::completions::Args),
    /// Print the manual page, or write all of them into a directory.
    Man(cmd::man::Args),
}

/// Returns the policies in the `marline` program: the built-in ones and those of the literature. Another program can
/// add its own and pass all of them to [`main_with`].
#[must_use]
pub fn registry() -> Registry {
    config::policies::registry()
}

/// Runs the whole program with these policies, which every subcommand and every process that the program starts knows
/// by name. To be called first in `main`.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     let mut registry = marline_cli::registry();
///     // my_policies::register(&mut registry) ...
///     marline_cli::main_with(registry)
/// }
/// ```
#[must_use]
pub fn main_with(registry: Registry) -> ExitCode {
    match config::policies::choose(registry) {
        Ok(()) => run(),
        Err(error) => fail(&error),
    }
}

/// Time limit for dropping tasks when the program ends.
const DROP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(250);

/// Parses the command line, runs the subcommand and prints its error.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    if matches!(cli.command, Command::Connect(_)) && cli.log.verbose == 0 {
        // Standard error of `connect` is the terminal of the program that started it, such as ssh.
        log::start_discarding();
    } else {
        // The log of `run` may continue in a file.
        let colors = !matches!(cli.command, Command::Run(_));
        log::start(cli.log.level(), cli.log.log_format, colors);
    }
    // A demo killed by SIGKILL cannot end its servers and clients.
    #[cfg(target_os = "linux")]
    if std::env::var_os(demo::DIE_WITH_PARENT).is_some() {
        let signal = Some(rustix::process::Signal::TERM);
        // The process can run without the signal.
        let _ = rustix::process::set_parent_process_death_signal(signal);
    }
    let ReadyCommand { work, drivers } = match begin(cli.command) {
        Ok(begun) => begun,
        Err(error) => return fail(&error),
    };
    let runtime = match runtime(drivers) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start threads")),
    };
    let result = runtime.block_on(work);
    // Drivers write their captures and traces when they are dropped, and must not be interrupted in the middle. But
    // a read of standard input cannot be canceled, so the wait is limited.
    runtime.shutdown_timeout(DROP_TIMEOUT);
    match result {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Returns a runtime with threads for half of the processors. A short exchange passes between a driver and a task
/// several times, each of which needs a wake-up if these are on different threads. On two processors, one thread
/// carries a fifth more exchanges than two do, and no less bulk data. Each driver (`--shards`) gets a thread if there
/// are enough processors. Tokio's environment variable overrides this.
fn runtime(drivers: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        builder.worker_threads(drivers.clamp(processors.div_ceil(2), processors));
    }
    // With tokio's default, an arriving message would wait for sixty polls of tasks that are always ready, such as
    // those of a bulk transfer. With thousands of busy streams of another client, 16 polls instead of 4 triple the
    // median time of a message in the server.
    builder.event_interval(POLLS_PER_CHECK).enable_all().build()
}

/// Number of polls of tasks after which a thread checks its sockets although tasks are ready.
const POLLS_PER_CHECK: u32 = 4;

type CommandFuture = Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>;

/// A command that is ready to run.
struct ReadyCommand {
    work: CommandFuture,
    /// Number of drivers that the command will have.
    drivers: usize,
}

/// Does everything that must precede the start of threads (capabilities are per thread), and returns the remaining
/// work.
fn begin(command: Command) -> anyhow::Result<ReadyCommand> {
    if matches!(
        command,
        Command::Client(_) | Command::Server(_) | Command::Serve(_) | Command::Up(_)
    ) {
        signals::ignore_other_signals().context("cannot install signal handlers")?;
    }
    if matches!(command, Command::Server(_) | Command::Serve(_)) {
        succession::find_predecessor().context("cannot take over from another process")?;
    }
    let mut drivers = 1;
    let work: CommandFuture = match command {
        Command::Join(args) => Box::pin(cmd::join::run(args)),
        Command::Client(args) => Box::pin(cmd::client::run(cmd::client::prepare(*args)?)),
        Command::Server(args) => {
            let prepared = cmd::server::prepare(*args)?;
            drivers = prepared.as_ref().map_or(1, cmd::server::PreparedServer::shards);
            Box::pin(cmd::server::run(prepared))
        }
        Command::Serve(args) => {
            let prepared = cmd::serve::prepare(*args)?;
            drivers = prepared.shards();
            Box::pin(cmd::serve::run(prepared))
        }
        Command::Run(args) => match cmd::run::prepare(*args) {
            Some(prepared) => Box::pin(cmd::run::run(prepared)),
            None => Box::pin(std::future::ready(Ok(ExitCode::FAILURE))),
        },
        Command::Portal(args) => match cmd::portal::prepare(*args)? {
            Some(prepared) => Box::pin(cmd::portal::run(prepared)),
            None => Box::pin(std::future::ready(Ok(ExitCode::FAILURE))),
        },
        Command::Up(args) => match cmd::up::prepare(*args)? {
            Some(prepared) => Box::pin(cmd::up::run(prepared)),
            None => Box::pin(std::future::ready(Ok(ExitCode::SUCCESS))),
        },
        Command::Down(args) => Box::pin(cmd::down::run(args)),
        Command::Connect(args) => Box::pin(cmd::connect::run(cmd::connect::prepare(args)?)),
        Command::CheckConfig(args) => Box::pin(cmd::check_config::run(args)),
        Command::Link(args) => Box::pin(cmd::moved_commands::run("link", "marline-lab link", args)),
        Command::Lab(args) => Box::pin(cmd::moved_commands::run("lab", "marline-lab", args)),
        Command::Demo(args) => {
            native::drop_privileges(KeptCapabilities::Nothing)?;
            Box::pin(cmd::demo::run(*args))
        }
        Command::Doctor(args) => Box::pin(cmd::doctor::run(cmd::doctor::prepare(args)?)),
        Command::Monitor(args) => Box::pin(cmd::monitor::run(args)),
        Command::Status(args) => Box::pin(cmd::status::run(args)),
        Command::Path(args) => Box::pin(cmd::path::run(args)),
        Command::Scheduler(args) => Box::pin(cmd::scheduler::run(args)),
        Command::Reload(args) => Box::pin(cmd::reload::run(args)),
        Command::Upgrade(args) => Box::pin(cmd::upgrade::run(args)),
        Command::Policies(args) => Box::pin(cmd::policies::run(args)),
        Command::Completions(args) => Box::pin(cmd::completions::run(args)),
        Command::Man(args) => Box::pin(cmd::man::run(args)),
    };
    Ok(ReadyCommand { work, drivers })
}

fn fail(error: &anyhow::Error) -> ExitCode {
    let text = format!("{error:#}");
    let text = hide_invites(&text);
    succession::report_to_predecessor(&text);
    eprintln!("marline: {text}");
    ExitCode::FAILURE
}

/// Prints the requested help or version, or the error of the command line, from which invites are removed.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let shown = hide_invites(&text);
    if shown == text || !error.use_stderr() {
        error.exit();
    }
    eprint!("{shown}");
    ExitCode::from(USAGE_ERROR)
}
