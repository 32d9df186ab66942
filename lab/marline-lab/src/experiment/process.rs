//! Process of one end, controlled by its parent.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use super::end::Job;
use crate::net::Net;
use crate::scenario::Side;
use crate::workload::EndLogs;

/// Process that is killed on drop.
pub(super) struct End {
    child: Child,
    lines: BufReader<ChildStdout>,
    name: Side,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    pub(super) fn start(net: &Net, job: &Job) -> anyhow::Result<End> {
        let side = job.side;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("end").arg(serde_json::to_string(job)?);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            net.spawn(side, &mut command).with_context(|| format!("cannot start the {side}"))?;
        let lines =
            BufReader::new(child.stdout.take().context("cannot read the end's standard output")?);
        Ok(End { child, lines, name: side })
    }

    fn read_stderr(&mut self) -> String {
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.take(4_096).read_to_string(&mut said);
        }
        said.trim().to_owned()
    }

    /// Waits until the process reports that it is ready.
    pub(super) fn ready(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        if line.trim() != "ready" {
            let said = self.read_stderr();
            bail!("the {} did not become ready: {said}", self.name);
        }
        Ok(())
    }

    /// Waits for the process to exit, and reads its log and any traces of its connections.
    pub(super) fn log(&mut self, deadline: Instant) -> anyhow::Result<(EndLogs, Vec<String>)> {
        // A log may be longer than the pipe's buffer, and the process exits only when it has been read.
        let (name, id) = (self.name, self.child.id());
        let (done, watch) = std::sync::mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            let left = deadline.saturating_duration_since(Instant::now());
            if watch.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                && let Some(pid) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw)
            {
                // The process is not reaped before the channel is closed, so its id is not reused.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let mut text = String::new();
        let read = self.lines.read_to_string(&mut text);
        drop(done);
        let _ = watchdog.join();
        read?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the {name} ended with {status}: {}", self.read_stderr());
        }
        let line = |begin: char| text.lines().find(|line| line.starts_with(begin));
        let log = serde_json::from_str(line('{').context("the process did not print its log")?)?;
        Ok((log, line('[').map(serde_json::from_str).transpose()?.unwrap_or_default()))
    }
}
