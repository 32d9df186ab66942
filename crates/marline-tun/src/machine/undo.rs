//! A process of its own that gives the machine its routing back if the other one does not come to it.
//!
//! Killed outright, a process undoes nothing. Its interface goes with it, but rules stay, and settings of the system.
//! So a child is made before anything is changed, does nothing but wait for its parent's end, and undoes what the
//! parent had not undone by then. Signals to end do not end it, as they go to whole groups.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use anyhow::Context;
use marline_io::{KeptCapabilities, keep_capabilities};
use rustix::pipe::{PipeFlags, pipe_with};

use super::reverse_path::ReversePath;
use crate::process::{Fork, close_inherited, fork, ignore_signals};

/// The machine is about to be changed.
const ARMED: u8 = b'+';
/// All was undone.
const DONE: u8 = b'-';

/// The waiting process, as its parent sees it.
#[derive(Debug)]
pub struct UndoProcess {
    pipe: File,
}

impl UndoProcess {
    /// Starts it. Must be called while this process has one thread, and before it opens what would outlive it there.
    ///
    /// # Errors
    /// The system has no room for another process.
    pub fn start() -> anyhow::Result<UndoProcess> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).context("no pipe")?;
        match fork().context("no process that would undo the changes")? {
            Fork::Parent(_) => Ok(UndoProcess { pipe: ours.into() }),
            Fork::Child => {
                drop(ours);
                let _ = rustix::process::setsid();
                ignore_signals();
                // Routes and rules are all that it touches; without the rest dropped it still does its work.
                let _ = keep_capabilities(KeptCapabilities::NetAdmin);
                let ended = wait_and_undo(theirs);
                if let Err(error) = &ended {
                    eprintln!("marline: the machine's routing is not what it was: {error:#}");
                }
                std::process::exit(i32::from(ended.is_err()));
            }
        }
    }

    /// From now on there is something to undo.
    pub(super) fn arm(&mut self, reverse_path: Option<ReversePath>) -> io::Result<()> {
        self.pipe.write_all(&[ARMED, reverse_path.map_or(0, ReversePath::to_byte)])
    }

    /// There is nothing to undo any more.
    pub(super) fn disarm(&mut self) {
        // It may be gone, and then does not undo anything either.
        let _ = self.pipe.write_all(&[DONE]);
    }
}

/// Waits for the parent's end.
fn wait_and_undo(pipe: OwnedFd) -> anyhow::Result<()> {
    close_inherited()?;
    let mut said = Vec::new();
    File::from(pipe).read_to_end(&mut said)?;
    let [ARMED, before] = said[..] else { return Ok(()) };
    if let Some(before) = ReversePath::from_byte(before) {
        before.restore();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(super::clean_up())?;
    Ok(())
}
