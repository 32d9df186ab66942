//! Child processes of this program: start, wait for readiness, orderly end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// Number of output lines kept for an error message.
const KEPT_LINES: usize = 12;

/// Time limit to become ready, generous for a loaded machine.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for an orderly end before the process is killed.
const CLOSING_TIME: Duration = Duration::from_secs(3);

/// A running process. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Process {
    what: String,
    child: Child,
    output: Arc<Mutex<VecDeque<String>>>,
    _readers: Vec<JoinHandle<()>>,
}

/// Environment variable for processes that must not outlive their parent, even if the parent is killed.
pub(crate) const DIE_WITH_PARENT: &str = "MARLINE_DIE_WITH_PARENT";

/// This program with these arguments.
fn command(arguments: &[String]) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).env(DIE_WITH_PARENT, "1");
    Ok(command)
}

/// Runs this program to its end and returns its standard output.
pub(super) async fn output(what: &str, arguments: &[String]) -> anyhow::Result<String> {
    let output =
        command(arguments)?.output().await.with_context(|| format!("cannot run {what}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{what} failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Process {
    /// Starts the process and waits for a line that starts with `ready` followed by an address.
    pub(super) async fn start(
        what: &str,
        arguments: &[String],
        ready: &str,
    ) -> anyhow::Result<(Process, SocketAddr)> {
        let mut command = command(arguments)?;
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (lines, mut first) = tokio::sync::mpsc::channel(64);
        let out = child.stdout.take().context("cannot read standard output")?;
        let error = child.stderr.take().context("cannot read standard error")?;
        let readers = vec![
            tokio::spawn(listen(out, said.clone(), Some(lines))),
            tokio::spawn(listen(error, said.clone(), None)),
        ];
        let process = Process { what: what.to_owned(), child, output: said, _readers: readers };
        let address = async {
            while let Some(line) = first.recv().await {
                if let Some(rest) = line.strip_prefix(ready) {
                    let word = rest.split_whitespace().next().unwrap_or_default();
                    return word.parse().ok();
                }
            }
            None
        };
        match tokio::time::timeout(READY_TIMEOUT, address).await {
            Ok(Some(address)) => Ok((process, address)),
            Ok(None) => bail!("{what} ended before it was ready:\n{}", process.last_output_lines()),
            Err(_) => {
                bail!(
                    "{what} is not ready after {READY_TIMEOUT:?}:\n{}",
                    process.last_output_lines()
                )
            }
        }
    }

    /// Returns the last lines of output.
    pub(super) fn last_output_lines(&self) -> String {
        let said = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = said.iter().map(|line| format!("    {line}")).collect();
        lines.join("\n")
    }

    /// Returns the rest of the first line that starts with this text, if it soon appears among the last lines.
    pub(super) async fn find_output_after(&self, begin: &str) -> Option<String> {
        for _ in 0..50 {
            let found = {
                let said = self.output.lock().unwrap_or_else(PoisonError::into_inner);
                said.iter().find_map(|line| line.strip_prefix(begin)).map(str::to_owned)
            };
            if found.is_some() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }

    /// Returns an error if the process has ended by itself.
    pub(super) fn exit_error(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{} ended ({status}):\n{}", self.what, self.last_output_lines()))
    }

    /// Requests an orderly end, and kills the process if it does not end.
    pub(super) async fn end(mut self) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // The process may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(CLOSING_TIME, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

/// Keeps the last lines, and passes each on while there is a receiver.
async fn listen(
    stream: impl AsyncRead + Unpin,
    said: Arc<Mutex<VecDeque<String>>>,
    mut lines: Option<tokio::sync::mpsc::Sender<String>>,
) {
    let mut reader = BufReader::new(stream).lines();
    while let Ok(Some(line)) = reader.next_line().await {
        if lines.as_ref().is_some_and(|sender| sender.try_send(line.clone()).is_err()) {
            lines = None;
        }
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == KEPT_LINES {
            said.pop_front();
        }
        said.push_back(line);
    }
}
