//! Supervision of running links until they are stopped by a signal, a time limit, standard input or
//! a control socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use marline_emulator::RelayReport;
use marline_lab::net::Links;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, Semaphore};

use marline_cli::cmd::monitor::print;
use marline_cli::control;
use marline_lab::emulation::report;
use marline_lab::emulation::script::Line;

/// Maximum command length in bytes.
const MAX_LINE: u64 = 4_096;

/// Maximum number of simultaneous control connections.
const MAX_PEERS: usize = 8;

/// Options for the control and the end of a link.
#[derive(Clone, Debug, clap::Args)]
pub struct SupervisorArgs {
    /// Also accept commands on this unix socket: one command per line, answered by one JSON object.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Seconds to run [default: until interrupted].
    #[arg(long = "for", visible_alias = "seconds", value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Time to spin instead of sleeping before a packet is due. Costs CPU time, but improves precision.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub spin_us: u64,
    /// Print the final statistics as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Stats(Stats),
    Quit,
}

/// Statistics of links.
#[derive(Debug)]
pub(crate) enum Stats {
    One(Box<RelayReport>),
    Many(Vec<RelayReport>),
}

impl Stats {
    fn text(&self) -> String {
        match self {
            Stats::One(one) => report::text(one),
            Stats::Many(many) => many.iter().map(report::text).collect(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Stats::One(one) => report::to_json(one),
            Stats::Many(many) => many.iter().map(report::to_json).collect(),
        }
    }
}

/// Running links.
pub(crate) trait SupervisedLinks: Send + Sync + 'static {
    /// Executes a line of commands.
    fn execute(&self, line: &str) -> anyhow::Result<Answer>;

    /// Statistics so far.
    fn stats(&self) -> anyhow::Result<Stats>;
}

/// Links with commands that start with a path's name: links of a network, or between two namespaces.
#[derive(Debug)]
pub(crate) struct NamedLinks<T>(pub(crate) T);

impl<T: AsRef<Links> + Send + Sync + 'static> SupervisedLinks for NamedLinks<T> {
    fn execute(&self, line: &str) -> anyhow::Result<Answer> {
        match line.parse()? {
            Line::Path(path, order) => self.0.as_ref().order(&path, &order)?,
            Line::Stats => return self.stats().map(Answer::Stats),
            Line::Quit => return Ok(Answer::Quit),
        }
        Ok(Answer::Done)
    }

    fn stats(&self) -> anyhow::Result<Stats> {
        self.0.as_ref().report().map(Stats::Many)
    }
}

/// Handler of the signals that end links. It must be created before anything that needs cleanup.
#[derive(Debug)]
pub(crate) struct LinkSupervisor {
    terminated: Signal,
    interrupted: Signal,
    time: Option<Duration>,
}

impl LinkSupervisor {
    pub(crate) fn new(args: &SupervisorArgs) -> anyhow::Result<LinkSupervisor> {
        let time = args.seconds.map(Duration::try_from_secs_f64).transpose();
        Ok(LinkSupervisor {
            terminated: signal(SignalKind::terminate())?,
            interrupted: signal(SignalKind::interrupt())?,
            time: time.context("invalid --for")?,
        })
    }

    /// Runs the links until a signal, a command or the time limit ends them, and prints their statistics.
    pub(crate) async fn run(
        mut self,
        running: Arc<impl SupervisedLinks>,
        args: &SupervisorArgs,
    ) -> anyhow::Result<()> {
        let quit = Arc::new(Notify::new());
        let _control = match &args.control {
            Some(path) => Some(serve(path, running.clone(), quit.clone())?),
            None => None,
        };
        let over = async {
            match self.time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupted.recv() => {}
            _ = self.terminated.recv() => {}
            () = over => {}
            () = quit.notified() => {}
            () = run_stdin_commands(&*running) => {}
        }
        let stats = running.stats()?;
        let text = if args.json { format!("{}\n", stats.json()) } else { stats.text() };
        // A closed reader is not an error.
        let _ = print(&text);
        Ok(())
    }
}

/// Executes the commands on standard input until `quit`. At the end of the input, the links continue.
async fn run_stdin_commands(running: &impl SupervisedLinks) {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.trim().is_empty() {
            continue;
        }
        match running.execute(&line) {
            Ok(Answer::Done) => {}
            Ok(Answer::Stats(stats)) => eprint!("{}", stats.text()),
            Ok(Answer::Quit) => return,
            Err(error) => eprintln!("marline: {error:#}"),
        }
    }
    std::future::pending().await
}

/// A control socket, removed on drop.
#[derive(Debug)]
struct Control {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        // A missing socket file is not an error.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves commands on a unix socket.
fn serve(
    path: &Path,
    running: Arc<impl SupervisedLinks>,
    quit: Arc<Notify>,
) -> anyhow::Result<Control> {
    let listener = control::listen(path)
        .with_context(|| format!("cannot listen at --control {}", path.display()))?;
    let task = tokio::spawn(accept(listener, running, quit));
    Ok(Control { path: path.to_path_buf(), task })
}

async fn accept(listener: UnixListener, running: Arc<impl SupervisedLinks>, quit: Arc<Notify>) {
    let places = Arc::new(Semaphore::new(MAX_PEERS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors left. Wait until some are free.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if control::is_allowed(&stream) {
            let (running, quit) = (running.clone(), quit.clone());
            tokio::spawn(async move {
                // A closed connection is not an error.
                let _ = serve_connection(stream, &*running, &quit).await;
                drop(place);
            });
        }
    }
}

async fn serve_connection(
    stream: UnixStream,
    running: &impl SupervisedLinks,
    quit: &Notify,
) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        if (&mut reader).take(MAX_LINE).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let answer = running.execute(&line);
        let reply = match &answer {
            Ok(Answer::Stats(stats)) => json!({ "ok": stats.json() }),
            Ok(_) => json!({ "ok": true }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        writer.write_all(format!("{reply}\n").as_bytes()).await?;
        if matches!(answer, Ok(Answer::Quit)) {
            quit.notify_one();
        }
    }
}
