//! Subcommand `marline down`: ends `marline up`, and removes the leftovers of a killed one.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use marline_tun::machine::{CleanupExtent, clean_up, records};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Time limit for `marline up` to end its connections and restore the machine's routing.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for removing the leftovers of a killed `marline up`.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Arguments of `marline down`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Remove rules and routes of a crashed `marline up`, but keep its kill switch (for service managers)
    #[arg(long)]
    pub after_crash: bool,
}

/// File with the process id of the `marline up` in this network namespace. It is locked until that process has ended
/// and all its changes are undone, because the undo process also holds the lock.
#[derive(Debug)]
pub(super) struct PidFile {
    _locked: fs::File,
}

impl PidFile {
    fn path() -> anyhow::Result<PathBuf> {
        records::file("pid")
            .context("cannot create /run/marline: run `sudo marline up` or `sudo marline down`")
    }

    /// Writes the file for this process, once the changes of an earlier process are undone.
    ///
    /// # Errors
    /// Another `marline up` is running, or the permission is missing.
    pub(super) fn write() -> anyhow::Result<PidFile> {
        let locked = PidFile::lock(&PidFile::path()?)?;
        let text = std::process::id().to_string();
        locked.set_len(0)?;
        std::os::unix::fs::FileExt::write_all_at(&locked, text.as_bytes(), 0)?;
        Ok(PidFile { _locked: locked })
    }

    /// Returns the locked file, once no other process holds the lock.
    fn lock(path: &Path) -> anyhow::Result<fs::File> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let file = options.open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let begun = Instant::now();
        while let Err(error) = file.try_lock() {
            match error {
                fs::TryLockError::Error(error) => return Err(error.into()),
                fs::TryLockError::WouldBlock if begun.elapsed() > CLEANUP_TIMEOUT => {
                    bail!("`marline up` is already running (stop it with `marline down`)")
                }
                fs::TryLockError::WouldBlock => std::thread::sleep(CHECK_INTERVAL),
            }
        }
        Ok(file)
    }

    /// Returns the process that wrote the file, if it is still running.
    fn running_process() -> anyhow::Result<Option<rustix::fd::OwnedFd>> {
        let Ok(text) = fs::read_to_string(PidFile::path()?) else { return Ok(None) };
        let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return Ok(None) };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(None) };
        // Process ids are reused, so the process must run this program. After an upgrade, the kernel reports the file
        // as "marline (deleted)".
        let program = |who: &str| {
            let path = fs::read_link(format!("/proc/{who}/exe")).ok()?;
            let name = path.file_name()?.to_str()?;
            Some(name.trim_end_matches(" (deleted)").to_owned())
        };
        let theirs = program(&pid.as_raw_nonzero().to_string());
        Ok((theirs.is_some() && theirs == program("self")).then_some(process))
    }
}

/// Ends the running `marline up`, and cleans up.
///
/// # Errors
/// The process does not end, or the permission is missing.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !marline_io::has_net_admin() {
        bail!(
            "`marline down` changes this machine's routes and needs root (CAP_NET_ADMIN): run `sudo marline down`"
        );
    }
    let cleaning = "cannot remove the rules and routes";
    if args.after_crash {
        let _locked = PidFile::lock(&PidFile::path()?)?;
        if clean_up(CleanupExtent::AllButSwitch).await.context(cleaning)?.held {
            println!("the kill switch stays on (`sudo marline down` removes it)");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let was_up = match PidFile::running_process()? {
        Some(process) => {
            pidfd_send_signal(&process, Signal::TERM)
                .context("cannot stop `marline up`: run `sudo marline down`")?;
            let ended = tokio::task::spawn_blocking(move || wait_for_exit(&process)).await?;
            if !ended? {
                bail!("`marline up` did not stop within {} s", STOP_TIMEOUT.as_secs());
            }
            true
        }
        None => false,
    };
    // Wait until a running cleanup has finished, so that its changes are not counted as leftovers.
    let _locked = PidFile::lock(&PidFile::path()?)?;
    let left = clean_up(CleanupExtent::Everything).await.context(cleaning)?;
    match (was_up, left.removed_kill_switch, left.removed) {
        (true, false, _) => println!("stopped"),
        (true, true, _) => println!("stopped; kill switch removed"),
        (false, true, _) => {
            println!("`marline up` was not running; removed a leftover kill switch")
        }
        (false, false, 0) => println!("`marline up` was not running"),
        (false, false, left) => {
            println!("`marline up` was not running; removed {left} leftover rules and routes")
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true if the process ends in time.
fn wait_for_exit(process: &rustix::fd::OwnedFd) -> std::io::Result<bool> {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    let patience = Timespec { tv_sec: STOP_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    Ok(poll(&mut polled, Some(&patience))? > 0)
}
